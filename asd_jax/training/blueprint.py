"""A drafter that is still to be trained, described as the released file that it will become.

Config and tensor names come first and go through the same family code that reads released files, so
what training writes is by construction what `load_drafter` reads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from asd_jax.drafters import dspark, eagle3, medusa
from asd_jax.drafters.family import DrafterFamily, DrafterOptions, TargetFacts
from asd_jax.models.feature_layers import eagle3_default

FAMILIES: dict[str, DrafterFamily] = {
    family.name: family for family in (dspark.FAMILY, eagle3.FAMILY, medusa.FAMILY)
}


@dataclasses.dataclass(frozen=True)
class DrafterSizes:
    """What to train.

    Attributes:
      family: "dspark", "eagle3" or "medusa".
      num_draft_tokens: Medusa's heads, EAGLE-3's unrolled steps, DSpark's block.
      num_layers: DSpark's layers, or residual blocks of a Medusa head; EAGLE-3 has one.
      intermediate_size: Of its feed-forward networks. Default: the target's.
      feature_layers: HF hidden_states indices that it reads. Default: a low, a middle and a high
        one, as EAGLE-3 has them.
      markov_rank: Of DSpark's Markov head.
      has_own_head: Whether a reduced vocabulary has an output projection of its own, which begins
        as the target's rows; otherwise it is those rows, neither trained nor stored.
      mask_id: Id whose embedding fills DSpark's block; one that texts do not hold.
    """

    family: str
    num_draft_tokens: int
    num_layers: int = 1
    intermediate_size: int | None = None
    feature_layers: tuple[int, ...] | None = None
    markov_rank: int = 64
    has_own_head: bool = True
    mask_id: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family: got {self.family!r}, allowed is one of {sorted(FAMILIES)}")
        for name in ("num_draft_tokens", "num_layers", "markov_rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed is >= 1")


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A drafter's files without the numbers in them.

    Attributes:
      family: Its family.
      released: `config.json`.
      shapes: Trained tensors by checkpoint name.
      tables: Further tensors, such as a vocabulary map, by checkpoint name.
      config: What the family reads in them.
      scored_ids: Target ids over which the loss normalises, ascending, int32 [Vd]; None: all.
    """

    family: DrafterFamily
    released: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    tables: dict[str, np.ndarray]
    config: Any
    scored_ids: np.ndarray | None = None

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """hidden_states indices that it reads; none for Medusa."""
        return tuple(getattr(self.config, "feature_layers", ()))

    def path(self, name: str) -> str:
        """Returns the parameter that a tensor fills."""
        for pattern, path in self.family.key_rules(self.config):
            if match := re.fullmatch(pattern, name):
                return match.expand(path)
        raise ValueError(f"tensor {name}: the family {self.family.name} has no parameter for it")

    def build(self, seed: int, dtype: Any) -> nnx.Module:
        """Returns the module with fresh weights."""
        share = self.family.divide(self.config, 1, None)
        return self.family.build(self.config, share, jnp.dtype(dtype), nnx.Rngs(seed))


def draw_up(
    sizes: DrafterSizes, facts: TargetFacts, *, vocabulary: np.ndarray | None = None
) -> Blueprint:
    """Describes a drafter of these sizes for a target.

    Args:
      sizes: What is wanted.
      facts: About the target.
      vocabulary: Target ids of a reduced draft vocabulary, ascending. Default: all. Medusa scores
        all ids whatever it is, and only learns to tell these apart: its loss costs as much less.

    Raises:
      ValueError: The sizes do not fit the target or each other.
    """
    make = {"dspark": _dspark, "eagle3": _eagle3, "medusa": _medusa}[sizes.family]
    released, shapes, tables = make(sizes, facts, vocabulary)
    family = FAMILIES[sizes.family]
    every = shapes | {name: table.shape for name, table in tables.items()}
    options = DrafterOptions(num_draft_tokens=sizes.num_draft_tokens)
    config = family.read_config(released, every, facts, options)
    is_reduced = vocabulary is not None and len(vocabulary) < facts.config.vocab_size
    scored_ids = np.asarray(vocabulary, np.int32) if is_reduced else None
    return Blueprint(family, released, shapes, tables, config, scored_ids)


_Parts = tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, np.ndarray]]


def _medusa(sizes: DrafterSizes, facts: TargetFacts, vocabulary: Any) -> _Parts:
    """The v2 layout: residual blocks alone; the output projection is the target's."""
    dim = facts.config.hidden_size
    released = {
        "version": "2",
        "medusa_num_heads": sizes.num_draft_tokens,
        "medusa_num_layers": sizes.num_layers,
        "hidden_size": dim,
        "vocab_size": facts.config.vocab_size,
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(sizes.num_draft_tokens):
        for layer in range(sizes.num_layers):
            shapes[f"{head}.{layer}.linear.weight"] = (dim, dim)
            shapes[f"{head}.{layer}.linear.bias"] = (dim,)
    return released, shapes, {}


def _decoder_fields(sizes: DrafterSizes, facts: TargetFacts) -> dict[str, Any]:
    config = facts.config
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": sizes.intermediate_size or config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": False,
    }


def _layer_shapes(
    prefix: str, fields: Mapping[str, Any], *, input_dim: int
) -> dict[str, tuple[int, ...]]:
    dim, wide = fields["hidden_size"], fields["intermediate_size"]
    queries = fields["num_attention_heads"] * fields["head_dim"]
    keys = fields["num_key_value_heads"] * fields["head_dim"]
    return {
        f"{prefix}.input_layernorm.weight": (dim,),
        f"{prefix}.self_attn.q_proj.weight": (queries, input_dim),
        f"{prefix}.self_attn.k_proj.weight": (keys, input_dim),
        f"{prefix}.self_attn.v_proj.weight": (keys, input_dim),
        f"{prefix}.self_attn.o_proj.weight": (dim, queries),
        f"{prefix}.post_attention_layernorm.weight": (dim,),
        f"{prefix}.mlp.gate_proj.weight": (wide, dim),
        f"{prefix}.mlp.up_proj.weight": (wide, dim),
        f"{prefix}.mlp.down_proj.weight": (dim, wide),
    }


def _eagle3(sizes: DrafterSizes, facts: TargetFacts, vocabulary: np.ndarray | None) -> _Parts:
    """The original names with SpecForge's field for the layers; the embedding is the target's."""
    config, dim = facts.config, facts.config.hidden_size
    layers = sizes.feature_layers or eagle3_default(config.num_layers)
    ids = np.arange(config.vocab_size) if vocabulary is None else np.asarray(vocabulary)
    released = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": len(ids),
        **_decoder_fields(sizes, facts),
        # Outputs of layers, counted from 0.
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers],
            "use_aux_hidden_state": True,
        },
    }
    shapes = {
        "fc.weight": (dim, len(layers) * dim),
        **_layer_shapes("midlayer", released, input_dim=2 * dim),
        "midlayer.hidden_norm.weight": (dim,),
        "norm.weight": (dim,),
    }
    if vocabulary is None:
        return released, shapes, {}
    if sizes.has_own_head:
        shapes["lm_head.weight"] = (len(ids), dim)
    return released, shapes, _vocabulary_map(ids, config.vocab_size)


def _vocabulary_map(ids: np.ndarray, vocab_size: int) -> dict[str, np.ndarray]:
    """Draft id to target id as an offset, and which target ids are drafted at all."""
    offsets = (ids - np.arange(len(ids))).astype(np.int64)
    return {"d2t": offsets, "t2d": np.isin(np.arange(vocab_size), ids)}


def _dspark(sizes: DrafterSizes, facts: TargetFacts, vocabulary: Any) -> _Parts:
    """DeepSpec's names; embedding and output projection are the target's.

    A reduced vocabulary has a projection of its own and a map, as in speculators.
    """
    config, dim = facts.config, facts.config.hidden_size
    layers = sizes.feature_layers or eagle3_default(config.num_layers)
    rank = sizes.markov_rank
    released = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": sizes.num_layers,
        "num_target_layers": config.num_layers,
        **_decoder_fields(sizes, facts),
        "block_size": sizes.num_draft_tokens,
        "mask_token_id": sizes.mask_id,
        "target_layer_ids": [layer - 1 for layer in layers],
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "attention_bias": False,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (dim, len(layers) * dim),
        "hidden_norm.weight": (dim,),
        "norm.weight": (dim,),
    }
    for index in range(sizes.num_layers):
        shapes |= _layer_shapes(f"layers.{index}", released, input_dim=dim)
        for name in ("q_norm", "k_norm"):
            shapes[f"layers.{index}.self_attn.{name}.weight"] = (config.head_dim,)
    scored = config.vocab_size if vocabulary is None else len(vocabulary)
    shapes |= {
        "markov_head.markov_w1.weight": (config.vocab_size, rank),
        "markov_head.markov_w2.weight": (scored, rank),
        "confidence_head.proj.weight": (1, dim + rank),
        "confidence_head.proj.bias": (1,),
    }
    if vocabulary is None:
        return released, shapes, {}
    released["draft_vocab_size"] = scored
    if sizes.has_own_head:
        shapes["lm_head.weight"] = (scored, dim)
    return released, shapes, _vocabulary_map(np.asarray(vocabulary), config.vocab_size)
