"""The widths of the target's residual streams, which training divides by.

A few features of a residual stream are hundreds of times as wide as the others. Behind a fresh `fc`
they are all that a drafter sees, and a step of AdamW, which is alike for all weights, throws their
outputs about. So training reads features of width one, and what it divided by is folded into `fc`
when the drafter is used: the drafter that is written reads the streams as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax.training.batch import Batch, Signals

_FC = "fc/weight"


def feature_scale(batches: Iterable[tuple[Batch, Signals]]) -> np.ndarray:
    """Returns the root mean square of every feature, float32 [F * D]; 1 where it is always 0.

    Args:
      batches: Some texts with their signals.

    Raises:
      ValueError: There is none.
    """
    total, count = np.zeros(()), 0
    for batch, signals in batches:
        is_token = np.arange(batch.tokens.shape[1])[None, :] < np.asarray(batch.length)[:, None]
        features = np.asarray(signals.features, np.float64)[is_token]
        total = total + np.square(features).sum(axis=0)
        count += len(features)
    if not count:
        raise ValueError("texts: got none to measure features with")
    scale = np.sqrt(total / count)
    return np.where(scale > 0, scale, 1).astype(np.float32)


def scaled(signals: Signals, scale: jax.Array | np.ndarray) -> Signals:
    """Divides features by their widths.

    Args:
      signals: Features [B, T, F * D].
      scale: [F * D].
    """
    width = jnp.asarray(scale, signals.features.dtype)[None, None, :]
    return signals.replace(features=signals.features / width)


def folded(params: Mapping[str, jax.Array], scale: np.ndarray) -> dict[str, jax.Array]:
    """Returns weights that read features as they are, from those that read scaled ones.

    Args:
      params: Weights by path, with an `fc`.
      scale: [F * D].
    """
    weight = params[_FC]
    return {**params, _FC: weight / jnp.asarray(scale, weight.dtype)[None, :]}


def unfolded(params: Mapping[str, jax.Array], scale: np.ndarray) -> dict[str, jax.Array]:
    """Returns the opposite of `folded`: weights of a drafter, to be trained on.

    Args:
      params: As in `folded`.
      scale: As in `folded`.
    """
    weight = params[_FC]
    return {**params, _FC: weight * jnp.asarray(scale, weight.dtype)[None, :]}
