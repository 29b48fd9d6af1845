"""EAGLE-3: one decoder layer that continues the target's features (arXiv 2503.01840).

A *pair* i is the token at position i + 1 with the target's feature of position i; its rotary
position is i. The layer maps the pair of the last committed token to a vector z, from which the
first draft is drawn. From then on z stands in for the feature that the target has not computed yet:
the pair (draft g, z) gives draft g + 1.

The cache holds only pairs with true features. Those of the drafts are scratch behind its length,
and what of them is accepted is written again from the features of the target's own forward.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct

from asd_jax.cache import KVCache, init_cache
from asd_jax.drafters import eagle3_config
from asd_jax.drafters.eagle3_config import Eagle3Config
from asd_jax.drafters.eagle3_model import (
    Eagle3,
    Eagle3Weights,
    Program,
    remember_pairs,
    run_pairs,
    score,
    widen,
)
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, ReadTensor, TargetFacts
from asd_jax.drafters.vocabulary_map import target_ids, target_rows
from asd_jax.models.transformer import PARAM_AXES, device_share
from asd_jax.sampling import ReducedVocabulary, SamplingParams, draw
from asd_jax.sharding import is_any
from asd_jax.types import Drafter, Proposal


class Eagle3State(struct.PyTreeNode):
    """The committed history without the anchor: pairs in the cache, the newest ones pending.

    Pending pairs are those of the last commit. `propose` writes them into the cache, and `commit`
    counts them as part of it.

    Attributes:
      cache: Keys and values of pairs with true features; its length is their number.
      tokens: Tokens of the pending pairs but the newest, whose token is the anchor, int32 [B, G].
      features: Features of all, [B, G+1, D].
      num_pending: int32 [B], 1..G+1 once a prompt is in.
    """

    cache: KVCache
    tokens: jax.Array
    features: jax.Array
    num_pending: jax.Array


@dataclasses.dataclass(frozen=True)
class _Init:
    program: Program

    def __call__(self, weights: Eagle3Weights, batch: int, num_slots: int) -> Eagle3State:
        del weights
        program, decoder = self.program, self.program.config.decoder
        num_draft, heads = program.config.num_draft_tokens, program.share.num_kv_heads
        num_slots += num_draft  # drafts beyond the caller's last slot
        return Eagle3State(
            cache=init_cache(1, batch, heads, num_slots, decoder.head_dim, program.dtype),
            tokens=jnp.zeros((batch, num_draft), jnp.int32),
            features=jnp.zeros((batch, num_draft + 1, decoder.hidden_size), program.dtype),
            num_pending=jnp.zeros((batch,), jnp.int32),
        )


@dataclasses.dataclass(frozen=True)
class _Prefill:
    program: Program

    def __call__(
        self,
        weights: Eagle3Weights,
        state: Eagle3State,
        tokens: jax.Array,
        features: jax.Array,
        hidden: jax.Array,
        lengths: jax.Array,
    ) -> Eagle3State:
        del hidden
        batch, num_tokens = tokens.shape
        fused = self.program.core(weights).fuse(features)
        following = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        cache = remember_pairs(self.program, weights, following, fused, state.cache)
        # The last pair waits for its token; behind it is padding, masked until overwritten.
        last = (lengths - 1).astype(jnp.int32)
        by_row = fused.reshape(-1, batch, num_tokens)
        pending = jnp.take_along_axis(by_row, last[None, :, None], axis=2)[..., 0]
        return state.replace(
            cache=cache.replace(length=last),
            features=state.features.at[:, 0].set(pending.T),
            num_pending=jnp.ones_like(last),
        )


@dataclasses.dataclass(frozen=True)
class _Propose:
    program: Program

    def __call__(
        self,
        weights: Eagle3Weights,
        state: Eagle3State,
        anchor: jax.Array,
        position: jax.Array,
        sampling: SamplingParams,
    ) -> tuple[Proposal, Eagle3State]:
        program, batch = self.program, anchor.shape[0]
        last = jnp.maximum(state.num_pending - 1, 0)
        # The newest pair is the first step; all before it, G at most, only need to be remembered.
        older = state.features[:, :-1].reshape(-1, state.features.shape[-1]).T
        cache = remember_pairs(program, weights, state.tokens, older, state.cache)

        is_sampled = is_any(sampling.temperature > 0, program.data_axis)
        norm = program.core(weights).norm

        def step(carry: tuple, index: jax.Array) -> tuple:
            token, feature, cache = carry
            start = state.cache.length + last + index
            z, cache = run_pairs(program, weights, token[:, None], feature, cache, start)
            normed = norm(z)
            logits = score(program, weights, normed)
            at = position + 1 + index
            draft = _draw(program, weights, logits, sampling, at, is_sampled)
            wide = None if program.logits_width is None else widen(program, weights, logits)
            fed_back = normed if program.config.norm_output else z
            return (draft, fed_back, cache), (draft, wide)

        newest = jnp.take_along_axis(state.features, last[:, None, None], axis=1)[:, 0].T
        steps = jnp.arange(program.config.num_draft_tokens, dtype=jnp.int32)
        drafts: jax.Array
        logits: jax.Array | None
        carry, (drafts, logits) = jax.lax.scan(step, (anchor, newest, cache), steps)
        proposal = Proposal(
            tokens=drafts.T,
            length=jnp.full((batch,), program.config.num_draft_tokens, jnp.int32),
            logits=None if logits is None else logits.transpose(2, 0, 1),
        )
        return proposal, state.replace(cache=carry[2])


def _draw(
    program: Program,
    weights: Eagle3Weights,
    logits: jax.Array,
    sampling: SamplingParams,
    position: jax.Array,
    is_sampled: jax.Array,
) -> jax.Array:
    """Draws one draft a row from logits as `score` gives them; target ids, int32 [B]."""
    ids, size = weights.token_ids, program.config.decoder.vocab_size
    return draw(
        logits,
        sampling,
        position,
        is_sampled,
        vocab_major=True,
        reduced=None if ids is None else ReducedVocabulary(ids, size),
        model_axis=program.share.axis if ids is None else None,
    )


@dataclasses.dataclass(frozen=True)
class _Commit:
    program: Program

    def __call__(
        self,
        weights: Eagle3Weights,
        state: Eagle3State,
        tokens: jax.Array,
        features: jax.Array,
        hidden: jax.Array,
        num_kept: jax.Array,
    ) -> Eagle3State:
        del hidden
        batch, num_tokens = tokens.shape
        fused = self.program.core(weights).fuse(features)
        rows = fused.T.reshape(batch, num_tokens, -1)
        room = state.features.shape[1] - num_tokens  # more where the caller drafts less than G
        following = jnp.pad(tokens[:, 1:], ((0, 0), (0, room)))
        is_kept = num_kept > 0
        length = state.cache.length
        return state.replace(
            cache=state.cache.replace(
                length=jnp.where(is_kept, length + state.num_pending, length)
            ),
            tokens=jnp.where(is_kept[:, None], following, state.tokens),
            features=jnp.where(
                is_kept[:, None, None],
                jnp.pad(rows, ((0, 0), (0, room), (0, 0))),
                state.features,
            ),
            num_pending=jnp.where(is_kept, num_kept, state.num_pending).astype(jnp.int32),
        )


def as_drafter(
    config: Eagle3Config,
    module: Eagle3,
    facts: TargetFacts,
    options: DrafterOptions,
    read: ReadTensor,
) -> Drafter:
    """Returns the loaded module as a `Drafter`, with the tables that it shares with the target.

    Args:
      config: From `eagle3_config.read_config`.
      module: One device's share, with its weights.
      facts: Of the target.
      options: What the user says.
      read: Reads tensors that are no parameters.

    Raises:
      ValueError: The vocabulary map is not one, or there is no usable embedding.
    """
    token_ids = read_token_ids(config, read)
    own_head = module.reduced_head if config.is_reduced else module.lm_head
    if own_head is not None:
        head = own_head.get_value()  # of a shape too, which has no [...]
    else:
        head = facts.lm_head if token_ids is None else target_rows(facts.lm_head, token_ids)
    embedding = facts.embed_tokens
    if module.embed_tokens is not None and _is_own(module.embed_tokens[...], embedding):
        embedding = module.embed_tokens[...]
    if embedding.shape[1] != config.decoder.hidden_size:
        raise ValueError(
            f"embed_tokens: the drafter's, of width {config.decoder.hidden_size}, is zero or NaN, "
            f"and the target's has width {embedding.shape[1]}"
        )
    module.embed_tokens = module.lm_head = module.reduced_head = None
    graphdef, core = nnx.split(module)
    program = Program(
        graphdef=graphdef,
        config=config,
        share=module.share,
        dtype=module.dtype,
        data_axis=facts.data_axis,
        logits_width=facts.lm_head.shape[0] if options.with_logits else None,
    )
    ids = None if token_ids is None else jnp.asarray(token_ids)
    return Drafter(
        params=Eagle3Weights(core=core, embed_tokens=embedding, head=head, token_ids=ids),
        init=_Init(program),
        prefill=_Prefill(program),
        propose=_Propose(program),
        commit=_Commit(program),
        name=FAMILY.name,
        num_draft_tokens=config.num_draft_tokens,
        feature_layers=config.feature_layers,
    )


def read_token_ids(config: Eagle3Config, read: ReadTensor) -> np.ndarray | None:
    """Returns the target ids of the draft vocabulary, int32 [Vd]; None where it is the target's.

    Raises:
      ValueError: The files' tables are no such map, or contradict each other.
    """
    ids = target_ids(
        config.draft_vocab_size,
        config.decoder.vocab_size,
        offsets=None if config.d2t is None else read(config.d2t),
        mask=None if config.t2d is None else read(config.t2d),
    )
    return ids if config.is_reduced else None


def _is_own(own: jax.Array, shared: jax.Array) -> bool:
    """Returns whether an embedding is trained, and not a leftover or a copy of the target's."""
    if not bool(jnp.all(jnp.isfinite(own))) or not bool(jnp.any(own != 0)):
        return False
    return own.shape != shared.shape or bool(jnp.any(own.astype(shared.dtype) != shared))


FAMILY = DrafterFamily(
    name="eagle3",
    is_released_as=eagle3_config.is_released_as,
    read_config=eagle3_config.read_config,
    key_rules=eagle3_config.key_rules,
    ignored_keys=eagle3_config.ignored_keys,
    param_axes=(
        (r"reduced_head", (None, "embed")),
        (r"fc/weight", ("embed", None)),
        (r"fc/bias", ("embed",)),
        (r"fc_norm/\d+/weight", ("embed",)),
        *PARAM_AXES,
    ),
    divide=lambda config, size, axis: device_share(config.decoder, size, axis),
    build=lambda config, share, dtype, rngs: Eagle3(config, share, dtype=dtype, rngs=rngs),
    as_drafter=as_drafter,
    takes=("tap_convention",),
)
