"""The bootstrap over units in strata; `scipy.stats.bootstrap` does the resampling.

Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 14.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
METHODS = ("bca", "percentile", "basic")
_CELLS = 1 << 21  # numbers held at a time while resampling


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate and where the true figure may lie.

    Attributes:
      estimate: The figure of the measurements themselves.
      low: Lower end.
      high: Upper end.
      confidence: Share of repetitions in which such an interval holds the true figure.
      method: How it was computed.
      num_units: What was resampled or counted: prompts, or examples.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    method: str
    num_units: int


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """How to resample.

    Attributes:
      method: `bca` (bias-corrected and accelerated), `percentile` or `basic`. Where BCa is
        undefined, as for measurements that are all equal, `percentile` is used and named.
      confidence: Between 0 and 1.
      num_resamples: 1 or more.
      seed: Of the numpy generator; the same seed gives the same interval.
    """

    method: str = "bca"
    confidence: float = 0.95
    num_resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: got {self.method!r}, needs one of {', '.join(METHODS)}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence: got {self.confidence}, needs a number between 0 and 1")
        if self.num_resamples < 1:
            raise ValueError(f"num_resamples: got {self.num_resamples}, needs 1 or more")


def bootstrap_interval(
    statistic: Callable[..., Floats], sizes: Sequence[int], bootstrap: Bootstrap, width: int = 0
) -> Interval:
    """Returns the interval of any statistic of units that are drawn within strata.

    Args:
      statistic: Takes the drawn indices of each stratum, int [..., M] each, broadcasts them
        against each other and returns [...]. M is the stratum's size, or one less.
      sizes: Units of each stratum, 2 or more.
      bootstrap: How to resample.
      width: Numbers that the statistic holds for a draw, if more than the largest size.
    """

    def of_indices(*drawn: npt.NDArray[np.int64], axis: int) -> Floats:
        del axis  # always the last
        # One order for every set of units: BCa counts the resamples that equal the estimate, and
        # sums taken in another order need not.
        return statistic(*(np.sort(indices, axis=-1) for indices in drawn))

    options: dict[str, Any] = {
        "n_resamples": bootstrap.num_resamples,
        "batch": max(1, _CELLS // max(width, *sizes, 1)),
        "confidence_level": bootstrap.confidence,
        "vectorized": True,
        "rng": np.random.default_rng(bootstrap.seed),
    }
    indices = [np.arange(size) for size in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # seen to below
        with np.errstate(divide="ignore", invalid="ignore"):
            result = stats.bootstrap(indices, of_indices, method=bootstrap.method, **options)
    low, high = map(float, result.confidence_interval)
    method = bootstrap.method
    if np.isnan(low) or np.isnan(high):
        tail = (1 - bootstrap.confidence) / 2
        low, high = map(float, np.quantile(result.bootstrap_distribution, [tail, 1 - tail]))
        method = "percentile"
    estimate = float(statistic(*indices))
    return Interval(estimate, low, high, bootstrap.confidence, method, sum(sizes))
