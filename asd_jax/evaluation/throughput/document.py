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


@dataclasses.dataclass(frozen=True)
class Steadied:
    """How batches whose two strict runs differed were measured again.

    Attributes:
      within_percent: The largest difference of a steady batch.
      max_attempts: Measurements of a batch at most.
      set_aside: By task, batches of which earlier measurements do not count.
      unsteady: By task, batches that were not steady the last time either, and count.
      first_attempts: Figures of the mean had every batch been measured once, as the names say.
    """

    within_percent: float
    max_attempts: int
    set_aside: Mapping[str, int]
    unsteady: Mapping[str, int]
    first_attempts: Mapping[str, Any]


def first_figures(tasks: Mapping[str, TaskSpeed], mean: Speed) -> dict[str, Any]:
    """Returns what `Steadied.first_attempts` holds.

    Args:
      tasks: Of `measure_tasks` on the first measurement of every unit.
      mean: Likewise.
    """
    return {
        "raw_gain_percent": mean.raw_gain_percent,
        "strict_over_greedy": mean.strict_over_greedy,
        "candidate_over_greedy": mean.candidate_over_greedy,
        "drift_percent": {name: task.speed.drift_percent for name, task in tasks.items()},
        "reasons": mean.reasons,
    }


def make_document(
    tasks: Mapping[str, TaskSpeed],
    mean: Speed,
    *,
    run: Mapping[str, Any],
    controls: Mapping[str, Any],
    left_out: Mapping[str, Mapping[str, str]],
    steadied: Steadied | None = None,
) -> dict[str, Any]:
    """Returns the result of a study, made of plain JSON types.

    Args:
      tasks: From `measure_tasks`.
      mean: Likewise.
      run: The receipt.
      controls: What the candidate was decoded with and where it is from.
      left_out: By task, the prompts that cannot have as many tokens as the others, and why.
      steadied: How batches were measured again, or None if none were to be.
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
            "steadied": steadied,
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
