"""DSpark written out in numpy, one request and one token at a time.

From the description of DeepSpec's Qwen3 drafter alone; nothing of the library is used. `tensors`
are a checkpoint's, by released name, and all vectors are rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a random drafter looks like; the vocabulary and the width are the target's."""

    vocab: int = 61
    dim: int = 32
    taps: tuple[int, ...] = (1, 3)
    block: int = 4
    mask_id: int = 60
    layers: int = 2
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 48
    theta: float = 10000.0
    rank: int = 8
    kind: str | None = "vanilla"
    confidence: bool = True
    confidence_with_markov: bool = True
    reduced: int | None = None
    own_embedding: bool = True
    own_head: bool = True


def fuse(tensors: dict[str, np.ndarray], taps: np.ndarray) -> np.ndarray:
    """Returns the context row [D] of one position's tapped streams."""
    return _norm(tensors["fc.weight"].astype(np.float64) @ taps, tensors["hidden_norm.weight"])


def block_hidden(
    tensors: dict[str, np.ndarray], sizes: Sizes, taps: np.ndarray, anchor: int
) -> np.ndarray:
    """Runs the block behind the context.

    Args:
      tensors: With the embedding.
      sizes: Of the drafter.
      taps: Tapped streams of positions 0..p-1, [p, F * D].
      anchor: The token at position p.

    Returns:
      What the output projection reads, [block, D].
    """
    context = [fuse(tensors, row) for row in taps]
    start = len(context)
    ids = [anchor] + [sizes.mask_id] * (sizes.block - 1)
    stream = [tensors["embed_tokens.weight"][i].astype(np.float64) for i in ids]
    for index in range(sizes.layers):
        layer = {
            name.removeprefix(f"layers.{index}."): value.astype(np.float64)
            for name, value in tensors.items()
            if name.startswith(f"layers.{index}.")
        }
        normed = [_norm(x, layer["input_layernorm.weight"]) for x in stream]
        rows = context + normed
        keys = [
            _heads(layer, "k", x, sizes.kv_heads, sizes, position)
            for position, x in enumerate(rows)
        ]
        values = [(layer["self_attn.v_proj.weight"] @ x).reshape(sizes.kv_heads, -1) for x in rows]
        group = sizes.heads // sizes.kv_heads
        for slot, x in enumerate(normed):
            queries = _heads(layer, "q", x, sizes.heads, sizes, start + slot)
            mixed = []
            for head, query in enumerate(queries):
                of = head // group
                scores = np.array([query @ key[of] for key in keys]) * sizes.head_dim**-0.5
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed.append(sum(w * v[of] for w, v in zip(weights, values, strict=True)))
            stream[slot] = stream[slot] + layer["self_attn.o_proj.weight"] @ np.concatenate(mixed)
        for slot, x in enumerate(stream):
            y = _norm(x, layer["post_attention_layernorm.weight"])
            gate = layer["mlp.gate_proj.weight"] @ y
            up = layer["mlp.up_proj.weight"] @ y
            stream[slot] = x + layer["mlp.down_proj.weight"] @ (gate * _sigmoid(gate) * up)
    return np.stack([_norm(x, tensors["norm.weight"]) for x in stream])


def draft(
    tensors: dict[str, np.ndarray],
    sizes: Sizes,
    hidden: np.ndarray,
    anchor: int,
    choose: Callable[[np.ndarray, int], int],
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Chooses drafts from left to right.

    Args:
      tensors: With the output projection.
      sizes: Of the drafter.
      hidden: From `block_hidden`.
      anchor: The token before the first draft.
      choose: `(logits [V of the target], slot) -> token`.

    Returns:
      The tokens, their logits [block, V of the target] and confidence logits [block].
    """
    ids = np.arange(sizes.vocab)
    if sizes.reduced is not None:
        ids = tensors["d2t"] + np.arange(sizes.reduced)
    rank = sizes.rank if sizes.kind else 0
    state, before = np.zeros(rank), anchor
    tokens, all_logits, confidence = [], [], []
    for slot, h in enumerate(hidden):
        scored = tensors["lm_head.weight"].astype(np.float64) @ h
        embedded = np.zeros(0)
        if sizes.kind is not None:
            embedded = tensors["markov_head.markov_w1.weight"][before].astype(np.float64)
            state, latent = _markov(tensors, sizes.kind, state, embedded, h)
            scored = scored + tensors["markov_head.markov_w2.weight"] @ latent
        if sizes.confidence:
            read = np.concatenate([h, embedded]) if sizes.confidence_with_markov else h
            weight = tensors["confidence_head.proj.weight"][0]
            confidence.append(weight @ read + tensors["confidence_head.proj.bias"][0])
        logits = np.full(sizes.vocab, -np.inf)
        logits[ids] = scored
        before = choose(logits, slot)
        tokens.append(before)
        all_logits.append(logits)
    return tokens, np.stack(all_logits), np.array(confidence)


def _markov(
    tensors: dict[str, np.ndarray],
    kind: str,
    state: np.ndarray,
    embedded: np.ndarray,
    hidden: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the next state and what W2 reads."""
    if kind == "vanilla":
        return state, embedded
    name = {"gated": "gate_proj", "rnn": "joint_proj"}[kind]
    weight, bias = (tensors[f"markov_head.{name}.{part}"] for part in ("weight", "bias"))
    if kind == "gated":
        return state, _sigmoid(weight @ np.concatenate([hidden, embedded]) + bias) * embedded
    joint = weight @ np.concatenate([state, embedded, hidden]) + bias
    keep, candidate, output = np.split(joint, 3)
    keep = _sigmoid(keep)
    return keep * state + (1 - keep) * np.tanh(candidate), np.tanh(output)


def _heads(
    layer: dict[str, np.ndarray], which: str, x: np.ndarray, heads: int, sizes: Sizes, position: int
) -> list[np.ndarray]:
    """Returns the rotated queries or keys of one token, a vector a head."""
    projected = (layer[f"self_attn.{which}_proj.weight"] @ x).reshape(heads, sizes.head_dim)
    half = sizes.head_dim // 2
    angles = position * sizes.theta ** (-2.0 * np.arange(half) / sizes.head_dim)
    turned = []
    for head in projected:
        head = _norm(head, layer[f"self_attn.{which}_norm.weight"])
        first, second = head[:half], head[half:]
        cos, sin = np.cos(angles), np.sin(angles)
        turned.append(np.concatenate([first * cos - second * sin, second * cos + first * sin]))
    return turned


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + EPS) * weight


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
