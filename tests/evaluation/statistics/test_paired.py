"""Paired accuracies against exact sums, closed forms, published intervals and true coverage."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.paired import (
    compare_accuracy,
    mcnemar_p_value,
    newcombe_interval,
    wilson_interval,
)

COUNT = st.integers(0, 40)


@given(COUNT, COUNT)
def test_mcnemar_is_a_sum_of_binomials(b, c):
    total = b + c
    tail = sum(math.comb(total, k) for k in range(min(b, c) + 1)) / 2**total
    assert mcnemar_p_value(b, c) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar_p_value(b, c) == mcnemar_p_value(c, b)


def test_mcnemar_is_never_too_small_under_the_null_hypothesis():
    for total in range(1, 30):
        chance = np.array([math.comb(total, k) / 2**total for k in range(total + 1)])
        found = np.array([mcnemar_p_value(k, total - k) for k in range(total + 1)])
        for level in found:
            assert chance[found <= level].sum() <= level * (1 + 1e-9)


@given(COUNT, st.integers(1, 60), st.sampled_from([(0.95, 1.959963985), (0.9, 1.644853627)]))
def test_wilson_is_its_closed_form(successes, rest, confidence_and_z):
    confidence, z = confidence_and_z
    n = successes + rest
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    got = wilson_interval(successes, n, confidence=confidence)
    assert (got.low, got.high) == pytest.approx((centre - half, centre + half), abs=1e-8)
    assert (got.estimate, got.num_units) == (p, n)


# Newcombe (1998), and airway hyper-responsiveness before and after a transplant (Bentur et al.) as
# in Fagerland, Lydersen and Laake (2014).
@pytest.mark.parametrize(
    ("table", "low", "high", "places"),
    [((36, 12, 2, 0), 0.0569, 0.3404, 4), ((1, 1, 7, 12), -0.507, -0.026, 3)],
)
def test_newcombe_gives_the_published_intervals(table, low, high, places):
    got = newcombe_interval(*table)
    assert (round(got.low, places), round(got.high, places)) == (low, high)


@given(COUNT, COUNT, COUNT, COUNT)
def test_newcombe_holds_its_estimate_and_turns_with_the_arms(a, b, c, d):
    if not a + b + c + d:
        return
    got, turned = newcombe_interval(a, b, c, d), newcombe_interval(a, c, b, d)
    assert -1 <= got.low <= got.estimate <= got.high <= 1
    assert (turned.low, turned.high) == pytest.approx((-got.high, -got.low), abs=1e-12)
    assert got.high > got.low


def test_newcombe_covers_the_true_difference_as_often_as_it_says():
    """Sums over every table of 14 examples, for accuracies and overlaps of all kinds."""
    n = 14
    tables = [t for t in itertools.product(range(n + 1), repeat=4) if sum(t) == n]
    ends = [newcombe_interval(*table) for table in tables]
    low, high = (np.array([getattr(e, name) for e in ends]) for name in ("low", "high"))
    logs = np.array([math.lgamma(n + 1) - sum(math.lgamma(k + 1) for k in t) for t in tables])
    coverage = []
    for right, gained, lost in itertools.product((0.1, 0.5, 0.8), (0.02, 0.05, 0.1), (0.02, 0.08)):
        chances = np.array([right, gained, lost, 1 - right - gained - lost])
        weight = np.exp(logs + np.array(tables) @ np.log(chances))
        assert weight.sum() == pytest.approx(1)
        coverage.append(weight[(low <= gained - lost) & (gained - lost <= high)].sum())
    assert min(coverage) > 0.93


def test_arms_are_compared_example_by_example():
    candidate = np.array([1, 1, 0, 0, 1, 1, 0, 1], bool)
    strict = np.array([1, 0, 1, 0, 1, 0, 0, 0], bool)
    got = compare_accuracy(candidate, strict)
    assert (got.both_right, got.only_candidate, got.only_strict, got.both_wrong) == (2, 3, 1, 2)
    assert got.difference == newcombe_interval(2, 3, 1, 2)
    assert got.difference.estimate == candidate.mean() - strict.mean() == 0.25
    assert got.p_value == mcnemar_p_value(3, 1) == 0.625
    narrow = compare_accuracy(candidate, strict, confidence=0.5).difference
    assert got.difference.low < narrow.low < narrow.high < got.difference.high


def test_arms_that_never_disagree_leave_doubt_all_the_same():
    right = np.ones(500, bool)
    got = compare_accuracy(right, right)
    assert got.p_value == 1
    assert got.difference.low < 0 < got.difference.high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare_accuracy([True], [True, False]), r"candidate \(1,\) and strict \(2,\)"),
        (lambda: compare_accuracy([], []), r"candidate \(0,\)"),
        (lambda: compare_accuracy([1], [True]), "candidate: got int64"),
        (lambda: mcnemar_p_value(-1, 1), "only_candidate: got -1"),
        (lambda: wilson_interval(1, 0), "trials: got 0"),
        (lambda: wilson_interval(3, 2), r"successes: got 3, needs 0..2"),
        (lambda: wilson_interval(1, 2, confidence=1), "confidence: got 1"),
        (lambda: newcombe_interval(1, 1, -1, 1), "only_strict: got -1"),
        (lambda: newcombe_interval(0, 0, 0, 0), "trials: got 0"),
    ],
)
def test_impossible_counts_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
