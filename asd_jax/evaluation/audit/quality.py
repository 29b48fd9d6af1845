"""How good the answers are: right or wrong where there is a right answer, likeness where not."""

from __future__ import annotations

import dataclasses

import numpy as np

from asd_jax.evaluation.audit.measures import Measures
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.intervals import mean_difference_interval, mean_interval
from asd_jax.evaluation.statistics.paired import compare_accuracy, wilson_interval


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Right answers of both arms, as fractions.

    Attributes:
      strict: Strict decoding's accuracy, Wilson's interval.
      asd: ASD's, likewise.
      difference: ASD's less strict's, Newcombe's interval for paired answers.
      bootstrap_difference: The same by resampling examples; it knows only changes that were seen.
      p_value: Two-sided, of the exact McNemar test that the arms are equally often right.
      both_right: Examples that both arms got right.
      only_strict: Examples that ASD lost.
      only_asd: Examples that ASD won.
      both_wrong: Examples that neither got right.
    """

    strict: Interval
    asd: Interval
    difference: Interval
    bootstrap_difference: Interval
    p_value: float
    both_right: int
    only_strict: int
    only_asd: int
    both_wrong: int


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Words shared with a reference (ROUGE-L, 0..1): a description, not a score of quality.

    Attributes:
      num: Examples that have a reference.
      strict: Mean of strict decoding's answers.
      asd: Mean of ASD's.
      difference: ASD's less strict's, paired.
    """

    num: int
    strict: Interval
    asd: Interval
    difference: Interval


def accuracy(measures: Measures, bootstrap: Bootstrap) -> Accuracy | None:
    """Compares how often the arms are right; None where there is no right answer."""
    strict, asd = measures.strict.is_right, measures.asd.is_right
    if strict is None or asd is None:
        return None
    confidence = bootstrap.confidence
    paired = compare_accuracy(asd, strict, confidence=confidence)
    return Accuracy(
        strict=wilson_interval(int(strict.sum()), strict.size, confidence=confidence),
        asd=wilson_interval(int(asd.sum()), asd.size, confidence=confidence),
        difference=paired.difference,
        bootstrap_difference=mean_difference_interval(
            asd.astype(np.float64), strict.astype(np.float64), bootstrap
        ),
        p_value=paired.p_value,
        both_right=paired.both_right,
        only_strict=paired.only_strict,
        only_asd=paired.only_candidate,
        both_wrong=paired.both_wrong,
    )


def overlap(measures: Measures, bootstrap: Bootstrap) -> Overlap | None:
    """Compares how alike the answers are to references; None if fewer than two have one."""
    strict, asd = measures.strict.overlap, measures.asd.overlap
    has_reference = np.isfinite(strict) & np.isfinite(asd)
    if has_reference.sum() < 2:
        return None
    strict, asd = strict[has_reference], asd[has_reference]
    return Overlap(
        num=int(has_reference.sum()),
        strict=mean_interval(strict, bootstrap),
        asd=mean_interval(asd, bootstrap),
        difference=mean_difference_interval(asd, strict, bootstrap),
    )
