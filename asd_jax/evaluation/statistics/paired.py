"""Accuracy of two arms on the same examples: the exact test, and intervals that hold near 1.

A candidate and strict decoding answer the same questions, so only the questions that one of them
gets right and the other does not tell them apart. Unpaired intervals ignore this and come out
several times too wide.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from asd_jax.evaluation.statistics.bootstrap import Interval


@dataclasses.dataclass(frozen=True)
class PairedAccuracy:
    """Two arms against each other.

    Attributes:
      both_right: Examples that both arms got right.
      only_candidate: Examples that only the candidate got right.
      only_strict: Examples that only strict decoding got right.
      both_wrong: Examples that neither got right.
      difference: Candidate's accuracy less strict's, as a fraction, and its interval.
      p_value: Two-sided, of the exact McNemar test that the arms are equally often right.
    """

    both_right: int
    only_candidate: int
    only_strict: int
    both_wrong: int
    difference: Interval
    p_value: float


def compare_accuracy(
    candidate: npt.ArrayLike, strict: npt.ArrayLike, *, confidence: float = 0.95
) -> PairedAccuracy:
    """Compares two arms on N examples.

    Args:
      candidate: Whether the candidate was right. bool [N].
      strict: Whether strict decoding was right, on the same examples in the same order. bool [N].
      confidence: Of the interval, between 0 and 1.

    Raises:
      ValueError: Shapes or dtypes do not fit, there is no example, or the confidence is no share.
    """
    new, old = np.asarray(candidate), np.asarray(strict)
    if new.ndim != 1 or new.shape != old.shape or not new.size:
        raise ValueError(
            f"got candidate {new.shape} and strict {old.shape}, needs [N] of 1 or more twice"
        )
    for name, array in (("candidate", new), ("strict", old)):
        if array.dtype != np.bool_:
            raise ValueError(f"{name}: got {array.dtype}, needs bool")
    cells = (new & old, new & ~old, ~new & old, ~new & ~old)
    both_right, only_candidate, only_strict, both_wrong = (int(cell.sum()) for cell in cells)
    return PairedAccuracy(
        both_right=both_right,
        only_candidate=only_candidate,
        only_strict=only_strict,
        both_wrong=both_wrong,
        difference=newcombe_interval(
            both_right, only_candidate, only_strict, both_wrong, confidence=confidence
        ),
        p_value=mcnemar_p_value(only_candidate, only_strict),
    )


def mcnemar_p_value(only_candidate: int, only_strict: int) -> float:
    """Returns the exact two-sided p-value that either kind of disagreement is as likely.

    McNemar (1947), in its binomial form; 1 if the arms never disagree.

    Args:
      only_candidate: Examples that only the candidate got right.
      only_strict: Examples that only strict decoding got right.

    Raises:
      ValueError: A count is negative.
    """
    _check_counts(only_candidate=only_candidate, only_strict=only_strict)
    disagreements = only_candidate + only_strict
    if not disagreements:
        return 1.0
    return float(stats.binomtest(only_candidate, disagreements, 0.5).pvalue)


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Returns Wilson's score interval of a proportion (1927), without continuity correction.

    Args:
      successes: 0..trials.
      trials: 1 or more.
      confidence: Between 0 and 1.

    Raises:
      ValueError: A number is out of range.
    """
    _check_confidence(confidence)
    if trials < 1:
        raise ValueError(f"trials: got {trials}, needs 1 or more")
    if not 0 <= successes <= trials:
        raise ValueError(f"successes: got {successes}, needs 0..{trials}")
    low, high = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return Interval(successes / trials, float(low), float(high), confidence, "wilson", trials)


def newcombe_interval(
    both_right: int,
    only_candidate: int,
    only_strict: int,
    both_wrong: int,
    *,
    confidence: float = 0.95,
) -> Interval:
    """Returns Newcombe's interval of a difference between paired proportions.

    Method 10 of Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data" (Statistics in Medicine 17, 1998): the two Wilson intervals
    put together under the correlation of the arms.

    Args:
      both_right: Examples that both arms got right.
      only_candidate: Examples that only the candidate got right.
      only_strict: Examples that only strict decoding got right.
      both_wrong: Examples that neither got right.
      confidence: Between 0 and 1.

    Raises:
      ValueError: A count is negative, all are zero, or the confidence is out of range.
    """
    _check_counts(
        both_right=both_right,
        only_candidate=only_candidate,
        only_strict=only_strict,
        both_wrong=both_wrong,
    )
    total = both_right + only_candidate + only_strict + both_wrong
    new = wilson_interval(both_right + only_candidate, total, confidence=confidence)
    old = wilson_interval(both_right + only_strict, total, confidence=confidence)
    phi = _correlation(both_right, only_candidate, only_strict, both_wrong)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))  # below 0 only by rounding

    estimate = (only_candidate - only_strict) / total
    low = estimate - reach(new.estimate - new.low, old.high - old.estimate)
    high = estimate + reach(new.high - new.estimate, old.estimate - old.low)
    return Interval(estimate, max(low, -1.0), min(high, 1.0), confidence, "newcombe", total)


def _correlation(a: int, b: int, c: int, d: int) -> float:
    """Returns phi of the table, a positive one after Newcombe's continuity correction."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if not margins:
        return 0.0
    covariance = float(a * d - b * c)
    if covariance > 0:
        covariance = max(covariance - (a + b + c + d) / 2, 0.0)
    return covariance / math.sqrt(margins)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name}: got {count}, needs 0 or more")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: got {confidence}, needs a number between 0 and 1")
