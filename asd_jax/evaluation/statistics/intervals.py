"""Bootstrap intervals of means, paired differences, ratios and means over tasks.

The resampled unit is the prompt: measurements of one prompt are alike, and resampling them one by
one would make any figure look surer than it is.

For accuracies prefer `paired`: no resampling of 500 right answers ever shows a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval, bootstrap_interval

Floats = npt.NDArray[np.float64]


DEFAULT = Bootstrap()


def mean_interval(values: npt.ArrayLike, bootstrap: Bootstrap = DEFAULT) -> Interval:
    """Returns the interval of a mean.

    Args:
      values: One of each prompt. [N], 2 or more.
      bootstrap: How to resample.

    Raises:
      ValueError: The values are too few, not finite or of another shape.
    """
    return mean_over_tasks_interval([_vector("values", values)], bootstrap)


def mean_difference_interval(
    candidate: npt.ArrayLike, baseline: npt.ArrayLike, bootstrap: Bootstrap = DEFAULT
) -> Interval:
    """Returns the interval of the mean of `candidate` less that of `baseline`, paired by prompt.

    Args:
      candidate: One of each prompt. [N], 2 or more.
      baseline: Of the same prompts in the same order. [N].
      bootstrap: How to resample.

    Raises:
      ValueError: The values are too few, not finite or of another shape.
    """
    new, old = _vector("candidate", candidate), _vector("baseline", baseline)
    _check_same_shape(candidate=new, baseline=old)
    return mean_interval(new - old, bootstrap)


def mean_over_tasks_interval(
    tasks: Sequence[npt.ArrayLike], bootstrap: Bootstrap = DEFAULT
) -> Interval:
    """Returns the interval of the mean of task means; every task weighs the same.

    The tasks are given and not a sample of tasks: prompts are resampled within each.

    Args:
      tasks: For each task one value of each of its prompts, which may be a paired difference. [N_t]
        each, 2 or more.
      bootstrap: How to resample.

    Raises:
      ValueError: There is no task, or the values of one are too few, not finite or of another
        shape.
    """
    if not tasks:
        raise ValueError("tasks: got none, needs 1 or more")
    values = [_vector(f"tasks[{i}]", task) for i, task in enumerate(tasks)]

    def statistic(*drawn: npt.NDArray[np.int64]) -> Floats:
        means = [task[index].mean(axis=-1) for task, index in zip(values, drawn, strict=True)]
        # Means of tasks differ in shape where one task at a time loses a prompt (jackknife).
        return np.mean(np.broadcast_arrays(*means), axis=0)

    return bootstrap_interval(statistic, [task.size for task in values], bootstrap)


def ratio_of_means_interval(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    prompts: npt.ArrayLike | None = None,
    bootstrap: Bootstrap = DEFAULT,
) -> Interval:
    """Returns the interval of a ratio of two means, clustered by prompt.

    Args:
      numerator: Measurements of one arm. [N].
      denominator: Measurements of the other arm, paired with them; positive. [N].
      prompts: Which prompt each pair belongs to, any labels; 2 or more different ones. Every pair
        is a prompt of its own if not given. [N].
      bootstrap: How to resample.

    Raises:
      ValueError: The values are too few, not finite, not positive or of another shape.
    """
    above, below, cluster = _paired_measurements(numerator, denominator, prompts)
    num_prompts = int(cluster.max()) + 1
    sums = [np.bincount(cluster, arm, num_prompts) for arm in (above, below)]

    def statistic(drawn: npt.NDArray[np.int64]) -> Floats:
        return sums[0][drawn].sum(axis=-1) / sums[1][drawn].sum(axis=-1)

    return bootstrap_interval(statistic, [num_prompts], bootstrap)


def ratio_of_medians_interval(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    prompts: npt.ArrayLike | None = None,
    bootstrap: Bootstrap = DEFAULT,
) -> Interval:
    """Returns the interval of a ratio of two medians, clustered by prompt.

    The arguments and errors are those of `ratio_of_means_interval`. A drawn prompt brings all of
    its measurements into both medians.
    """
    above, below, cluster = _paired_measurements(numerator, denominator, prompts)
    num_prompts = int(cluster.max()) + 1
    orders = [np.argsort(arm, kind="stable") for arm in (above, below)]

    def statistic(drawn: npt.NDArray[np.int64]) -> Floats:
        times = _times_drawn(drawn, num_prompts)
        medians = [
            _weighted_median(arm[order], times[..., cluster[order]])
            for arm, order in zip((above, below), orders, strict=True)
        ]
        return medians[0] / medians[1]

    return bootstrap_interval(statistic, [num_prompts], bootstrap, width=above.size)


def _times_drawn(drawn: npt.NDArray[np.int64], num_prompts: int) -> npt.NDArray[np.int64]:
    """Counts how often each prompt is in each draw: [..., M] to [..., num_prompts]."""
    rows = drawn.reshape(-1, drawn.shape[-1])
    shifted = rows + num_prompts * np.arange(len(rows))[:, None]
    times = np.bincount(shifted.ravel(), minlength=len(rows) * num_prompts)
    return times.reshape(*drawn.shape[:-1], num_prompts)


def _weighted_median(ascending: Floats, times: npt.NDArray[np.int64]) -> Floats:
    """Returns the medians of values [N] that occur `times` [..., N] each."""
    reached = np.cumsum(times, axis=-1)
    total = reached[..., -1:]
    low, high = (
        ascending[(reached <= middle).sum(axis=-1)] for middle in ((total - 1) // 2, total // 2)
    )
    return (low + high) / 2


def _vector(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size < 2:
        raise ValueError(f"{name}: got shape {array.shape}, needs [N] of 2 or more")
    if not np.isfinite(array).all():
        i = int((~np.isfinite(array)).argmax())
        raise ValueError(f"{name}: got {array[i]} at {i}, needs finite numbers")
    return array


def _check_same_shape(**arrays: npt.NDArray[Any]) -> None:
    if len({array.shape for array in arrays.values()}) > 1:
        got = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"got {got}, needs the same shape")


def _paired_measurements(
    numerator: npt.ArrayLike, denominator: npt.ArrayLike, prompts: npt.ArrayLike | None
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    above, below = _vector("numerator", numerator), _vector("denominator", denominator)
    labels = np.arange(above.size) if prompts is None else np.asarray(prompts)
    _check_same_shape(numerator=above, denominator=below, prompts=labels)
    if below.min() <= 0:
        raise ValueError(f"denominator: got {below.min()}, needs positive numbers")
    names, cluster = np.unique(labels, return_inverse=True)
    if names.size < 2:
        raise ValueError(f"prompts: got {names.size} different, needs 2 or more")
    return above, below, cluster
