"""Layers of a dense decoder. All layout choices that speed depends on are made in this file.

Activations are feature-major, [D, M] with M = B * T, and every product is `weight @ x` with the
checkpoint's own [out, in] weights: on CPU this is the fastest form for the few columns that a
decode step has, and nothing is transposed when loading. Attention is a product batched over
[B, K] with the query group folded into rows.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.cache import write_slots


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
      theta: Base of the frequencies.
      kind: "default", "linear" or "llama3".
      factor: Context extension of "linear" and "llama3".
      low_freq_factor: Of "llama3": wavelengths above original / low are divided by `factor`.
      high_freq_factor: Of "llama3": wavelengths below original / high are kept.
      original_max_position: Of "llama3": the context that the model was first trained with.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def inverse_frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Returns the H / 2 angular frequencies in radians a position.

        Raises:
          ValueError: Unknown `kind`.
        """
        freqs = [self.theta ** (-2.0 * j / head_dim) for j in range(head_dim // 2)]
        if self.kind == "default":
            return tuple(freqs)
        if self.kind == "linear":
            return tuple(f / self.factor for f in freqs)
        if self.kind == "llama3":
            return tuple(self._llama3(f) for f in freqs)
        raise ValueError(f"rope kind: got {self.kind!r}, allowed is default, linear or llama3")

    def _llama3(self, freq: float) -> float:
        wavelength = 2 * math.pi / freq
        longest = self.original_max_position / self.low_freq_factor
        shortest = self.original_max_position / self.high_freq_factor
        if wavelength > longest:
            return freq / self.factor
        if wavelength < shortest:
            return freq
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        return (1 - smooth) * freq / self.factor + smooth * freq


def rope_tables(
    rope: RopeConfig, head_dim: int, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and sines, float32 [H / 2, M], for positions int32 [M]."""
    frequencies = jnp.asarray(rope.inverse_frequencies(head_dim), jnp.float32)
    angles = frequencies[:, None] * positions.astype(jnp.float32)[None, :]
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates [N, H, M] by tables [H / 2, M], pairing feature j with j + H / 2 (HF's layout)."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=1)
    cos, sin = cos[None], sin[None]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
    return rotated.astype(x.dtype)


class Linear(nnx.Module):
    """A product with a weight [out, in], and a bias [out] where there is one."""

    def __init__(
        self, in_dim: int, out_dim: int, *, bias: bool, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        scale = in_dim**-0.5
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_dim, in_dim), dtype) * scale)
        self.bias = nnx.Param(jnp.zeros((out_dim,), dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [in, M] to [out, M]."""
        y = self.weight[...] @ x
        return y if self.bias is None else y + self.bias[...][:, None]


class RMSNorm(nnx.Module):
    """Root-mean-square norm over a feature axis, with float32 statistics."""

    def __init__(self, dim: int, *, eps: float, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        del rngs
        self.weight = nnx.Param(jnp.ones((dim,), dtype))
        self.eps = eps

    def __call__(self, x: jax.Array, *, axis: int = 0) -> jax.Array:
        """Normalises `axis` of x, [..., dim, ...], keeping its dtype."""
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=axis, keepdims=True)
        normed = (wide * jax.lax.rsqrt(mean_square + self.eps)).astype(x.dtype)
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        return normed * self.weight[...].reshape(shape)


class MLP(nnx.Module):
    """SwiGLU feed-forward network."""

    def __init__(self, dim: int, hidden_dim: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.gate_proj = Linear(dim, hidden_dim, bias=False, dtype=dtype, rngs=rngs)
        self.up_proj = Linear(dim, hidden_dim, bias=False, dtype=dtype, rngs=rngs)
        self.down_proj = Linear(hidden_dim, dim, bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [D, M] to [D, M]."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nnx.Module):
    """Grouped-query attention over a cache of per-row length."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool,
        qk_norm_eps: float | None,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        kv_dim = num_kv_heads * head_dim
        self.q_proj = Linear(dim, num_heads * head_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(dim, kv_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(dim, kv_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(num_heads * head_dim, dim, bias=False, dtype=dtype, rngs=rngs)
        self.q_norm = self.k_norm = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_dim, eps=qk_norm_eps, dtype=dtype, rngs=rngs)
            self.k_norm = RMSNorm(head_dim, eps=qk_norm_eps, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        length: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Attends from T new tokens a row to the row's cache and to themselves, causally.

        Args:
          x: [D, B * T].
          keys: [B, K, S, H]; slots `length[b]..length[b] + T - 1` are written.
          values: [B, K, S, H].
          length: Valid slots before this call, int32 [B].
          rope: Cosines and sines, [H / 2, B * T].

        Returns:
          The output [D, B * T] and the two updated buffers.
        """
        batch, num_kv_heads, num_slots, head_dim = keys.shape
        num_tokens = x.shape[1] // batch
        group = self.num_heads // num_kv_heads

        q = self.q_proj(x).reshape(self.num_heads, head_dim, -1)
        k = self.k_proj(x).reshape(num_kv_heads, head_dim, -1)
        v = self.v_proj(x).reshape(num_kv_heads, head_dim, batch, num_tokens)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, axis=1), self.k_norm(k, axis=1)
        q, k = apply_rope(q, *rope), apply_rope(k, *rope)

        k = k.reshape(num_kv_heads, head_dim, batch, num_tokens).transpose(2, 0, 3, 1)
        keys = write_slots(keys, k, length)
        values = write_slots(values, v.transpose(2, 0, 3, 1), length)

        q = (q * jnp.asarray(head_dim**-0.5, q.dtype)).reshape(
            num_kv_heads, group, head_dim, batch, num_tokens
        )
        q = q.transpose(3, 0, 4, 1, 2).reshape(batch, num_kv_heads, num_tokens * group, head_dim)
        scores = jax.lax.dot_general(
            q, keys, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
        ).reshape(batch, num_kv_heads, num_tokens, group, num_slots)

        query_position = length[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
        slot = jnp.arange(num_slots, dtype=jnp.int32)
        visible = slot[None, None, :] <= query_position[:, :, None]
        scores = jnp.where(visible[:, None, :, None, :], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
        weights = weights.reshape(batch, num_kv_heads, num_tokens * group, num_slots)

        mixed = jax.lax.dot_general(weights, values, (((3,), (2,)), ((0, 1), (0, 1))))
        mixed = mixed.reshape(batch, num_kv_heads, num_tokens, group, head_dim)
        mixed = mixed.transpose(1, 3, 4, 0, 2).reshape(-1, batch * num_tokens)
        return self.o_proj(mixed), keys, values
