"""What an EAGLE-3 checkpoint says about itself, in any of the layouts that it is released in.

- original: SafeAILab/EAGLE; the one layer is `midlayer`, the config a Llama's with additions.
- SpecForge: the same names; `eagle_config` names the target's layers.
- speculators: the layer is `layers.0`, its sizes are nested in `transformer_layer_config`.

Where config and tensors can both tell, the tensors do: released configs are often copies of the
target's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from asd_jax.drafters.family import DrafterOptions, Shapes, TargetFacts
from asd_jax.models.feature_layers import Convention, eagle3_default, hidden_state_indices
from asd_jax.models.hf_config import ConfigFields
from asd_jax.models.transformer import TransformerConfig

DEFAULT_NUM_DRAFT_TOKENS = 5  # K of the EAGLE repository's chains
_LAYER = r"(?:model\.)?(?:midlayer|layers\.0)"


@dataclasses.dataclass(frozen=True)
class Eagle3Config:
    """Sizes and flags of an EAGLE-3 drafter; hashable, so it is a static jit argument.

    Attributes:
      decoder: Its one layer and the target's vocabulary, in the sizes of a dense decoder.
      draft_vocab_size: Vd, ids that it scores; V where it scores the target's vocabulary.
      target_hidden_size: Width of one of the target's residual streams.
      feature_layers: Those that it reads, as HF hidden_states indices.
      num_draft_tokens: G.
      has_fc: Whether a projection fuses the streams to the drafter's width.
      fc_bias: Whether it has a bias.
      norm_before_fc: Whether the streams are normalised together before it.
      fc_norm: Whether each stream is normalised on its own before it.
      norm_before_residual: Whether the layer's residual is the normed feature instead of the
        feature.
      norm_output: Whether a draft step feeds back its output behind the final norm.
      has_embedding: Whether the checkpoint has an embedding.
      has_lm_head: Whether it has an output projection.
      d2t: Name of its tensor of target ids, as offsets, or None.
      t2d: Name of its mask of the target's vocabulary, or None.
    """

    decoder: TransformerConfig
    draft_vocab_size: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    num_draft_tokens: int
    has_fc: bool
    fc_bias: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_before_residual: bool
    norm_output: bool
    has_embedding: bool
    has_lm_head: bool
    d2t: str | None
    t2d: str | None

    @property
    def is_reduced(self) -> bool:
        """Whether it scores only a part of the target's vocabulary."""
        return self.draft_vocab_size < self.decoder.vocab_size

    @property
    def features_width(self) -> int:
        """Numbers that it reads of the target at each position."""
        return len(self.feature_layers) * self.target_hidden_size


def is_released_as(names: Collection[str], config: Mapping[str, Any]) -> bool:
    """Returns whether these are tensors of an EAGLE-3 drafter: only its layer norms a feature."""
    del config
    return any(re.fullmatch(rf"{_LAYER}\.hidden_norm\.weight", name) for name in names)


def key_rules(config: Eagle3Config) -> tuple[tuple[str, str], ...]:
    """Returns checkpoint names (regex) and where they go in `asd_jax.drafters.eagle3.Eagle3`."""
    return (
        (r"(?:model\.)?fc\.(weight|bias)", r"fc/\1"),
        (rf"{_LAYER}\.(\w+norm)\.weight", r"layer/\1/weight"),
        (rf"{_LAYER}\.(self_attn|mlp)\.(\w+)\.(weight|bias)", r"layer/\1/\2/\3"),
        (r"(?:model\.)?(input_norm|norm)\.weight", r"\1/weight"),
        (r"(?:model\.)?fc_norm\.(\d+)\.weight", r"fc_norm/\1/weight"),
        (r"(?:model\.)?embed_tokens\.weight", "embed_tokens"),
        (r"(?:model\.)?lm_head\.weight", "reduced_head" if config.is_reduced else "lm_head"),
    )


def ignored_keys(config: Eagle3Config) -> tuple[str, ...]:
    """Returns the names (regex) that are no parameters."""
    del config
    return (r"(?:model\.)?(?:d2t|t2d)", r".*\.rotary_emb\.inv_freq")


def read_config(
    config: Mapping[str, Any], shapes: Shapes, facts: TargetFacts, options: DrafterOptions
) -> Eagle3Config:
    """Reads the config of any layout, with the tensors' shapes.

    Args:
      config: The parsed `config.json`.
      shapes: Of all tensors, by checkpoint name.
      facts: Of the target.
      options: What the user says.

    Raises:
      ValueError: A field or a tensor is missing or not implemented, or the drafter does not fit
        the target; the message names both sides.
    """
    plain = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    more = sorted({m[0] for n in plain if (m := re.match(r"(layers|midlayer)\.[1-9]\d*\.", n))})
    if more:
        raise ValueError(f"layers: got also {', '.join(more)}*, allowed is one draft layer")
    names = {name.removeprefix("model."): name for name in shapes}
    fields = ConfigFields(config)
    decoder = _read_decoder(config, plain, facts)
    producer = config.get("speculators_model_type")
    if producer not in (None, "eagle3"):
        raise ValueError(
            f"config field speculators_model_type: got {producer!r}, allowed is 'eagle3' or null"
        )
    read = Eagle3Config(
        decoder=decoder,
        draft_vocab_size=_draft_vocab_size(fields, plain, decoder.vocab_size),
        target_hidden_size=facts.config.hidden_size,
        feature_layers=_feature_layers(config, facts, options),
        num_draft_tokens=_num_draft_tokens(config, options),
        has_fc="fc.weight" in plain,
        fc_bias="fc.bias" in plain,
        norm_before_fc=fields.flag("norm_before_fc", False),
        fc_norm=fields.flag("fc_norm", False),
        norm_before_residual=fields.flag("norm_before_residual", False),
        # In SpecForge's files the same field only says that a final norm precedes the lm_head.
        norm_output=producer is not None and fields.flag("norm_output", False),
        has_embedding="embed_tokens.weight" in plain,
        has_lm_head="lm_head.weight" in plain,
        d2t=names.get("d2t"),
        t2d=names.get("t2d"),
    )
    _check_features(read, fields, plain)
    _check_shared(read, facts)
    return read


def _read_decoder(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], facts: TargetFacts
) -> TransformerConfig:
    """Returns the sizes of the draft layer; head counts and widths are those of the tensors."""
    inner = {**(ConfigFields(config).section("transformer_layer_config") or config)}
    for name in ("rope_scaling", "rope_parameters"):
        inner[name] = _without_mrope(inner.get(name))
    fields = ConfigFields(inner)
    fields.require_off("use_sliding_window")
    types = inner.pop("layer_types", None)
    if types is not None and types != ["full_attention"] * len(types):
        raise ValueError(
            f"config field layer_types: got {types!r}, allowed are full_attention layers"
        )
    layer = {
        match[1]: shape
        for name, shape in shapes.items()
        if (match := re.fullmatch(rf"{_LAYER}\.(.+)", name))
    }
    missing = [f"{name}_proj" for name in "qk" if f"self_attn.{name}_proj.weight" not in layer]
    if missing or "mlp.gate_proj.weight" not in layer:
        raise ValueError(f"draft layer: tensors missing, at least {missing or ['gate_proj']}")
    q_rows, k_rows = (layer[f"self_attn.{name}_proj.weight"][0] for name in "qk")
    head_dim = _head_dim(fields, layer, q_rows)
    if q_rows % head_dim or k_rows % head_dim:
        raise ValueError(
            f"head_dim: got {head_dim}, allowed is a divisor of the rows of q_proj {q_rows} and "
            f"k_proj {k_rows}"
        )
    inner |= {
        "num_hidden_layers": 1,
        "num_attention_heads": q_rows // head_dim,
        "num_key_value_heads": k_rows // head_dim,
        "head_dim": head_dim,
        "intermediate_size": layer["mlp.gate_proj.weight"][0],
        "tie_word_embeddings": False,
        "vocab_size": fields.whole("vocab_size", facts.config.vocab_size),
    }
    decoder = ConfigFields(inner).transformer_config(
        qkv_bias="self_attn.q_proj.bias" in layer,
        output_bias="self_attn.o_proj.bias" in layer,
        mlp_bias="mlp.gate_proj.bias" in layer,
        qk_norm="self_attn.q_norm.weight" in layer,
    )
    if decoder.vocab_size != facts.config.vocab_size:
        raise ValueError(
            f"vocab_size: got {decoder.vocab_size} in the drafter, the target has "
            f"{facts.config.vocab_size}"
        )
    return dataclasses.replace(decoder, num_token_ids=facts.num_ids)


def _head_dim(fields: ConfigFields, layer: Mapping[str, tuple[int, ...]], q_rows: int) -> int:
    """Returns the width of a head, which only a q_norm tells for certain."""
    if "self_attn.q_norm.weight" in layer:
        return layer["self_attn.q_norm.weight"][0]
    if fields.config.get("head_dim") is not None:
        return fields.whole("head_dim")
    return max(q_rows // fields.whole("num_attention_heads"), 1)


def _without_mrope(spelling: Any) -> Any:
    """Returns RoPE fields without multimodal sections: for text they are the default kind."""
    if not isinstance(spelling, Mapping):
        return spelling
    kept = {key: value for key, value in spelling.items() if key != "mrope_section"}
    for name in ("rope_type", "type"):
        if kept.get(name) == "mrope":
            kept[name] = "default"
    return kept


def _draft_vocab_size(
    fields: ConfigFields, shapes: Mapping[str, tuple[int, ...]], vocab_size: int
) -> int:
    """Returns Vd, on which config and tensors must agree."""
    told = {name: shapes[name][0] for name in ("lm_head.weight", "d2t") if name in shapes}
    if fields.config.get("draft_vocab_size") is not None:
        told["draft_vocab_size"] = fields.whole("draft_vocab_size")
    if len(set(told.values())) > 1:
        raise ValueError(f"draft_vocab_size: got {told}, allowed is one number for all")
    size = next(iter(told.values()), vocab_size)
    if size > vocab_size:
        raise ValueError(f"draft_vocab_size: got {size}, the target has {vocab_size}")
    if size < vocab_size and not {"d2t", "t2d"} & shapes.keys():
        raise ValueError(
            f"d2t: missing, needed to map {size} draft ids to the target's {vocab_size}"
        )
    return size


def _feature_layers(
    config: Mapping[str, Any], facts: TargetFacts, options: DrafterOptions
) -> tuple[int, ...]:
    """Returns the target's layers as hidden_states indices, whoever named them."""
    num_layers = facts.config.num_layers
    nested = ConfigFields(config).section("eagle_config")
    name = "eagle_aux_hidden_state_layer_ids"
    told: tuple[tuple[str, Any, Convention], ...] = (
        (name, config.get(name), "layer_input"),
        (f"eagle_config.{name}", nested.get(name), "layer_output"),
        ("target_layer_ids", config.get("target_layer_ids"), "layer_output"),
    )
    for field, ids, convention in told:
        if ids is None:
            continue
        if not isinstance(ids, (list, tuple)) or not ids:
            raise ValueError(f"config field {field}: got {ids!r}, allowed is a list of layers")
        meant = cast(Convention, options.tap_convention or convention)
        indices = hidden_state_indices(ids, meant, num_layers, field=field)
        if list(indices) != sorted(set(indices)):
            raise ValueError(f"config field {field}: got {ids!r}, allowed are ascending layers")
        return indices
    return eagle3_default(num_layers)


def _num_draft_tokens(config: Mapping[str, Any], options: DrafterOptions) -> int:
    """Returns G: what the user says, what the config recommends, or the usual chain."""
    if options.num_draft_tokens is not None:
        told = {"num_draft_tokens": options.num_draft_tokens}
        return ConfigFields(told).whole("num_draft_tokens")
    methods = ConfigFields(config).section("speculators_config").get("proposal_methods")
    if methods is None:
        return DEFAULT_NUM_DRAFT_TOKENS
    if not isinstance(methods, list) or not all(isinstance(m, Mapping) for m in methods):
        raise ValueError(
            f"config field speculators_config.proposal_methods: got {methods!r}, allowed is a list "
            "of objects"
        )
    first = methods[0] if methods else {}
    return ConfigFields(first).whole("speculative_tokens", DEFAULT_NUM_DRAFT_TOKENS)


def _check_features(
    read: Eagle3Config, fields: ConfigFields, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises a ValueError where the target's streams are not what the drafter reads."""
    width = read.target_hidden_size
    told = fields.config.get("target_hidden_size")
    if told is not None and told != width:
        raise ValueError(f"target_hidden_size: got {told} in the drafter, the target has {width}")
    if read.norm_before_fc and read.fc_norm:
        raise ValueError("norm_before_fc and fc_norm: got both, allowed is one of them")
    dim = read.decoder.hidden_size
    reads = shapes["fc.weight"][-1] if read.has_fc else dim
    if reads != read.features_width:
        source = "fc.weight" if read.has_fc else "the drafter, which has no fc.weight,"
        raise ValueError(
            f"feature_layers: {source} reads {reads} numbers, the target's layers "
            f"{list(read.feature_layers)} give {len(read.feature_layers)} x {width}"
        )


def _check_shared(read: Eagle3Config, facts: TargetFacts) -> None:
    """Raises a ValueError where the target's own tables, which are to be shared, do not fit."""
    needed = {"embed_tokens": read.has_embedding, "lm_head": read.has_lm_head}
    missing = [name for name, has in needed.items() if not has]
    if missing and read.decoder.hidden_size != facts.config.hidden_size:
        raise ValueError(
            f"hidden_size: got {read.decoder.hidden_size} in the drafter, which has no "
            f"{' and no '.join(missing)} of its own; the target's have {facts.config.hidden_size}"
        )
