"""The sections of figures, each with a sentence on what was not measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asd_jax.evaluation.report import task_curves
from asd_jax.evaluation.report.frontier import draw_frontier, draw_legend, frontier_table
from asd_jax.evaluation.report.interval_bars import Bar, draw_bars
from asd_jax.evaluation.report.markup import Child, Markup, name_of, tag
from asd_jax.evaluation.report.numbers import listed
from asd_jax.evaluation.report.study import Study
from asd_jax.evaluation.report.summary import failed_gates, is_gated


def section(name: str, title: str, *children: Child | list[Markup]) -> Markup:
    """Returns a section of the page; `name` is its anchor."""
    return tag("section", tag("h2", title, id=name), *children, aria_labelledby=name)


def frontier_section(study: Study) -> Markup:
    """Returns speed against quality."""
    title = "Speed against quality"
    if not study.frontier:
        missing = "No other settings or rules were measured, so there is no frontier to draw."
        return section("frontier", title, tag("p", missing))
    about = (
        "Each mark is a setting, with its intervals both ways. The line joins the settings that "
        "no other beats in both; where intervals overlap, another draw of prompts may change it. "
        "A mark with an arrow is slower than the axis reaches; its speed is written beside it."
    )
    figure = tag(
        "figure",
        draw_frontier(study.frontier, study.units),
        tag("figcaption", draw_legend(study.frontier)),
        class_="wide",
    )
    numbers = frontier_table(study.frontier, study.units)
    folded = tag("details", tag("summary", "The numbers behind the plot"), numbers)
    return section("frontier", title, tag("p", about), figure, folded)


def change_section(study: Study) -> Markup:
    """Returns gain and accuracy difference, task by task."""
    gates_hold = is_gated(study) and not failed_gates(study)
    gains = [
        Bar(name, t["gain_percent"] if t else None, bool(t and t["valid"]))
        for name, t in ((name, task["throughput"]) for name, task in study.tasks.items())
    ]
    differences = [
        Bar(name, a["difference"].times(100) if a else None)
        for name, a in ((name, task["accuracy"]) for name, task in study.tasks.items())
    ]
    if study.gain is not None:
        gains.append(Bar("mean", study.gain, gates_hold, is_mean=True))
    if study.accuracy_difference is not None:
        mean = study.accuracy_difference.times(100)
        differences.append(Bar("mean", mean, is_mean=True))
    note = "The lines are intervals. "
    if any(bar.value is not None and not bar.is_sound for bar in gains):
        note += "A hollow, dashed bar comes from a timing whose gates fail or were not run: it is "
        note += "no gain."
    return section(
        "changes",
        "Task by task",
        tag("p", note),
        tag(
            "div",
            _bars("Change in throughput", gains, "%", "Throughput was not measured on any task."),
            _bars(
                "Change in accuracy",
                differences,
                "percentage points",
                "Accuracy was not measured on any task.",
            ),
            class_="pair",
        ),
    )


def _bars(title: str, bars: list[Bar], unit: str, missing: str) -> Markup:
    if all(bar.value is None for bar in bars):
        return tag("div", tag("h3", title), tag("p", missing))
    drawn = draw_bars(bars, f"ASD less strict, {unit}", title)
    return tag("figure", tag("figcaption", tag("h3", title)), drawn)


def _small(
    study: Study, draw: Callable[[str, dict[str, Any]], Markup | None], what: str
) -> list[Markup]:
    """Returns one small figure for each task that has one, and who lacks it."""
    drawn, without = [], []
    for name, task in study.tasks.items():
        figure = draw(name, task)
        if figure is None:
            without.append(name)
        else:
            drawn.append(tag("figure", tag("figcaption", name_of(name)), figure))
    grid = [tag("div", drawn, class_="small")] if drawn else []
    if not drawn:
        return [tag("p", f"{what} not measured on any task.")]
    return grid + ([tag("p", f"{what} not measured on {listed(without)}.")] if without else [])


def _acceptance(name: str, task: dict[str, Any]) -> Markup | None:
    arms = task["acceptance"] or {}
    known = {arm: arms.get(arm) or {} for arm in ("strict", "asd")}
    shares = {arm: a.get("by_position") or a.get("kept_share") for arm, a in known.items()}
    return task_curves.draw_acceptance(name, **shares) if any(shares.values()) else None


def _spent(name: str, task: dict[str, Any]) -> Markup | None:
    shares = (task["exceptions"] or {}).get("spent_over_answer")
    return task_curves.draw_spent(name, shares) if shares else None


def _places(name: str, task: dict[str, Any]) -> Markup | None:
    counts = (task["exceptions"] or {}).get("places")
    return task_curves.draw_places(name, counts) if counts else None


def acceptance_section(study: Study) -> Markup:
    """Returns acceptance by draft position."""
    square = tag("rect", x=-6, y=-6, width=12, height=12, class_="swatch strict")
    disc = tag("circle", r=7, class_="swatch asd")
    legend = [
        tag("li", tag("svg", mark, viewBox="-10 -10 20 20", class_="sample", aria_hidden="true"), w)
        for mark, w in ((square, "strict"), (disc, "ASD"))
    ]
    drawn = _small(study, _acceptance, "Acceptance by draft position was")
    return section(
        "acceptance",
        "Acceptance by draft position",
        tag("p", "Percent of rounds in which the draft token at each position is kept."),
        tag("ul", legend, class_="legend") if drawn[0].startswith("<div") else None,
        drawn,
    )


def spent_section(study: Study) -> Markup:
    """Returns regret spent over the course of answers."""
    return section(
        "spent",
        "Regret spent over the course of answers",
        tag("p", "Percent of the budget that is spent by each point of the answer."),
        _small(study, _spent, "Regret over the course of answers was"),
    )


def places_section(study: Study) -> Markup:
    """Returns where exceptions fall."""
    return section(
        "places",
        "Where exceptions fall",
        tag("p", "Number of exceptions in each tenth of the answers; each task has its own scale."),
        _small(study, _places, "Where exceptions fall was"),
    )
