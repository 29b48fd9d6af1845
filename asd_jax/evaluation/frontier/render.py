"""The frontier as a JSON document and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.audit.cells import NONE, change, interval, table
from asd_jax.evaluation.frontier.points import Point
from asd_jax.evaluation.frontier.rivals import Rival
from asd_jax.evaluation.frontier.schemes import BASE, OTHER, Schemes
from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.report.fields import Interval
from asd_jax.evaluation.report.frontier import pareto
from asd_jax.evaluation.report.numbers import options

UNITS = {
    "speed": "% more tokens a target forward than strict decoding",
    "quality": "points of accuracy against strict decoding",
}
_SCHEME_FIELDS = ("extra_tokens_per_answer", "regret_per_answer")


def document(
    points: Sequence[Point],
    schemes: Schemes | None,
    left_out: Sequence[tuple[Rival, str]],
    run: Mapping[str, Any],
    *,
    split: str,
) -> dict[str, Any]:
    """Returns the frontier made of plain JSON types.

    Args:
      points: All points.
      schemes: The comparison of the value schemes, if both were drawn.
      left_out: Settings that were not drawn, with reasons.
      run: Receipt.
      split: Which examples were asked.

    Returns:
      `points` and `units` are what a study calls `frontier` and `frontier_units` (see
      `evaluation.report.study`). Numbers that are not finite are null, an infinite option "inf".
    """
    return {
        "split": split,
        "points": [_point(point) for point in points],
        "units": dict(UNITS),
        "schemes": None if schemes is None else _schemes(schemes),
        "left_out": [
            {"rule": rival.rule, "options": _options(rival.all_options), "reason": reason}
            for rival, reason in left_out
        ],
        "run": plain_json(run),
    }


def to_markdown(found: Mapping[str, Any]) -> str:
    """Returns the tables of a document; ends in a line break."""
    parts = [_heading(found), _points(found["points"]), _scheme_tables(found["schemes"])]
    parts.append(_left_out(found["left_out"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _point(point: Point) -> dict[str, Any]:
    plain: dict[str, Any] = plain_json(point)
    # null would not tell "no limit" from "not measured".
    plain["options"] = _options(point.options)
    return plain


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _option(value) for name, value in values.items()}


def _option(value: Any) -> Any:
    return str(value) if value in (float("inf"), None) else value


def _schemes(schemes: Schemes) -> dict[str, Any]:
    settings = [
        {
            "budget": _option(setting.budget),
            "gate": _option(setting.gate),
            "block_cap": setting.block_cap,
            **plain_json(contrast),
        }
        for setting, contrast in schemes.settings.items()
    ]
    return {
        "verdict": schemes.verdict,
        "num_requests": schemes.num_requests,
        "pooled": plain_json(schemes.pooled),
        "settings": settings,
    }


def _heading(found: Mapping[str, Any]) -> str:
    run, split = found["run"], found["split"]
    target, drafter = (run.get(part) or {} for part in ("target", "drafter"))
    details = found["points"][0]["details"]
    confidence = found["points"][0]["speed"]["confidence"]
    asked = ", ".join(f"{number} of {task}" for task, number in details["num_examples"].items())
    lines = [
        "# Speed against quality",
        "",
        f"Target {target.get('name') or NONE}, drafter {drafter.get('name') or NONE}, commit "
        f"{run.get('commit') or NONE}. Asked were {asked}, split {split}, the same of every "
        f"setting; strict decoding got {details['right_strict']} of {details['num_graded']} right. "
        f"Brackets hold {100 * confidence:g} % bootstrap intervals; requests are resampled within "
        "tasks, each task weighs the same.",
        "",
        "Speed counts target forwards, not seconds. The best of many settings looks better here "
        "than it is: choose one with `experiments.calibrate` and confirm it on other examples. The "
        "bootstrap knows only changes of grade that were seen; where there are few, Newcombe's "
        "interval, over all graded examples together, is the one to go by.",
    ]
    if split == "audit":
        lines += [
            "",
            "**These are audit examples.** A setting chosen by this table must not be audited on "
            "them any more.",
        ]
    return "\n".join(lines)


def _points(points: Sequence[Mapping[str, Any]]) -> str:
    drawn = [
        {"number": i, **{name: _interval(point[name]) for name in ("speed", "quality")}}
        for i, point in enumerate(points)
    ]
    on_line = {point["number"] for point in pareto(drawn)}
    order = sorted(range(len(points)), key=lambda i: -points[i]["speed"]["estimate"])
    rows = [
        (
            points[i]["rule"],
            options(points[i]["options"]),
            "yes" if i in on_line else "",
            change(points[i]["speed"], 1),
            change(points[i]["quality"], 1),
            *_detail_cells(points[i]["details"]),
        )
        for i in order
    ]
    heads = (
        "Rule|Options|Pareto|Speed, %|Quality, points|Right|Newcombe, points|Tokens a forward|"
        "Differ, %|Exceptions an answer|Regret a token, logits|Length, %"
    )
    return "## Settings, fastest first\n\n" + table(heads, rows)


def _detail_cells(details: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{details['right']} of {details['num_graded']}",
        change(details["paired_accuracy_difference"], 1, scale=100),
        interval(details["tokens_per_forward"]),
        interval(details["divergence"], 0, scale=100),
        interval(details["exceptions_per_answer"]),
        interval(details["regret_per_token"], 4),
        change(details["length_change_percent"], 1),
    )


def _scheme_tables(schemes: Mapping[str, Any] | None) -> str:
    if schemes is None:
        return ""
    contrasts = [*schemes["settings"], {"budget": "all", **schemes["pooled"]}]
    rows = []
    for contrast in contrasts:
        controls = [contrast.get(name, "") for name in ("budget", "gate", "block_cap")]
        for scheme in (BASE, OTHER):
            worth = contrast[scheme]
            is_last = scheme == OTHER
            rows.append(
                (
                    *controls,
                    scheme,
                    *(interval(worth[name]) for name in _SCHEME_FIELDS),
                    interval(worth["tokens_per_logit"]),
                    change(contrast["tokens_per_logit_difference"]) if is_last else "",
                    interval(worth["loss_per_token"], 2, scale=1000),
                    change(contrast["loss_per_token_difference"], 2, scale=1000) if is_last else "",
                )
            )
    heads = (
        "Budget|Gate|Cap|Value scheme|Extra tokens an answer|Regret an answer, logits|"
        "Tokens a logit|Difference|Lost answers per 1,000 extra tokens|Difference"
    )
    return "\n\n".join(
        (
            "## Value schemes at the same controls",
            schemes["verdict"],
            table(heads, rows),
            "Extra tokens are those beyond what as many forwards of strict decoding yield.",
        )
    )


def _left_out(left_out: Sequence[Mapping[str, Any]]) -> str:
    if not left_out:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in left_out:
        shown = options(entry["options"]) or "as it is"
        groups.setdefault((entry["rule"], entry["reason"]), []).append(shown)
    lines = [
        f"- {rule} ({'; '.join(settings)}): {reason}."
        for (rule, reason), settings in groups.items()
    ]
    return "## Left out\n\n" + "\n".join(lines)


def _interval(found: Mapping[str, Any]) -> Interval:
    return Interval(*(found[name] for name in Interval._fields))
