"""Configs of DSpark drafters in their three released spellings, held against tensors and target.

Sizes are taken from the tensors, which every release has; a field that says otherwise is refused.
speculators even leaves out fields that have their default value.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from asd_jax.drafters.family import DrafterOptions, Shapes, TargetFacts
from asd_jax.models import qwen2
from asd_jax.models.feature_layers import Convention, hidden_state_indices
from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.transformer import TransformerConfig

PREFIX = "model."  # which some releases put in front of the backbone's names


@dataclasses.dataclass(frozen=True)
class DsparkConfig:
    """A DSpark drafter for one target; hashable, so it is a static jit argument.

    Attributes:
      decoder: Its layers; `vocab_size` are the target's rows.
      num_ids: Ids of the target that stand for a token: no other is ever drafted.
      feature_layers: Residual streams that it reads, as HF hidden_states indices.
      block_size: Slots of a block, the anchor's included.
      mask_id: Row of the embedding that fills the other slots. It need not stand for a token.
      markov_kind: "vanilla", "gated" or "rnn"; None: no Markov head (DFlash).
      markov_rank: Its width, 0 without one.
      confidence_size: Features that the confidence head reads, 0 without one.
      has_confidence_bias: Whether it has a bias.
      has_embedding: Whether it has an embedding of its own; otherwise the target's is used.
      has_head: Whether it has an output projection of its own, likewise.
      reduced_vocab_size: Ids that it scores where they are not all the target's, else None.
      has_t2d: Whether the file also marks those ids in the target's vocabulary.
      num_draft_tokens: G, at most `block_size`.
      confidence_threshold: The proposal ends before the first token of less confidence; 0 = never.
    """

    decoder: TransformerConfig
    num_ids: int
    feature_layers: tuple[int, ...]
    block_size: int
    mask_id: int
    markov_kind: str | None
    markov_rank: int
    confidence_size: int
    has_confidence_bias: bool
    has_embedding: bool
    has_head: bool
    reduced_vocab_size: int | None
    has_t2d: bool
    num_draft_tokens: int
    confidence_threshold: float = 0.0

    @property
    def features_size(self) -> int:
        """Width of the tapped streams side by side."""
        return len(self.feature_layers) * self.decoder.hidden_size


def read_config(
    config: Mapping[str, Any], shapes: Shapes, facts: TargetFacts, options: DrafterOptions
) -> DsparkConfig:
    """Reads the config of DeepSpec, SpecForge or speculators; see `DrafterFamily.read_config`.

    Raises:
      ValueError: A field is missing, not implemented or contradicts the tensors, or drafter and
        target do not fit; the message names both sides.
    """
    shapes = {name.removeprefix(PREFIX): shape for name, shape in shapes.items()}
    flat, ids_field, convention = _flatten(config)
    fields = ConfigFields(flat)
    target = facts.config
    feature_layers = _feature_layers(flat, ids_field, convention, target.num_layers)
    _check_against_target(shapes, flat, len(feature_layers), target)
    reduced = _reduced_vocab_size(shapes, flat, target.vocab_size)
    kind, rank = _markov_head(shapes, flat, target.vocab_size, reduced or target.vocab_size)
    confidence_size = _confidence_size(shapes, flat, target.hidden_size, rank)
    block_size = fields.whole("block_size")
    return DsparkConfig(
        decoder=_decoder(shapes, flat, target.vocab_size),
        num_ids=facts.num_ids,
        feature_layers=feature_layers,
        block_size=block_size,
        mask_id=_mask_id(flat, target.vocab_size),
        markov_kind=kind,
        markov_rank=rank,
        confidence_size=confidence_size,
        has_confidence_bias="confidence_head.proj.bias" in shapes,
        has_embedding="embed_tokens.weight" in shapes,
        has_head="lm_head.weight" in shapes,
        reduced_vocab_size=reduced,
        has_t2d="t2d" in shapes,
        num_draft_tokens=_num_draft_tokens(options, block_size),
        confidence_threshold=_threshold(options, confidence_size),
    )


def _flatten(config: Mapping[str, Any]) -> tuple[dict[str, Any], str, Convention]:
    """Returns all fields in one place, and how the tapped layers are called and counted.

    Sources: deepseek-ai/DeepSpec@afdfa7c (flat), sgl-project/SpecForge@1c2c647 (`dflash_config`),
    vllm-project/speculators@021e21b (`transformer_layer_config`).
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        flat = {**ConfigFields(config).section("transformer_layer_config"), **config}
        is_shifted = ConfigFields(config).flag("sample_from_anchor", kind == "dspark")
        if not is_shifted:
            raise _unshifted("sample_from_anchor", config.get("sample_from_anchor"), True)
        ConfigFields(config).require_off("sliding_window_non_causal")
        return flat, "aux_hidden_state_layer_ids", "layer_input"
    nested = ConfigFields(config).section("dflash_config")
    if config.get("dflash_config") is None:
        return dict(config), "target_layer_ids", "layer_output"
    projector = nested.get("projector_type")
    if projector != "dspark":
        raise _unshifted("dflash_config.projector_type", projector, "dspark")
    if not ConfigFields(nested).flag("shift_label", True):
        raise _unshifted("dflash_config.shift_label", False, True)
    ConfigFields(nested).require_off("causal")
    return {**config, **nested}, "target_layer_ids", "layer_output"


def _unshifted(field: str, got: Any, allowed: Any) -> ValueError:
    return ValueError(
        f"config field {field}: got {got!r}, allowed is {allowed!r} (a block whose slot k predicts "
        "the token behind it; the original DFlash layout is not implemented)"
    )


def _feature_layers(
    flat: Mapping[str, Any], field: str, convention: Convention, num_layers: int
) -> tuple[int, ...]:
    """Returns the tapped layers as hidden_states indices."""
    ids = flat.get(field)
    if not isinstance(ids, (list, tuple)) or not ids:
        raise ValueError(f"config field {field}: got {ids!r}, needed is a list of target layers")
    indices = hidden_state_indices(ids, convention, num_layers, field=f"config field {field}")
    # Training took the last layer's stream behind the final norm or before it: no one can tell.
    if list(indices) != sorted(set(indices)) or indices[-1] == num_layers:
        raise ValueError(
            f"config field {field}: got {list(ids)}, allowed are ascending layers without the last "
            f"of the target's {num_layers}"
        )
    return indices


def _check_against_target(
    shapes: Shapes, flat: Mapping[str, Any], num_taps: int, target: TransformerConfig
) -> None:
    """Refuses widths and vocabularies that are not the target's."""
    dim, fused = shapes["fc.weight"]
    if fused != num_taps * target.hidden_size:
        raise ValueError(
            f"fc.weight: got {fused} input features, needed are {num_taps * target.hidden_size} = "
            f"{num_taps} tapped layers x hidden_size {target.hidden_size} of the target"
        )
    if dim != target.hidden_size:
        raise ValueError(
            f"hidden_size: got {dim} of the drafter, needed is that of the target, "
            f"{target.hidden_size}"
        )
    for name, field in (
        ("num_target_layers", target.num_layers),
        ("vocab_size", target.vocab_size),
    ):
        if flat.get(name) is not None and flat[name] != field:
            raise ValueError(
                f"config field {name}: got {flat[name]!r} of the drafter, the target has {field}"
            )
    rows = shapes.get("embed_tokens.weight", (target.vocab_size,))[0]
    if rows != target.vocab_size:
        raise ValueError(
            f"embed_tokens.weight: got {rows} rows, the target's vocabulary has {target.vocab_size}"
        )


def _reduced_vocab_size(shapes: Shapes, flat: Mapping[str, Any], vocab_size: int) -> int | None:
    """Returns how many ids the drafter scores, or None where that is all of them."""
    # Without a projection of its own it reads the target's rows of these ids.
    rows = shapes.get("lm_head.weight", shapes.get("d2t", (vocab_size,)))[0]
    declared = flat.get("draft_vocab_size")
    mapped = shapes.get("d2t", (rows,))[0]
    if mapped != rows or (declared is not None and declared != rows):
        raise ValueError(
            f"draft_vocab_size: got {declared!r} in the config and {mapped} entries of d2t, "
            f"needed are as many as the output projection has rows, {rows}"
        )
    if rows == vocab_size:
        return None
    if "d2t" not in shapes or rows > vocab_size:
        raise ValueError(
            f"lm_head.weight: got {rows} rows and {'a' if 'd2t' in shapes else 'no'} table d2t, "
            f"the target's vocabulary has {vocab_size}"
        )
    return rows


def _markov_head(
    shapes: Shapes, flat: Mapping[str, Any], vocab_size: int, scored: int
) -> tuple[str | None, int]:
    """Returns kind and rank of the Markov head, as its tensors have them."""
    first = shapes.get("markov_head.markov_w1.weight", (vocab_size, 0))
    rank = first[1]
    _require_same(flat, "markov_rank", rank)
    if first[0] != vocab_size:
        raise ValueError(
            f"markov_head.markov_w1.weight: got {first[0]} rows, the target's vocabulary has "
            f"{vocab_size}"
        )
    second = shapes.get("markov_head.markov_w2.weight", (scored, rank))
    if rank and second != (scored, rank):
        raise ValueError(
            f"markov_head.markov_w2.weight: got {second}, needed is {(scored, rank)}: a row for "
            "each id that is scored and the columns of markov_w1"
        )
    if not rank:
        return None, 0
    has_gate = "markov_head.gate_proj.weight" in shapes
    has_joint = "markov_head.joint_proj.weight" in shapes
    if has_gate and has_joint:
        raise ValueError("markov_head: got gate_proj and joint_proj, allowed is one of them")
    kind = "gated" if has_gate else "rnn" if has_joint else "vanilla"
    _require_same(flat, "markov_head_type", kind)
    return kind, rank


def _confidence_size(shapes: Shapes, flat: Mapping[str, Any], dim: int, rank: int) -> int:
    """Returns how many features the confidence head reads, 0 without one."""
    size = shapes.get("confidence_head.proj.weight", (1, 0))[1]
    _require_same(flat, "enable_confidence_head", size > 0)
    if size not in (0, dim, dim + rank):
        raise ValueError(
            f"confidence_head.proj.weight: got {size} features, allowed are hidden_size {dim} or "
            f"{dim + rank} with markov_rank {rank}"
        )
    if size and rank:
        _require_same(flat, "confidence_head_with_markov", size == dim + rank)
    return size


def _decoder(shapes: Shapes, flat: Mapping[str, Any], vocab_size: int) -> TransformerConfig:
    """Returns the draft layers. They are Qwen3's, whose norms of queries tell the head width."""
    indices = [int(m[1]) for name in shapes if (m := re.match(r"layers\.(\d+)\.", name))]
    attention, needed = "layers.0.self_attn.", ("q_norm", "q_proj", "k_proj")
    missing = [n for n in needed if f"{attention}{n}.weight" not in shapes]
    if missing or "layers.0.mlp.gate_proj.weight" not in shapes:
        raise ValueError(f"tensors of layer 0: missing are {', '.join(missing) or 'gate_proj'}")
    (head_dim,) = shapes[f"{attention}q_norm.weight"]
    sizes = {
        "hidden_size": shapes["fc.weight"][0],
        "num_hidden_layers": max(indices) + 1,
        "num_attention_heads": shapes[f"{attention}q_proj.weight"][0] // head_dim,
        "num_key_value_heads": shapes[f"{attention}k_proj.weight"][0] // head_dim,
        "head_dim": head_dim,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
    }
    for name, size in sizes.items():
        _require_same(flat, name, size)
    fields = ConfigFields({**flat, **sizes, "vocab_size": vocab_size})
    _, sliding = qwen2.sliding_window(fields)
    if sliding:
        raise ValueError(
            f"config field layer_types: got sliding_attention in layers {list(sliding)}, allowed "
            "is full_attention (not implemented for this drafter)"
        )
    has_bias = fields.flag("attention_bias", False)
    return fields.transformer_config(qkv_bias=has_bias, output_bias=has_bias, qk_norm=True)


def _require_same(flat: Mapping[str, Any], name: str, stored: Any) -> None:
    """Refuses a field that is there and says something else than the tensors."""
    said = flat.get(name)
    if said is not None and said != stored:
        raise ValueError(f"config field {name}: got {said!r}, but the tensors have {stored!r}")


def _mask_id(flat: Mapping[str, Any], vocab_size: int) -> int:
    mask_id = flat.get("mask_token_id")
    if not isinstance(mask_id, int) or isinstance(mask_id, bool) or not 0 <= mask_id < vocab_size:
        raise ValueError(
            f"config field mask_token_id: got {mask_id!r}, needed is one of the {vocab_size} rows "
            "of the target's vocabulary"
        )
    return mask_id


def _num_draft_tokens(options: DrafterOptions, block_size: int) -> int:
    wanted = options.num_draft_tokens
    if wanted is None:
        return block_size
    if not 1 <= wanted <= block_size:
        raise ValueError(
            f"num_draft_tokens: got {wanted}, allowed is 1..{block_size}, the drafter's block_size"
        )
    return wanted


def _threshold(options: DrafterOptions, confidence_size: int) -> float:
    threshold = options.confidence_threshold or 0.0
    if not 0 <= threshold <= 1:
        raise ValueError(f"confidence_threshold: got {threshold}, allowed is 0..1")
    if threshold and not confidence_size:
        raise ValueError(
            f"confidence_threshold: got {threshold}, allowed is 0 for a drafter that has no "
            "confidence head"
        )
    return float(threshold)
