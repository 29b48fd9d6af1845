"""Medusa: heads beside the target's own, each predicting one token further ahead.

A head is residual blocks and an output projection on one final-norm hidden state of the target.
Nothing is recurrent and nothing is cached: all that a row keeps is that hidden state. Source:
arXiv 2401.10774 and FasterDecoding/Medusa@e2a5d20, `medusa/model/medusa_model.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from asd_jax.drafters import medusa_config
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, ReadTensor, TargetFacts
from asd_jax.drafters.medusa_config import MedusaConfig
from asd_jax.models.layers import Linear, score_vocabulary
from asd_jax.models.transformer import DeviceShare
from asd_jax.sampling import SamplingParams, draw
from asd_jax.sharding import is_any
from asd_jax.types import Drafter, Proposal, PyTree


class MedusaHead(nnx.Module):
    """Residual blocks and an output projection, of which a device may hold some rows."""

    def __init__(
        self, config: MedusaConfig, share: DeviceShare, *, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        dim = config.hidden_size
        self.blocks = nnx.List(
            Linear(dim, dim, bias=config.has_bias, dtype=dtype, rngs=rngs)
            for _ in range(config.num_layers)
        )
        table = (share.vocab_size, dim)
        self.lm_head = (
            nnx.Param(jax.random.normal(rngs.params(), table, dtype) * 0.02)
            if config.has_output
            else None
        )

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden states [D, B] to what the output projection reads, [D, B]."""
        for block in self.blocks:
            hidden = hidden + jax.nn.silu(block(hidden))
        return hidden

    def score(self, hidden: jax.Array, num_ids: int, axis: str | None) -> jax.Array:
        """Maps what `__call__` returned to logits [V, B] with the head's own projection."""
        assert self.lm_head is not None
        return score_vocabulary(self.lm_head[...], hidden, num_ids, axis)


class MedusaHeads(nnx.Module):
    """The heads, or one device's share of them."""

    def __init__(
        self, config: MedusaConfig, share: DeviceShare, *, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.config = config
        self.axis = share.axis
        self.dtype = jnp.dtype(dtype)
        self.heads = nnx.List(
            MedusaHead(config, share, dtype=dtype, rngs=rngs) for _ in range(config.num_used_heads)
        )

    def __call__(self, hidden: jax.Array, lm_head: jax.Array | None, num_ids: int) -> jax.Array:
        """Scores the vocabulary rows that this device holds.

        Args:
          hidden: Final-norm hidden states, [D, B].
          lm_head: The target's output projection where heads have none, [V, D].
          num_ids: Ids that stand for a token; those behind them score -inf.

        Returns:
          Logits of head k for row b in column k * B + b, [V, G * B].
        """
        states = [head(hidden) for head in self.heads]
        if lm_head is not None:
            # One product, so that the projection is read once and not once a head.
            joined = jnp.concatenate(states, axis=1).astype(lm_head.dtype)
            return score_vocabulary(lm_head, joined, num_ids, self.axis)
        # A product for each: stacked into one batched product they take as long for one row on CPU
        # and two to three times as long for several, and loading would have to copy them.
        logits = [
            head.score(state, num_ids, self.axis)
            for head, state in zip(self.heads, states, strict=True)
        ]
        return jnp.concatenate(logits, axis=1)


class MedusaParams(struct.PyTreeNode):
    """Weights.

    Attributes:
      heads: Of `MedusaHeads`.
      lm_head: The target's output projection, the very array, where heads have none of their own.
    """

    heads: PyTree
    lm_head: jax.Array | None


class MedusaState(struct.PyTreeNode):
    """What every row keeps.

    Attributes:
      hidden: Final-norm hidden state of the last committed token before the anchor, [B, D].
    """

    hidden: jax.Array


# As `asd_jax.models.transformer.PARAM_AXES`. Blocks are small beside the output projections, and
# dividing them would cost a sum over the mesh in every block: each device holds them whole.
PARAM_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"heads/\d+/lm_head", ("vocab", "embed")),
    (r"heads/\d+/blocks/\d+/weight", ("embed", "embed")),
    (r"heads/\d+/blocks/\d+/bias", ("embed",)),
)


def divide(config: MedusaConfig, size: int, axis: str | None) -> DeviceShare:
    """Divides the vocabulary, padded to a multiple of `size`, among the devices of a mesh axis."""
    return DeviceShare(
        axis=axis if size > 1 else None,
        num_heads=0,
        num_kv_heads=0,
        intermediate_size=0,
        vocab_size=-(-config.vocab_size // size),
    )


def build(config: MedusaConfig, share: DeviceShare, dtype: Any, rngs: nnx.Rngs) -> MedusaHeads:
    """Returns one device's share of the heads."""
    return MedusaHeads(config, share, dtype=dtype, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class _Init:
    """`Drafter.init`; equal ones share compiled programs, as with all below."""

    hidden_size: int
    dtype: Any

    def __call__(self, params: PyTree, batch: int, num_slots: int) -> MedusaState:
        del params, num_slots
        return MedusaState(hidden=jnp.zeros((batch, self.hidden_size), self.dtype))


def _prefill(
    params: PyTree,
    state: MedusaState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    lengths: jax.Array,
) -> MedusaState:
    del params, tokens, features
    return state.replace(hidden=_take_row(hidden, lengths - 1).astype(state.hidden.dtype))


def _commit(
    params: PyTree,
    state: MedusaState,
    tokens: jax.Array,
    features: jax.Array,
    hidden: jax.Array,
    num_kept: jax.Array,
) -> MedusaState:
    del params, tokens, features
    last = _take_row(hidden, jnp.maximum(num_kept - 1, 0)).astype(state.hidden.dtype)
    return state.replace(hidden=jnp.where(num_kept[:, None] > 0, last, state.hidden))


def _take_row(hidden: jax.Array, row: jax.Array) -> jax.Array:
    """Returns one row a request, [B, D], of hidden states [B, T, D]; `row` is int32 [B]."""
    return jnp.take_along_axis(hidden, row[:, None, None], axis=1)[:, 0]


@dataclasses.dataclass(frozen=True)
class _Propose:
    """`Drafter.propose`.

    Attributes:
      graphdef: Of `MedusaHeads`.
      num_draft: G.
      num_ids: Ids that stand for a token.
      model_axis: Mesh axis that divides the vocabulary, or None.
      data_axis: Mesh axis that divides requests, or None.
      with_logits: Whether proposals carry logits.
    """

    graphdef: nnx.GraphDef
    num_draft: int
    num_ids: int
    model_axis: str | None
    data_axis: str | None
    with_logits: bool

    def __call__(
        self,
        params: MedusaParams,
        state: MedusaState,
        anchor: jax.Array,
        position: jax.Array,
        sampling: SamplingParams,
    ) -> tuple[Proposal, MedusaState]:
        del anchor  # heads see the target's state before it, which already foretold it
        num_draft, batch = self.num_draft, position.shape[0]
        heads = nnx.merge(self.graphdef, params.heads)
        logits = heads(state.hidden.T, params.lm_head, self.num_ids)  # [V, G * B]
        # Drawn as one batch of G * B rows: drawing is large code, and is compiled once this way.
        head = jnp.repeat(jnp.arange(num_draft, dtype=jnp.int32), batch)
        tokens = draw(
            logits,
            jax.tree.map(lambda leaf: jnp.concatenate([leaf] * num_draft), sampling),
            jnp.concatenate([position] * num_draft) + 1 + head,
            is_any(sampling.temperature > 0, self.data_axis),
            vocab_major=True,
            model_axis=self.model_axis,
        )
        proposal = Proposal(
            tokens=tokens.reshape(num_draft, batch).T,
            length=jnp.full((batch,), num_draft, jnp.int32),
            logits=self._whole(logits, batch) if self.with_logits else None,
        )
        return proposal, state

    def _whole(self, logits: jax.Array, batch: int) -> jax.Array:
        """Returns logits [V, G * B] as float32 [B, G, V], joined over the mesh."""
        if self.model_axis is not None:
            logits = jax.lax.all_gather(logits, self.model_axis, axis=0, tiled=True)
        logits = logits.astype(jnp.float32).reshape(-1, self.num_draft, batch)
        return logits.transpose(2, 1, 0)


def as_drafter(
    config: MedusaConfig,
    module: MedusaHeads,
    facts: TargetFacts,
    options: DrafterOptions,
    read: ReadTensor,
) -> Drafter:
    """Returns the heads as a `Drafter` of G = `config.num_used_heads`."""
    del read
    graphdef, heads = nnx.split(module)
    return Drafter(
        params=MedusaParams(heads=heads, lm_head=None if config.has_output else facts.lm_head),
        init=_Init(config.hidden_size, module.dtype),
        prefill=_prefill,
        propose=_Propose(
            graphdef=graphdef,
            num_draft=config.num_used_heads,
            num_ids=facts.num_ids,
            model_axis=module.axis,
            data_axis=facts.data_axis,
            with_logits=options.with_logits,
        ),
        commit=_commit,
        name="medusa",
        num_draft_tokens=config.num_used_heads,
    )


FAMILY = DrafterFamily(
    name="medusa",
    is_released_as=medusa_config.is_released_as,
    read_config=medusa_config.read_config,
    key_rules=medusa_config.key_rules,
    ignored_keys=medusa_config.ignored_keys,
    param_axes=PARAM_AXES,
    divide=divide,
    build=build,
    as_drafter=as_drafter,
)
