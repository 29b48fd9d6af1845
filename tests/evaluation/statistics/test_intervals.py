"""Bootstrap intervals against every resample there is, and against BCa written out."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.statistics.intervals import (
    mean_difference_interval,
    mean_interval,
    mean_over_tasks_interval,
    ratio_of_means_interval,
    ratio_of_medians_interval,
)

MANY = 40_000
QUICK = Bootstrap(num_resamples=200)

VALUES = [0.3, 1.0, 2.7, 3.1]
TASKS = [[0.0, 1.0, 5.0], [2.0, 2.5, 9.0]]
# Three prompts, of one, two and three measurements.
ABOVE = [9.0, 4.0, 6.5, 1.0, 3.0, 8.0]
BELOW = [5.0, 3.0, 2.0, 4.0, 1.5, 7.0]
PROMPTS = ["b", "c", "c", "a", "a", "a"]


def pooled_ratio(drawn, average):
    rows = [i for prompt in drawn for i, name in enumerate(PROMPTS) if name == prompt]
    return average([ABOVE[i] for i in rows]) / average([BELOW[i] for i in rows])


def task_mean(drawn):
    return np.mean([np.mean(drawn[:3]), np.mean(drawn[3:])])


# How the package computes it, the units of each stratum, and the statistic of drawn units.
CASES = {
    "mean": (lambda b: mean_interval(VALUES, b), [VALUES], np.mean),
    "mean of three": (lambda b: mean_interval(VALUES[:3], b), [VALUES[:3]], np.mean),
    "difference": (
        lambda b: mean_difference_interval(np.add(VALUES, [7, 5, 3, 1]), [7, 5, 3, 1], b),
        [VALUES],
        np.mean,
    ),
    "tasks": (lambda b: mean_over_tasks_interval(TASKS, b), TASKS, task_mean),
    "means": (
        lambda b: ratio_of_means_interval(ABOVE, BELOW, PROMPTS, b),
        [["a", "b", "c"]],
        lambda drawn: pooled_ratio(drawn, np.mean),
    ),
    "medians": (
        lambda b: ratio_of_medians_interval(ABOVE, BELOW, PROMPTS, b),
        [["a", "b", "c"]],
        lambda drawn: pooled_ratio(drawn, np.median),
    ),
}


def every_resample(strata, statistic):
    """Returns the statistic of each of the equally likely resamples, sorted."""
    draws = [itertools.product(units, repeat=len(units)) for units in strata]
    joined = (sum(parts, ()) for parts in itertools.product(*map(list, draws)))
    return np.sort([statistic(drawn) for drawn in joined])


def check(end, ordered, share):
    """Asks of an end of an interval what 40,000 draws can tell of it."""
    error = 5 * np.sqrt(share * (1 - share) / MANY)
    ranks = np.array([share - error, share + error]) * ordered.size
    low, high = ordered[np.clip(ranks.astype(int), 0, ordered.size - 1)]
    assert low - 1e-9 <= end <= high + 1e-9


CONFIDENCES = (0.5, 0.7, 0.8, 0.9, 0.95)


@pytest.mark.parametrize("case", CASES)
def test_percentile_and_basic_intervals_are_those_of_every_resample(case):
    interval, strata, statistic = CASES[case]
    ordered = every_resample(strata, statistic)
    for confidence in CONFIDENCES:
        got = interval(Bootstrap("percentile", confidence, MANY))
        tail = (1 - confidence) / 2
        check(got.low, ordered, tail)
        check(got.high, ordered, 1 - tail)
        assert got.estimate == pytest.approx(statistic(sum(map(tuple, strata), ())))
        assert (got.confidence, got.num_units) == (confidence, sum(map(len, strata)))
        basic = interval(Bootstrap("basic", confidence, MANY))
        assert basic.low == pytest.approx(2 * got.estimate - got.high)
        assert basic.high == pytest.approx(2 * got.estimate - got.low)


@pytest.mark.parametrize("case", [name for name in CASES if name != "tasks"])
def test_bca_intervals_are_the_formula_over_every_resample(case):
    """Efron and Tibshirani, chapter 14: equations 14.10, 14.14 and 14.15."""
    interval, (units,), statistic = CASES[case]
    ordered = every_resample([units], statistic)
    estimate = statistic(units)
    is_same = np.isclose(ordered, estimate, rtol=1e-12)
    bias = special.ndtri(np.mean((ordered < estimate) & ~is_same) + is_same.mean() / 2)
    left_out = np.array([statistic([*units[:i], *units[i + 1 :]]) for i in range(len(units))])
    off = left_out.mean() - left_out
    acceleration = (off**3).sum() / (6 * (off**2).sum() ** 1.5)
    for confidence in CONFIDENCES:
        got = interval(Bootstrap("bca", confidence, MANY))
        assert got.method == "bca"
        ends = special.ndtri([(1 - confidence) / 2, (1 + confidence) / 2]) + bias
        shares = special.ndtr(bias + ends / (1 - acceleration * ends))
        check(got.low, ordered, shares[0])
        check(got.high, ordered, shares[1])


def test_intervals_of_many_values_hold_the_true_mean_as_often_as_they_say():
    rng = np.random.default_rng(1)
    draws = rng.exponential(size=(300, 60))
    found = [mean_interval(row, Bootstrap(confidence=0.9, num_resamples=999)) for row in draws]
    held = np.mean([got.low <= 1 <= got.high for got in found])
    assert 0.84 < held < 0.95


def test_repeating_the_measurements_of_prompts_does_not_narrow_the_interval():
    once = ratio_of_means_interval(ABOVE, BELOW, range(6))
    again = ratio_of_means_interval(ABOVE * 50, BELOW * 50, [*range(6)] * 50)
    assert (again.low, again.high) == pytest.approx((once.low, once.high))
    loose = ratio_of_means_interval(ABOVE * 50, BELOW * 50)
    assert loose.high - loose.low < (again.high - again.low) / 4


def test_pairing_takes_out_what_prompts_share():
    rng = np.random.default_rng(2)
    prompt = rng.normal(scale=10, size=100)
    got = mean_difference_interval(prompt + 1, prompt + rng.normal(scale=0.1, size=100))
    assert 0.9 < got.low < got.high < 1.1


ROW = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


@given(ROW, st.integers(0, 5), st.sampled_from(["bca", "percentile", "basic"]))
def test_a_seed_gives_one_interval_and_its_ends_are_in_order(row, seed, method):
    bootstrap = Bootstrap(method, num_resamples=200, seed=seed)
    got = mean_interval(row, bootstrap)
    assert got == mean_interval(row, bootstrap) == mean_over_tasks_interval([row], bootstrap)
    assert np.isfinite([got.low, got.high]).all()
    assert got.low <= got.high
    if method == "percentile":
        assert min(row) - 1e-9 <= got.low
        assert got.high <= max(row) + 1e-9


@given(st.permutations(range(6)))
def test_the_order_of_measurements_does_not_matter(order):
    for interval in (ratio_of_means_interval, ratio_of_medians_interval):
        rows = [[column[i] for i in order] for column in (ABOVE, BELOW, PROMPTS)]
        got, plain = interval(*rows, QUICK), interval(ABOVE, BELOW, PROMPTS, QUICK)
        assert (got.low, got.high) == pytest.approx((plain.low, plain.high), rel=1e-12)


@pytest.mark.parametrize("method", ["bca", "percentile", "basic"])
def test_equal_measurements_have_no_width_and_name_the_method_used(method):
    got = mean_interval([2.0] * 5, Bootstrap(method))
    assert (got.estimate, got.low, got.high) == (2.0, 2.0, 2.0)
    assert got.method == ("percentile" if method == "bca" else method)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0]), r"values: got shape \(1,\)"),
        (lambda: mean_interval([[1.0, 2]]), r"values: got shape \(1, 2\)"),
        (lambda: mean_interval([1.0, np.nan]), "values: got nan at 1"),
        (lambda: mean_difference_interval([1, 2], [1, 2, 3]), r"candidate \(2,\), baseline \(3,\)"),
        (lambda: mean_over_tasks_interval([]), "tasks: got none"),
        (lambda: mean_over_tasks_interval([[1, 2], [3]]), r"tasks\[1\]: got shape \(1,\)"),
        (lambda: ratio_of_means_interval([1, 2], [1, 0]), "denominator: got 0.0"),
        (lambda: ratio_of_medians_interval([1, 2], [1, 2], [1]), r"prompts \(1,\)"),
        (lambda: ratio_of_means_interval([1, 2], [1, 2], [7, 7]), "prompts: got 1 different"),
        (lambda: Bootstrap("student"), "method: got 'student'"),
        (lambda: Bootstrap(confidence=95), "confidence: got 95"),
        (lambda: Bootstrap(num_resamples=0), "num_resamples: got 0"),
    ],
)
def test_what_cannot_be_resampled_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
