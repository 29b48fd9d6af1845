"""Layers of a dense decoder. All layout choices that speed depends on are made in this file.

Activations are feature-major, [D, M] with M = B * T, and every product is `weight @ x` with the
checkpoint's own [out, in] weights (`product`): on CPU this is the fastest form for the few columns
that a decode step has, and nothing is transposed when loading. Attention is a product batched over
[B, K] with the query group folded into rows.

On a mesh every device runs these layers on its own part of the heads and of the feed-forward
network, and the products that mix parts (`reduce_axis`) end in a sum over the mesh axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from asd_jax.cache import write_slots
from asd_jax.models.attend import attend
from asd_jax.models.product import product
from asd_jax.models.rope import apply_rope


class Linear(nnx.Module):
    """A product with a weight [out, in], and a bias [out] where there is one.

    With a `reduce_axis` each device of that mesh axis holds some of the input features, and the
    products are summed over it.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        reduce_axis: str | None = None,
    ) -> None:
        self.reduce_axis = reduce_axis
        scale = in_dim**-0.5
        self.weight = nnx.Param(jax.random.normal(rngs.params(), (out_dim, in_dim), dtype) * scale)
        self.bias = nnx.Param(jnp.zeros((out_dim,), dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [in, M] to [out, M]."""
        y = product(self.weight[...], x)
        if self.reduce_axis is not None:
            y = jax.lax.psum(y, self.reduce_axis)
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
    """SwiGLU feed-forward network; `hidden_dim` is this device's part."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        model_axis: str | None = None,
    ) -> None:
        self.gate_proj = Linear(dim, hidden_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.up_proj = Linear(dim, hidden_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.down_proj = Linear(
            hidden_dim, dim, bias=bias, dtype=dtype, rngs=rngs, reduce_axis=model_axis
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [D, M] to [D, M]."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nnx.Module):
    """Grouped-query attention over a cache of per-row length; heads are this device's part.

    With a `sliding_window` a token sees itself and the `sliding_window - 1` before it. The cache
    keeps all slots and the window is a mask, so rolling back is what it is everywhere else.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm_eps: float | None,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
        input_dim: int | None = None,
        sliding_window: int | None = None,
        model_axis: str | None = None,
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.sliding_window = sliding_window
        input_dim = dim if input_dim is None else input_dim
        kv_dim = num_kv_heads * head_dim
        self.q_proj = Linear(input_dim, num_heads * head_dim, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.k_proj = Linear(input_dim, kv_dim, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.v_proj = Linear(input_dim, kv_dim, bias=qkv_bias, dtype=dtype, rngs=rngs)
        self.o_proj = Linear(
            num_heads * head_dim,
            dim,
            bias=output_bias,
            dtype=dtype,
            rngs=rngs,
            reduce_axis=model_axis,
        )

        def norm() -> RMSNorm | None:
            if qk_norm_eps is None:
                return None
            return RMSNorm(head_dim, eps=qk_norm_eps, dtype=dtype, rngs=rngs)

        self.q_norm, self.k_norm = norm(), norm()

    def __call__(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        length: jax.Array,
        rope: tuple[jax.Array, jax.Array],
        *,
        is_causal: bool = True,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Attends from T new tokens a row to the row's cache and to themselves.

        Args:
          x: [D, B * T].
          keys: [B, K, S, H]; slots `length[b]..length[b] + T - 1` are written.
          values: [B, K, S, H].
          length: Valid slots before this call, int32 [B].
          rope: Cosines and sines, [H / 2, B * T].
          is_causal: Whether a new token sees only those before it; otherwise all T.

        Returns:
          The output [D, B * T] and the two updated buffers.
        """
        batch, num_kv_heads, num_slots, head_dim = keys.shape
        num_tokens = x.shape[1] // batch
        q = self.q_proj(x).reshape(self.num_heads, head_dim, -1)
        if self.q_norm is not None:
            q = self.q_norm(q, axis=1)
        q = apply_rope(q, *rope)
        keys, values = self.remember(x, keys, values, length, rope)

        index = jnp.arange(num_tokens, dtype=jnp.int32)
        last = index if is_causal else jnp.full_like(index, num_tokens - 1)
        seen_to = length[:, None] + last[None, :]
        mixed = attend(q, keys, values, seen_to, sliding_window=self.sliding_window)
        return self.o_proj(mixed), keys, values

    def remember(
        self,
        x: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        length: jax.Array,
        rope: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Writes the keys and values of T new tokens a row, attending to nothing.

        Args:
          x: As in a call.
          keys: As in a call.
          values: As in a call.
          length: As in a call.
          rope: As in a call.

        Returns:
          The two updated buffers.
        """
        batch, num_kv_heads, _, head_dim = keys.shape
        k = self.k_proj(x).reshape(num_kv_heads, head_dim, -1)
        v = self.v_proj(x).reshape(num_kv_heads, head_dim, batch, -1)
        if self.k_norm is not None:
            k = self.k_norm(k, axis=1)
        k = apply_rope(k, *rope).reshape(v.shape).transpose(2, 0, 3, 1)
        return write_slots(keys, k, length), write_slots(values, v.transpose(2, 0, 3, 1), length)


def look_up(table: jax.Array, tokens: jax.Array, vocab_size: int, axis: str | None) -> jax.Array:
    """Looks tokens up in an embedding of which each device of a mesh axis may hold some rows.

    Args:
      table: This device's rows, [V, D].
      tokens: int32 [M]; ids outside the vocabulary are clipped into it.
      vocab_size: Rows in all, padding not counted.
      axis: The mesh axis, or None.

    Returns:
      [D, M].
    """
    tokens = jnp.clip(tokens, 0, vocab_size - 1)
    if axis is None:
        return jnp.take(table, tokens, axis=0, mode="clip").T
    here = tokens - first_row(table, axis)
    is_here = (here >= 0) & (here < table.shape[0])
    rows = jnp.take(table, here, axis=0, mode="clip")
    return jax.lax.psum(jnp.where(is_here[:, None], rows, jnp.zeros_like(rows)), axis).T


def score_vocabulary(
    table: jax.Array, hidden: jax.Array, num_ids: int, axis: str | None
) -> jax.Array:
    """Scores the vocabulary rows that this device holds.

    Args:
      table: Output projection, this device's rows, [V, D].
      hidden: [D, M].
      num_ids: Ids that stand for a token; the rows behind them are padding and score -inf.
      axis: Mesh axis that divides the rows, or None.

    Returns:
      Logits [V, M].
    """
    logits = product(table, hidden)
    if axis is None and num_ids == table.shape[0]:
        return logits
    row = first_row(table, axis) + jnp.arange(table.shape[0], dtype=jnp.int32)
    return jnp.where(row[:, None] < num_ids, logits, jnp.asarray(-jnp.inf, logits.dtype))


def first_row(table: jax.Array, axis: str | None) -> jax.Array:
    """Returns the id of the first vocabulary row that this device holds, int32 []."""
    return jnp.int32(0) if axis is None else jax.lax.axis_index(axis) * table.shape[0]
