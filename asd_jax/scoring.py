"""The vocabulary pass: three numbers a position leave the vocabulary axis, everything else stays.

Acceptance needs the target's argmax, its logit and the draft token's logit. `score_drafts` takes
them in one maximum over [G+1, V] plus work on one chunk of the vocabulary a row: chunk maxima
first, then the argmax inside the winning chunk. A plain argmax would be a second pass, and XLA's
(value, index) reduction does not vectorise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

_CHUNK_SIZES = (256, 128, 64, 32)


class TokenScores(struct.PyTreeNode):
    """What acceptance knows of the target's logits.

    Attributes:
      target_tokens: Lowest argmax id, int32 [..., G+1]; a NaN counts as +inf.
      top_logits: The logit there, float32 [..., G+1]; +inf where the row has a NaN.
      draft_logits: The draft tokens' logits, float32 [..., G]; -inf for ids outside [0, V).
    """

    target_tokens: jax.Array
    top_logits: jax.Array
    draft_logits: jax.Array


def score_drafts(
    logits: jax.Array, draft_tokens: jax.Array, *, vocab_major: bool = False
) -> TokenScores:
    """Reads a block's scores off the target's logits.

    Args:
      logits: Any float type, [..., G+1, V], or [V, ..., G+1] if `vocab_major`.
      draft_tokens: int32 [..., G].
      vocab_major: Which of the two layouts `logits` has, static. Both are read in place: turning
        one into the other would cost more than the whole pass.

    Returns:
      `TokenScores` with the batch dimensions in front.
    """
    axis = 0 if vocab_major else -1
    vocab_size = logits.shape[axis]
    target_tokens, top_logits = _argmax(logits, axis)
    num_draft = draft_tokens.shape[-1]
    lookup = jnp.expand_dims(jnp.clip(draft_tokens, 0, vocab_size - 1), axis)
    scored = logits[..., :num_draft] if vocab_major else logits[..., :num_draft, :]
    draft_logits = jnp.take_along_axis(scored, lookup, axis=axis).squeeze(axis)
    in_vocab = (draft_tokens >= 0) & (draft_tokens < vocab_size)
    return TokenScores(
        target_tokens=target_tokens,
        top_logits=top_logits.astype(jnp.float32),
        draft_logits=jnp.where(in_vocab, draft_logits.astype(jnp.float32), -jnp.inf),
    )


def _argmax(logits: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the lowest argmax along `axis` and the maximum, where a NaN counts as +inf."""
    vocab_size = logits.shape[axis]
    chunk = next((size for size in _CHUNK_SIZES if vocab_size % size == 0), None)
    if chunk is None or vocab_size <= chunk:
        return _first_top(logits, _max(logits, axis, keepdims=True), axis)
    if axis == 0:
        split = logits.reshape(vocab_size // chunk, chunk, *logits.shape[1:])
        maxima = _max(split, 1)
    else:
        split = logits.reshape(*logits.shape[:-1], vocab_size // chunk, chunk)
        maxima = _max(split, -1)
    top = _max(maxima, axis, keepdims=True)
    winner, _ = _first_top(maxima, top, axis)
    start = jnp.expand_dims(winner * chunk, axis)
    shape = [1] * logits.ndim
    shape[axis] = chunk
    offsets = jnp.arange(chunk, dtype=jnp.int32).reshape(shape)
    inside = jnp.take_along_axis(logits, start + offsets, axis=axis)
    offset, top = _first_top(inside, top, axis)
    return winner * chunk + offset, top


def _max(values: jax.Array, axis: int, *, keepdims: bool = False) -> jax.Array:
    """Returns the maximum; a NaN gives +inf, since XLA's CPU reductions may drop NaN silently."""
    visible = jnp.where(jnp.isnan(values), jnp.asarray(jnp.inf, values.dtype), values)
    return jnp.max(visible, axis=axis, keepdims=keepdims)


def _first_top(values: jax.Array, top: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the first index along `axis` whose value is `top` or NaN, and `top` squeezed."""
    axis = axis % values.ndim
    index = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
    is_top = (values == top) | jnp.isnan(values)
    last = values.shape[axis] - 1
    return jnp.min(jnp.where(is_top, index, last), axis=axis), top.squeeze(axis)
