"""Sampling as greedy decoding of perturbed logits, so that one verifier serves every temperature.

At temperature T > 0 a token is the argmax of z / T + Gumbel noise, and the noise is keyed by
(request seed, absolute position) alone. Hence strict speculative decoding with a seed emits exactly
what plain sampling with that seed emits, whatever the drafter, the draft length or the batch.

`transform` is the only place where temperature, top-k and top-p touch logits; every path uses it.

Where a mesh axis divides the vocabulary (`model_axis`), a row of logits is one device's part; sums
and maxima over the vocabulary are joined over the axis, so the same tokens are drawn on any mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from asd_jax.scoring import score_drafts

# Keys of the noise and of the rules' own draws must differ though both start from the request seed.
_NOISE_STREAM = 0
_RULE_STREAM = 1

# Below it two logits of one row, divided by the temperature, may both become infinite.
_MIN_TEMPERATURE = 1e-6


class SamplingParams(struct.PyTreeNode):
    """How each request draws its tokens. All leaves are traced, [B].

    Attributes:
      temperature: 0 = greedy, float32.
      top_k: Tokens kept, int32; 0 = all.
      top_p: Probability mass kept, float32, (0, 1]; 1 = all.
      key: PRNG key made from the request's seed.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    key: jax.Array


class ReducedVocabulary(struct.PyTreeNode):
    """The part of the target's vocabulary that a drafter scores.

    Attributes:
      token_ids: Target id of each of its ids, int32, ascending.
      vocab_size: V of the target, static.
    """

    token_ids: jax.Array
    vocab_size: int = struct.field(pytree_node=False)


def sampling_params(
    batch: int,
    *,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    seed: int | Sequence[int] = 0,
) -> SamplingParams:
    """Builds `SamplingParams` for a batch from host values, one for all or one a request.

    Args:
      batch: B.
      temperature: 0, or 1e-6 and more, finite.
      top_k: >= 0.
      top_p: In (0, 1].
      seed: Whole numbers in [0, 2**63).

    Returns:
      `SamplingParams` with leaves [B].

    Raises:
      ValueError: A value is out of range, naming the field and the value.
    """
    low, high = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    seeds = _column("seed", seed, batch, np.int64, 0, 2**63 - 1)
    temperatures = _column("temperature", temperature, batch, np.float32, 0, high)
    host = np.asarray(temperature)
    if np.any((host > 0) & (host < _MIN_TEMPERATURE)):
        raise ValueError(
            f"temperature: got {temperature!r}, allowed is 0 (greedy) or a number in "
            f"[{_MIN_TEMPERATURE}, {high}]"
        )
    return SamplingParams(
        temperature=jnp.asarray(temperatures),
        top_k=jnp.asarray(_column("top_k", top_k, batch, np.int32, 0, 2**31 - 1)),
        top_p=jnp.asarray(_column("top_p", top_p, batch, np.float32, low, 1)),
        key=_keys_from_seeds(seeds),
    )


def _column(name: str, value: Any, batch: int, dtype: Any, low: float, high: float) -> np.ndarray:
    """Returns `value` as [batch] of `dtype`, or raises a ValueError naming the field."""
    is_whole = np.issubdtype(dtype, np.integer)
    kind = "whole number" if is_whole else "number"
    error = ValueError(
        f"{name}: got {value!r}, allowed is a {kind} in [{low}, {high}], or one for each of the "
        f"{batch} requests"
    )
    host = np.asarray(value)
    # Bools, strings and integers beyond 64 bits (which become objects or unsigned) are refused.
    if not np.issubdtype(host.dtype, np.integer if is_whole else np.number):
        raise error
    if host.ndim > 1 or (host.ndim == 1 and host.shape != (batch,)):
        raise error
    if not np.all((host >= low) & (host <= high)):  # false for NaN
        raise error
    return np.broadcast_to(host.astype(dtype), (batch,))


def _keys_from_seeds(seeds: np.ndarray) -> jax.Array:
    """Returns one key a seed; both 32-bit halves count, also where JAX has no 64-bit integers."""
    low = jnp.asarray(seeds & 0xFFFFFFFF, jnp.uint32)
    high = jnp.asarray(seeds >> 32, jnp.uint32)
    return jax.vmap(lambda a, b: jax.random.fold_in(jax.random.fold_in(jax.random.key(0), a), b))(
        low, high
    )


def transform(
    logits: jax.Array, params: SamplingParams, *, model_axis: str | None = None
) -> jax.Array:
    """Applies temperature, then top-k, then top-p to the logits of one request.

    Args:
      logits: [T, V], any float type.
      params: Scalar leaves.
      model_axis: Mesh axis that divides the vocabulary, if any.

    Returns:
      float32 [T, V]; masked tokens are -inf. At temperature 0 the logits come back unchanged, since
      neither mask can remove the argmax and nothing else is ever emitted.
    """
    logits = logits.astype(jnp.float32)
    is_greedy = params.temperature <= 0
    scaled = logits / jnp.where(is_greedy, jnp.float32(1), params.temperature)
    order = _order_keys(scaled)
    vocab_size = logits.shape[-1] * (1 if model_axis is None else jax.lax.axis_size(model_axis))
    # Ties with the last kept token stay (HF transformers keeps them for top-k, not for top-p).
    k = jnp.where(params.top_k <= 0, vocab_size, jnp.minimum(params.top_k, vocab_size))
    floor = _largest_floor(order, jnp.ones_like(scaled), k.astype(jnp.float32), model_axis)
    kept = jnp.where(order >= floor, scaled, -jnp.inf)
    # At top_p = 1 rounding must not cut the tail: no floor reaches a mass of 2, so all stay.
    mass = jnp.where(params.top_p >= 1, jnp.float32(2), params.top_p)
    floor = jnp.maximum(floor, _largest_floor(order, _softmax(kept, model_axis), mass, model_axis))
    masked = jnp.where((order >= floor) | jnp.isnan(scaled), scaled, -jnp.inf)  # NaN must show
    return jnp.where(is_greedy, logits, masked)


def _order_keys(values: jax.Array) -> jax.Array:
    """Maps float32 to uint32 in the same order, so that a threshold can be built bit by bit."""
    values = jnp.where(values == 0, jnp.float32(0), values)  # -0.0 and 0.0 are equal
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    is_negative = bits >= jnp.uint32(1 << 31)
    return jnp.where(is_negative, ~bits, bits | jnp.uint32(1 << 31))


def _softmax(logits: jax.Array, model_axis: str | None) -> jax.Array:
    """Returns the probabilities of this device's part of the vocabulary, [T, V]."""
    if model_axis is None:
        return jax.nn.softmax(logits, axis=-1)
    top = jax.lax.pmax(jnp.max(logits, axis=-1, keepdims=True), model_axis)
    weights = jnp.exp(logits - top)
    return weights / jax.lax.psum(jnp.sum(weights, axis=-1, keepdims=True), model_axis)


def _largest_floor(
    order: jax.Array, weights: jax.Array, wanted: jax.Array, model_axis: str | None
) -> jax.Array:
    """Returns the largest key above which the weights still add up to `wanted`, uint32 [T, 1].

    A radix select: 32 passes of compare and sum, where sorting the vocabulary would take longer
    and compile into far more code. 0, below every key, if the weights do not suffice.

    Args:
      order: Keys, uint32 [T, V].
      weights: Nonnegative, float32 [T, V].
      wanted: float32 [].
      model_axis: As in `transform`.
    """

    def step(index: jax.Array, floor: jax.Array) -> jax.Array:
        raised = floor | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        total = jnp.sum(jnp.where(order >= raised, weights, 0.0), axis=-1, keepdims=True)
        if model_axis is not None:
            total = jax.lax.psum(total, model_axis)
        return jnp.where(total >= wanted, raised, floor)

    return jax.lax.fori_loop(0, 32, step, jnp.zeros((*order.shape[:-1], 1), jnp.uint32))


def draw(
    logits: jax.Array,
    params: SamplingParams,
    position: jax.Array,
    is_sampled: jax.Array,
    *,
    vocab_major: bool = False,
    reduced: ReducedVocabulary | None = None,
    model_axis: str | None = None,
) -> jax.Array:
    """Draws one token a row as the target would: with the noise of the token's own position.

    Drafter and target see the same noise, so a draft is the target's token as often as their
    logits allow (coupled drafting). At temperature 0 it is the argmax.

    Args:
      logits: Any float type, [B, V], or [V, B] if `vocab_major`.
      params: Leaves [B].
      position: Absolute position of the token to be drawn, int32 [B].
      is_sampled: Whether any row has a temperature > 0, bool []; the same on all devices of a mesh.
      vocab_major: Which of the two, static.
      reduced: The vocabulary that the logits stand for, if it is not the target's own.
      model_axis: Mesh axis that divides the vocabulary, if any; a reduced one is not divided.

    Returns:
      Ids of the target's vocabulary, int32 [B].
    """

    def top(values: jax.Array, vocab_major: bool) -> jax.Array:
        columns = values[..., None] if vocab_major else values[:, None]
        no_drafts = jnp.zeros((position.shape[0], 0), jnp.int32)
        scores = score_drafts(columns, no_drafts, vocab_major=vocab_major, model_axis=model_axis)
        return scores.target_tokens[:, 0]

    def noisy(row: jax.Array, params: SamplingParams, position: jax.Array) -> jax.Array:
        if reduced is None:
            return perturb(row[None], params, position, model_axis=model_axis)[1][0]
        clean = transform(row[None], params)[0]
        noise = gumbel_noise(params.key, position, reduced.vocab_size)[reduced.token_ids]
        return jnp.where(params.temperature > 0, clean + noise, clean)

    def sampled() -> jax.Array:
        rows = logits.T if vocab_major else logits
        return top(jax.vmap(noisy)(rows, params, position), False)

    index = jax.lax.cond(is_sampled, sampled, lambda: top(logits, vocab_major))
    return index if reduced is None else reduced.token_ids[index]


def gumbel_noise(key: jax.Array, position: jax.Array, vocab_size: int) -> jax.Array:
    """Draws the noise of one absolute position. The key is not consumed.

    Args:
      key: The request's key.
      position: Index in the sequence of the token to be drawn, int32 [].
      vocab_size: V. The noise of an id does not depend on it, so that a padded vocabulary draws
        the same tokens.

    Returns:
      float32 [V].
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _NOISE_STREAM), position)
    return jax.random.gumbel(key, (vocab_size,), jnp.float32)


def rule_key(key: jax.Array, position: jax.Array) -> jax.Array:
    """Returns the key with which an acceptance rule may draw for the block at `position`."""
    return jax.random.fold_in(jax.random.fold_in(key, _RULE_STREAM), position)


def perturb(
    logits: jax.Array,
    params: SamplingParams,
    position: jax.Array,
    *,
    model_axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Transforms one request's logits and adds its noise.

    Args:
      logits: [T, V].
      params: Scalar leaves.
      position: Absolute position of the token that row 0 predicts, int32 [].
      model_axis: Mesh axis that divides the vocabulary, if any.

    Returns:
      The transformed logits and the noisy logits, both float32 [T, V]. At temperature 0 both are
      the input.
    """
    clean = transform(logits, params, model_axis=model_axis)
    positions = position + jnp.arange(logits.shape[0], dtype=jnp.int32)
    size = logits.shape[-1]
    whole = size if model_axis is None else size * jax.lax.axis_size(model_axis)
    noise = jax.vmap(gumbel_noise, in_axes=(None, 0, None))(params.key, positions, whole)
    if model_axis is not None:
        start = jax.lax.axis_index(model_axis) * size
        noise = jax.lax.dynamic_slice_in_dim(noise, start, size, axis=1)
    noisy = jnp.where(params.temperature > 0, clean + noise, clean)
    # Written out once: fused into every reader, the noise would be drawn again in each.
    return jax.lax.optimization_barrier((clean, noisy))
