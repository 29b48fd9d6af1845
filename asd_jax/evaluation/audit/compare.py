"""Everything that is said about one task: strict decoding and ASD on the same examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.audit.acceptance import Acceptance, acceptance
from asd_jax.evaluation.audit.drift import (
    Divergence,
    Length,
    Stops,
    divergence,
    first_divergence,
    length,
    stops,
)
from asd_jax.evaluation.audit.grades import PairedGrade
from asd_jax.evaluation.audit.measures import Measures, measure
from asd_jax.evaluation.audit.pairs import Pairs
from asd_jax.evaluation.audit.pieces import Decode
from asd_jax.evaluation.audit.quality import Accuracy, Overlap, accuracy, overlap
from asd_jax.evaluation.audit.spending import Exceptions, exceptions
from asd_jax.evaluation.audit.worst import HarmedAnswer, worst
from asd_jax.evaluation.plain_json import HIDDEN, plain_json
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.tasks.task import Task

DEFAULT = Bootstrap()


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One task.

    Attributes:
      num: Examples that both arms answered.
      missing: Examples without an answer, by arm.
      is_graded: Whether there are right answers.
      accuracy: None where there are none.
      overlap_not_quality: Likeness to references, None for graded tasks and without references.
      length: Tokens of the answers.
      divergence: Answers that differ.
      first_divergence: Quantiles of the token position where they part, None if none do.
      stops: How the answers end.
      exceptions: What ASD spent.
      acceptance: What a target forward yields.
      worst: The most harmed answers.
      measures: The numbers of each request, for means over tasks; not in the JSON.
    """

    num: int
    missing: Mapping[str, int]
    is_graded: bool
    accuracy: Accuracy | None
    overlap_not_quality: Overlap | None
    length: Length
    divergence: Divergence
    first_divergence: Mapping[str, float] | None
    stops: Stops
    exceptions: Exceptions
    acceptance: Acceptance
    worst: tuple[HarmedAnswer, ...]
    measures: Measures = dataclasses.field(repr=False, compare=False, metadata=HIDDEN)

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison made of plain JSON types; an undefined number is null."""
        return dict(plain_json(self))


def compare(
    pairs: Pairs,
    grades: Sequence[PairedGrade],
    task: Task,
    decode: Decode,
    *,
    bootstrap: Bootstrap = DEFAULT,
) -> Comparison:
    """Compares the arms on one task.

    Args:
      pairs: The answers, 2 pairs or more.
      grades: One of each pair, in their order, from `paired_grades`.
      task: Their task.
      decode: The target's tokenizer: token ids to text, without special tokens.
      bootstrap: How to resample; its confidence is that of every interval.

    Raises:
      AuditError: There are too few pairs or grades, or `decode` does not give the answers' texts.
    """
    measures = measure(pairs, grades, is_graded=task.is_graded)
    confidence = bootstrap.confidence
    return Comparison(
        num=len(pairs),
        missing=pairs.missing,
        is_graded=task.is_graded,
        accuracy=accuracy(measures, bootstrap),
        overlap_not_quality=None if task.is_graded else overlap(measures, bootstrap),
        length=length(measures, bootstrap),
        divergence=divergence(pairs, measures, confidence=confidence),
        first_divergence=first_divergence(measures),
        stops=stops(pairs),
        exceptions=exceptions(pairs, measures, bootstrap),
        acceptance=acceptance(pairs, measures, bootstrap),
        worst=worst(pairs, grades, task, decode),
        measures=measures,
    )
