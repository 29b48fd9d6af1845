"""First rejections against a plain loop, and the quartile against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asd_jax.evaluation.statistics.quantile import find_barriers, linear_q25

POSITIVE = st.floats(1e-6, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=40))
def test_q25_is_numpys_linear_quartile(values):
    values = sorted(values)
    assert linear_q25(values) == pytest.approx(np.quantile(values, 0.25), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "got shape \\(0,\\)"),
        ([[1.0]], "got shape \\(1, 1\\)"),
        ([1.0, 3.0, 2.0], "got 2.0 at 2 behind 3.0"),
        ([0.0, 1.0], "got 0.0 at 0"),
        ([-1.0], "got -1.0 at 0"),
        ([1.0, float("nan")], "got nan at 1"),
        ([1.0, float("inf")], "got inf at 1"),
    ],
)
def test_q25_names_what_it_got(values, message):
    with pytest.raises(ValueError, match=message):
        linear_q25(values)


def barriers_by_loop(regret, mismatch, lengths, size):
    rows = []
    for i, length in enumerate(lengths):
        for t in range(length):
            if mismatch[i][t]:
                if regret[i][t] > 0:
                    value = (size - t) / size
                    rows.append((regret[i][t] / value, i, t, regret[i][t], value))
                break
    return sorted(rows)


@st.composite
def proposals(draw):
    shape = (draw(st.integers(0, 6)), draw(st.integers(1, 5)))
    # Few different regrets, so that ratios are equal and ties occur.
    regret = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0, 0.25, 0.5, 1])))
    mismatch = draw(hnp.arrays(np.bool_, shape))
    lengths = draw(hnp.arrays(np.int32, shape[:1], elements=st.integers(0, shape[1])))
    return regret, mismatch, lengths, shape[1] + draw(st.integers(0, 2))


@given(proposals())
def test_barriers_are_those_of_a_plain_loop(case):
    *arrays, size = case
    got = find_barriers(*arrays, block_size=size)
    columns = (got.regret_per_value, got.proposal, got.position, got.regret, got.value)
    assert list(zip(*columns, strict=True)) == barriers_by_loop(*arrays, size)


def test_only_the_first_mismatch_inside_the_length_counts():
    got = find_barriers(
        regret=[[0, 1, 5], [0, 0, 2], [0, 3, 0], [4, 4, 4], [np.nan, 2, np.nan]],
        mismatch=np.array([[0, 1, 1], [0, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 0]], bool),
        lengths=[3, 2, 3, 3, 3],
    )
    assert got.proposal.tolist() == [0, 4, 2]
    assert got.position.tolist() == [1, 1, 1]
    assert got.regret_per_value.tolist() == pytest.approx([1.5, 3.0, 4.5])


def test_a_tie_at_the_barrier_is_dropped_and_nothing_behind_it_counts():
    got = find_barriers([[0.0, 2.0]], np.array([[True, True]]), [2])
    assert not got.proposal.size


def test_a_frozen_setting_comes_out_of_its_barriers():
    """At position 0 of a block of 5 the ratio is the regret: 33/16 is the published quartile."""
    regret = np.full((5, 5), 33 / 16)
    mismatch = np.eye(5, dtype=bool)[[0, 0, 1, 2, 3]]
    got = find_barriers(regret, mismatch, np.full(5, 5))
    assert linear_q25(got.regret_per_value) == 33 / 16
    assert got.value.tolist() == [1, 1, 0.8, 0.6, 0.4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regret": [[1.0]]}, r"got regret \(1, 1\), mismatch \(1, 2\)"),
        ({"lengths": [1, 1]}, r"lengths \(2,\)"),
        ({"mismatch": np.ones((1, 2))}, "mismatch: got float64"),
        ({"lengths": [3]}, r"lengths: got 3..3, needs 0..2"),
        ({"lengths": [-1]}, r"lengths: got -1..-1"),
        ({"block_size": 1}, "block_size: got 1, needs G = 2"),
        ({"regret": [[np.nan, 0]]}, "regret: got nan at proposal 0, position 0"),
        ({"regret": [[-1.0, 0]]}, "regret: got -1.0 at proposal 0, position 0"),
        ({"regret": [[np.inf, 0]]}, "regret: got inf at proposal 0, position 0"),
    ],
)
def test_barriers_name_what_they_got(changes, message):
    arguments = {"regret": [[1.0, 1]], "mismatch": np.ones((1, 2), bool), "lengths": [2]}
    with pytest.raises(ValueError, match=message):
        find_barriers(**(arguments | changes))
