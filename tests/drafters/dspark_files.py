"""Random DSpark drafters as the three producers write them, and a target for them."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import safetensors.numpy

from asd_jax import load_target
from tests import tiny
from tests.drafters.dspark_oracle import EPS, Sizes

LAYERS = 6  # of the target


def write_target(directory):
    """Writes the target; returns its path."""
    config = {**tiny.HF_CONFIG, "num_hidden_layers": LAYERS}
    return str(tiny.write_checkpoint(directory, config))


@functools.cache
def small_target(path, *, mesh=None, num_ids=61):
    """A target of which the last ids stand for no token."""
    loaded = load_target(path, mesh=mesh)
    return dataclasses.replace(
        loaded, config=dataclasses.replace(loaded.config, num_token_ids=num_ids)
    )


def write(directory, sizes, form="deepspec", *, prefix="", seed=0, config=None, tensors=None):
    """Writes a random drafter and returns its tensors."""
    tensors = random_tensors(sizes, seed) if tensors is None else tensors
    config = {**released_config(sizes, form), **(config or {})}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    named = {prefix + name: value for name, value in tensors.items()}
    safetensors.numpy.save_file(named, directory / "model.safetensors")
    return tensors


def random_tensors(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Draws a checkpoint whose parts all matter to the logits."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=(rows, columns)) * scale * columns**-0.5).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return (1 + 0.3 * rng.normal(size=size)).astype(np.float32)

    dim, queries, keys = sizes.dim, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    tensors = {
        "fc.weight": matrix(dim, len(sizes.taps) * dim),
        "hidden_norm.weight": norm(dim),
        "norm.weight": norm(dim),
    }
    for index in range(sizes.layers):
        layer = f"layers.{index}."
        tensors |= {
            f"{layer}input_layernorm.weight": norm(dim),
            f"{layer}post_attention_layernorm.weight": norm(dim),
            f"{layer}self_attn.q_proj.weight": matrix(queries, dim),
            f"{layer}self_attn.k_proj.weight": matrix(keys, dim),
            f"{layer}self_attn.v_proj.weight": matrix(keys, dim),
            f"{layer}self_attn.o_proj.weight": matrix(dim, queries),
            f"{layer}self_attn.q_norm.weight": norm(sizes.head_dim),
            f"{layer}self_attn.k_norm.weight": norm(sizes.head_dim),
            f"{layer}mlp.gate_proj.weight": matrix(sizes.ffn, dim),
            f"{layer}mlp.up_proj.weight": matrix(sizes.ffn, dim),
            f"{layer}mlp.down_proj.weight": matrix(dim, sizes.ffn),
        }
    scored = sizes.reduced or sizes.vocab
    if sizes.own_embedding:
        tensors["embed_tokens.weight"] = matrix(sizes.vocab, dim, 5.0)
    if sizes.own_head:
        tensors["lm_head.weight"] = matrix(scored, dim)
    if sizes.reduced is not None:
        ids = np.sort(rng.choice(sizes.vocab, sizes.reduced, replace=False))
        tensors["d2t"] = ids - np.arange(sizes.reduced)
        tensors["t2d"] = np.isin(np.arange(sizes.vocab), ids)
    rank = sizes.rank if sizes.kind else 0
    if sizes.kind:
        tensors["markov_head.markov_w1.weight"] = matrix(sizes.vocab, rank, rank**0.5)
        tensors["markov_head.markov_w2.weight"] = matrix(scored, rank, 1.5)
    if sizes.kind == "gated":
        tensors["markov_head.gate_proj.weight"] = matrix(rank, dim + rank)
        tensors["markov_head.gate_proj.bias"] = norm(rank)
    if sizes.kind == "rnn":
        tensors["markov_head.joint_proj.weight"] = matrix(3 * rank, 2 * rank + dim)
        tensors["markov_head.joint_proj.bias"] = norm(3 * rank)
    if sizes.confidence:
        read = dim + rank * sizes.confidence_with_markov
        tensors["confidence_head.proj.weight"] = matrix(1, read)
        tensors["confidence_head.proj.bias"] = norm(1) - 1
    return tensors


def released_config(sizes: Sizes, form: str) -> dict[str, Any]:
    """Returns `config.json` as one of the three producers writes it.

    Args:
      sizes: Of the drafter.
      form: "deepspec", "specforge" or "speculators".
    """
    backbone = {
        "model_type": "qwen3",
        "hidden_size": sizes.dim,
        "intermediate_size": sizes.ffn,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": EPS,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    heads = {
        "markov_rank": sizes.rank if sizes.kind else 0,
        "markov_head_type": sizes.kind or "vanilla",
        "enable_confidence_head": sizes.confidence,
        "confidence_head_with_markov": sizes.confidence_with_markov,
    }
    common = {"block_size": sizes.block, "mask_token_id": sizes.mask_id}
    if form == "speculators":
        rope = {"rope_parameters": {"rope_theta": sizes.theta, "rope_type": "default"}}
        return {
            "architectures": ["DSparkDraftModel"],
            "speculators_model_type": "dspark",
            "sample_from_anchor": True,
            "transformer_layer_config": {**backbone, **rope},
            "aux_hidden_state_layer_ids": [layer + 1 for layer in sizes.taps],
            "draft_vocab_size": sizes.reduced or sizes.vocab,
            **common,
            **heads,
        }
    flat = {**backbone, "rope_theta": sizes.theta, "num_target_layers": LAYERS}
    taps = {"target_layer_ids": list(sizes.taps)}
    if form == "deepspec":
        return {"architectures": ["Qwen3DSparkModel"], **flat, **common, **heads, **taps}
    nested = {"projector_type": "dspark", "mask_token_id": sizes.mask_id, **heads, **taps}
    return {
        "architectures": ["DSparkDraftModel"],
        **flat,
        "block_size": sizes.block,
        "dflash_config": nested,
    }
