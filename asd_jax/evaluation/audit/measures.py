"""The numbers of every pair of answers, as arrays that all figures are computed from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.audit.answers import ArmAnswer
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.grades import PairedGrade
from asd_jax.evaluation.audit.pairs import Pair, Pairs
from asd_jax.evaluation.grading.grade import Grade

Floats = npt.NDArray[np.float64]
NO_POSITION = -1


@dataclasses.dataclass(frozen=True, eq=False)
class ArmMeasures:
    """One arm, an entry for each of N requests.

    Attributes:
      tokens: Tokens of the answer. [N].
      round_tokens: Those that rounds emitted. [N].
      rounds: Target forwards, prefills not counted. [N].
      is_right: Whether it is right, or None where there is no right answer. bool [N].
      overlap: Word overlap with the reference, NaN where there is no reference. [N].
    """

    tokens: Floats
    round_tokens: Floats
    rounds: Floats
    is_right: npt.NDArray[np.bool_] | None
    overlap: Floats


@dataclasses.dataclass(frozen=True, eq=False)
class Measures:
    """Both arms of one task, and what ASD did, an entry for each of N requests.

    Attributes:
      strict: The strict arm.
      asd: The ASD arm.
      first_divergence: First place where the token ids differ, `NO_POSITION` if none. int64 [N].
      exceptions: Committed exceptions. [N].
      reused: Draft tokens kept behind them. [N].
      spent: Regret in logits. [N].
      budget: Regret allowed, in logits, possibly infinite. [N].
      is_exhausted: Whether the budget was used up. bool [N].
    """

    strict: ArmMeasures
    asd: ArmMeasures
    first_divergence: npt.NDArray[np.int64]
    exceptions: Floats
    reused: Floats
    spent: Floats
    budget: Floats
    is_exhausted: npt.NDArray[np.bool_]


def measure(pairs: Pairs, grades: Sequence[PairedGrade], *, is_graded: bool) -> Measures:
    """Counts what every pair of answers came to.

    Args:
      pairs: The answers, 2 pairs or more.
      grades: One of each pair, in their order.
      is_graded: Whether the task has right answers.

    Raises:
      AuditError: There are fewer than two pairs, as no interval comes from one, or not as many
        grades.
    """
    if len(pairs) < 2:
        raise AuditError(f"pairs: got {len(pairs)}, allowed are 2 or more")
    if len(grades) != len(pairs):
        raise AuditError(f"grades: got {len(grades)}, allowed are {len(pairs)}, one of each pair")
    asd = [pair.asd for pair in pairs]
    return Measures(
        strict=_arm([pair.strict for pair in pairs], [grade.strict for grade in grades], is_graded),
        asd=_arm(asd, [grade.asd for grade in grades], is_graded),
        first_divergence=np.array([first_divergence(pair) for pair in pairs], np.int64),
        exceptions=_floats(answer.num_exceptions for answer in asd),
        reused=_floats(answer.reused for answer in asd),
        spent=_floats(answer.spent for answer in asd),
        budget=_floats(answer.budget for answer in asd),
        is_exhausted=np.array([answer.is_exhausted for answer in asd], np.bool_),
    )


def first_divergence(pair: Pair) -> int:
    """Returns the first place where the answers' token ids differ, `NO_POSITION` if none.

    Where one answer is the beginning of the other, that is where the shorter one ends.
    """
    if pair.is_same:
        return NO_POSITION
    ours, theirs = pair.asd.token_ids, pair.strict.token_ids
    shared = min(len(ours), len(theirs))
    return next((i for i in range(shared) if ours[i] != theirs[i]), shared)


def _arm(answers: Sequence[ArmAnswer], grades: Sequence[Grade], is_graded: bool) -> ArmMeasures:
    return ArmMeasures(
        tokens=_floats(len(answer.token_ids) for answer in answers),
        round_tokens=_floats(answer.round_tokens for answer in answers),
        rounds=_floats(answer.rounds for answer in answers),
        is_right=np.array([grade.is_right for grade in grades], np.bool_) if is_graded else None,
        overlap=_floats(grade.measures.get("overlap_not_quality", np.nan) for grade in grades),
    )


def _floats(numbers: Iterable[float]) -> Floats:
    return np.array(list(numbers), np.float64)
