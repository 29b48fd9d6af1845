"""Rows of measurements: what they hold, and which of them count after kills."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation import interleaved
from asd_jax.evaluation.arms import Arm
from asd_jax.evaluation.conversation import Answer, Turn
from asd_jax.evaluation.interleaved import Measurement
from asd_jax.evaluation.plan import Plan, Request
from asd_jax.evaluation.prompts import parse_record
from asd_jax.evaluation.records import OutputError
from asd_jax.evaluation.throughput import (
    ROLES,
    Unit,
    is_steady,
    measurement_row,
    parse_measurement,
    whole_measurements,
)
from asd_jax.evaluation.throughput.measurements import token_digest
from asd_jax.types import FinishReason
from tests.evaluation.throughput.measured import last_whole, measured

TRIPLE = ROLES[:3]
UNIT = Unit("gsm8k", 1, 7)


def request(name):
    prompt = parse_record({"id": name, "prompt": "x"})
    return Request(prompt, (1,), 8.0, 0.25, 2, 3, 7, 0)


def answer(name, ids, spent):
    turn = Turn(5, ids, FinishReason.LENGTH, 2, (1, 1))
    return Answer(request(name), "candidate", (turn,), {"exceptions": 1, "spent": spent}, 8.0)


def a_row():
    answers = [answer("a", (4, 5, 6), 0.1), answer("b", (7, 8, 9), 0.30000001192092896)]
    timing = Measurement(0, "candidate", 1, 2, 6, 4, 0.25, 1.5)
    return measurement_row(UNIT, "candidate", "asd", answers, timing)


def test_a_row_holds_what_its_table_says_and_is_read_back():
    row = json.loads(json.dumps(a_row(), allow_nan=False))
    assert row["id"] == "gsm8k/1/7" and row["arm"] == "asd"
    got = parse_measurement(row)
    assert got.unit == UNIT and got.role == "candidate" and got.ids == ("a", "b")
    assert (got.tokens, got.round_tokens) == (6, 4)
    assert (got.prefill_seconds, got.rounds_seconds) == (0.25, 1.5)
    assert (got.rounds, got.exceptions, got.spent) == ((2, 2), (1, 1), (0.1, 0.3))
    assert got.digest == token_digest([[4, 5, 6], [7, 8, 9]])


def test_the_digest_tells_ids_their_order_and_their_requests_apart():
    others = ([[4, 5], [6]], [[4], [5, 6]], [[6], [4, 5]], [[4, 5, 6]], [[4, 5], [7]])
    assert len({token_digest(ids) for ids in others}) == len(others)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", 3),
        ("repeat", -1),
        ("batch", 1.0),
        ("role", "strict"),
        ("ids", []),
        ("tokens", None),
        ("round_tokens", True),
        ("prefill_seconds", 0.0),
        ("rounds_seconds", float("nan")),
        ("rounds", ["2", "2"]),
        ("exceptions", [1]),
        ("spent", None),
        ("digest", None),
    ],
)
def test_a_row_that_is_none_is_refused_by_its_field(field, value):
    with pytest.raises(OutputError, match=rf"measurement 'gsm8k/1/7': {field}: got"):
        parse_measurement(a_row() | {field: value})


def log(*entries):
    return [measured(Unit("t", 0, batch), role, rate) for batch, role, rate in entries]


def test_a_unit_counts_only_where_its_roles_stand_one_behind_the_other():
    b, c, a = TRIPLE
    cut = log((0, b, 1), (0, c, 1), (0, b, 2), (0, c, 2), (0, a, 2), (1, b, 3), (1, c, 3))
    found = last_whole(cut, TRIPLE)
    assert list(found) == [Unit("t", 0, 0)]
    assert [row.prefill_seconds for row in found[Unit("t", 0, 0)].values()] == [10.0] * 3

    # The opening role of one attempt never goes with the closing role of another.
    assert not last_whole(log((0, b, 1), (1, b, 1), (0, c, 1), (0, a, 1)), TRIPLE)
    assert not last_whole(log((0, b, 1), (0, a, 1), (0, c, 1)), TRIPLE)
    assert not last_whole(log((0, c, 1), (0, a, 1)), TRIPLE)
    assert not last_whole(log((0, b, 1), (0, c, 1), (0, a, 1)), ROLES)
    # A new attempt that was cut short does not take away an old one that was whole.
    whole = log((0, b, 1), (0, c, 1), (0, a, 1), (0, b, 2))
    assert last_whole(whole, TRIPLE)[Unit("t", 0, 0)][b].prefill_seconds == 20.0
    # A new whole one does, and both are there.
    twice = log((0, b, 1), (0, c, 1), (0, a, 1), (0, b, 2), (0, c, 2), (0, a, 2))
    (found,) = whole_measurements(twice, TRIPLE).values()
    assert [attempt[a].prefill_seconds for attempt in found] == [20.0, 10.0]


@pytest.mark.parametrize(
    ("before", "after", "is_so"),
    [(100, 100, True), (104, 100, True), (100, 104, True), (100, 106, False), (106, 100, False)],
)
def test_a_unit_is_steady_by_its_strict_runs_alone(before, after, is_so):
    rates = zip(TRIPLE, (before, 1, after), strict=True)
    rows = {role: log((0, role, rate))[0] for role, rate in rates}
    assert is_steady(rows, 5.0) is is_so
    assert is_steady(rows, 10.0)


@given(st.lists(st.integers(0, 12), max_size=5), st.sampled_from([TRIPLE, ROLES]))
def test_however_often_it_is_killed_every_unit_ends_with_roles_of_one_attempt(kills, roles):
    units = [Unit("t", repeat, batch) for repeat in range(2) for batch in range(2)]
    rows = []
    for attempt, rows_until_killed in enumerate([*kills, 1000], start=1):
        done = last_whole(rows, roles)
        pending = [(unit, role) for unit in units if unit not in done for role in roles]
        rows += [measured(*key, attempt) for key in pending[:rows_until_killed]]
    found = last_whole(rows, roles)
    assert found.keys() == set(units)
    for unit, by_role in found.items():
        assert tuple(by_role) == roles
        assert len({row.prefill_seconds for row in by_role.values()}) == 1
        assert {row.unit for row in by_role.values()} == {unit}


def test_the_order_of_roles_does_not_rotate_where_it_must_not():
    plan = Plan(tuple((request(str(i)),) for i in range(5)), (), 3)
    arms = [Arm(role, None, None, 1, True) for role in TRIPLE]  # type: ignore[arg-type]
    fixed = interleaved.pending(plan, arms, lambda *_: False, rotates=False)
    assert [(b, p, arm.name) for b, p, arm in fixed] == [
        (batch, place, role) for batch in range(5) for place, role in enumerate(TRIPLE)
    ]
