"""The vocabulary pass: three numbers a position leave the vocabulary axis, everything else stays.

Acceptance needs the target's argmax, its logit and the draft token's logit. `score_drafts` takes
them in one maximum over [G+1, V] plus work on one chunk of the vocabulary a row: chunk maxima
first, then the argmax inside the winning chunk. A plain argmax would be a second pass, and XLA's
(value, index) reduction does not vectorise.

Where a mesh axis divides the vocabulary, each device does this for its part and only the winners
are compared: [G+1] numbers a row are exchanged, never a row of logits.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import struct

_CHUNK = 128  # vocabulary entries a chunk where the vocabulary is the last axis
_FOLD = 16  # and where it is the first


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
    logits: jax.Array,
    draft_tokens: jax.Array,
    *,
    vocab_major: bool = False,
    model_axis: str | None = None,
) -> TokenScores:
    """Reads a block's scores off the target's logits.

    Args:
      logits: Any float type, [..., G+1, V], or [V, ..., G+1] if `vocab_major`.
      draft_tokens: int32 [..., G].
      vocab_major: Which of the two layouts `logits` has, static. Both are read in place: turning
        one into the other would cost more than the whole pass.
      model_axis: Mesh axis that divides the vocabulary, if any. V is then the part of one device.

    Returns:
      `TokenScores` with the batch dimensions in front.
    """
    axis = 0 if vocab_major else -1
    vocab_size = logits.shape[axis]
    target_tokens, top_logits = _argmax(logits, axis)
    top_logits = top_logits.astype(jnp.float32)
    num_draft = draft_tokens.shape[-1]
    first_id = 0 if model_axis is None else jax.lax.axis_index(model_axis) * vocab_size
    draft_tokens = draft_tokens - first_id
    lookup = jnp.expand_dims(jnp.clip(draft_tokens, 0, vocab_size - 1), axis)
    scored = logits[..., :num_draft] if vocab_major else logits[..., :num_draft, :]
    draft_logits = jnp.take_along_axis(scored, lookup, axis=axis).squeeze(axis)
    in_vocab = (draft_tokens >= 0) & (draft_tokens < vocab_size)
    draft_logits = jnp.where(in_vocab, draft_logits.astype(jnp.float32), -jnp.inf)
    scores = TokenScores(target_tokens, top_logits, draft_logits)
    return scores if model_axis is None else _best_of_devices(scores, first_id, model_axis)


def _best_of_devices(scores: TokenScores, first_id: jax.Array | int, axis: str) -> TokenScores:
    """Joins the scores of all devices of a mesh axis: the lowest id among the highest logits."""
    # A draft token is in one device's part and -inf elsewhere. A NaN, which a maximum may drop,
    # becomes -inf too: its row's top is +inf, so the regret is infinite either way.
    draft = jnp.where(jnp.isnan(scores.draft_logits), -jnp.inf, scores.draft_logits)
    tops_and_drafts = jnp.concatenate([scores.top_logits, draft], axis=-1)
    top, draft = jnp.split(
        jax.lax.pmax(tops_and_drafts, axis), [scores.top_logits.shape[-1]], axis=-1
    )
    none = jnp.iinfo(jnp.int32).max
    token = jnp.where(scores.top_logits == top, scores.target_tokens + first_id, none)
    return TokenScores(jax.lax.pmin(token, axis), top, draft)


def _argmax(logits: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Returns the lowest argmax along `axis` and the maximum, where a NaN counts as +inf."""
    axis = axis % logits.ndim
    vocab_size = logits.shape[axis]
    chunk = _FOLD if axis == 0 else _CHUNK
    if vocab_size % chunk or vocab_size <= _CHUNK:
        return _first_top(logits, _max(logits, axis, keepdims=True), axis)
    shape = logits.shape
    split = logits.reshape(*shape[:axis], vocab_size // chunk, chunk, *shape[axis + 1 :])
    if axis == 0:
        # An elementwise fold vectorises along the columns and hands on NaN; a reduction of the
        # leading axis would do only one of the two.
        maxima = functools.reduce(jnp.maximum, [split[:, i] for i in range(chunk)])
    else:
        maxima = _max(split, axis + 1)
    winner, top = _argmax(jax.lax.optimization_barrier(maxima), axis)
    start = jnp.expand_dims(winner * chunk, axis)
    offsets = jnp.arange(chunk, dtype=jnp.int32).reshape(
        [chunk if i == axis else 1 for i in range(logits.ndim)]
    )
    inside = jnp.take_along_axis(logits, start + offsets, axis=axis)
    offset, _ = _first_top(inside, jnp.expand_dims(top, axis), axis)
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
