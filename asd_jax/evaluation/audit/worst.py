"""The answers that ASD harmed most, to be read by a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from asd_jax.evaluation.audit.grades import PairedGrade
from asd_jax.evaluation.audit.measures import first_divergence
from asd_jax.evaluation.audit.pairs import Pair, Pairs
from asd_jax.evaluation.audit.pieces import Decode, Piece, cut
from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.tasks.task import Task

NUM_WORST = 20


@dataclasses.dataclass(frozen=True)
class HarmedAnswer:
    """One example with both answers.

    Attributes:
      id: The example's.
      turns: What was asked, as it was sent.
      reference: The right answer or something to compare with, or None.
      is_lost: Whether strict decoding was right and ASD wrong.
      strict_text: Strict decoding's answer.
      asd_text: ASD's answer.
      strict_grade: The grader's word on the one.
      asd_grade: And on the other.
      spent: Regret of the ASD answer, in logits.
      first_divergence: First token position where the answers differ.
      pieces: The ASD answer's text, cut at its exceptions.
    """

    id: str
    turns: tuple[str, ...]
    reference: str | None
    is_lost: bool
    strict_text: str
    asd_text: str
    strict_grade: Grade
    asd_grade: Grade
    spent: float
    first_divergence: int
    pieces: tuple[Piece, ...]


def worst(
    pairs: Pairs,
    grades: Sequence[PairedGrade],
    task: Task,
    decode: Decode,
    *,
    num: int = NUM_WORST,
) -> tuple[HarmedAnswer, ...]:
    """Returns up to `num` of the answers that differ, the most harmed first.

    Those come first that strict decoding got right and ASD wrong, then the others, by regret spent;
    ties are in order of ids. They are picked for their harm, so they stand for no average.

    Args:
      pairs: The answers.
      grades: One of each pair, in their order.
      task: Their task.
      decode: As for `pieces.cut`.
      num: Most answers to return.
    """
    ranked = sorted(
        (
            (not _is_lost(grade), -pair.asd.spent, pair.id, pair, grade)
            for pair, grade in zip(pairs, grades, strict=True)
            if not pair.is_same
        ),
        key=lambda entry: entry[:3],
    )
    return tuple(_harmed(pair, grade, task, decode) for *_, pair, grade in ranked[:num])


def _harmed(pair: Pair, grade: PairedGrade, task: Task, decode: Decode) -> HarmedAnswer:
    return HarmedAnswer(
        id=pair.id,
        turns=task.prompt(pair.example),
        reference=pair.example.reference,
        is_lost=_is_lost(grade),
        strict_text=pair.strict.text,
        asd_text=pair.asd.text,
        strict_grade=grade.strict,
        asd_grade=grade.asd,
        spent=pair.asd.spent,
        first_divergence=first_divergence(pair),
        pieces=cut(pair.asd, decode),
    )


def _is_lost(grade: PairedGrade) -> bool:
    return grade.strict.is_right is True and grade.asd.is_right is False
