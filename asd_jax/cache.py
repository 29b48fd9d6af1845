"""The dense key/value cache: per-row lengths, so that rows may advance by different amounts.

Slots at and behind `length` are garbage. Rolling back is lowering `length`: what lies behind is
masked until a later forward overwrites it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct


class KVCache(struct.PyTreeNode):
    """Keys and values of every layer.

    One array a layer, not one array with a layer axis: a forward then updates each in place, where
    slicing a stacked array inside the decode loop would copy it.

    Attributes:
      keys: L arrays [B, K, S, H], positions already rotated in.
      values: L arrays [B, K, S, H].
      length: Valid slots of each row, int32 [B].
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    length: jax.Array

    def logical_axes(self) -> KVCache:
        """Returns the names of every array's axes, for `asd_jax.sharding`."""
        buffers = tuple(("batch", "kv_heads", None, None) for _ in self.keys)
        return KVCache(keys=buffers, values=buffers, length=("batch",))  # type: ignore[arg-type]


def init_cache(
    num_layers: int,
    batch: int,
    num_kv_heads: int,
    num_slots: int,
    head_dim: int,
    dtype: jnp.dtype,
) -> KVCache:
    """Returns an empty cache of `num_slots` slots a row."""
    shape = (batch, num_kv_heads, num_slots, head_dim)
    return KVCache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
        values=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
        length=jnp.zeros((batch,), jnp.int32),
    )


def write_slots(buffer: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    """Writes T consecutive slots of every row.

    `dynamic_update_slice` clamps at the end and would overwrite live slots, so the caller keeps
    `start + T <= S` for every row whose contents matter (see `asd_jax.decode`).

    Args:
      buffer: [B, K, S, H].
      update: [B, K, T, H].
      start: First slot of each row, int32 [B].

    Returns:
      The buffer with the slots replaced, [B, K, S, H].
    """
    update = update.astype(buffer.dtype)
    zero = jnp.int32(0)
    if buffer.shape[0] == 1:
        return jax.lax.dynamic_update_slice(buffer, update, (zero, zero, start[0], zero))
    return jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (zero, at, zero)))(
        buffer, update, start
    )


def append_tokens(
    buffer: jax.Array, tokens: jax.Array, start: jax.Array, count: jax.Array
) -> jax.Array:
    """Writes the first `count` tokens of every row; what falls behind the buffer is dropped.

    Args:
      buffer: int32 [B, S].
      tokens: int32 [B, W].
      start: First index written in each row, int32 [B].
      count: Tokens written in each row, int32 [B], 0..W.

    Returns:
      The buffer with the tokens in place, [B, S].
    """
    offset = jnp.arange(tokens.shape[1], dtype=jnp.int32)

    def row(old: jax.Array, new: jax.Array, start: jax.Array, count: jax.Array) -> jax.Array:
        slot = jnp.where(offset < count, start + offset, old.shape[0])
        return old.at[slot].set(new, mode="drop")

    return jax.vmap(row)(buffer, tokens, start, count)


def rollback(cache: KVCache, length: jax.Array) -> KVCache:
    """Returns the cache with only the first `length` [B] slots of each row valid."""
    return cache.replace(length=length)
