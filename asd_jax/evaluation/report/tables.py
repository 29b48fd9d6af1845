"""Tables of the page: tasks side by side, each task by itself, settings and the receipt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from asd_jax.evaluation.report.fields import Interval
from asd_jax.evaluation.report.markup import Child, Markup, join, name_of, table, tag
from asd_jax.evaluation.report.numbers import amount, maybe_spread, p_value, percent, plain, signed
from asd_jax.evaluation.report.study import Study

_DASH = "–"


def overview(study: Study) -> Markup:
    """Returns one row a task."""
    head = [
        "Task",
        "Prompts",
        "Gain, % [interval]",
        "Gates",
        "Accuracy strict, %",
        "Accuracy ASD, %",
        "Difference, points [interval]",
        "p",
        "Length change, % [interval]",
        "Other answers, %",
        "Exceptions an answer",
        "Regret an answer, logits",
        "Budget exhausted, % of answers",
    ]
    rows = [_overview_row(name, task) for name, task in study.tasks.items()]
    return table("Tasks side by side", head, rows)


def _overview_row(name: str, task: dict[str, Any]) -> list[Child]:
    timing, accuracy = task["throughput"] or {}, task["accuracy"] or {}
    exceptions, length = task["exceptions"] or {}, task["length"] or {}
    gates = {True: "hold", False: "fail", None: _DASH}[timing.get("valid")]
    return [
        name_of(name),
        plain(task["num"], 0),
        maybe_spread(timing.get("gain_percent"), is_change=True),
        gates,
        percent(_estimate(accuracy.get("strict"))),
        percent(_estimate(accuracy.get("asd"))),
        maybe_spread(accuracy.get("difference"), factor=100, is_change=True),
        p_value(accuracy.get("p_value")),
        maybe_spread(length.get("change_percent"), is_change=True),
        percent(_estimate((task["divergence"] or {}).get("share"))),
        plain(_estimate(exceptions.get("per_answer")), 2),
        plain(_estimate(exceptions.get("regret_per_answer")), 2),
        percent(_estimate(exceptions.get("exhausted_share"))),
    ]


def means(study: Study) -> Markup | None:
    """Returns the means over tasks that the summary leaves out, if there are any."""
    mean = study.mean
    changes = [
        ("Length change, %", "length_change_percent"),
        ("Change in tokens a target forward, %", "tokens_per_forward_change_percent"),
    ]
    rows = [
        (words, maybe_spread(mean[name], is_change=True))
        for words, name in changes
        if mean.get(name)
    ]
    amounts = [
        ("Answers that differ, %", "divergence", 100),
        ("Exceptions an answer", "exceptions_per_answer", 1),
        ("Regret an answer, logits", "regret_per_answer", 1),
    ]
    rows += [
        (words, maybe_spread(mean[name], 2, factor=factor))
        for words, name, factor in amounts
        if mean.get(name)
    ]
    if not rows:
        return None
    return table("Means over tasks, each weighing the same", ["Measure", "Mean [interval]"], rows)


def ratings(study: Study) -> list[Markup]:
    """Returns what a judge thinks of the answers, if one was asked."""
    if not study.ratings:
        return []
    head = ["Task", "Judge", "Prompts", "Strict [interval]", "ASD [interval]", "Change [interval]"]
    rows: list[list[Child]] = [
        [
            name_of(name),
            rated["model"] or _DASH,
            plain(rated["num"], 0),
            maybe_spread(rated["strict"], 2),
            maybe_spread(rated["asd"], 2),
            maybe_spread(rated["difference"], 2, is_change=True),
        ]
        for name, rated in study.ratings.items()
    ]
    note = "From 1 to 10, by a model; comparable only under the same judge and instruction."
    return [table("Ratings by a judge", head, rows, num_text_columns=2), tag("p", note)]


def task_details(name: str, task: dict[str, Any]) -> Markup:
    """Returns everything about one task, folded away."""
    inside = [_arms_table(name, task), _counts_table(name, task)]
    return tag("details", tag("summary", name), inside, class_="task")


def _arms_table(name: str, task: dict[str, Any]) -> Markup:
    accuracy, length = task["accuracy"] or {}, task["length"] or {}
    overlap, acceptance = task["overlap_not_quality"] or {}, task["acceptance"] or {}
    speed = {
        arm: (acceptance.get(arm) or {}).get("tokens_per_forward") for arm in ("strict", "asd")
    }
    rows: list[list[Child]] = [
        [
            "Accuracy, % [interval]",
            maybe_spread(accuracy.get("strict"), factor=100),
            maybe_spread(accuracy.get("asd"), factor=100),
            _with_unit(
                maybe_spread(accuracy.get("difference"), factor=100, is_change=True), "points"
            ),
        ],
        [
            "Mean length, tokens",
            plain(length.get("strict_mean")),
            plain(length.get("asd_mean")),
            _with_unit(maybe_spread(length.get("change_percent"), is_change=True), "%"),
        ],
        [
            "Tokens a target forward [interval]",
            maybe_spread(speed["strict"], 2),
            maybe_spread(speed["asd"], 2),
            _with_unit(maybe_spread(acceptance.get("change_percent"), is_change=True), "%"),
        ],
    ]
    if overlap:
        rows.append(
            [
                "Overlap with the reference, % (this is not quality)",
                maybe_spread(overlap["strict"], factor=100),
                maybe_spread(overlap["asd"], factor=100),
                _with_unit(
                    maybe_spread(overlap["difference"], factor=100, is_change=True), "points"
                ),
            ]
        )
    stops = task["stops"] or {}
    ends = {arm: stops.get(arm) or {} for arm in ("strict", "asd")}
    for reason in dict.fromkeys([*ends["strict"], *ends["asd"]]):
        counts = [ends[arm].get(reason, 0 if ends[arm] else None) for arm in ("strict", "asd")]
        rows.append([f"Ended by {reason}, turns", *(plain(n, 0) for n in counts), _DASH])
    return table(f"{name}: both arms", ["Measure", "Strict", "ASD", "Change"], rows)


def _counts_table(name: str, task: dict[str, Any]) -> Markup:
    timing, accuracy = task["throughput"] or {}, task["accuracy"] or {}
    exceptions, stops = task["exceptions"] or {}, task["stops"] or {}
    divergence, missing = task["divergence"] or {}, task["missing"] or {}
    graded = {True: "yes", False: "no", None: _DASH}[task["is_graded"]]
    gates = {True: "hold", False: "fail", None: "not run"}[timing.get("valid")]
    if timing.get("reasons"):
        gates += f": {', '.join(timing['reasons']).replace('_', ' ')}"
    rows: list[list[Child]] = [
        ["Prompts", plain(task["num"], 0)],
        ["Prompts without an answer from strict", plain(missing.get("strict"), 0)],
        ["Prompts without an answer from ASD", plain(missing.get("asd"), 0)],
        ["Graded", graded],
        ["Right in both arms, answers", plain(accuracy.get("both_right"), 0)],
        ["Right only in strict, answers", plain(accuracy.get("only_strict"), 0)],
        ["Right only in ASD, answers", plain(accuracy.get("only_asd"), 0)],
        ["Wrong in both arms, answers", plain(accuracy.get("both_wrong"), 0)],
        [
            "Accuracy change by bootstrap, points",
            maybe_spread(accuracy.get("bootstrap_difference"), factor=100, is_change=True),
        ],
        ["p that the arms are equally often right", p_value(accuracy.get("p_value"))],
        ["Answers that differ, %", amount(divergence.get("share"), factor=100)],
        [
            "Answers that part elsewhere than at an exception",
            plain(divergence.get("without_exception"), 0),
        ],
        ["First difference, median token", plain((task["first_divergence"] or {}).get("0.5"), 0)],
        ["ASD stopped earlier, turns", plain(stops.get("earlier"), 0)],
        ["ASD stopped later, turns", plain(stops.get("later"), 0)],
        ["Only strict stopped by itself, turns", plain(stops.get("only_strict"), 0)],
        ["Only ASD stopped by itself, turns", plain(stops.get("only_asd"), 0)],
        ["Exceptions an answer", amount(exceptions.get("per_answer"), 2)],
        ["Regret an answer, logits", amount(exceptions.get("regret_per_answer"), 2)],
        ["Tokens kept behind exceptions an answer", amount(exceptions.get("reused_per_answer"), 2)],
        ["Budget exhausted, % of answers", amount(exceptions.get("exhausted_share"), factor=100)],
        [
            "Throughput change, % [interval]",
            maybe_spread(timing.get("gain_percent"), is_change=True),
        ],
        ["Baseline drift, %", signed(timing.get("drift_percent"), 2)],
        ["Gates of the timing protocol", gates],
    ]
    return table(f"{name}: counts and timing", ["Measure", "Value"], rows)


def named_values(caption: str, values: Mapping[str, Any]) -> Markup:
    """Returns names with whatever values, such as a receipt; nested names are joined by points."""
    rows = [(name_of(name), tag("code", value)) for name, value in _flat(values)]
    return tag("div", table(caption, ["Field", "Value"], rows, num_text_columns=2), class_="named")


def settings(study: Study) -> Markup:
    """Returns the verifier's setting, or that the study does not say it."""
    if not study.controls:
        return tag("p", "The study does not say which setting of the verifier was audited.")
    return named_values("The audited setting of the verifier", study.controls)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            yield prefix + name, value
        else:
            yield prefix + name, json.dumps(value, ensure_ascii=False)


def _estimate(value: Interval | float | None) -> float | None:
    return value.estimate if isinstance(value, Interval) else value


def _with_unit(written: str, unit: str) -> str:
    return written if written == _DASH else f"{written} {unit}"


def not_shown(study: Study) -> Markup | None:
    """Returns a sentence on the fields that the page does not know, if there are any."""
    if not study.not_shown:
        return None
    shown = [join(tag("code", name), " ") for name in study.not_shown[:20]]
    more = len(study.not_shown) - len(shown)
    rest = f" and {more} more" if more else ""
    return tag("p", "Fields of the study that this page does not show: ", shown, rest)
