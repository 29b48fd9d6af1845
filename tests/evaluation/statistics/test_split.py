"""The split of any task set; the published one is among the protocol's vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.split import split_examples


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 99))
def test_parts_are_disjoint_and_of_the_sizes_asked_for(num_calibration, num_formal, rest, seed):
    total = num_calibration + num_formal + rest
    got = split_examples(
        total, seed=seed, num_calibration=num_calibration, num_formal=num_formal, num_warmup=0
    )
    assert (len(got.calibration), len(got.formal)) == (num_calibration, num_formal)
    both = {*got.calibration, *got.formal}
    assert len(both) == num_calibration + num_formal
    assert both <= set(range(total))


def test_the_digest_tells_permutations_apart_and_not_sizes():
    one = split_examples(1319)
    assert one.digest == split_examples(1319, num_formal=100).digest
    assert one.digest != split_examples(1319, seed=1).digest
    assert one.digest != split_examples(1318).digest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 531}, "num_examples: got 531, needs .* = 532"),
        ({"num_examples": 9, "num_calibration": -1}, "num_calibration: got -1"),
        ({"num_examples": 9, "num_formal": -2}, "num_formal: got -2"),
        ({"num_examples": 9, "num_warmup": -3}, "num_warmup: got -3"),
        (
            {"num_examples": 9, "num_calibration": 4, "num_formal": 5, "num_warmup": 5},
            "num_warmup: got 5, needs num_calibration = 4",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_examples(**arguments)
