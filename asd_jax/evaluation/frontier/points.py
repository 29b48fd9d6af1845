"""One point of the frontier: how fast a setting is, and how good, against strict decoding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.measures import NO_POSITION, Measures
from asd_jax.evaluation.audit.ratios import change_interval
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval, bootstrap_interval
from asd_jax.evaluation.statistics.intervals import mean_over_tasks_interval
from asd_jax.evaluation.statistics.paired import compare_accuracy

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Details:
    """What else is known of a setting. Means over tasks of the same weight unless said otherwise.

    Attributes:
      split: Which examples were asked.
      num_examples: By task.
      num_graded: Examples that have a right answer.
      right: Right answers of the setting, over all graded examples.
      right_strict: Those of strict decoding.
      paired_accuracy_difference: As `Point.quality`, but a fraction, over all graded examples
        together, and with Newcombe's interval: the bootstrap's is a single number where no answer
        was seen to change its grade.
      tokens_per_forward: Tokens that rounds emitted over rounds, all examples together; the
        target's own token is included and that of the prefill is not.
      divergence: Share of the answers that differ from strict decoding's.
      exceptions_per_answer: Draft tokens kept that strict decoding would not have emitted there.
      regret_per_answer: Logits.
      regret_per_token: Logits a token of the answers, all examples together; None without tokens.
      length_change_percent: Of the mean length; None if strict decoding has only empty answers.
    """

    split: str
    num_examples: Mapping[str, int]
    num_graded: int
    right: int
    right_strict: int
    paired_accuracy_difference: Interval
    tokens_per_forward: Interval
    divergence: Interval
    exceptions_per_answer: Interval
    regret_per_answer: Interval
    regret_per_token: Interval | None
    length_change_percent: Interval | None


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting of one rule.

    Attributes:
      rule: Its name.
      options: Its setting.
      speed: Change of the tokens per target forward against strict decoding, percent.
      quality: Accuracy less that of strict decoding, percentage points, over the graded tasks.
      details: What else is known.
    """

    rule: str
    options: Mapping[str, Any]
    speed: Interval
    quality: Interval
    details: Details


def make_point(
    rule: str,
    options: Mapping[str, Any],
    tasks: Mapping[str, Measures],
    bootstrap: Bootstrap,
    *,
    split: str = "calibration",
) -> Point:
    """Returns the point of a setting. Requests are resampled within tasks, both arms together.

    Args:
      rule: Its name.
      options: Its setting.
      tasks: By task, from `audit.measures.measure`; one or more have right answers.
      bootstrap: How to resample.
      split: Which examples were asked.

    Raises:
      AuditError: No task has right answers, or an arm has no round or no token.
    """
    gains = {name: gain for name, task in tasks.items() if (gain := gained(task)) is not None}
    if not gains:
        raise AuditError(f"tasks: got {', '.join(tasks) or 'none'}, allowed is one with a grader")
    measures = list(tasks.values())
    speed = change_interval(
        [
            ((m.asd.round_tokens, m.asd.rounds), (m.strict.round_tokens, m.strict.rounds))
            for m in measures
        ],
        bootstrap,
    )
    per_forward = pooled_ratio(
        [m.asd.round_tokens for m in measures], [m.asd.rounds for m in measures], bootstrap
    )
    if speed is None or per_forward is None:
        raise AuditError(f"{rule}: got a task without rounds, allowed are answers of 2 tokens")
    points = [100 * gain for gain in gains.values()]
    right, right_strict = (_right(measures, arm) for arm in ("asd", "strict"))
    details = Details(
        split=split,
        num_examples={name: int(m.asd.tokens.size) for name, m in tasks.items()},
        num_graded=right.size,
        right=int(right.sum()),
        right_strict=int(right_strict.sum()),
        paired_accuracy_difference=compare_accuracy(
            right, right_strict, confidence=bootstrap.confidence
        ).difference,
        tokens_per_forward=per_forward,
        divergence=mean_over_tasks_interval(
            [m.first_divergence != NO_POSITION for m in measures], bootstrap
        ),
        exceptions_per_answer=mean_over_tasks_interval([m.exceptions for m in measures], bootstrap),
        regret_per_answer=mean_over_tasks_interval([m.spent for m in measures], bootstrap),
        regret_per_token=pooled_ratio(
            [m.spent for m in measures], [m.asd.tokens for m in measures], bootstrap
        ),
        length_change_percent=change_interval(
            [
                (
                    (m.asd.tokens, np.ones_like(m.asd.tokens)),
                    (m.strict.tokens, np.ones_like(m.strict.tokens)),
                )
                for m in measures
            ],
            bootstrap,
        ),
    )
    return Point(rule, options, speed, mean_over_tasks_interval(points, bootstrap), details)


def gained(task: Measures) -> Floats | None:
    """Returns right answers won (1) and lost (-1) against strict decoding; None without grades.

    Returns:
      float64 [N], or None.
    """
    if task.asd.is_right is None or task.strict.is_right is None:
        return None
    return task.asd.is_right.astype(np.float64) - task.strict.is_right


def pooled_ratio(
    above: Sequence[Floats], below: Sequence[Floats], bootstrap: Bootstrap
) -> Interval | None:
    """Returns the interval of a ratio of sums over all tasks, resampled within them.

    Args:
      above: For each task one number a request. [N_t] each, 2 or more.
      below: Of the same requests, not negative.
      bootstrap: How to resample.

    Returns:
      The interval, or None if it is undefined: nothing is below the line, or in some resamples.
    """
    return stratified(
        lambda *drawn: sums(above, drawn) / sums(below, drawn), [a.size for a in above], bootstrap
    )


def sums(values: Sequence[Floats], drawn: Sequence[Indices]) -> Floats:
    """Returns sums over all tasks of the values [N_t] that were drawn, [...]."""
    parts = [task[index].sum(axis=-1) for task, index in zip(values, drawn, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return np.asarray(total, np.float64)


def stratified(
    statistic: Callable[..., Floats], sizes: Sequence[int], bootstrap: Bootstrap
) -> Interval | None:
    """Returns `bootstrap_interval`, or None where some number of it is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = bootstrap_interval(statistic, sizes, bootstrap)
    is_defined = all(map(math.isfinite, (found.estimate, found.low, found.high)))
    return found if is_defined else None


def _right(measures: Sequence[Measures], arm: str) -> npt.NDArray[np.bool_]:
    right = [getattr(task, arm).is_right for task in measures]
    return np.concatenate([part for part in right if part is not None])
