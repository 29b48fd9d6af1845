"""How sure a lower quartile of bundled numbers is: the regrets of one answer are alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.bootstrap import (
    Bootstrap,
    Floats,
    Interval,
    bootstrap_interval,
)


def q25_interval(bundles: Sequence[npt.ArrayLike], bootstrap: Bootstrap) -> Interval | None:
    """Returns the interval of the lower quartile of all numbers together; bundles are resampled.

    The quartile is `statistics.quantile.linear_q25`: linear between neighbours, at (n - 1) / 4
    from 0 of the n numbers in the bundles that were drawn.

    Args:
      bundles: Finite numbers of each unit, [N_i]. Units without any are left out: they cannot move
        a quartile.
      bootstrap: How to resample.

    Returns:
      The interval, or None with fewer than two units that have numbers.
    """
    arrays = [np.asarray(bundle, np.float64) for bundle in bundles]
    arrays = [array for array in arrays if array.size]
    if len(arrays) < 2:
        return None
    numbers = np.concatenate(arrays)
    order = np.argsort(numbers, kind="stable")
    ranked = numbers[order]
    unit = np.repeat(np.arange(len(arrays)), [array.size for array in arrays])[order]

    def statistic(drawn: npt.NDArray[np.int64]) -> Floats:
        rows = drawn.reshape(-1, drawn.shape[-1])
        times = np.stack([np.bincount(row, minlength=len(arrays)) for row in rows])
        # How many numbers of the resample are no greater than each of the ranked ones.
        reached = np.cumsum(times[:, unit], axis=1)
        below, quarters = np.divmod(reached[:, -1] - 1, 4)

        def at(place: npt.NDArray[np.int64]) -> Floats:
            found: Floats = ranked[np.argmax(reached > place[:, None], axis=1)]
            return found

        share = quarters / 4
        above = np.minimum(below + 1, reached[:, -1] - 1)
        values: Floats = at(below) * (1 - share) + at(above) * share
        return values.reshape(drawn.shape[:-1])

    return bootstrap_interval(statistic, [len(arrays)], bootstrap, width=numbers.size)
