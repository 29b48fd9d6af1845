"""Random EAGLE-3 drafters in every released layout, each with its oracle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tests import tiny
from tests.drafters.eagle3_oracle import Oracle

DIM, VOCAB, DRAFT_VOCAB, NUM_IDS, NUM_DRAFT = 32, tiny.HF_CONFIG["vocab_size"], 40, 55, 7
TARGET = {**tiny.HF_CONFIG, "num_hidden_layers": 8}
# As in the released original: nothing of RoPE, nothing of a head's width; a context that is far
# too short, a number of layers that is the target's.
FIELDS = {
    "model_type": "llama",
    "hidden_size": DIM,
    "intermediate_size": 24,
    "num_hidden_layers": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A drafter to be written.

    Attributes:
      config: Its `config.json`.
      layer: Prefix of the layer's tensors.
      num_taps: Residual streams that it reads.
      feature_layers: Which ones, as hidden_states indices.
      extra: Shapes of tensors beside the ones that all have, and `embed_tokens` or `lm_head`.
      head_dim: Width of a head.
      is_reduced: Whether it scores a part of the vocabulary.
      has_fc: Whether it fuses streams.
      theta: Base of its rotary frequencies.
      flags: Of the oracle.
    """

    config: dict[str, Any]
    layer: str
    num_taps: int
    feature_layers: tuple[int, ...]
    extra: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    head_dim: int = 8
    is_reduced: bool = True
    has_fc: bool = True
    theta: float = 10000.0
    flags: dict[str, bool] = dataclasses.field(default_factory=dict)

    def tensors(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns random tensors, the layer's behind `layer.`; d2t and t2d of a reduced one."""
        rng = np.random.default_rng(seed)
        heads, kv_heads, wide = 4 * self.head_dim, 2 * self.head_dim, 24
        shapes = {
            "norm.weight": (DIM,),
            "layer.input_layernorm.weight": (DIM,),
            "layer.hidden_norm.weight": (DIM,),
            "layer.post_attention_layernorm.weight": (DIM,),
            "layer.self_attn.q_proj.weight": (heads, 2 * DIM),
            "layer.self_attn.k_proj.weight": (kv_heads, 2 * DIM),
            "layer.self_attn.v_proj.weight": (kv_heads, 2 * DIM),
            "layer.self_attn.o_proj.weight": (DIM, heads),
            "layer.mlp.gate_proj.weight": (wide, DIM),
            "layer.mlp.up_proj.weight": (wide, DIM),
            "layer.mlp.down_proj.weight": (DIM, wide),
            **({"fc.weight": (DIM, self.num_taps * DIM)} if self.has_fc else {}),
            **self.extra,
        }
        tensors = {}
        for name, shape in shapes.items():
            scale = {1: 0.2, 2: 1.5 * shape[-1] ** -0.5}[len(shape)]
            value = rng.normal(size=shape) * scale + ("norm" in name)
            tensors[name] = value.astype(np.float32)
        if self.is_reduced:
            ids = np.sort(rng.choice(VOCAB, DRAFT_VOCAB, replace=False))
            tensors["d2t"] = ids - np.arange(DRAFT_VOCAB)
            tensors["t2d"] = np.isin(np.arange(VOCAB), ids)
        return tensors

    def write(self, directory: Path, tensors: dict[str, np.ndarray], config: Any = None) -> str:
        """Writes the drafter and returns its path."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config or self.config))
        named = {
            self.layer + name.removeprefix("layer.") if name.startswith("layer.") else name: value
            for name, value in tensors.items()
        }
        safetensors.numpy.save_file(named, directory / "model.safetensors")
        return str(directory)

    def oracle(self, tensors: dict[str, np.ndarray], target: Path) -> Oracle:
        """Returns the oracle of the drafter for a target."""
        shared = safetensors.numpy.load_file(target / "model.safetensors")
        ids = np.flatnonzero(tensors["t2d"]) if self.is_reduced else np.arange(VOCAB)
        return Oracle(
            tensors=tensors,
            embedding=tensors.get("embed_tokens.weight", shared["model.embed_tokens.weight"]),
            head=tensors.get("lm_head.weight", shared["lm_head.weight"][ids]),
            ids=ids,
            num_heads=4,
            num_kv_heads=2,
            theta=self.theta,
            eps=1e-5,
            num_ids=NUM_IDS,
            **self.flags,
        )


VARIANTS = {
    # Every norm that there is, q_norm and k_norm of a Qwen3 layer, an output that is fed back.
    "speculators": Variant(
        config={
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": DRAFT_VOCAB,
            "target_hidden_size": DIM,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 8],
            "transformer_layer_config": {
                **FIELDS,
                "model_type": "qwen3",
                "head_dim": 12,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            },
            "speculators_config": {
                "proposal_methods": [
                    {"proposal_type": "greedy", "speculative_tokens": NUM_DRAFT},
                ]
            },
        },
        layer="layers.0.",
        num_taps=3,
        feature_layers=(1, 2, 8),
        head_dim=12,
        theta=500.0,
        extra={
            "input_norm.weight": (3 * DIM,),
            "layer.self_attn.q_norm.weight": (12,),
            "layer.self_attn.k_norm.weight": (12,),
            "lm_head.weight": (DRAFT_VOCAB, DIM),
        },
        flags={"norm_before_residual": True, "norm_output": True},
    ),
    # Five streams, each with its norm; the head is the target's rows; `norm_output` says nothing.
    "specforge": Variant(
        config={
            **FIELDS,
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": DRAFT_VOCAB,
            "fc_norm": True,
            "norm_output": True,
            "rope_theta": 50.0,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [0, 1, 3, 4, 7],
            },
        },
        layer="midlayer.",
        num_taps=5,
        feature_layers=(1, 2, 4, 5, 8),
        theta=50.0,
        extra={f"fc_norm.{i}.weight": (DIM,) for i in range(5)},
    ),
    # One stream as it is, biases, a vocabulary and tables of its own.
    "own_tables": Variant(
        config={**FIELDS, "eagle_aux_hidden_state_layer_ids": [3]},
        layer="midlayer.",
        num_taps=1,
        feature_layers=(3,),
        head_dim=12,
        is_reduced=False,
        has_fc=False,
        extra={
            "embed_tokens.weight": (VOCAB, DIM),
            "lm_head.weight": (VOCAB, DIM),
            "layer.self_attn.q_proj.bias": (48,),
            "layer.self_attn.k_proj.bias": (24,),
            "layer.self_attn.v_proj.bias": (24,),
        },
    ),
    # Nothing of its own but the layer.
    "shared_tables": Variant(
        config=FIELDS,
        layer="model.layers.0.",
        num_taps=3,
        feature_layers=(2, 4, 5),
        is_reduced=False,
    ),
}
