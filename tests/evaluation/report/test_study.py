"""What is no study is refused, and the message names the field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from asd_jax.evaluation.report import StudyError, render_report
from tests.evaluation.report.studies import interval, make_study

TASK = "tasks.gsm8k"


def changed(path: str, value: Any) -> dict[str, Any]:
    study = copy.deepcopy(make_study())
    *inside, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = study
    for step in inside:
        place = place[step]
    place[last] = value
    return study


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "path",
    [
        "run.seconds",
        "controls.budget",
        "mean.gain_percent.low",
        f"{TASK}.divergence",
        f"{TASK}.accuracy.p_value",
        f"{TASK}.length.strict_mean",
        f"{TASK}.throughput.drift_percent",
        "frontier.2.speed.estimate",
        "frontier.2.options.budget",
    ],
)
def test_what_is_not_finite_is_refused_by_name(path, value):
    named = path.replace(".2.", "[2].")
    with pytest.raises(StudyError, match=f"^{named.replace('[', chr(92) + '[')}: .*finite|number"):
        render_report(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("run", None, "run: is missing"),
        ("run", [1], "run: expected an object"),
        ("tasks", [], "tasks: expected an object"),
        ("mean.gain_percent", {"estimate": 1}, "mean.gain_percent.low: is missing"),
        ("mean.gain_percent.low", 7, "mean.gain_percent.low: expected at most high, which is 6"),
        ("mean.accuracy_difference", interval(-2, 1), "mean.accuracy_difference.estimate"),
        (f"{TASK}.num", 1.5, "tasks.gsm8k.num: expected a whole number"),
        (f"{TASK}.num", True, "tasks.gsm8k.num: expected a whole number"),
        (f"{TASK}.accuracy.strict", interval(61, 2), "strict.estimate: .* from 0 to 1, got 61"),
        (f"{TASK}.exceptions.places", [1] * 9, "exceptions.places: expected a list of 10"),
        (f"{TASK}.exceptions.spent_over_answer", [0.5] * 9 + [0.4], r"answer\[9\]: .* least 0.5"),
        (f"{TASK}.acceptance.asd.by_position", [1.2], r"by_position\[0\]: .* from 0 to 1"),
        (f"{TASK}.throughput.valid", None, "throughput.valid: is missing"),
        (f"{TASK}.throughput.valid", "yes", "throughput.valid: expected true or false"),
        (f"{TASK}.worst.0.id", None, r"worst\[0\].id: is missing"),
        (f"{TASK}.worst.0.strict.text", 5, r"worst\[0\].strict.text: expected a string, got 5"),
        (f"{TASK}.worst.0.asd.pieces.1", ["x"], r"pieces\[1\]: expected a list of 2"),
        (f"{TASK}.worst.0.asd.pieces.1.1", {"draft": "x"}, r"pieces\[1\]\[1\].target: is missing"),
        ("frontier.0.rule", None, r"frontier\[0\].rule: is missing"),
        ("run.seconds", {1, 2}, "run.seconds: expected a value that JSON can hold"),
    ],
)
def test_a_wrong_field_is_named(path, value, message):
    with pytest.raises(StudyError, match=message):
        render_report(changed(path, value))


def test_a_study_is_an_object():
    with pytest.raises(StudyError, match="the study: expected an object"):
        render_report([])  # type: ignore[arg-type]


def test_intervals_may_say_how_they_were_computed():
    study = changed("mean.gain_percent", interval(5, 1) | {"method": "bca", "num_units": 9})
    assert "does not show" not in render_report(study)


def test_a_study_is_not_changed():
    study = make_study()
    render_report(study)
    assert study == make_study()
