"""`throughput.json`, and the pieces of it that a study's report shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.statistics.bcb import Limits
from asd_jax.evaluation.throughput.result import Speed, TaskSpeed

_FORMAT = 1
NOTES = {
    "work": (
        "every role decodes the first turn of the same prompts to the same number of tokens, stop "
        "ids being ordinary tokens; for each batch strict, candidate, strict and then, where it "
        "was asked for, greedy run one behind the other"
    ),
    "gain_percent": (
        "of tokens per second over whole requests, prefill included, as the authors' clock has "
        "it, against the mean of the two strict roles; null where a gate fails"
    ),
    "rounds_gain_percent": "the same over rounds alone, without the prefill and its token",
    "raw": "what was timed, whatever the gates say: no gain where one fails",
    "tokens_per_forward": (
        "tokens that rounds emitted over target forwards; the target's own token counts, that of "
        "the prefill does not"
    ),
    "intervals": "batches are resampled within tasks, all repeats of one together",
    "mean": "every task weighs the same; its gates are on all work together and on each task",
}


def make_document(
    tasks: Mapping[str, TaskSpeed],
    mean: Speed,
    *,
    run: Mapping[str, Any],
    controls: Mapping[str, Any],
    left_out: Mapping[str, Mapping[str, str]],
    measured_again: Mapping[str, int] | None = None,
    steady_percent: float | None = None,
) -> dict[str, Any]:
    """Returns the result of a study, made of plain JSON types.

    Args:
      tasks: From `measure_tasks`.
      mean: Likewise.
      run: The receipt.
      controls: What the candidate was decoded with and where it is from.
      left_out: By task, the prompts that cannot have as many tokens as the others, and why.
      measured_again: By task, the units of which an earlier measurement was set aside, as its two
        strict runs differed by more than `steady_percent`.
      steady_percent: See there; None: every measurement counts.
    """
    document: dict[str, Any] = plain_json(
        {
            "format": _FORMAT,
            "run": run,
            "controls": controls,
            "limits": {
                name: value
                for name, value in dataclasses.asdict(Limits()).items()
                if name in ("max_drift_percent", "min_gain_percent")
            },
            "tasks": {name: _flat(task) for name, task in tasks.items()},
            "mean": {"tasks": list(tasks), **plain_json(mean)},
            "left_out": left_out,
            "steady_percent": steady_percent,
            "measured_again": measured_again or {},
            "notes": NOTES,
        }
    )
    return document


def _flat(task: TaskSpeed) -> dict[str, Any]:
    fields: dict[str, Any] = plain_json(task)
    speed = fields.pop("speed")
    return {**fields, **speed}


def for_report(
    result: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    """Returns what `asd_jax.evaluation.report` shows of a throughput study.

    Args:
      result: As `make_document` returns it, or read from `throughput.json`.

    Returns:
      `throughput` of each task by its name, and `mean.gain_percent`, which is None where a gate
      fails. A task's figure is the raw one, as `valid` stands beside it.

    Raises:
      ValueError: It is no such result; the message names the field.
    """
    if result.get("format") != _FORMAT:
        raise ValueError(f"format: got {result.get('format')!r}, allowed is {_FORMAT}")
    for name in ("tasks", "mean"):
        if not isinstance(result.get(name), Mapping):
            raise ValueError(f"{name}: got {result.get(name)!r}, allowed is an object")
    by_task = {
        name: {
            "gain_percent": task["raw_gain_percent"],
            "valid": task["protocol_valid"],
            "drift_percent": task["drift_percent"],
            "reasons": list(task["reasons"]),
        }
        for name, task in result["tasks"].items()
    }
    return by_task, result["mean"]["gain_percent"]
