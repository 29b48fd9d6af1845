"""Medusa: heads beside the target's own, each predicting one token further ahead.

A head is residual blocks and an output projection on one final-norm hidden state of the target.
Nothing is recurrent and nothing is cached: all that a row keeps is that hidden state. Source:
arXiv 2401.10774 and FasterDecoding/Medusa@e2a5d20, `medusa/model/medusa_model.py`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from asd_jax.drafters.family import (
    DrafterFamily,
    DrafterOptions,
    ReadTensor,
    Shapes,
    TargetFacts,
)
from asd_jax.models.layers import Linear, score_vocabulary
from asd_jax.models.transformer import DeviceShare
from asd_jax.sampling import SamplingParams, draw
from asd_jax.sharding import is_any
from asd_jax.types import Drafter, Proposal, PyTree


@dataclasses.dataclass(frozen=True)
class Naming:
    r"""How a kind of release spells its tensors.

    Attributes:
      prefix: Regex before every name.
      block: Name (regex) of a block's weight or bias; groups are head, layer and "weight|bias".
      output: Name of a head's output projection; groups are the head, and the layer where the
        release counts it as one more layer.
      others: Regexes of names that are not of Medusa.
    """

    prefix: str
    block: str
    output: str
    others: tuple[str, ...] = ()

    def rules(self) -> tuple[tuple[str, str], ...]:
        """Returns where the tensors go."""
        return (
            (self.prefix + self.block, r"heads/\1/blocks/\2/\3"),
            (self.prefix + self.output, r"heads/\1/lm_head"),
        )


_NUMBERED = (r"(\d+)\.(\d+)\.linear\.(weight|bias)", r"(\d+)\.(\d+)\.weight")
NAMINGS: dict[str, Naming] = {
    # A file of heads, with their output projections (v1) or without (v2).
    "heads": Naming("", *_NUMBERED),
    # A whole Medusa-2 model, whose target's tensors are the target's affair.
    "model": Naming(r"medusa_head\.", *_NUMBERED, (r"model\..*", r"lm_head\.weight")),
    # As converted for vLLM (vllm/model_executor/models/medusa.py).
    "vllm": Naming(
        r"(?:medusa_heads\.)?",
        r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)",
        r"lm_heads\.(\d+)\.weight",
    ),
}


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """What the tensors say; the released configs are wrong about it.

    Attributes:
      naming: Key of `NAMINGS`.
      num_heads: Heads in the files.
      num_used_heads: The first ones of them, G; the others are not loaded.
      num_layers: Residual blocks of a head.
      hidden_size: D.
      vocab_size: V.
      has_bias: Whether the blocks have one.
      has_output: Whether heads have output projections; if not they share the target's.
    """

    naming: str
    num_heads: int
    num_used_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    has_bias: bool
    has_output: bool


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


def is_released_as(names: Collection[str], config: Mapping[str, Any]) -> bool:
    """Returns whether the tensors are, or include, Medusa heads."""
    del config
    return any(_blocks(names, naming) for naming in NAMINGS.values())


def _blocks(names: Iterable[str], naming: Naming) -> list[tuple[int, int, str]]:
    """Returns head, layer and "weight" or "bias" of every tensor of a block."""
    pattern = re.compile(naming.prefix + naming.block)
    found = (pattern.fullmatch(name) for name in names)
    return [(int(match[1]), int(match[2]), match[3]) for match in found if match]


def read_config(
    config: Mapping[str, Any], shapes: Shapes, facts: TargetFacts, options: DrafterOptions
) -> MedusaConfig:
    """Reads heads, layers and sizes off the tensors.

    `medusa_num_heads` of released configs is not looked at: it says 2 beside files of five heads.

    Args:
      config: Not looked at.
      shapes: By checkpoint name.
      facts: About the target.
      options: Of which `num_draft_tokens` counts: the heads to use.

    Raises:
      ValueError: Heads are missing or not alike, or do not fit the target.
    """
    del config
    name = next(name for name, naming in NAMINGS.items() if _blocks(shapes, naming))
    naming = NAMINGS[name]
    blocks = _blocks(shapes, naming)
    outputs = _outputs(shapes, naming)
    num_heads = _count("heads", {head for head, _, _ in blocks} | outputs.keys())
    layers = {
        head: {kind: {at for h, at, k in blocks if (h, k) == (head, kind)} for kind in _KINDS}
        for head in range(num_heads)
    }
    depths = {
        head: _count(f"residual blocks of head {head}", kinds["weight"])
        for head, kinds in layers.items()
    }
    num_layers = depths[0]
    _require_alike("residual blocks", depths)
    _require_alike("biases", {head: len(kinds["bias"]) for head, kinds in layers.items()})
    has_bias = bool(layers[0]["bias"])
    if has_bias and layers[0]["bias"] != layers[0]["weight"]:
        raise ValueError(
            f"biases: got them in blocks {sorted(layers[0]['bias'])}, expected in all {num_layers} "
            "blocks or in none"
        )
    _require_alike("output projections", {head: int(head in outputs) for head in depths})
    for head, (tensor, layer) in outputs.items():
        if layer is not None and layer != num_layers:
            raise ValueError(
                f"head {head}: got its output projection as {tensor}, expected number "
                f"{num_layers}, behind its residual blocks"
            )
    hidden_size, vocab_size = facts.config.hidden_size, facts.config.vocab_size
    _require_fit(shapes, naming, hidden_size, vocab_size)
    num_used = num_heads if options.num_draft_tokens is None else options.num_draft_tokens
    if not 1 <= num_used <= num_heads:
        raise ValueError(
            f"num_draft_tokens: got {num_used}, allowed is 1..{num_heads}, the number of heads"
        )
    return MedusaConfig(
        naming=name,
        num_heads=num_heads,
        num_used_heads=num_used,
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        has_bias=has_bias,
        has_output=bool(outputs),
    )


_KINDS = ("weight", "bias")


def _outputs(names: Iterable[str], naming: Naming) -> dict[int, tuple[str, int | None]]:
    """Returns name and layer number, where names have one, of each head's output projection."""
    pattern = re.compile(naming.prefix + naming.output)
    found: dict[int, tuple[str, int | None]] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match:
            head = int(match[1])
            if head in found:
                raise ValueError(
                    f"head {head}: got the output projections {found[head][0]} and {name}, "
                    "expected one"
                )
            found[head] = (name, int(match[2]) if pattern.groups > 1 else None)
    return found


def _count(what: str, numbers: Collection[int]) -> int:
    """Returns how many there are, if they are numbered 0, 1, ... without a gap."""
    if sorted(numbers) != list(range(len(numbers))) or not numbers:
        raise ValueError(
            f"{what}: got the numbers {sorted(numbers)}, expected 0..{max(numbers, default=0)} "
            "without a gap"
        )
    return len(numbers)


def _require_alike(what: str, counts: Mapping[int, int]) -> None:
    if len(set(counts.values())) > 1:
        by_head = ", ".join(f"head {head} has {count}" for head, count in counts.items())
        raise ValueError(f"{what}: got {by_head}, expected as many in every head")


def _require_fit(shapes: Shapes, naming: Naming, hidden_size: int, vocab_size: int) -> None:
    """Checks every shape against the target's sizes."""
    square, row = (hidden_size, hidden_size), (hidden_size,)
    block, output = (re.compile(naming.prefix + part) for part in (naming.block, naming.output))
    for name, shape in shapes.items():
        match = block.fullmatch(name)
        if match and shape != (row if match[3] == "bias" else square):
            raise ValueError(
                f"{name}: got {shape}, expected {row if match[3] == 'bias' else square}: the "
                f"target's hidden size is {hidden_size}, the drafter's {shape[-1]}"
            )
        if output.fullmatch(name) and shape != (vocab_size, hidden_size):
            raise ValueError(
                f"{name}: got {shape}, expected {(vocab_size, hidden_size)}: the target has "
                f"{vocab_size} ids and hidden size {hidden_size}, the drafter "
                f"{' and '.join(map(str, shape))}"
            )


def key_rules(config: MedusaConfig) -> tuple[tuple[str, str], ...]:
    """Returns where the tensors of this kind of release go."""
    return NAMINGS[config.naming].rules()


def ignored_keys(config: MedusaConfig) -> tuple[str, ...]:
    """Returns the tensors of heads that are not used, and of a target in the same files."""
    naming = NAMINGS[config.naming]
    unused = "|".join(map(str, range(config.num_used_heads, config.num_heads)))
    heads = rf"{naming.prefix}(?:(?:blocks|lm_heads)\.)?(?:{unused})\..*"
    return (*naming.others, heads) if unused else naming.others


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
    is_released_as=is_released_as,
    read_config=read_config,
    key_rules=key_rules,
    ignored_keys=ignored_keys,
    param_axes=PARAM_AXES,
    divide=divide,
    build=build,
    as_drafter=as_drafter,
)
