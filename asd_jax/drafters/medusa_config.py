"""What Medusa files say: heads and layers are counted in their tensors, however they are spelled.

Source: FasterDecoding/Medusa@e2a5d20, `medusa/model/medusa_model.py`, and
`vllm/model_executor/models/medusa.py` for converted files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from asd_jax.drafters.family import DrafterOptions, Shapes, TargetFacts


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
