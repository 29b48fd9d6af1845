"""A study's parts beside the comparison as Markdown: speed, judge and controls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from asd_jax.evaluation.audit.cells import NONE, change, interval, table


def more_markdown(document: Mapping[str, Any]) -> str:
    """Returns the sections that follow those of `to_markdown`.

    Args:
      document: The JSON value of a study, with what the caller added to it.

    Returns:
      Markdown that ends in a line break and begins with one, or nothing.
    """
    sections = [
        _speed(document.get("throughput"), document["mean"].get("gain_percent")),
        _judge(document.get("judge")),
        _controls(document.get("controls")),
    ]
    return "".join(f"\n{section}\n" for section in sections if section)


def _speed(throughput: Mapping[str, Any] | None, gain: Mapping[str, Any] | None) -> str:
    if not throughput:
        return ""
    rows = [
        [
            name,
            change(timing["gain_percent"]),
            NONE if timing.get("drift_percent") is None else f"{timing['drift_percent']:+.2f}",
            "yes" if timing["valid"] else "no: " + ", ".join(timing.get("reasons") or ["n/a"]),
        ]
        for name, timing in throughput.items()
    ]
    rows.append(["mean of tasks", change(gain), "", ""])
    return "\n\n".join(
        [
            "## Throughput",
            table("task|ASD against strict, %|drift of strict, %|protocol valid", rows),
            "Measured by another study on fixed work; where the protocol is not valid the number "
            "is no gain.",
        ]
    )


def _judge(judge: Mapping[str, Any] | None) -> str:
    if not judge:
        return ""
    rows = [
        [
            name,
            found["num"],
            found["model"],
            interval(found["strict"]),
            interval(found["asd"]),
            change(found["difference"]),
        ]
        for name, found in judge.items()
    ]
    return "\n\n".join(
        [
            "## Ratings by a judge",
            table("task|n|judge|strict|ASD|ASD - strict", rows),
            "From 1 to 10, by a model; comparable only under the same judge and instruction.",
        ]
    )


def _controls(controls: Mapping[str, Any] | None) -> str:
    if not controls:
        return ""
    return "\n\n".join(["## Controls", table("field|value", list(_flat(controls)))])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[list[str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield [
                prefix + name,
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
            ]
