"""Grades all answers of both arms, keeping what was graded on disk.

Running the programs of a task takes minutes, so every grade is written down when it is there, and
grading that was killed goes on where it stopped. An answer is known by its task, its id and the
SHA-256 of its text; two arms that gave the same text share one grade.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.audit.fields import AuditError, Fields, refusal
from asd_jax.evaluation.audit.lines import LineLog
from asd_jax.evaluation.audit.pairs import Pairs
from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.tasks.example import Example
from asd_jax.evaluation.tasks.task import Task

_RIGHT = (True, False, None)


@dataclasses.dataclass(frozen=True)
class GradeStep:
    """One answer was graded.

    Attributes:
      done: Answers graded so far, this one included.
      total: Answers there are.
      id: The example's.
      arm: `strict` or `asd`.
      grade: The judgement.
      is_known: Whether it was there already.
    """

    done: int
    total: int
    id: str
    arm: str
    grade: Grade
    is_known: bool


@dataclasses.dataclass(frozen=True)
class PairedGrade:
    """The grades of both arms' answers to one example."""

    strict: Grade
    asd: Grade


class GradeCache:
    """Grades by answer, in memory and, if there is a path, in a file of JSON lines.

    A grade also holds the digest of its example, and is void once the reference or what else the
    grader reads has changed. It does not know the grader: delete the file when that changes.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """Reads what the file holds, dropping a last line that a kill cut short.

        Raises:
          AuditError: The file cannot be read or written, or a line is no grade.
        """
        self._grades: dict[tuple[str, ...], Grade] = {}
        self._log = None if path is None else LineLog(path)
        try:
            for place, value in () if self._log is None else self._log.read():
                try:
                    key, grade = _from_line(value)
                except AuditError as error:
                    raise AuditError(f"{place}: {error}") from error
                self._grades[key] = grade
        except AuditError:
            self.close()
            raise

    def __enter__(self) -> GradeCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._grades)

    def get(self, example: Example, texts: Sequence[str]) -> Grade | None:
        """Returns the grade of an answer, one text a turn, or None if there is none yet."""
        return self._grades.get(_key(example, texts))

    def put(self, example: Example, texts: Sequence[str], grade: Grade) -> None:
        """Keeps a grade, on disk as well.

        Raises:
          AuditError: The file cannot be written.
        """
        key = _key(example, texts)
        self._grades[key] = grade
        if self._log is not None:
            task, own, digest, asked = key
            line = {"task": task, "id": own, "sha256": digest, "example": asked}
            self._log.append(line | dataclasses.asdict(grade))

    def close(self) -> None:
        """Closes the file."""
        if self._log is not None:
            self._log.close()


def grade_steps(pairs: Pairs, task: Task, cache: GradeCache | None = None) -> Iterator[GradeStep]:
    """Grades the answers one by one; what is there already costs nothing.

    Args:
      pairs: The answers.
      task: Their task.
      cache: What was graded before, and where new grades go.

    Yields:
      A step for every answer, strict before ASD, in order of ids.

    Raises:
      AuditError: An example is of another task, or the grader cannot grade it.
    """
    cache = GradeCache() if cache is None else cache  # an empty one is false
    done, total = 0, 2 * len(pairs)
    for pair in pairs:
        if pair.example.task != task.name:
            raise AuditError(f"{pair.id}: {refusal('task', pair.example.task, repr(task.name))}")
        for arm, answer in (("strict", pair.strict), ("asd", pair.asd)):
            grade = cache.get(pair.example, answer.texts)
            is_known = grade is not None
            if grade is None:
                try:
                    grade = task.grade(pair.example, answer.texts)
                except ValueError as error:
                    raise AuditError(f"{pair.id}, {arm}: cannot be graded: {error}") from error
                if (grade.is_right is None) is task.is_graded:
                    allowed = "True or False" if task.is_graded else "None"
                    raise AuditError(
                        f"{pair.id}, {arm}: {refusal('is_right', grade.is_right, allowed)}"
                    )
                cache.put(pair.example, answer.texts, grade)
            done += 1
            yield GradeStep(done, total, pair.id, arm, grade, is_known)


def paired_grades(pairs: Pairs, steps: Iterable[GradeStep]) -> tuple[PairedGrade, ...]:
    """Runs grading to its end and returns the grades, one of each pair, in their order.

    Args:
      pairs: The answers.
      steps: From `grade_steps`, possibly through a progress display.

    Raises:
      AuditError: As from `grade_steps`, or an answer was not graded.
    """
    found = {(step.id, step.arm): step.grade for step in steps}
    try:
        return tuple(PairedGrade(found[p.id, "strict"], found[p.id, "asd"]) for p in pairs)
    except KeyError as error:
        own, arm = error.args[0]
        raise AuditError(f"{own}, {arm}: got no grade, allowed is one of every answer") from error


def _key(example: Example, texts: Sequence[str]) -> tuple[str, str, str, str]:
    # No text of a model holds a zero byte by accident, so turns cannot run into one another.
    asked = [example.turns, example.reference, example.meta]
    return (
        example.task,
        example.id,
        _digest("\0".join(texts)),
        _digest(json.dumps(asked, sort_keys=True, default=str)),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _from_line(value: Any) -> tuple[tuple[str, str, str, str], Grade]:
    fields = Fields(value)
    key = tuple(fields.filled(name) for name in ("task", "id", "sha256", "example"))
    is_right, extracted = value.get("is_right", ""), value.get("extracted", "")
    measures = value.get("measures")
    if not any(is_right is allowed for allowed in _RIGHT):
        raise refusal("is_right", is_right, "true, false or null")
    if extracted is not None and not isinstance(extracted, str):
        raise refusal("extracted", extracted, "a text or null")
    if not isinstance(measures, dict) or not all(
        isinstance(number, (int, float)) for number in measures.values()
    ):
        raise refusal("measures", measures, "an object of numbers")
    task, own, digest, asked = key
    return (task, own, digest, asked), Grade(is_right, extracted, fields.text("detail"), measures)
