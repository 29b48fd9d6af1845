"""A smaller model of the same vocabulary as drafter: it writes the next G tokens by itself.

Its cache holds the committed history like the target's, exceptions included, since what it drafted
is what was kept. The last draft of a block was never fed to it, so if the whole block is accepted
one row is missing. Instead of a special case, every proposal begins with the last two tokens: the
first of them is written a second time with the same values, or caught up with.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from asd_jax.sampling import SamplingParams, draw
from asd_jax.sharding import is_any
from asd_jax.types import Drafter, Proposal, PyTree, Target

_PREFILL_CHUNK = 256  # prompt tokens of a row in one forward


class DraftModelState(struct.PyTreeNode):
    """What a draft model remembers.

    Attributes:
      cache: Of the draft model; its length counts the committed tokens before the anchor.
      last_token: The last of them, int32 [B].
    """

    cache: PyTree
    last_token: jax.Array


def _init(model: Target, batch: int, num_slots: int) -> DraftModelState:
    return DraftModelState(
        cache=model.init_cache(batch, num_slots), last_token=jnp.zeros((batch,), jnp.int32)
    )


def _prefill(
    model: Target,
    state: DraftModelState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    lengths: jax.Array,
) -> DraftModelState:
    del features, hidden
    batch, padded = tokens.shape
    chunk = min(_PREFILL_CHUNK, padded)
    first = jnp.zeros((batch,), jnp.int32)

    def run_chunk(index: jax.Array, cache: PyTree) -> PyTree:
        # The last chunk reaches back instead of over the end: it writes some rows a second time.
        start = jnp.minimum(index * chunk, padded - chunk)
        cache = cache.replace(length=jnp.full((batch,), start, jnp.int32))
        rows = jax.lax.dynamic_slice_in_dim(tokens, start, chunk, axis=1)
        return model.forward(model.params, rows, cache, logit_rows=first, feature_layers=()).cache

    cache = jax.lax.fori_loop(0, -(-padded // chunk), run_chunk, state.cache)
    last = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)[:, 0]
    return DraftModelState(cache=cache.replace(length=lengths), last_token=last)


@dataclasses.dataclass(frozen=True)
class _Propose:
    """`Drafter.propose` for one G; equal ones share compiled programs."""

    num_draft: int
    vocab_size: int
    with_logits: bool

    def __call__(
        self,
        model: Target,
        state: DraftModelState,
        anchor: jax.Array,
        position: jax.Array,
        sampling: SamplingParams,
    ) -> tuple[Proposal, DraftModelState]:
        batch = anchor.shape[0]
        is_sampled = is_any(sampling.temperature > 0, model.data_axis)

        def step(tokens: jax.Array, start: jax.Array, cache: PyTree) -> tuple:
            """Feeds tokens [B, T] at `start` and draws the one behind them."""
            row = jnp.full((batch,), tokens.shape[1] - 1, jnp.int32)
            output = model.forward(
                model.params,
                tokens,
                cache.replace(length=start),
                logit_rows=row,
                feature_layers=(),
            )
            logits = jnp.moveaxis(output.logits[:, 0], -1, 0)  # [V, B], as they lie in memory
            token = draw(
                logits,
                sampling,
                start + tokens.shape[1],
                is_sampled,
                vocab_major=True,
                model_axis=model.model_axis,
            )
            return token, output.cache, self._whole_logits(logits, model)

        last_two = jnp.stack([state.last_token, anchor], axis=1)
        token, cache, logits = step(last_two, position - 1, state.cache)

        def next_step(carry: tuple, offset: jax.Array) -> tuple:
            token, cache = carry
            following, cache, logits = step(token[:, None], position + offset, cache)
            return (following, cache), (following, logits)

        offsets = jnp.arange(1, self.num_draft, dtype=jnp.int32)
        rest: Any
        (_, cache), rest = jax.lax.scan(next_step, (token, cache), offsets)
        tokens, logits = jax.tree.map(
            lambda first, others: jnp.moveaxis(jnp.concatenate([first[None], others]), 0, 1),
            (token, logits),
            rest,
        )
        proposal = Proposal(
            tokens=tokens, length=jnp.full((batch,), self.num_draft, jnp.int32), logits=logits
        )
        return proposal, state.replace(cache=cache.replace(length=state.cache.length))

    def _whole_logits(self, logits: jax.Array, model: Target) -> jax.Array | None:
        """Returns logits [B, V] in the width of the target's vocabulary, if they are wanted."""
        if not self.with_logits:
            return None
        rows = logits.T.astype(jnp.float32)
        if model.model_axis is not None:
            rows = jax.lax.all_gather(rows, model.model_axis, axis=1, tiled=True)
        missing = max(self.vocab_size - rows.shape[1], 0)
        rows = jnp.pad(rows, ((0, 0), (0, missing)), constant_values=-jnp.inf)
        return rows[:, : self.vocab_size]


def _commit(
    model: Target,
    state: DraftModelState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    num_kept: jax.Array,
) -> DraftModelState:
    del model, features, hidden
    last = jnp.take_along_axis(tokens, jnp.maximum(num_kept - 1, 0)[:, None], axis=1)[:, 0]
    return DraftModelState(
        cache=state.cache.replace(length=state.cache.length + num_kept),
        last_token=jnp.where(num_kept > 0, last, state.last_token),
    )


def draft_model(
    model: Target,
    num_draft_tokens: int,
    *,
    vocab_size: int | None = None,
    with_logits: bool = False,
) -> Drafter:
    """Returns a model as the drafter of another one of the same vocabulary.

    Args:
      model: On the target's mesh, if that is on one.
      num_draft_tokens: G, tokens a round, >= 1.
      vocab_size: Width of the target's logits, for `with_logits`. Default: the model's own.
      with_logits: Whether proposals carry the model's logits, for rules that read them.

    Raises:
      ValueError: `num_draft_tokens` < 1.
    """
    if num_draft_tokens < 1:
        raise ValueError(
            f"num_draft_tokens: got {num_draft_tokens}, allowed is a whole number >= 1"
        )
    width = model.vocab_size if vocab_size is None else vocab_size
    return Drafter(
        params=model,
        init=_init,
        prefill=_prefill,
        propose=_Propose(num_draft_tokens, width, with_logits),
        commit=_commit,
        name="draft_model",
        num_draft_tokens=num_draft_tokens,
        num_params=sum(leaf.size for leaf in jax.tree.leaves(model.params)),
        context_length=model.context_length,
    )
