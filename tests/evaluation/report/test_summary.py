"""The words on top: nothing is claimed that gates or intervals do not bear."""

from __future__ import annotations

from typing import Any

import pytest

from asd_jax.evaluation.report import render_report
from tests.evaluation.report.studies import interval, make_study, parse


def findings(study: dict[str, Any]) -> str:
    return parse(render_report(study)).all("ul", "findings")[0].text.replace("\u00a0", " ")


def with_mean(**mean: Any) -> dict[str, Any]:
    study = make_study()
    study["mean"] |= mean
    return study


def test_a_gain_is_told_with_its_interval():
    told = findings(make_study())
    assert "ASD decodes more tokens a second than strict decoding: +5.0 %" in told
    assert "(95 % interval +4.0 to +6.0) on average over 7 tasks." in told
    assert "The gates hold on all 7 timed tasks; the largest drift of the baseline is 0.5 %" in told


def test_an_interval_that_holds_zero_is_no_change():
    told = findings(with_mean(gain_percent=interval(0.5, 1)))
    assert "Neither a gain nor a loss in throughput is shown: +0.5 %" in told
    assert "the interval holds 0" in told and "decodes more" not in told
    assert "No change in accuracy is shown: −0.2 percentage points" in told
    assert "A loss of up to 0.7 points is not ruled out." in told


@pytest.mark.parametrize(("change", "word"), [(-0.03, "lower"), (0.03, "higher")])
def test_a_clear_change_in_accuracy_is_told(change, word):
    told = findings(with_mean(accuracy_difference=interval(change, 0.01)))
    assert f"Accuracy is {word} with ASD: {'−' if change < 0 else '+'}3.0" in told


def test_a_slowdown_is_told():
    told = findings(with_mean(gain_percent=interval(-4, 1)))
    assert "ASD decodes less tokens" not in told
    assert "ASD decodes fewer tokens a second than strict decoding: −4.0 %" in told


def test_a_failed_gate_takes_the_gain_back():
    study = make_study()
    study["tasks"]["mbpp"]["throughput"] |= {"valid": False, "reasons": ["baseline_drift"]}
    told = findings(study)
    assert "No gain is claimed, because a gate fails; the timing gave +5.0 %" in told
    assert "Gates fail on 1 of 7 timed tasks: mbpp (baseline drift)." in told
    root = parse(render_report(study))
    assert "gain in throughput" not in root.all("div", "cards")[0].text
    assert len(root.all("rect", "bar unsound")) == 2  # the task and the mean


def test_without_gates_nothing_is_a_gain():
    study = make_study()
    for task in study["tasks"].values():
        task["throughput"] = None
    assert "No gain is claimed, because the protocol's gates were not run" in findings(study)


def test_single_tasks_that_lost_are_named():
    told = findings(make_study())
    assert "Taken alone, accuracy is lower on gsm8k (−3.0 points) and math500 (−2.0 points)" in told
    assert "no allowance is made for looking at 5 tasks" in told
    assert "There is no measure of quality for mt_bench and summaries." in told
