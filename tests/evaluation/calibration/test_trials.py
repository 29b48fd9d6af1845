"""Rows of trials, and what settings did to the same examples."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest

from asd_jax.evaluation.audit import AuditError, GradeCache, grade_steps, paired_grades
from asd_jax.evaluation.audit.measures import measure
from asd_jax.evaluation.calibration.grid import Setting, grid, grid_id, split_id
from asd_jax.evaluation.calibration.trials import (
    STRICT,
    Candidate,
    asked_row,
    candidates,
    make_outcome,
    pair_up,
    setting_rows,
    trial_rows,
)
from asd_jax.evaluation.prompts import parse_record
from asd_jax.evaluation.tasks import TASKS, Example
from tests.evaluation.audit.synthetic_rows import encode, exception, make_row


def question(own, task="mmlu", reference="A"):
    return Example(own, task, "calibration", ("Which?",), reference, {})


def answer_row(own, number, text, *, rounds=2, exceptions=()):
    histogram = [0, 0, rounds]
    return make_row(grid_id(own, number), "asd", encode(text), histogram, exceptions)


def test_every_example_is_asked_strictly_and_under_all_settings_with_one_seed():
    settings = grid([2, math.inf], [0.5], [1])
    rows = list(trial_rows([question("a"), question("b")], settings, max_new_tokens=500, seed=7))
    assert [row["id"] for row in rows] == ["a#0", "a#1", "a#2", "b#0", "b#1", "b#2"]
    assert [row["seed"] for row in rows] == [7, 7, 7, 8, 8, 8]
    assert {row["max_new_tokens"] for row in rows} == {TASKS["mmlu"].max_new_tokens}
    prompts = [parse_record(json.loads(json.dumps(row, allow_nan=False))) for row in rows]
    assert [(p.budget, p.gate, p.block_cap) for p in prompts[:3]] == [
        (0, 0, 0), (2, 0.5, 1), (math.inf, 0.5, 1),
    ]  # fmt: skip
    assert asked_row(question("a"), 0, max_new_tokens=9)["max_new_tokens"] == 9
    # Without the strict ones they are a grid's own, under the same lengths and seeds.
    grid_only = list(setting_rows([question("a")], settings, max_new_tokens=500, seed=7))
    keys = ("max_new_tokens", "seed", "budget", "gate", "block_cap")
    strictly = [{key: row[key] for key in keys} for row in rows[1 : 1 + len(settings)]]
    assert [{key: row[key] for key in keys} for row in grid_only] == strictly
    assert split_id(rows[4]["id"]) == ("b", 1) and STRICT.budget == 0


def test_candidates_go_from_strict_to_loose():
    settings = grid([1], [0.1, 0.2], [1])
    order = candidates(settings, ("remaining", "realised"))
    assert order == (
        Candidate("realised", settings[0]), Candidate("remaining", settings[0]),
        Candidate("realised", settings[1]), Candidate("remaining", settings[1]),
    )  # fmt: skip
    assert Candidate("remaining", Setting(0.5, 2, math.inf, 3)).options() == {
        "value_scheme": "remaining", "budget": "inf", "gate": 0.5, "block_cap": 2,
        "draft_length": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="schemes: got"):
        candidates(settings, ("whole",))


def outcomes_of(rows, examples, num_settings):
    found = []
    for tasks in pair_up(rows, examples, num_settings, {"commit": "c"}):
        cache = GradeCache()
        measured = {}
        for name, pairs in tasks.items():
            grades = paired_grades(pairs, grade_steps(pairs, TASKS[name], cache))
            measured[name] = (pairs, measure(pairs, grades, is_graded=TASKS[name].is_graded))
        found.append(make_outcome(measured))
    return found


def test_outcomes_by_hand():
    examples = [question("lost"), question("won"), question("same")]
    examples += [question(f"open{i}", "alpaca", "red green") for i in range(2)]
    rows = [
        answer_row("lost", 0, "A"), answer_row("lost", 1, "B", rounds=1),
        answer_row("won", 0, "C"), answer_row("won", 1, "(A)", rounds=1),
        answer_row("same", 0, "A"), answer_row("same", 1, "A"),
        answer_row("open0", 0, "red green", rounds=4),
        answer_row("open0", 1, "red", rounds=1, exceptions=[exception(1, ord("e"), ord("f"), 0.5)]),
        answer_row("open1", 0, "blue", rounds=4), answer_row("open1", 1, "green red", rounds=3),
    ]  # fmt: skip
    (outcome,) = outcomes_of(rows, examples, 1)
    own = sorted((e.id for e in examples), key=lambda i: hashlib.sha256(i.encode()).hexdigest())
    losses = {"lost": 1.0, "won": -1.0, "same": 0.0}
    assert outcome.losses.tolist() == [losses[i] for i in own if i in losses]
    changed = [i != "same" for i in own]
    assert outcome.is_changed.tolist() == changed
    # "A" and a stop: one token of the prefill, one of the rounds.
    assert outcome.strict_speed == (1 + 1 + 1 + 9 + 4) / (2 + 2 + 2 + 4 + 4)
    assert outcome.speed == (1 + 3 + 1 + 3 + 9) / (1 + 1 + 2 + 1 + 3)
    assert outcome.spent.sum() == 0.5 and outcome.exceptions.sum() == 1
    likeness = {"open0": 2 / 3 - 1.0, "open1": 0.5 - 0.0}
    assert outcome.likeness == pytest.approx([likeness[i] for i in own if i in likeness])


def test_the_order_has_nothing_to_do_with_the_task():
    """Bets on losses task by task could win on the easy tasks and never see the hard ones."""
    names = [f"e{i}" for i in range(40)]
    examples = [question(n, "mmlu") for n in names] + [
        question(f"g{n}", "gsm8k", "5") for n in names
    ]
    rows = [answer_row(e.id, s, "A") for e in examples for s in (0, 1)]
    tasks = pair_up(rows, examples, 1, {})[0]
    grades = {n: paired_grades(p, grade_steps(p, TASKS[n])) for n, p in tasks.items()}
    whole = {n: (p, measure(p, grades[n], is_graded=True)) for n, p in tasks.items()}
    strict = make_outcome(whole).strict_is_right  # right in mmlu, wrong in gsm8k
    assert 10 <= strict[:40].sum() <= 30
    other = make_outcome(dict(reversed(whole.items())))
    assert np.array_equal(other.strict_is_right, strict)


def test_missing_answers_are_refused():
    examples = [question("a"), question("b")]
    rows = [answer_row("a", 0, "A"), answer_row("a", 1, "A"), answer_row("b", 0, "A")]
    with pytest.raises(AuditError, match="id 'b', setting 1: got no answer"):
        pair_up(rows, examples, 1, {})


def test_answers_without_rounds_have_no_speed():
    examples = [question("a"), question("b")]
    rows = [answer_row(e.id, s, "A", rounds=0) for e in examples for s in (0, 1)]
    (outcome,) = outcomes_of(rows, examples, 1)
    with pytest.raises(ValueError, match="rounds: got 0 in all answers"):
        print(outcome.speed)
