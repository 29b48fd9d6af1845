"""Intervals of a quartile of bundles, against resampling by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.bootstrap import METHODS, Bootstrap
from asd_jax.evaluation.statistics.quantile import linear_q25
from asd_jax.evaluation.statistics.quantile_interval import q25_interval

MANY = Bootstrap("percentile", num_resamples=4000)


def test_all_resamples_of_three_bundles():
    """27 resamples, all as likely: the interval's ends are quantiles of their quartiles."""
    bundles = [[1.0, 2.0, 8.0], [3.0], [0.5, 4.0, 5.0, 6.0]]
    every = [
        linear_q25(np.sort(np.concatenate([bundles[i] for i in drawn])))
        for drawn in itertools.product(range(3), repeat=3)
    ]
    found = q25_interval(bundles, MANY)
    assert found is not None
    assert found.estimate == linear_q25(np.sort(np.concatenate(bundles)))
    # Ends lie on atoms of the 27 values; the tails of 2.5 % hold less than one atom of 1/27.
    assert (found.low, found.high) == (min(every), max(every))
    assert (found.num_units, found.method) == (3, "percentile")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.floats(0.1, 100), max_size=5), min_size=2, max_size=6).filter(
        lambda bundles: sum(map(bool, bundles)) > 1
    ),
    st.sampled_from(METHODS),
)
def test_estimate_and_ends(bundles, method):
    found = q25_interval(bundles, Bootstrap(method, num_resamples=50))
    numbers = np.sort(np.concatenate(bundles))
    assert found is not None
    assert found.estimate == pytest.approx(linear_q25(numbers))
    assert found.low <= found.high
    if found.method != "basic":  # which mirrors its resamples
        assert numbers[0] - 1e-9 <= found.low and found.high <= numbers[-1] + 1e-9


def test_units_without_numbers_do_not_count():
    bundles = [[1.0, 2.0], [], [3.0, 5.0, 4.0], []]
    assert q25_interval(bundles, MANY) == q25_interval([bundles[0], bundles[2]], MANY)
    assert q25_interval(bundles[:2], MANY) is None


def test_numbers_that_are_alike_within_a_bundle_tell_less():
    """Ten bundles of a hundred equal numbers know as much as ten numbers, not as a thousand."""
    draw = np.random.default_rng(0)
    numbers = draw.exponential(size=10)
    alike = q25_interval([np.full(100, number) for number in numbers], MANY)
    apart = q25_interval(list(draw.exponential(size=(1000, 1))), MANY)
    assert alike is not None and apart is not None
    assert alike.high - alike.low > 3 * (apart.high - apart.low)
