"""The figures hold the study's numbers: as many marks, at the places that the axes give."""

from __future__ import annotations

import re

import pytest

from asd_jax.evaluation.report import render_report, svg
from asd_jax.evaluation.report.frontier import pareto
from asd_jax.evaluation.report.study import read_study
from tests.evaluation.report.studies import (
    TASKS,
    Node,
    interval,
    make_point,
    make_study,
    make_task,
    parse,
)


def figures(study, name: str) -> list[Node]:
    return parse(render_report(study)).all("svg", name)


def places(figure: Node, kind: str) -> list[tuple[float, float]]:
    found = []
    for group in figure.all("g", kind):
        x, y = re.match(r"translate\((\S+) (\S+)\)", group.attributes["transform"]).groups()
        found.append((float(x), float(y)))
    return found


def axis(figure: Node, name: str) -> tuple[list[float], list[float]]:
    """Returns the values at an axis' ticks and where they stand."""
    ticks = [n for n in figure.all("text", "tick") if n.attributes["text-anchor"] == name]
    ticks = [n for n in ticks if n.text not in ("start", "end")]
    numbers = [float(n.text.replace("−", "-")) for n in ticks]
    lines = [n for n in figure.all("line") if n.classes & {"grid", "zero"}]
    if name == "end":
        return numbers, [n.value("y1") for n in lines if n.value("y1") == n.value("y2")]
    return numbers, [n.value("x1") for n in lines if n.value("x1") == n.value("x2")]


def at(value: float, numbers: list[float], where: list[float]) -> float:
    """Returns where an axis puts a value, from its own ticks."""
    slope = (where[-1] - where[0]) / (numbers[-1] - numbers[0])
    return where[0] + (value - numbers[0]) * slope


def test_the_frontier_puts_every_setting_where_its_axes_say():
    study = make_study()
    (figure,) = figures(study, "frontier")
    marks = places(figure, "point")
    assert len(marks) == len(study["frontier"])
    assert len(figure.all("line", "error")) == 2 * len(marks) - 1  # one is off the scale
    across, upright = axis(figure, "middle"), axis(figure, "end")
    for point, (x, y) in list(zip(study["frontier"], marks, strict=True))[1:]:
        assert x == pytest.approx(at(point["speed"]["estimate"], *across), abs=0.1)
        assert y == pytest.approx(at(point["quality"]["estimate"], *upright), abs=0.1)


def test_the_frontier_marks_anchors_the_frozen_setting_and_what_is_not_certified():
    (figure,) = figures(make_study(), "frontier")
    assert len(figure.all("path", "anchor")) == 2
    assert len(figure.all("circle", "frozen")) == 1
    assert len(figure.all("path", "mark hollow")) == 2
    callouts = [node.text for node in figure.all("text", "callout")]
    assert sorted(callouts) == ["frozen", "strict", "← autoregressive, 1.00"]
    shapes = {n.attributes["d"] for n in figure.all("path", "mark")}
    assert len(shapes) == 4  # told apart without colour


def test_autoregressive_stays_on_the_scale_where_it_fits():
    study = make_study()
    study["frontier"][0] = make_point("autoregressive", 3.3, 0.7)
    (figure,) = figures(study, "frontier")
    assert "autoregressive" in [node.text for node in figure.all("text", "callout")]
    assert places(figure, "point")[0][0] == pytest.approx(at(3.3, *axis(figure, "middle")), abs=0.1)


def test_pareto_keeps_what_no_other_beats():
    study = read_study(make_study())
    best = [(p["speed"].estimate, p["quality"].estimate) for p in pareto(study.frontier)]
    assert best == [(3.9, 0.71), (4.2, 0.66)]


@pytest.mark.parametrize("count", [1, 2])
def test_settings_in_the_same_place_are_drawn(count):
    point = make_point("asd", 2.0, 0.5) | {"speed": interval(2, 0), "quality": interval(0.5, 0)}
    (figure,) = figures({"run": {}, "frontier": [point] * count}, "frontier")
    assert len(places(figure, "point")) == count


def test_bars_are_as_long_as_their_values():
    study = make_study()
    gain, accuracy = figures(study, "bars")
    for figure, has_bar in (
        (gain, TASKS),
        (accuracy, [t for t in TASKS if t[:2] not in ("mt", "su")]),
    ):
        rows = figure.all("g", "bar-row")
        assert len(rows) == len(TASKS) + 1
        assert len(figure.all("rect", "bar")) == len(has_bar) + 1
    numbers, where = axis(gain, "middle")
    for name, row in zip(TASKS, gain.all("g", "bar-row"), strict=False):
        (bar,) = row.all("rect", "bar")
        known = study["tasks"][name]["throughput"]["gain_percent"]
        assert bar.value("x") == pytest.approx(at(0, numbers, where), abs=0.1)
        end = bar.value("x") + bar.value("width")
        assert end == pytest.approx(at(known["estimate"], numbers, where), abs=0.1)
        whisker = row.all("line", "whisker")[0]
        assert whisker.value("x1") == pytest.approx(at(known["low"], numbers, where), abs=0.1)
        assert whisker.value("x2") == pytest.approx(at(known["high"], numbers, where), abs=0.1)
    lengths = [bar.value("width") for bar in gain.all("rect", "bar")[: len(TASKS)]]
    assert lengths == sorted(lengths) and len(set(lengths)) == len(TASKS)


def test_losses_point_to_the_left():
    _, accuracy = figures(make_study(), "bars")
    numbers, where = axis(accuracy, "middle")
    loss = accuracy.all("rect", "bar")[0]
    assert loss.value("x") == pytest.approx(at(-3, numbers, where), abs=0.1)
    assert loss.value("x") + loss.value("width") == pytest.approx(at(0, numbers, where), abs=0.1)


def test_acceptance_has_a_mark_for_each_position_of_each_arm():
    found = figures(make_study(), "acceptance")
    assert len(found) == len(TASKS)
    for figure in found:
        strict = [n.value("y") + 2.4 for n in figure.all("rect")]
        asd = [n.value("cy") for n in figure.all("circle")]
        assert len(strict) == len(asd) == 7
        assert strict == sorted(strict) and asd == sorted(asd)  # shares fall, y grows downward
        assert all(a < s for a, s in zip(asd, strict, strict=True))
        assert asd[0] == pytest.approx(at(95, *axis(figure, "end")), abs=0.1)


def test_acceptance_of_one_arm_or_of_unequal_lengths_is_drawn():
    study = {"run": {}, "tasks": {"gsm8k": make_task()}}
    study["tasks"]["gsm8k"]["acceptance"] = {"asd": {"by_position": [0.5] * 15}}
    (figure,) = figures(study, "acceptance")
    assert len(figure.all("circle")) == 15 and not figure.all("rect")


def test_spent_regret_ends_at_its_share_of_the_budget():
    found = figures(make_study(), "spent")
    assert len(found) == len(TASKS)
    (curve,) = found[0].all("polyline")
    points = [tuple(map(float, xy.split(","))) for xy in curve.attributes["points"].split()]
    assert len(points) == 11
    assert points[-1][1] == pytest.approx(at(50, *axis(found[0], "end")), abs=0.1)
    assert {n.text for n in found[0].all("text", "axis")} == {"course of the answer"}


def test_columns_are_as_high_as_their_counts():
    found = figures(make_study(), "places")
    assert len(found) == len(TASKS)
    counts = make_task()["exceptions"]["places"]
    columns = found[0].all("rect", "column")
    heights = [column.value("height") for column in columns]
    assert len(heights) == 10
    scale = max(heights) / max(counts)
    assert heights == pytest.approx([count * scale for count in counts], abs=0.02)
    bottom = {round(column.value("y") + column.value("height"), 1) for column in columns}
    assert len(bottom) == 1


@pytest.mark.parametrize("most", [0, 1, 2, 10**9])
def test_any_count_has_an_axis(most):
    study = make_study()
    study["tasks"]["gsm8k"]["exceptions"]["places"] = [0] * 9 + [most]
    assert figures(study, "places")[0].all("text", "tick")


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 12), (0.701, 0.702), (-1e12, 1e12), (1e-9, 2e-9), (99, 101)]
)
def test_ticks_are_round_inside_and_told_apart(low, high):
    values, labels = svg.ticks(low, high, 5)
    assert 3 <= len(values) <= 12 and len(set(labels)) == len(labels)
    assert all(low - 1e-9 * abs(low) <= v <= high * (1 + 1e-9) for v in values)
