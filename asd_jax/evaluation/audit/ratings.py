"""What a judge thinks of both arms' answers to the tasks without right ones.

A reply takes seconds and may cost money, so every rating is written down when it is there, and a
run that was killed goes on where it stopped. Two arms that gave the same text share one rating.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asd_jax.evaluation.audit.compare import DEFAULT
from asd_jax.evaluation.audit.fields import AuditError, Fields
from asd_jax.evaluation.audit.lines import LineLog
from asd_jax.evaluation.audit.pairs import Pair, Pairs
from asd_jax.evaluation.grading.judge import Judge, JudgeError
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.intervals import mean_difference_interval, mean_interval
from asd_jax.evaluation.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Ratings of one task, from 1 (worst) to 10 (best); an answer's is the mean over its turns.

    Attributes:
      model: What judged, by the names that the endpoint gave, joined by commas.
      num: Examples.
      strict: Mean of strict decoding's answers.
      asd: Mean of ASD's.
      difference: ASD's less strict's, paired.
    """

    model: str
    num: int
    strict: Interval
    asd: Interval
    difference: Interval


@dataclasses.dataclass(frozen=True)
class RatingStep:
    """One answer was rated.

    Attributes:
      done: Answers rated so far, this one included.
      total: Answers there are.
      id: The example's.
      arm: `strict` or `asd`.
      value: Mean rating over the turns, 1 to 10.
      models: What judged.
    """

    done: int
    total: int
    id: str
    arm: str
    value: float
    models: frozenset[str]


class RatingCache:
    """Ratings by what was asked and answered, in memory and in a file of JSON lines."""

    def __init__(self, path: str | Path) -> None:
        """Reads what the file holds, dropping a last line that a kill cut short.

        Raises:
          AuditError: The file cannot be read or written, or a line is no rating.
        """
        self._ratings: dict[str, tuple[float, str]] = {}
        self._log = LineLog(path)
        try:
            for place, value in self._log.read():
                try:
                    line = Fields(value)
                    self._ratings[line.filled("key")] = (line.amount("value"), line.text("model"))
                except AuditError as error:
                    raise AuditError(f"{place}: {error}") from error
        except AuditError:
            self._log.close()
            raise

    def __enter__(self) -> RatingCache:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()

    def rate(
        self, judge: Judge, questions: Sequence[str], answers: Sequence[str], reference: str | None
    ) -> tuple[float, str]:
        """Returns the rating of the last answer and what judged, asking only for a new one.

        Raises:
          JudgeError: The judge gave none.
          AuditError: The file cannot be written.
        """
        asked = json.dumps([judge.url, judge.model, questions, answers, reference])
        key = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._ratings:
            rating = judge.rate(questions, answers, reference)
            line = {"key": key, "value": rating.value, "model": rating.model}
            self._log.append(line | {"explanation": rating.explanation})
            self._ratings[key] = (rating.value, rating.model)
        return self._ratings[key]


def rating_steps(
    pairs: Pairs, task: Task, judge: Judge, cache: RatingCache
) -> Iterator[RatingStep]:
    """Has the answers rated one by one, each turn in view of those before it.

    Args:
      pairs: The answers.
      task: Their task.
      judge: The model that rates.
      cache: What was rated before, and where new ratings go.

    Yields:
      A step for every answer, strict before ASD, in order of ids.

    Raises:
      AuditError: The judge gave no rating for an answer.
    """
    done, total = 0, 2 * len(pairs)
    for pair in pairs:
        for arm, answer in (("strict", pair.strict), ("asd", pair.asd)):
            try:
                found = list(_rated_turns(pair, answer.texts, task, judge, cache))
            except JudgeError as error:
                raise AuditError(f"{pair.id}, {arm}: not rated: {error}") from error
            done += 1
            value = float(np.mean([value for value, _ in found]))
            models = frozenset(model for _, model in found)
            yield RatingStep(done, total, pair.id, arm, value, models)


def compare_ratings(steps: Sequence[RatingStep], bootstrap: Bootstrap = DEFAULT) -> Ratings:
    """Compares the arms' ratings.

    Args:
      steps: All of `rating_steps`, of 2 pairs or more.
      bootstrap: How to resample.
    """
    strict, asd = ([step.value for step in steps if step.arm == arm] for arm in ("strict", "asd"))
    return Ratings(
        model=", ".join(sorted(set().union(*(step.models for step in steps)))),
        num=len(strict),
        strict=mean_interval(strict, bootstrap),
        asd=mean_interval(asd, bootstrap),
        difference=mean_difference_interval(asd, strict, bootstrap),
    )


def _rated_turns(
    pair: Pair, answers: Sequence[str], task: Task, judge: Judge, cache: RatingCache
) -> Iterator[tuple[float, str]]:
    questions = task.prompt(pair.example)
    references = pair.example.meta.get("reference_turns") or []
    for number in range(1, len(answers) + 1):
        reference = _text(references, number - 1)
        yield cache.rate(judge, questions[:number], answers[:number], reference)


def _text(references: Any, index: int) -> str | None:
    """Returns a turn's reference, where the data has one that is a text."""
    if not isinstance(references, (list, tuple)) or index >= len(references):
        return None
    found = references[index]
    return found if isinstance(found, str) and found.strip() else None
