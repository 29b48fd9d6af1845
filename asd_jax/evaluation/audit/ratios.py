"""Bootstrap intervals of ratios of sums, where single requests may have nothing below the line.

`statistics.intervals.ratio_of_means_interval` needs positive measurements; an answer of one token
has no round at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval, bootstrap_interval

Floats = npt.NDArray[np.float64]
Quotients = Callable[[npt.NDArray[np.int64]], Floats]


def ratio_interval(above: Floats, below: Floats, bootstrap: Bootstrap) -> Interval | None:
    """Returns the interval of sum(above) / sum(below), paired by request.

    Args:
      above: One of each request, finite. [N], 2 or more.
      below: Of the same requests, not negative. [N].
      bootstrap: How to resample.

    Returns:
      The interval, or None if `below` is zero throughout. Its ends are NaN where resamples with
      nothing below the line are among them.
    """
    if not below.sum():
        return None
    return bootstrap_interval(_ratio(above, below), [above.size], bootstrap)


def change_interval(
    tasks: Sequence[tuple[tuple[Floats, Floats], tuple[Floats, Floats]]], bootstrap: Bootstrap
) -> Interval | None:
    """Returns the interval of a change in percent, as a mean over tasks of the same weight.

    A task's change is 100 (r / s - 1), with r and s the ratios of sums of the two arms. Requests
    are resampled within their task, both arms together.

    Args:
      tasks: For each task the candidate's (above, below) and the baseline's, [N] each, N >= 2. A
        plain mean is a ratio to ones.
      bootstrap: How to resample.

    Returns:
      The interval in percent, or None if some ratio has nothing below the line.
    """
    changes: list[Quotients] = []
    for new, old in tasks:
        if not (new[1].sum() and old[0].sum() and old[1].sum()):
            return None
        changes.append(_change(_ratio(*new), _ratio(*old)))
    if not changes:
        return None

    def statistic(*drawn: npt.NDArray[np.int64]) -> Floats:
        means = [change(index) for change, index in zip(changes, drawn, strict=True)]
        return np.asarray(np.mean(np.broadcast_arrays(*means), axis=0), np.float64)

    return bootstrap_interval(statistic, [new[0].size for new, _ in tasks], bootstrap)


def _ratio(above: Floats, below: Floats) -> Quotients:
    def of(index: npt.NDArray[np.int64]) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(above[index].sum(axis=-1) / below[index].sum(axis=-1), np.float64)

    return of


def _change(new: Quotients, old: Quotients) -> Quotients:
    def of(index: npt.NDArray[np.int64]) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(100 * (new(index) / old(index) - 1), np.float64)

    return of
