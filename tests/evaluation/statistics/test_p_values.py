"""P-values against their formulas, and their validity by summing over every possible sample."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.p_values import METHODS, betting, p_values

EPSILON = st.floats(0.01, 0.9)


def tail(k, n, p):
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@given(st.integers(1, 40), st.data(), EPSILON)
def test_binomial_is_the_exact_tail(n, data, epsilon):
    k = data.draw(st.integers(0, n))
    losses = np.arange(n) < k
    got = p_values(losses, epsilon, "binomial")
    assert got == pytest.approx(tail(k, n, epsilon), rel=1e-9)
    assert p_values(losses, epsilon) >= got * (1 - 1e-9)  # bounds of what it is exactly


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), EPSILON)
def test_hoeffding_bentkus_is_its_formula(losses, epsilon):
    n = len(losses)
    mean = min(sum(losses) / n, epsilon)

    def divergence(a, b):
        return a * math.log(a / b) if a > 0 else 0.0

    exponent = divergence(mean, epsilon) + divergence(1 - mean, 1 - epsilon)
    bentkus = math.e * tail(math.ceil(np.sum(losses)), n, epsilon)
    want = min(1.0, math.exp(-n * exponent), bentkus)
    assert p_values(losses, epsilon) == pytest.approx(want, rel=1e-6)


def betting_by_loop(losses, epsilon, level):
    wealth, best, seen = 1.0, 1.0, []
    squares = 0.0
    for loss in losses:
        variance = (0.25 + squares) / (len(seen) + 1)
        bet = math.sqrt(2 * math.log(1 / level) / (len(losses) * variance))
        wealth *= 1 + min(bet, 0.75 / (1 - epsilon)) * (epsilon - loss)
        best = max(best, wealth)
        seen.append(loss)
        squares += (loss - (0.5 + sum(seen)) / (len(seen) + 1)) ** 2
    return 1 / best


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), EPSILON, st.floats(0.01, 0.5))
def test_betting_is_a_plain_loop(losses, epsilon, level):
    got = betting(losses, epsilon, level=level)
    assert got == pytest.approx(betting_by_loop(losses, epsilon, level), rel=1e-9)


# Distributions on a few points whose mean is epsilon: the null hypothesis at its edge.
NULLS = {
    "rare": ([0.0, 1.0], [0.9, 0.1]),
    "even": ([0.0, 1.0], [0.5, 0.5]),
    "three": ([0.0, 0.5, 1.0], [0.3, 0.4, 0.3]),
    "skewed": ([0.0, 0.25, 1.0], [0.7, 0.2, 0.1]),
    "certain": ([0.0, 0.25], [0.0, 1.0]),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in NULLS
        for method in METHODS
        if method != "binomial" or name in ("rare", "even")
    ],
)
def test_a_true_null_hypothesis_is_rejected_no_more_often_than_the_level(name, method):
    points, chances = map(np.array, NULLS[name])
    epsilon = float(points @ chances)
    n = 10 if len(points) == 2 else 7
    rows = np.array(list(itertools.product(range(len(points)), repeat=n)))
    weight = chances[rows].prod(axis=1)
    found = p_values(points[rows], epsilon, method)
    order = np.argsort(found)
    reached = np.cumsum(weight[order])
    # At the last row of each p-value, the sum is the chance of that p-value or less.
    last = np.append(np.diff(found[order]) > 1e-12, True)
    assert (reached[last] <= found[order][last] + 1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_another_range_is_mapped(method):
    losses = np.array([[-1.0, 1, -1, -1, -1, -1], [1, 1, 1, -1, 1, -1]])
    got = p_values(losses, 0.2, method, loss_range=(-1, 1))
    assert got == pytest.approx(p_values((losses + 1) / 2, 0.6, method), rel=1e-12)
    assert got[0] < got[1]


def test_rows_are_judged_alone():
    table = np.random.default_rng(0).random((3, 4, 50))
    for method in ("hoeffding_bentkus", "betting"):
        got = p_values(table, 0.6, method)
        assert got.shape == (3, 4)
        assert got[2, 1] == p_values(table[2, 1], 0.6, method)


def test_betting_finds_small_signed_losses_that_the_bounds_do_not():
    losses = np.zeros(500)
    losses[[100, 300]] = 1, -1
    assert p_values(losses, 0.02, "betting", loss_range=(-1, 1)) < 0.01
    assert p_values(losses, 0.02, loss_range=(-1, 1)) > 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(0), 0.1), r"losses: got shape \(0,\)"),
        ((0.5, 0.1), r"losses: got shape \(\)"),
        (([0.5, 1.5], 0.1), "losses: got 1.5, needs 0.0..1.0"),
        (([0.5, np.nan], 0.1), "losses: got nan"),
        (([0.5, -1.0], 0.1), "losses: got -1.0"),
        (([0.5], 0.0), "epsilon: got 0.0"),
        (([0.5], 1.0), "epsilon: got 1.0"),
        (([0.5], 0.1, "binomial"), "losses: got 0.5, binomial needs 0.0 or 1.0"),
        (([0.5], 0.1, "student"), "method: got 'student'"),
    ],
)
def test_what_is_no_loss_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        p_values(*arguments)


@pytest.mark.parametrize("level", [0, 1, np.nan])
def test_a_level_must_be_a_share(level):
    with pytest.raises(ValueError, match="level: got"):
        p_values([0.5], 0.1, level=level)


@pytest.mark.parametrize("loss_range", [(1, 1), (1, 0), (0, np.inf), (np.nan, 1)])
def test_a_range_must_be_finite_and_ascending(loss_range):
    with pytest.raises(ValueError, match="loss_range: got"):
        p_values([0.5], 0.1, loss_range=loss_range)
