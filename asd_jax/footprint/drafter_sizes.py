"""What trained drafters hold: weights, cache and the target's layers that they read.

Written from the released checkpoints' inventories, by tensor name as stored; the tests hold the
totals against the files' sizes. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from asd_jax.models.feature_layers import eagle3_default, hidden_state_indices
from asd_jax.models.hf_config import ConfigFields

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]

# Where a mesh may divide a drafter, by tensor name (regex); `asd_jax.sharding.RULES` has the axes.
# What is not named here lies whole on every device.
DIVIDED_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embed_tokens\.weight|lm_head\.weight|markov_head\.markov_w[12]\.weight", ("vocab", None)),
    (r"\d+\.lm_head\.weight", ("vocab", None)),
    (r".*\.q_proj\.weight", ("heads", None)),
    (r".*\.[kv]_proj\.weight", ("kv_heads", None)),
    (r".*\.o_proj\.weight", (None, "heads")),
    (r".*\.(gate|up)_proj\.weight", ("mlp", None)),
    (r".*\.down_proj\.weight", (None, "mlp")),
)


class DrafterSizes(NamedTuple):
    """How the sizes of one family of drafters follow from a drafter's own config.

    Attributes:
      shapes: `(config) -> {tensor name: shape}`, those that stay on the device.
      cache_layers: `(config) -> (layers, key/value heads, head width)` of its key/value cache.
      feature_layers: `(config, number of target layers) -> hidden_states indices` that it reads.
    """

    shapes: Callable[[Config], Shapes]
    cache_layers: Callable[[Config], tuple[int, int, int]]
    feature_layers: Callable[[Config, int], tuple[int, ...]]


def cache_bytes_per_slot(family: str, config: Config, itemsize: int) -> int:
    """Returns the bytes of one request's keys and values a token, on a single device.

    Args:
      family: A key of `FAMILIES`.
      config: The drafter's own.
      itemsize: Bytes of a cached number.
    """
    layers, heads, width = FAMILIES[family].cache_layers(config)
    return 2 * layers * heads * width * itemsize


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

    Its embedding and output projection are copies of the target's and are counted, as the released
    files hold them.

    Raises:
      ValueError: A field is missing or ill-typed, or another Markov head.
    """
    fields = ConfigFields(config)
    dim, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    rank, num_taps = fields.whole("markov_rank"), len(_dspark_ids(config))
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


def _dspark_ids(config: Config) -> list[int]:
    ids = config.get("target_layer_ids")
    if not isinstance(ids, (list, tuple)) or not ids:
        raise ValueError(f"config field target_layer_ids: got {ids!r}, allowed is a list of layers")
    return list(ids)


def _dspark_cache(config: Config) -> tuple[int, int, int]:
    fields = ConfigFields(config)
    _, kv_heads, width = _attention(fields)
    return fields.whole("num_hidden_layers"), kv_heads, width


def _dspark_features(config: Config, num_layers: int) -> tuple[int, ...]:
    return hidden_state_indices(
        _dspark_ids(config), "layer_output", num_layers, field="target_layer_ids"
    )


def eagle3_shapes(config: Config) -> Shapes:
    """Returns the tensors of an EAGLE-3 drafter of one layer on three of the target's layers.

    The embedding is the target's own. `t2d` only serves checks and is dropped after loading.

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


def _eagle3_cache(config: Config) -> tuple[int, int, int]:
    _, kv_heads, width = _attention(ConfigFields(config))
    return 1, kv_heads, width


def _eagle3_features(config: Config, num_layers: int) -> tuple[int, ...]:
    del config
    return eagle3_default(num_layers)


def medusa_shapes(config: Config) -> Shapes:
    """Returns the tensors of Medusa heads, each with an output projection of its own.

    Files of "version" "2" share the target's projection and hold the residual blocks only.

    Raises:
      ValueError: A field is missing or ill-typed.
    """
    fields = ConfigFields(config)
    dim, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    shapes: Shapes = {}
    for head in range(fields.whole("medusa_num_heads")):
        for layer in range(fields.whole("medusa_num_layers")):
            shapes[f"{head}.{layer}.linear.weight"] = (dim, dim)
            shapes[f"{head}.{layer}.linear.bias"] = (dim,)
        if config.get("version") != "2":
            shapes[f"{head}.lm_head.weight"] = (vocab, dim)
    return shapes


def _no_shapes(config: Config) -> Shapes:
    del config
    return {}


def _no_cache(config: Config) -> tuple[int, int, int]:
    del config
    return 0, 0, 0


def _no_features(config: Config, num_layers: int) -> tuple[int, ...]:
    del config, num_layers
    return ()


FAMILIES: dict[str, DrafterSizes] = {
    "dspark": DrafterSizes(dspark_shapes, _dspark_cache, _dspark_features),
    "eagle3": DrafterSizes(eagle3_shapes, _eagle3_cache, _eagle3_features),
    "medusa": DrafterSizes(medusa_shapes, _no_cache, _no_features),
    "ngram": DrafterSizes(_no_shapes, _no_cache, _no_features),
}
