"""Where an EAGLE-3 drafter begins: with the best that a linear map can do.

The layer's output is `fc(features)` plus what attention and feed-forward network add. Ridge
regression of the target's next hidden state on the features gives `fc` in closed form, in less time
than a hundred training steps; with the outputs of attention and feed-forward network at zero the
drafter begins as just that map. Its logits are scaled for the least cross-entropy, since a drafter
that is as sure as the target while it is mostly wrong has first to unlearn that. The idea of
regressing on the next feature is EAGLE's (arXiv 2401.15077, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax.training.batch import Batch, Signals

_RIDGE = 1e-3  # of the mean square of a feature
_SCALES = np.geomspace(0.02, 1.5, 24)
_SCALED_BY = 2000  # pairs


def linear_start(
    params: Mapping[str, jax.Array],
    target_head: jax.Array,
    batches: Iterable[tuple[Batch, Signals]],
) -> dict[str, jax.Array]:
    """Returns EAGLE-3's weights with `fc` fitted and everything behind it switched off.

    Args:
      params: Fresh weights by path.
      target_head: The target's output projection, rows of the draft vocabulary, [Vd, D].
      batches: Training texts with their signals, once around.

    Raises:
      ValueError: The drafter has no `fc` of the features' width, or there is no label.
    """
    fc = params.get("fc/weight")
    gram = cross = np.zeros(0)
    count, samples = 0, list[np.ndarray]()
    for batch, signals in batches:
        x, y = _pairs(batch, signals)
        if fc is None or fc.shape != (y.shape[1], x.shape[1]):
            raise ValueError(f"fc: got {None if fc is None else fc.shape}, features {x.shape}")
        if not count:
            gram, cross = np.zeros((x.shape[1],) * 2), np.zeros((x.shape[1], y.shape[1]))
        gram += x.T @ x
        cross += x.T @ y
        count += len(x)
        if sum(map(len, samples)) < 2 * _SCALED_BY:
            samples += [x, y]
    if not count:
        raise ValueError("texts: got none with a label two tokens on")
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / len(gram)
    fitted = np.linalg.solve(gram, cross).T
    first = dict(params)
    assert fc is not None
    first["fc/weight"] = jnp.asarray(fitted, fc.dtype)
    sample_x, sample_y = np.concatenate(samples[::2]), np.concatenate(samples[1::2])
    scale = best_scale(target_head, sample_x @ fitted.T, sample_y)
    first["norm/weight"] = jnp.full_like(params["norm/weight"], scale)
    for name in ("layer/self_attn/o_proj/weight", "layer/mlp/down_proj/weight"):
        first[name] = jnp.zeros_like(params[name])
    return first


def best_scale(target_head: jax.Array, predicted: np.ndarray, hidden: np.ndarray) -> float:
    """Returns the weight of the final norm that gives the least cross-entropy with the target.

    Args:
      target_head: [Vd, D].
      predicted: Before the norm, [N, D].
      hidden: The target's, behind its own norm, [N, D].
    """
    width = np.sqrt(np.mean(np.square(hidden)))
    unit = predicted / np.sqrt(np.mean(np.square(predicted), axis=1, keepdims=True) + 1e-6)
    head = jnp.asarray(target_head, jnp.float32)
    logits = jnp.asarray(unit, jnp.float32) @ head.T
    p = jax.nn.softmax(jnp.asarray(hidden, jnp.float32) @ head.T, axis=-1)
    losses = [
        float(-jnp.mean(jnp.sum(p * jax.nn.log_softmax(logits * (scale * width)), axis=-1)))
        for scale in _SCALES
    ]
    return float(_SCALES[int(np.argmin(losses))] * width)


def _pairs(batch: Batch, signals: Signals) -> tuple[np.ndarray, np.ndarray]:
    """Features at i and hidden state at i + 1, where the token at i + 2 is a label."""
    is_label = np.asarray(batch.is_label(2))
    hidden = np.asarray(signals.hidden, np.float32)
    following = np.concatenate([hidden[:, 1:], hidden[:, :1]], axis=1)
    return np.asarray(signals.features, np.float32)[is_label], following[is_label]
