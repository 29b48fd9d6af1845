"""All tasks of a run together, and the file that they are kept in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asd_jax.evaluation.audit.compare import DEFAULT, Comparison
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.measures import NO_POSITION
from asd_jax.evaluation.audit.ratios import change_interval
from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.intervals import mean_over_tasks_interval
from asd_jax.evaluation.whole_files import write_text


@dataclasses.dataclass(frozen=True)
class Mean:
    """Means of the tasks' figures, every task weighing the same; requests resampled within tasks.

    Attributes:
      tasks: Their names.
      graded_tasks: Those of them that have right answers.
      accuracy_difference: ASD's accuracy less strict's, a fraction, over `graded_tasks`; None if
        there are none.
      length_change_percent: Of the mean length; None if some task has only empty answers.
      tokens_per_forward_change_percent: None if some task has no rounds.
      divergence: Share of the answers that differ.
      exceptions_per_answer: Exceptions.
      regret_per_answer: Logits.
    """

    tasks: tuple[str, ...]
    graded_tasks: tuple[str, ...]
    accuracy_difference: Interval | None
    length_change_percent: Interval | None
    tokens_per_forward_change_percent: Interval | None
    divergence: Interval
    exceptions_per_answer: Interval
    regret_per_answer: Interval


@dataclasses.dataclass(frozen=True)
class Study:
    """A run of strict decoding and ASD over task sets.

    Attributes:
      run: What was run, as in the first line of an output file.
      controls: What was checked beside it, as the caller has it, or None.
      tasks: The comparison of each task.
      mean: Over all tasks.
      throughput: Measured speed, as the caller has it, or None.
      frontier: Points of other settings, as the caller has them, or None.
    """

    run: Mapping[str, Any]
    controls: Mapping[str, Any] | None
    tasks: Mapping[str, Comparison]
    mean: Mean
    throughput: Mapping[str, Any] | None
    frontier: Sequence[Any] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the study made of plain JSON types; an undefined number is null."""
        return dict(plain_json(self))


def make_study(
    tasks: Mapping[str, Comparison],
    run: Mapping[str, Any],
    *,
    controls: Mapping[str, Any] | None = None,
    throughput: Mapping[str, Any] | None = None,
    frontier: Sequence[Any] | None = None,
    bootstrap: Bootstrap = DEFAULT,
) -> Study:
    """Puts the tasks together.

    Args:
      tasks: One or more comparisons by task name, from `compare`.
      run: The description of the run, such as `Pairs.run`.
      controls: Passed through.
      throughput: Passed through.
      frontier: Passed through.
      bootstrap: How to resample for the means.

    Raises:
      AuditError: There is no task.
    """
    mean = mean_over_tasks(tasks, bootstrap)
    return Study(run, controls, dict(tasks), mean, throughput, frontier)


def mean_over_tasks(tasks: Mapping[str, Comparison], bootstrap: Bootstrap = DEFAULT) -> Mean:
    """Returns the means over tasks.

    Raises:
      AuditError: There is no task.
    """
    if not tasks:
        raise AuditError("tasks: got none, allowed are 1 or more")
    measures = [task.measures for task in tasks.values()]
    gains = {
        name: task.measures.asd.is_right.astype(np.float64) - task.measures.strict.is_right
        for name, task in tasks.items()
        if task.measures.asd.is_right is not None and task.measures.strict.is_right is not None
    }
    ones = [np.ones_like(task.asd.tokens) for task in measures]
    return Mean(
        tasks=tuple(tasks),
        graded_tasks=tuple(gains),
        accuracy_difference=(
            mean_over_tasks_interval(list(gains.values()), bootstrap) if gains else None
        ),
        length_change_percent=change_interval(
            [
                ((task.asd.tokens, one), (task.strict.tokens, one))
                for task, one in zip(measures, ones, strict=True)
            ],
            bootstrap,
        ),
        tokens_per_forward_change_percent=change_interval(
            [
                (
                    (task.asd.round_tokens, task.asd.rounds),
                    (task.strict.round_tokens, task.strict.rounds),
                )
                for task in measures
            ],
            bootstrap,
        ),
        divergence=mean_over_tasks_interval(
            [task.first_divergence != NO_POSITION for task in measures], bootstrap
        ),
        exceptions_per_answer=mean_over_tasks_interval(
            [task.exceptions for task in measures], bootstrap
        ),
        regret_per_answer=mean_over_tasks_interval([task.spent for task in measures], bootstrap),
    )


def write_study(path: str | Path, study: Study | Mapping[str, Any]) -> None:
    """Writes the study as JSON, whole or not at all.

    Args:
      path: The file.
      study: A study, or the JSON value of one.

    Raises:
      OSError: The file cannot be written.
    """
    document = study.to_json() if isinstance(study, Study) else study
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    write_text(Path(path), text + "\n")
