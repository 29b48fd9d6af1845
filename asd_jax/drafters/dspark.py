"""DSpark: a block of drafts at once from the target's hidden states, chained by a Markov head.

A block is the anchor and B - 1 masks. Its slots see each other and the *context*: one row for each
committed token before the anchor, fused from tapped layers of the target. Slot k predicts the token
at anchor + 1 + k, and a low-rank head adds what the token before it says. A confidence head may end
the proposal early. DFlash as DeepSpec trains it is the same without the two heads.

Source: deepseek-ai/DeepSpec@afdfa7c, arXiv 2607.05147.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from asd_jax.cache import KVCache, init_cache
from asd_jax.drafters.dspark_config import PREFIX, DsparkConfig, read_config
from asd_jax.drafters.dspark_model import Dspark
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, ReadTensor, TargetFacts
from asd_jax.drafters.markov import DraftChain, draft_chain, proposal_length
from asd_jax.drafters.vocabulary_map import target_ids, target_rows
from asd_jax.models.checkpoint_keys import IGNORED_KEYS
from asd_jax.models.transformer import PARAM_AXES, DeviceShare, device_share
from asd_jax.sampling import ReducedVocabulary, SamplingParams, draw
from asd_jax.sharding import is_any
from asd_jax.types import Drafter, Proposal, PyTree


class DsparkParams(struct.PyTreeNode):
    """Weights of the drafter, and those of the target that it has none of its own for.

    Attributes:
      module: State of `Dspark`.
      embed_tokens: The target's embedding, [V, D], or None.
      lm_head: The target's output projection, [V, D], or its rows of the reduced vocabulary, or
        None.
      token_ids: Target ids of the reduced vocabulary, int32, or None.
    """

    module: PyTree
    embed_tokens: jax.Array | None
    lm_head: jax.Array | None
    token_ids: jax.Array | None


@dataclasses.dataclass(frozen=True)
class _Init:
    config: DsparkConfig
    num_kv_heads: int
    dtype: Any

    def __call__(self, params: DsparkParams, batch: int, num_slots: int) -> KVCache:
        del params
        decoder = self.config.decoder
        slots = num_slots + self.config.block_size  # the block is written behind the last row
        return init_cache(
            decoder.num_layers, batch, self.num_kv_heads, slots, decoder.head_dim, self.dtype
        )


@dataclasses.dataclass(frozen=True)
class _Prefill:
    graphdef: nnx.GraphDef

    def __call__(
        self,
        params: DsparkParams,
        state: KVCache,
        tokens: jax.Array,
        features: jax.Array,
        hidden: jax.Array,
        lengths: jax.Array,
    ) -> KVCache:
        del tokens, hidden
        module: Dspark = nnx.merge(self.graphdef, params.module)
        return module.remember(features, state).replace(length=lengths)


@dataclasses.dataclass(frozen=True)
class _Commit:
    graphdef: nnx.GraphDef

    def __call__(
        self,
        params: DsparkParams,
        state: KVCache,
        tokens: jax.Array,
        features: jax.Array,
        hidden: jax.Array,
        num_kept: jax.Array,
    ) -> KVCache:
        del tokens, hidden
        module: Dspark = nnx.merge(self.graphdef, params.module)
        # All rows are written; those behind the kept ones are overwritten before they are seen.
        return module.remember(features, state).replace(length=state.length + num_kept)


@dataclasses.dataclass(frozen=True)
class _Propose:
    graphdef: nnx.GraphDef
    data_axis: str | None
    with_logits: bool

    def __call__(
        self,
        params: DsparkParams,
        state: KVCache,
        anchor: jax.Array,
        position: jax.Array,
        sampling: SamplingParams,
    ) -> tuple[Proposal, KVCache]:
        module: Dspark = nnx.merge(self.graphdef, params.module)
        hidden, state = module.run_block(params.embed_tokens, anchor, state)
        chain = run_chain(module, params, hidden, anchor, position, sampling, self.data_axis)
        proposal = Proposal(
            tokens=chain.tokens.T,
            length=proposal_length(chain, module.config.confidence_threshold),
            logits=whole_rows(module, params, chain.logits) if self.with_logits else None,
        )
        return proposal, state


def run_chain(
    module: Dspark,
    params: DsparkParams,
    hidden: jax.Array,
    anchor: jax.Array,
    position: jax.Array,
    sampling: SamplingParams,
    data_axis: str | None = None,
) -> DraftChain:
    """Draws the drafts of a block: slot k is the token at position + 1 + k.

    Args:
      module: The drafter.
      params: Its weights, for those of the target in them.
      hidden: From `Dspark.run_block`; of its slots the first G are used.
      anchor: int32 [B].
      position: The anchor's, int32 [B].
      sampling: Leaves [B].
      data_axis: Mesh axis that divides the batch, if any.
    """
    config, batch = module.config, anchor.shape[0]
    hidden = jnp.moveaxis(hidden[:, :, : config.num_draft_tokens], 2, 1)  # [D, G, B]
    flat = hidden.reshape(hidden.shape[0], -1)
    base = module.score(params.lm_head, flat, params.token_ids)
    base = base.reshape(-1, config.num_draft_tokens, batch)
    is_sampled = is_any(sampling.temperature > 0, data_axis)
    reduced = (
        None
        if params.token_ids is None
        else ReducedVocabulary(params.token_ids, config.decoder.vocab_size)
    )

    def choose(logits: jax.Array, step: jax.Array) -> jax.Array:
        return draw(
            logits,
            sampling,
            position + 1 + step,
            is_sampled,
            vocab_major=True,
            reduced=reduced,
            model_axis=module.head_axis,
        )

    return draft_chain(
        module.markov,
        module.confidence,
        jnp.moveaxis(hidden, 1, 0),
        jnp.moveaxis(base, 1, 0),
        anchor,
        choose,
    )


def whole_rows(module: Dspark, params: DsparkParams, logits: jax.Array) -> jax.Array:
    """Returns logits [G, V, B] of this device as float32 [B, G, V] over the target's vocabulary.

    What a reduced vocabulary leaves out is -inf. V is as wide as the target's own logits: padded
    to a multiple of the mesh axis.
    """
    rows = jnp.moveaxis(logits.astype(jnp.float32), -1, 0)
    axis = module.share.axis
    if params.token_ids is None:
        return rows if axis is None else jax.lax.all_gather(rows, axis, axis=2, tiled=True)
    width = module.share.vocab_size * (1 if axis is None else jax.lax.axis_size(axis))
    wide = jnp.full((*rows.shape[:2], width), -jnp.inf, jnp.float32)
    return wide.at[:, :, params.token_ids].set(rows)


def is_released_as(names: Collection[str], config: Mapping[str, Any]) -> bool:
    """Returns whether these are the tensors of a DSpark or DFlash drafter.

    Only they norm what `fc` gives outside of every layer.
    """
    del config
    return {"fc.weight", "hidden_norm.weight"} <= {name.removeprefix(PREFIX) for name in names}


def key_rules(config: DsparkConfig) -> tuple[tuple[str, str], ...]:
    """Returns where the tensors go."""
    prefix = rf"(?:{re.escape(PREFIX)})?"
    reduced = "" if config.reduced_vocab_size is None else "reduced_"
    return (
        (rf"{prefix}(fc|hidden_norm|norm)\.weight", r"\1/weight"),
        (rf"{prefix}layers\.(\d+)\.(\w+layernorm)\.weight", r"layers/\1/\2/weight"),
        (rf"{prefix}layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.(weight|bias)", r"layers/\1/\2/\3/\4"),
        (rf"{prefix}embed_tokens\.weight", "embed_tokens"),
        (rf"{prefix}lm_head\.weight", f"{reduced}lm_head"),
        (rf"{prefix}markov_head\.markov_w1\.weight", "markov/w1"),
        (rf"{prefix}markov_head\.markov_w2\.weight", f"markov/{reduced}w2"),
        (rf"{prefix}markov_head\.(\w+_proj)\.(weight|bias)", r"markov/\1/\2"),
        (rf"{prefix}confidence_head\.proj\.(weight|bias)", r"confidence/\1"),
    )


def ignored_keys(config: DsparkConfig) -> tuple[str, ...]:
    """Returns the tensors that are no parameters: the vocabulary map is read by itself."""
    del config
    return (*IGNORED_KEYS, "d2t", "t2d")


# What is small, or reads or scores a reduced vocabulary, lies whole on every device.
AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"fc/weight|reduced_lm_head|markov/reduced_w2", (None, None)),
    (r"markov/w[12]", ("vocab", None)),
    (r"markov/\w+_proj/weight|confidence/weight", (None, None)),
    (r"markov/\w+_proj/bias|confidence/bias", (None,)),
    *PARAM_AXES,
)


def divide(config: DsparkConfig, size: int, axis: str | None) -> DeviceShare:
    """Divides heads, features and vocabulary as the target's are."""
    return device_share(config.decoder, size, axis)


def build(config: DsparkConfig, share: DeviceShare, dtype: Any, rngs: nnx.Rngs) -> Dspark:
    """Returns the module of one device's share."""
    return Dspark(config, share, dtype, rngs)


def as_drafter(
    config: DsparkConfig,
    module: Dspark,
    facts: TargetFacts,
    options: DrafterOptions,
    read: ReadTensor,
) -> Drafter:
    """Returns the module as a `Drafter`, with what it shares with the target."""
    graphdef, state = nnx.split(module)
    token_ids = None
    if config.reduced_vocab_size is not None:
        token_ids = target_ids(
            config.reduced_vocab_size,
            config.decoder.vocab_size,
            offsets=read("d2t"),
            mask=read("t2d") if config.has_t2d else None,
        )
    lm_head = facts.lm_head if token_ids is None else target_rows(facts.lm_head, token_ids)
    params = DsparkParams(
        module=state,
        embed_tokens=None if config.has_embedding else facts.embed_tokens,
        lm_head=None if config.has_head else lm_head,
        token_ids=None if token_ids is None else jnp.asarray(token_ids),
    )
    return Drafter(
        params=params,
        init=_Init(config, module.share.num_kv_heads, jnp.dtype(module.fc.weight.dtype)),
        prefill=_Prefill(graphdef),
        propose=_Propose(graphdef, facts.data_axis, options.with_logits),
        commit=_Commit(graphdef),
        name=FAMILY.name,
        num_draft_tokens=config.num_draft_tokens,
        can_abstain=config.confidence_threshold > 0,
        feature_layers=config.feature_layers,
    )


FAMILY = DrafterFamily(
    name="dspark",
    is_released_as=is_released_as,
    read_config=read_config,
    key_rules=key_rules,
    ignored_keys=ignored_keys,
    param_axes=AXES,
    divide=divide,
    build=build,
    as_drafter=as_drafter,
    takes=("confidence_threshold",),
)
