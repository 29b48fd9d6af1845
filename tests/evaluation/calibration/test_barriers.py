"""The authors' calibration, by hand and by their published figures."""

from __future__ import annotations

import math

import pytest

from asd_jax.evaluation.calibration.barriers import quartile, raw_gate


def strict_row(own, refusals, *, size, rounds=10, **changes):
    return {
        "id": own,
        "arm": "strict",
        "accept_histogram": [0] * (size + 1),
        "ledger": {"rounds": rounds},
        "refusals": refusals,
    } | changes


def test_the_published_quartile_and_its_gates():
    """33/16 with blocks of five; a refused token at i stood for (5 - i) / 5 of its block."""
    size, value = 5, 33 / 16
    refusals = [[i, i, size, value * (size - i) / size] for i in range(size)]
    found = quartile([strict_row("a", refusals, size=size)])
    assert found.value == found.budget == pytest.approx(2.0625)
    assert found.gate == pytest.approx(0.4125)
    thresholds = [found.gate * (size - i) for i in range(size)]
    assert thresholds == pytest.approx([2.0625, 1.65, 1.2375, 0.825, 0.4125])


def test_the_published_raw_gate_with_blocks_of_seven():
    assert raw_gate(1.75, 7) == 0.25
    assert [raw_gate(1.75, 7) * (7 - i) for i in range(7)] == [
        1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="block_size: got 0"):
        raw_gate(1.0, 0)


def test_all_answers_are_pooled_and_what_has_no_price_is_counted():
    first = [[3, 0, 4, 1.0], [9, 2, 4, 1.0], [12, 3, 4, 1.0]]  # ratios 1, 2 and 4
    second = [[2, 1, 2, 2.25], [5, 0, 4, 0.0], [6, 1, 4, "inf"]]  # 3 in a short block; tie; none
    found = quartile([strict_row("a", first, size=4), strict_row("b", second, size=4, rounds=7)])
    # 1, 2, 3, 4: a quarter of the way is 0.75 behind the first.
    assert (found.value, found.gate) == (1.75, 0.4375)
    assert found.spread == (1.0, 1.75, 2.5, 3.25, 4.0)
    assert (found.num_answers, found.num_rounds, found.num_refusals) == (2, 17, 6)
    assert (found.num_barriers, found.num_ties, found.num_unpriced, found.num_short) == (4, 1, 1, 1)
    assert math.isfinite(found.gate)
    # Of the four pairs of answers the quartiles are 1.25, 1.75 twice, and 3.
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (1.25, 3.0)
    assert (found.interval.estimate, found.interval.num_units) == (found.value, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows: got none"),
        ([strict_row("a", [[0, 0, 4, 0.0]], size=4)], "got 1 in 1 answers, of them none of pos"),
        ([strict_row("a", [], size=4), strict_row("b", [], size=5)], r"of \[4, 5\] draft tokens"),
        ([strict_row("a", [], size=0)], r"of \[0\] draft tokens"),
        ([strict_row("a", [], size=4, arm="asd")], "arm: got 'asd', needs 'strict'"),
    ],
)
def test_what_cannot_be_calibrated_on(rows, message):
    with pytest.raises(ValueError, match=message):
        quartile(rows)


def test_rows_without_a_trace_are_named():
    row = strict_row("x", [], size=4)
    del row["refusals"]
    with pytest.raises(ValueError, match="id 'x': refusals: missing, needs a run with trace"):
        quartile([row])
