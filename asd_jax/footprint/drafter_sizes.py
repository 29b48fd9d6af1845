"""What the files of released drafters hold: tensor names and shapes, from a drafter's own config.

Written from the released checkpoints' inventories; the tests hold the totals against the files'
sizes and the names against the families. Nothing here computes, and what a drafter takes of the
tensors is the loader's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asd_jax.models.hf_config import ConfigFields

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]


def _attention(fields: ConfigFields) -> tuple[int, int, int]:
    """Returns query heads, key/value heads and head width."""
    heads = fields.whole("num_attention_heads")
    width = fields.whole("head_dim", max(fields.whole("hidden_size") // heads, 1))
    return heads, fields.whole("num_key_value_heads", heads), width


def _decoder_layer(prefix: str, fields: ConfigFields, in_dim: int) -> Shapes:
    """Returns attention and feed-forward network of one layer; attention reads `in_dim` numbers."""
    dim, wide = fields.whole("hidden_size"), fields.whole("intermediate_size")
    heads, kv_heads, width = _attention(fields)
    return {
        f"{prefix}.input_layernorm.weight": (dim,),
        f"{prefix}.post_attention_layernorm.weight": (dim,),
        f"{prefix}.self_attn.q_proj.weight": (heads * width, in_dim),
        f"{prefix}.self_attn.k_proj.weight": (kv_heads * width, in_dim),
        f"{prefix}.self_attn.v_proj.weight": (kv_heads * width, in_dim),
        f"{prefix}.self_attn.o_proj.weight": (dim, heads * width),
        f"{prefix}.mlp.gate_proj.weight": (wide, dim),
        f"{prefix}.mlp.up_proj.weight": (wide, dim),
        f"{prefix}.mlp.down_proj.weight": (dim, wide),
    }


def dspark_shapes(config: Config) -> Shapes:
    """Returns the tensors of a DSpark drafter for a Qwen3 target, with the vanilla Markov head.

    Its embedding and output projection are copies of the target's.

    Raises:
      ValueError: A field is missing or ill-typed, or another Markov head.
    """
    fields = ConfigFields(config)
    dim, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    rank, num_taps = fields.whole("markov_rank"), _num_taps(config)
    _, _, width = _attention(fields)
    kind = config.get("markov_head_type", "vanilla")
    if kind != "vanilla":
        raise ValueError(f"config field markov_head_type: got {kind!r}, allowed is 'vanilla'")
    shapes: Shapes = {
        "embed_tokens.weight": (vocab, dim),
        "lm_head.weight": (vocab, dim),
        "fc.weight": (dim, num_taps * dim),
        "hidden_norm.weight": (dim,),
        "norm.weight": (dim,),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
    }
    for index in range(fields.whole("num_hidden_layers")):
        prefix = f"layers.{index}"
        shapes |= _decoder_layer(prefix, fields, dim)
        shapes[f"{prefix}.self_attn.q_norm.weight"] = (width,)
        shapes[f"{prefix}.self_attn.k_norm.weight"] = (width,)
    if fields.flag("enable_confidence_head", True):
        shapes["confidence_head.proj.weight"] = (1, dim + rank)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _num_taps(config: Config) -> int:
    ids = config.get("target_layer_ids")
    if not isinstance(ids, (list, tuple)) or not ids:
        raise ValueError(f"config field target_layer_ids: got {ids!r}, allowed is a list of layers")
    return len(ids)


def eagle3_shapes(config: Config) -> Shapes:
    """Returns the tensors of an EAGLE-3 drafter of one layer on three of the target's layers.

    The embedding is the target's own. `t2d`, which says the same as `d2t`, is left out.

    Raises:
      ValueError: A field is missing or ill-typed.
    """
    fields = ConfigFields(config)
    dim = fields.whole("hidden_size")
    vocab = fields.whole("draft_vocab_size", fields.whole("vocab_size"))
    return {
        "fc.weight": (dim, 3 * fields.whole("target_hidden_size", dim)),
        **_decoder_layer("midlayer", fields, 2 * dim),
        "midlayer.hidden_norm.weight": (dim,),
        "norm.weight": (dim,),
        "lm_head.weight": (vocab, dim),
        "d2t": (vocab,),
    }


def medusa_shapes(config: Config) -> Shapes:
    """Returns the tensors of Medusa heads, each with an output projection of its own.

    Files of "version" "2" share the target's projection and hold the residual blocks only.

    Raises:
      ValueError: A field is missing or ill-typed.
    """
    fields = ConfigFields(config)
    dim, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    shapes: Shapes = {}
    num_layers = fields.whole("medusa_num_layers")
    for head in range(fields.whole("medusa_num_heads")):
        for layer in range(num_layers):
            shapes[f"{head}.{layer}.linear.weight"] = (dim, dim)
            shapes[f"{head}.{layer}.linear.bias"] = (dim,)
        if config.get("version") != "2":
            shapes[f"{head}.{num_layers}.weight"] = (vocab, dim)
    return shapes


# By family, as `asd_jax.drafters` names it: `(config) -> {tensor name: shape}`.
RELEASED_SHAPES: dict[str, Callable[[Config], Shapes]] = {
    "dspark": dspark_shapes,
    "eagle3": eagle3_shapes,
    "medusa": medusa_shapes,
}
