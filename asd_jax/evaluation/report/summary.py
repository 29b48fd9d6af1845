"""The study in plain words; nothing is claimed that the gates or the intervals do not bear."""

from __future__ import annotations

from typing import Any

from asd_jax.evaluation.report.fields import Interval
from asd_jax.evaluation.report.markup import Markup, tag
from asd_jax.evaluation.report.numbers import in_words, listed, plain, signed
from asd_jax.evaluation.report.study import Study

_POINTS = "percentage points"


def gain_of(study: Study) -> tuple[Interval | None, str]:
    """Returns the gain to report, in percent, and what it is the gain of."""
    timed = [(name, task["throughput"]) for name, task in study.tasks.items() if task["throughput"]]
    if study.gain is None and len(timed) == 1:
        return timed[0][1]["gain_percent"], f"on {timed[0][0]}"
    count = len(timed)
    return study.gain, f"on average over {count} tasks" if count > 1 else "on average"


def accuracy_difference_of(study: Study) -> tuple[Interval | None, str]:
    """Returns the change in accuracy to report, in points, and what it is the change of."""
    graded = [(name, task["accuracy"]) for name, task in study.tasks.items() if task["accuracy"]]
    if study.accuracy_difference is None and len(graded) == 1:
        return graded[0][1]["difference"].times(100), f"on {graded[0][0]}"
    where = f"on average over {len(graded)} graded tasks" if len(graded) > 1 else "on average"
    change = study.accuracy_difference
    return None if change is None else change.times(100), where


def failed_gates(study: Study) -> list[str]:
    """Returns the tasks whose timing the protocol refuses, with the reasons."""
    failed = []
    for name, task in study.tasks.items():
        timing = task["throughput"]
        if timing and not timing["valid"]:
            reasons = ", ".join(reason.replace("_", " ") for reason in timing["reasons"] or [])
            failed.append(f"{name} ({reasons or 'no reason given'})")
    return failed


def is_gated(study: Study) -> bool:
    """Returns whether the protocol's gates were run on any task."""
    return any(task["throughput"] for task in study.tasks.values())


def gain_sentence(study: Study) -> str:
    """Returns what may be said about speed."""
    gain, where = gain_of(study)
    if gain is None:
        if is_gated(study):
            return "No mean gain in throughput over the timed tasks is given."
        return "The gain in throughput was not measured."
    measured = in_words(gain, "%")
    if failed_gates(study):
        return f"No gain is claimed, because a gate fails; the timing gave {measured} {where}."
    if not is_gated(study):
        return (
            f"No gain is claimed, because the protocol's gates were not run; the timing gave "
            f"{measured} {where}."
        )
    if gain.holds_zero:
        return (
            f"Neither a gain nor a loss in throughput is shown: {measured} {where}, and the "
            "interval holds 0."
        )
    word = "more" if gain.low > 0 else "fewer"
    return f"ASD decodes {word} tokens a second than strict decoding: {measured} {where}."


def accuracy_sentence(study: Study) -> str:
    """Returns what may be said about accuracy."""
    change, where = accuracy_difference_of(study)
    if change is None:
        return "The change in accuracy was not measured."
    measured = in_words(change, _POINTS)
    if not change.holds_zero:
        return (
            f"Accuracy is {'higher' if change.low > 0 else 'lower'} with ASD: {measured} {where}."
        )
    told = f"No change in accuracy is shown: {measured} {where}, and the interval holds 0."
    if change.low < 0:
        told += f" A loss of up to {plain(-change.low)} points is not ruled out."
    return told


def gates_sentence(study: Study) -> str:
    """Returns whether the protocol's gates hold."""
    timed = {name: t["throughput"] for name, t in study.tasks.items() if t["throughput"]}
    if not timed:
        return "The protocol's gates were not run: throughput was not measured on any task."
    failed = failed_gates(study)
    if failed:
        return f"Gates fail on {len(failed)} of {len(timed)} timed tasks: {'; '.join(failed)}."
    drifts = [abs(t["drift_percent"]) for t in timed.values() if t["drift_percent"] is not None]
    drift = f"; the largest drift of the baseline is {plain(max(drifts))} %" if drifts else ""
    if len(timed) == 1:
        return f"The gates hold on {next(iter(timed))}, the one timed task{drift}."
    return f"The gates hold on all {len(timed)} timed tasks{drift}."


def _task_sentences(study: Study) -> list[str]:
    said = []
    for word, is_so in (("lower", _is_below), ("higher", _is_above)):
        names = [
            f"{name} ({signed(task['accuracy']['difference'].estimate * 100)} points)"
            for name, task in study.tasks.items()
            if task["accuracy"] and is_so(task["accuracy"]["difference"])
        ]
        if names:
            # Several looks at once find something sooner or later.
            looks = sum(bool(task["accuracy"]) for task in study.tasks.values())
            told = f"Taken alone, accuracy is {word} on {listed(names)}"
            said.append(f"{told}; no allowance is made for looking at {looks} tasks.")
    untimed = [name for name, task in study.tasks.items() if not task["throughput"]]
    if untimed and is_gated(study):
        said.append(f"Throughput was not measured on {listed(untimed)}.")
    ungraded = [name for name, task in study.tasks.items() if not task["accuracy"]]
    if ungraded:
        said.append(f"There is no measure of quality for {listed(ungraded)}.")
    return said


def _is_below(change: Interval) -> bool:
    return change.high < 0


def _is_above(change: Interval) -> bool:
    return change.low > 0


def summary(study: Study) -> Markup:
    """Returns the section on top of the page."""
    sentences = [gain_sentence(study), accuracy_sentence(study), gates_sentence(study)]
    sentences += _task_sentences(study)
    # A unit stays on the line of its number.
    items = [tag("li", sentence.replace(" %", "\u00a0%")) for sentence in sentences]
    return tag(
        "section",
        tag("h2", "Summary", id="summary"),
        tag("div", _cards(study), class_="cards"),
        tag("ul", items, class_="findings"),
        aria_labelledby="summary",
    )


def _cards(study: Study) -> list[Markup]:
    gain, _ = gain_of(study)
    change, _ = accuracy_difference_of(study)
    failed, timed = failed_gates(study), is_gated(study)
    is_sound = timed and not failed
    is_gain = is_sound and gain is not None and gain.low > 0
    gain_name = "gain in throughput" if is_gain else "change in throughput"
    if gain is not None and not is_sound:
        gain_name += ", no gain claimed"
    gates = "fail" if failed else "hold" if timed else "not run"
    return [
        _card("Speed", gain, "%", gain_name, is_sound=is_sound),
        _card("Accuracy", change, "points", "ASD less strict"),
        tag(
            "div",
            tag("p", "Gates", class_="kind"),
            tag("p", gates, class_="figure"),
            tag("p", "of the timing protocol"),
            class_="card" if is_sound else "card unsound",
        ),
    ]


def _card(
    kind: str, value: Interval | None, unit: str, about: str, *, is_sound: bool = True
) -> Markup:
    figure: Any = "not measured"
    spread = None
    if value is not None:
        figure = f"{signed(value.estimate)} {unit}"
        level = f"{100 * value.confidence:g}"
        zero = "; holds 0" if value.holds_zero else ""
        spread = tag("p", f"{level} % interval {signed(value.low)} to {signed(value.high)}{zero}")
    return tag(
        "div",
        tag("p", kind, class_="kind"),
        tag("p", figure, class_="figure"),
        spread,
        tag("p", about),
        class_="card" if is_sound else "card unsound",
    )
