"""Attention from a few new tokens a row to a cache of per-row length.

On CPU the cache is read in chunks, from the first that some row sees to the last, with a running
softmax: a cache is mostly empty for most of a decode, and reading it is what a step costs most
after the weights. Elsewhere one product over all slots is faster than a loop whose length the host
has to be told. Chunks beyond a row's own length add exact zeros, so a row's bits do not depend on
the rows beside it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# Smaller chunks would read less and loop more; other sizes have not been measured.
CHUNK = 128
_HIDDEN = jnp.finfo(jnp.float32).min


def attend(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    seen_to: jax.Array,
    *,
    sliding_window: int | None = None,
) -> jax.Array:
    """Mixes values for queries that see the slots up to their own last one.

    Args:
      q: Queries, columns [N, H, B * T]; N is a multiple of K.
      keys: [B, K, S, H].
      values: [B, K, S, H].
      seen_to: Last slot that each query sees, int32 [B, T].
      sliding_window: Slots that it sees at most, its last one included; None: all.

    Returns:
      Columns [N * H, B * T], in the dtype of the values.
    """
    batch, num_kv_heads, _, head_dim = keys.shape
    num_tokens = seen_to.shape[1]
    group = q.shape[0] // num_kv_heads
    q = (q * jnp.asarray(head_dim**-0.5, q.dtype)).reshape(
        num_kv_heads, group, head_dim, batch, num_tokens
    )
    # The query group is folded into rows, so that one product serves all heads that share keys.
    q = q.transpose(3, 0, 4, 1, 2).reshape(batch, num_kv_heads, num_tokens * group, head_dim)
    seen_to = jnp.repeat(seen_to, group, axis=1)
    mixed = jax.lax.platform_dependent(
        q,
        keys,
        values,
        seen_to,
        cpu=functools.partial(attend_in_chunks, sliding_window=sliding_window),
        default=functools.partial(attend_at_once, sliding_window=sliding_window),
    )
    mixed = mixed.reshape(batch, num_kv_heads, num_tokens, group, head_dim)
    return mixed.transpose(1, 3, 4, 0, 2).reshape(-1, batch * num_tokens)


def attend_at_once(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    seen_to: jax.Array,
    *,
    sliding_window: int | None = None,
) -> jax.Array:
    """Attends with one softmax over all slots.

    Args:
      q: Scaled queries, [B, K, M, H].
      keys: [B, K, S, H].
      values: [B, K, S, H].
      seen_to: int32 [B, M].
      sliding_window: As in `attend`.

    Returns:
      [B, K, M, H].
    """
    slots = jnp.arange(keys.shape[2], dtype=jnp.int32)
    scores = _scores(q, keys, slots, seen_to, sliding_window)
    return _mixed(jax.nn.softmax(scores, axis=-1), values)


def attend_in_chunks(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    seen_to: jax.Array,
    *,
    sliding_window: int | None = None,
    chunk: int = CHUNK,
) -> jax.Array:
    """Attends as `attend_at_once` does, reading only chunks that some query sees.

    Args:
      q: As in `attend_at_once`.
      keys: As in `attend_at_once`.
      values: As in `attend_at_once`.
      seen_to: As in `attend_at_once`.
      sliding_window: As in `attend`.
      chunk: Slots that are read at a time.

    Returns:
      [B, K, M, H].

    Source: the running softmax of arXiv 1805.02867.
    """
    num_slots = keys.shape[2]
    chunk = min(chunk, num_slots)
    first = jnp.int32(0)
    if sliding_window is not None:
        first = jnp.maximum(jnp.min(seen_to) - sliding_window + 1, 0) // chunk
    end = jnp.minimum(jnp.max(seen_to), num_slots - 1) // chunk + 1

    def read(
        index: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        highest, total, mixed = carry
        # The last chunk begins early where the slots are no multiple; what it repeats is hidden.
        start = jnp.minimum(index * chunk, num_slots - chunk)
        slots = start + jnp.arange(chunk, dtype=jnp.int32)
        some_keys = jax.lax.dynamic_slice_in_dim(keys, start, chunk, axis=2)
        some_values = jax.lax.dynamic_slice_in_dim(values, start, chunk, axis=2)
        scores = _scores(q, some_keys, slots, seen_to, sliding_window)
        scores = jnp.where((slots >= index * chunk)[None, None, None, :], scores, _HIDDEN)
        new_highest = jnp.maximum(highest, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_highest)
        kept = jnp.exp(highest - new_highest)
        total = total * kept + jnp.sum(weights, axis=-1, keepdims=True)
        mixed = mixed * kept + _mixed(weights, some_values).astype(jnp.float32)
        return new_highest, total, mixed

    column = (*q.shape[:3], 1)
    nothing = (
        jnp.full(column, _HIDDEN, jnp.float32),
        jnp.zeros(column, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    _, total, mixed = jax.lax.fori_loop(first, end, read, nothing)
    return (mixed / total).astype(values.dtype)


def _scores(
    q: jax.Array,
    keys: jax.Array,
    slots: jax.Array,
    seen_to: jax.Array,
    sliding_window: int | None,
) -> jax.Array:
    """Scores slots, float32 [B, K, M, slots]; those that a query does not see are at the lowest."""
    scores = jax.lax.dot_general(
        q, keys, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    slots = slots[None, None, :]
    visible = slots <= seen_to[:, :, None]
    if sliding_window is not None:
        visible &= slots > seen_to[:, :, None] - sliding_window
    return jnp.where(visible[:, None, :, :], scores, _HIDDEN)


def _mixed(weights: jax.Array, values: jax.Array) -> jax.Array:
    return jax.lax.dot_general(
        weights.astype(values.dtype), values, (((3,), (2,)), ((0, 1), (0, 1)))
    )
