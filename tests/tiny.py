"""Tiny targets and a drafter that plays back a script, shared by the tests."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from asd_jax.load import target_layout
from asd_jax.models import MODELS
from asd_jax.models.rope import RopeConfig
from asd_jax.models.transformer import Transformer, TransformerConfig, as_target
from asd_jax.types import Drafter, Proposal, Target

VOCAB = 64
CONFIG = TransformerConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    norm_eps=1e-5,
    rope=RopeConfig(),
    max_position=256,
    tie_word_embeddings=False,
)


@functools.cache
def tiny_target(seed: int = 0) -> Target:
    """Returns a random target whose logits are about a unit apart, so that regrets matter."""
    model = Transformer(CONFIG, rngs=nnx.Rngs(seed))
    assert model.lm_head is not None
    model.embed_tokens[...] = model.embed_tokens[...] * 50
    model.lm_head[...] = model.lm_head[...] * 8
    return as_target(model)


def full_logits(target: Target, tokens: list[int]) -> np.ndarray:
    """Returns the logits [T, V] of one whole sequence from an empty cache, without any history."""
    length = -(-len(tokens) // 64) * 64  # few shapes; causal, so padding behind changes nothing
    padded = np.zeros((1, length), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(_full_forward(target, jnp.asarray(padded)))[: len(tokens)]


@jax.jit
def _full_forward(target: Target, tokens: jax.Array) -> jax.Array:
    cache = target.init_cache(1, tokens.shape[1])
    return target.forward(target.params, tokens, cache).logits[0]


def scripted_drafter(tokens: np.ndarray, lengths: np.ndarray) -> Drafter:
    """Returns a drafter that proposes from a table, whatever has been committed.

    Args:
      tokens: `tokens[b, p]` holds the G ids proposed behind an anchor at position p, [B, S, G].
      lengths: How many of them, [B, S].
    """
    return Drafter(
        params=(jnp.asarray(tokens, jnp.int32), jnp.asarray(lengths, jnp.int32)),
        init=_init,
        prefill=_keep,
        propose=_propose,
        commit=_keep,
        name="scripted",
        num_draft_tokens=tokens.shape[2],
    )


def _init(params, batch, num_slots):
    del params, batch, num_slots
    return ()


def _keep(params, state, *args):
    del params, args
    return state


def _propose(params, state, anchor, position, sampling):
    del anchor, sampling
    tokens, lengths = params
    pick = jax.vmap(lambda row, at: jax.lax.dynamic_index_in_dim(row, at, keepdims=False))
    return Proposal(tokens=pick(tokens, position), length=pick(lengths, position)), state


def random_script(
    seed: int, greedy: list[list[int]], prompts: list[list[int]], num_draft: int, num_slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a script that mostly follows each row's greedy answer, with slips and short drafts.

    After an exception the rest follows the strict text by position, so it is partly off: the mix
    of hits and misses that the tests need.
    """
    rng = np.random.default_rng(seed)
    batch = len(prompts)
    tokens = rng.integers(0, VOCAB, (batch, num_slots, num_draft))
    for row in range(batch):
        text = prompts[row] + greedy[row]
        for position in range(num_slots):
            for g in range(num_draft):
                at = position + 1 + g
                if at < len(text) and rng.random() < 0.8:
                    tokens[row, position, g] = text[at]
    lengths = rng.integers(0, num_draft + 1, (batch, num_slots))
    lengths = np.where(rng.random(lengths.shape) < 0.6, num_draft, lengths)
    return tokens, lengths


# A released layout that every mesh of 8 devices can hold: heads divide, two key/value heads must be
# copied beyond two devices, and the vocabulary needs padding.
HF_CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "eos_token_id": 60,
}


def write_checkpoint(directory: Path, config: dict = HF_CONFIG, *, seed: int = 0) -> Path:
    """Writes a random model in the released layout, with logits about a unit apart."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    layout = target_layout(MODELS[config["model_type"]].read_config(config), jnp.float32, None)
    rng = np.random.default_rng(seed)
    tensors = {}
    for path, shape in layout.shapes.items():
        scale = {1: 0.2, 2: shape[-1] ** -0.5}[len(shape)]
        value = rng.normal(size=shape) * scale + ("norm" in path)
        name = path.replace("/", ".")
        name = "lm_head.weight" if path == "lm_head" else f"model.{name}"
        name = "model.embed_tokens.weight" if path == "embed_tokens" else name
        tensors[name] = value.astype(np.float32)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return directory
