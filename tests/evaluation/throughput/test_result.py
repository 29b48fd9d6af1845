"""Gains, gates and verdicts, against the authors' cases and figures worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from asd_jax.evaluation.report.study import read_study
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.throughput import (
    ROLES,
    for_report,
    make_document,
    measure_tasks,
    to_markdown,
)
from tests.evaluation.throughput.measured import units_of

QUICK = Bootstrap(num_resamples=400)
VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "data" / "asd_vectors.json").read_text())
FIXED = [v for v in VECTORS if v["variant"] == "bcb" and v["inputs"]["fixed"]]
# Two prompts, twice each: before, candidate, after, greedy in tokens per second.
RATES = {
    (0, 0): (50.0, 62.5, 50.0, 25.0),
    (0, 1): (100.0, 100.0, 100.0, 50.0),
    (1, 0): (50.0, 50.0, 50.0, 25.0),
    (1, 1): (100.0, 125.0, 100.0, 50.0),
}


def task_of(units):
    tasks, mean = measure_tasks({"gsm8k": units}, QUICK)
    return tasks["gsm8k"], mean


def document_of(tasks, **more):
    fields = dict(run={"commit": "abc"}, controls={"rule": "asd", "budget": 8.0}, left_out={})
    return make_document(*measure_tasks(tasks, QUICK), **fields | more)


def changed(units, key, role, **fields):
    """Returns the units with fields of one row replaced; `key` is (repeat, batch)."""
    return {
        unit: {
            name: dataclasses.replace(row, **fields) if (unit[1:], name) == (key, role) else row
            for name, row in rows.items()
        }
        for unit, rows in units.items()
    }


@pytest.mark.parametrize("vector", FIXED, ids=lambda vector: vector["name"])
def test_the_authors_cases(vector):
    inputs, expect = vector["inputs"], dict(vector["expect"])
    rates = tuple(float(inputs[name]) for name in ("pre", "cand", "post"))
    task, _ = task_of(units_of({(0, 0): rates, (0, 1): rates}))
    speed = task.speed
    if "delta_tps_pct" in expect:
        assert speed.raw_gain_percent.estimate == pytest.approx(expect["delta_tps_pct"])
    is_valid = expect.get("protocol_valid", expect.get("speed_eligible"))
    assert speed.protocol_valid is is_valid
    assert speed.speed_target_met is expect.get("speed_target_met", False)
    assert ("reason" not in expect) or expect["reason"] in speed.reasons
    assert (speed.gain_percent is None) == (not is_valid)


def test_there_are_such_cases():
    assert {v["name"] for v in FIXED} == {"bcb/valid", "bcb/drift", "bcb/target_missed"}


def test_a_hand_worked_task():
    task, mean = task_of(units_of(RATES))
    speed = task.speed
    # 400 tokens a role. Strict: 2 + 1 + 2 + 1 = 6 s; candidate: 1.6 + 1 + 2 + 0.8 = 5.4 s;
    # greedy: 4 + 2 + 4 + 2 = 12 s.
    assert task.tokens_per_role == 400 and task.num_repeats == 2
    assert (task.num_prompts, task.num_batches, task.resampled) == (2, 2, "batches")
    assert speed.baseline_tokens_per_second == pytest.approx(400 / 6)
    assert speed.candidate_tokens_per_second == pytest.approx(400 / 5.4)
    assert speed.raw_gain_percent.estimate == pytest.approx(100 * (6 / 5.4 - 1))
    # Each request's rounds take 4/5 of its time and emit 99 of its 100 tokens in both arms.
    assert speed.raw_rounds_gain_percent.estimate == pytest.approx(100 * (6 / 5.4 - 1))
    assert speed.strict_over_greedy.estimate == pytest.approx(2.0)
    assert speed.candidate_over_greedy.estimate == pytest.approx(12 / 5.4)
    assert speed.tokens_per_forward == {
        "strict": pytest.approx(99 / 45),
        "candidate": pytest.approx(99 / 33),
    }
    assert (speed.exceptions_per_request, speed.regret_per_request) == (4, 1.5)
    assert speed.drift_percent == 0 and task.repeats_drift_percent == (0, 0)
    assert task.same_as_greedy == 1.0
    assert speed.verdict == "faster" and speed.speed_target_met
    # Batch 0 alone: 4 / 3.6; batch 1 alone: 2 / 1.8: the interval is that of two equal batches.
    assert speed.gain_percent.low == pytest.approx(speed.gain_percent.high)
    assert mean.gain_percent == speed.gain_percent


def test_prefill_and_rounds_have_clocks_of_their_own():
    units = changed(units_of(RATES), (0, 0), "candidate", prefill_seconds=1.6 / 5 + 0.6)
    speed = task_of(units)[0].speed
    assert speed.raw_gain_percent.estimate == pytest.approx(0, abs=1e-9)  # 6 s against 6 s
    assert speed.raw_rounds_gain_percent.estimate == pytest.approx(100 * (6 / 5.4 - 1))


def test_the_baseline_is_the_mean_of_both_rates_and_repeats_drift_apart():
    rates = {(0, 0): (100.0, 110.0, 102.0), (1, 0): (100.0, 110.0, 98.0)}
    task, _ = task_of(units_of(rates))
    after = 200 / (100 / 102 + 100 / 98)
    assert task.speed.baseline_tokens_per_second == pytest.approx((100 + after) / 2)
    assert task.speed.drift_percent == pytest.approx(after - 100)
    assert task.repeats_drift_percent == (pytest.approx(2), pytest.approx(-2))
    assert task.resampled == "repeats"
    assert task.speed.strict_over_greedy is None and task.same_as_greedy is None


def test_batches_are_resampled_and_their_repeats_are_not():
    # Every batch gains the same over its repeats, though single measurements differ widely.
    gains = {0: 50.0, 1: 150.0}
    rates = {(r, b): (100.0, gains[r], 100.0) for r in range(2) for b in range(6)}
    same = task_of(units_of(rates))[0].speed.raw_gain_percent
    assert same.low == pytest.approx(same.high) and same.num_units == 6
    # Batches that differ give a wide interval, however alike their repeats are.
    rates = {(r, b): (100.0, 80.0 + 10 * b, 100.0) for r in range(2) for b in range(6)}
    wide = task_of(units_of(rates))[0].speed
    assert wide.raw_gain_percent.low < 0 < wide.raw_gain_percent.high
    assert wide.verdict == "no difference shown"


@pytest.mark.parametrize(("after", "is_valid"), [(102.9, True), (103.1, False), (96.9, False)])
def test_a_baseline_that_drifts_is_no_baseline(after, is_valid):
    task, mean = task_of(units_of({(0, b): (100.0, 120.0, after) for b in range(2)}))
    for speed in (task.speed, mean):
        assert speed.protocol_valid is is_valid and speed.speed_target_met is is_valid
        assert (speed.gain_percent is not None) is is_valid
        assert (speed.verdict == "protocol invalid") is not is_valid
        assert speed.raw_gain_percent.estimate > 15
    assert ("baseline_drift_exceeds_limit" in task.speed.reasons) is not is_valid


def test_other_numbers_of_tokens_are_found_even_where_totals_agree():
    units = changed(units_of(RATES), (0, 0), "candidate", tokens=99)
    task, _ = task_of(units)
    assert task.speed.reasons == ("completion_tokens_differ",)
    assert task.tokens_per_role is None
    hidden = changed(units, (0, 1), "candidate", tokens=101)
    assert task_of(hidden)[0].speed.reasons == ("completion_tokens_differ",)
    # A greedy arm that emits another number of tokens has not done the same work either.
    units = changed(units_of(RATES), (0, 0), "greedy", tokens=99)
    assert task_of(units)[0].speed.reasons == ("completion_tokens_differ",)


@pytest.mark.parametrize("role", ["before", "after"])
def test_strict_roles_emit_the_same_ids_in_every_repeat(role):
    units = changed(units_of(RATES), (1, 1), role, digest="other")
    task, mean = task_of(units)
    assert task.speed.reasons == ("strict_token_ids_differ",)
    assert mean.reasons == ("gsm8k: strict_token_ids_differ",)
    # In both roles of a repeat alike: the repeats do not agree.
    both = changed(units, (1, 1), "before" if role == "after" else "after", digest="other")
    assert task_of(both)[0].speed.reasons == ("strict_token_ids_differ",)
    # The candidate and greedy may say what they like.
    for other in ("candidate", "greedy"):
        units = changed(units_of(RATES), (1, 1), other, digest="other")
        assert task_of(units)[0].speed.protocol_valid


def test_the_mean_weighs_tasks_alike_and_needs_every_gate():
    slow = units_of({(0, b): (10.0, 11.0, 10.0, 5.0) for b in range(2)}, "slow")
    fast = units_of({(0, b): (100.0, 120.0, 100.0, 25.0) for b in range(3)}, "fast")
    tasks, mean = measure_tasks({"slow": slow, "fast": fast}, QUICK)
    assert mean.gain_percent.estimate == pytest.approx((10 + 20) / 2)
    assert mean.strict_over_greedy.estimate == pytest.approx((2 + 4) / 2)
    assert mean.baseline_tokens_per_second == pytest.approx(55)
    assert mean.protocol_valid and mean.speed_target_met and mean.verdict == "faster"

    fast = units_of({(0, b): (100.0, 120.0, 105.0, 25.0) for b in range(3)}, "fast")
    tasks, mean = measure_tasks({"slow": slow, "fast": fast}, QUICK)
    assert tasks["slow"].speed.protocol_valid and not tasks["fast"].speed.protocol_valid
    assert not mean.protocol_valid and mean.gain_percent is None
    assert mean.reasons == ("fast: baseline_drift_exceeds_limit",)
    assert mean.raw_gain_percent.estimate > 10


def test_the_drift_of_all_tasks_is_that_of_all_seconds_together():
    slow = units_of({(0, b): (10.0, 11.0, 9.8) for b in range(2)}, "slow")
    fast = units_of({(0, b): (100.0, 110.0, 102.0) for b in range(2)}, "fast")
    _, mean = measure_tasks({"slow": slow, "fast": fast}, QUICK)
    before, after = 200 / 10 + 200 / 100, 200 / 9.8 + 200 / 102
    assert mean.drift_percent == pytest.approx(100 * (before / after - 1))
    assert mean.protocol_valid


def test_too_little_for_an_interval_is_refused_by_the_name_of_the_task():
    with pytest.raises(ValueError, match="gsm8k: units: got 1, needs 2 or more"):
        measure_tasks({"gsm8k": units_of({(0, 0): (1.0, 1.0, 1.0)})}, QUICK)
    with pytest.raises(ValueError, match="tasks: got none"):
        measure_tasks({}, QUICK)


def test_the_document_is_plain_json_and_says_what_fails():
    drifting = units_of({(0, b): (100.0, 120.0, 110.0, 50.0) for b in range(2)}, "mbpp")
    document = document_of({"gsm8k": units_of(RATES), "mbpp": drifting})
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["limits"] == {"max_drift_percent": 3.0, "min_gain_percent": 5.0}
    assert document["tasks"]["mbpp"]["gain_percent"] is None
    assert document["tasks"]["mbpp"]["verdict"] == document["mean"]["verdict"] == "protocol invalid"
    assert document["tasks"]["gsm8k"]["gain_percent"]["estimate"] == pytest.approx(100 / 9)
    assert document["mean"]["tasks"] == ["gsm8k", "mbpp"]


def test_the_report_reads_what_for_report_gives():
    drifting = units_of({(0, b): (100.0, 120.0, 110.0, 50.0) for b in range(2)}, "mbpp")
    for tasks, is_valid in (
        ({"gsm8k": units_of(RATES)}, True),
        ({"gsm8k": units_of(RATES), "mbpp": drifting}, False),
    ):
        by_task, gain = for_report(json.loads(json.dumps(document_of(tasks))))
        study = read_study(
            {
                "run": {},
                "tasks": {name: {"throughput": timing} for name, timing in by_task.items()},
                "mean": {"gain_percent": gain},
            }
        )
        assert not study.not_shown
        assert (study.gain is not None) is is_valid
        assert study.tasks["gsm8k"]["throughput"]["valid"] is True
        assert study.tasks["gsm8k"]["throughput"]["gain_percent"].estimate == pytest.approx(100 / 9)
    assert study.tasks["mbpp"]["throughput"]["valid"] is False
    assert study.tasks["mbpp"]["throughput"]["reasons"] == ["baseline_drift_exceeds_limit"]


@pytest.mark.parametrize(("field", "value"), [("format", 2), ("tasks", None), ("mean", [])])
def test_for_report_refuses_what_is_no_result(field, value):
    with pytest.raises(ValueError, match=f"{field}: got"):
        for_report(document_of({"gsm8k": units_of(RATES)}) | {field: value})


def test_the_tables_call_nothing_a_gain_that_is_none():
    valid = to_markdown(document_of({"gsm8k": units_of(RATES)}))
    assert "**The candidate against strict decoding: faster, +11.11 [+11.11, +11.11] %." in valid
    assert "The target of 5 % is met." in valid
    assert "- gsm8k: hold; drift in each repeat +0.00, +0.00 %" in valid
    assert "Prompts that were left out" not in valid

    drifting = units_of({(0, b): (100.0, 120.0, 110.0, 50.0) for b in range(2)})
    left_out = {"gsm8k": {"g/1": "too long"}}
    text = to_markdown(document_of({"gsm8k": drifting}, left_out=left_out))
    assert "Protocol invalid: no gain is claimed" in text and "is met" not in text
    row = next(line for line in text.splitlines() if line.startswith("| gsm8k | 2"))
    assert "| fail | protocol invalid | (+" in row
    assert "- gsm8k: baseline drift exceeds limit; drift" in text
    assert "- gsm8k, g/1: too long" in text


def test_without_greedy_its_columns_are_empty():
    units = units_of({key: rates[:3] for key, rates in RATES.items()})
    assert set(next(iter(units.values()))) == set(ROLES[:3])
    document = document_of({"gsm8k": units})
    assert document["tasks"]["gsm8k"]["strict_over_greedy"] is None
    assert "| n/a | n/a |" in to_markdown(document)
