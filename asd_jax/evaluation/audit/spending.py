"""What ASD's exceptions come to, and where in the answers they stand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from asd_jax.evaluation.audit.answers import ArmAnswer
from asd_jax.evaluation.audit.measures import Measures
from asd_jax.evaluation.audit.pairs import Pairs
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.intervals import mean_interval
from asd_jax.evaluation.statistics.paired import wilson_interval

TENTHS = 10


@dataclasses.dataclass(frozen=True)
class Exceptions:
    """Exceptions of the ASD arm.

    Attributes:
      per_answer: Mean number of exceptions.
      regret_per_answer: Mean regret spent, in logits.
      reused_per_answer: Mean number of draft tokens kept behind an exception of their block.
      exhausted_share: Share of the answers whose budget was used up, Wilson's interval.
      places: Exceptions by the tenth of their answer that they stand in; None without a trace. [10]
      spent_over_answer: Mean share of the budget that is spent by the end of each tenth, over the
        answers with a finite budget above 0; None if there are none, or without a trace. [10]
    """

    per_answer: Interval
    regret_per_answer: Interval
    reused_per_answer: Interval
    exhausted_share: Interval
    places: tuple[int, ...] | None
    spent_over_answer: tuple[float, ...] | None


def exceptions(pairs: Pairs, measures: Measures, bootstrap: Bootstrap) -> Exceptions:
    """Adds up the exceptions of the ASD arm."""
    answers = [pair.asd for pair in pairs]
    has_trace = all(answer.exceptions is not None for answer in answers)
    budgeted = [answer for answer in answers if 0 < answer.budget < math.inf]
    exhausted = int(measures.is_exhausted.sum())
    return Exceptions(
        per_answer=mean_interval(measures.exceptions, bootstrap),
        regret_per_answer=mean_interval(measures.spent, bootstrap),
        reused_per_answer=mean_interval(measures.reused, bootstrap),
        exhausted_share=wilson_interval(exhausted, len(answers), confidence=bootstrap.confidence),
        places=_places(answers) if has_trace else None,
        spent_over_answer=_spent(budgeted) if has_trace and budgeted else None,
    )


def _tenths(answer: ArmAnswer) -> list[int]:
    size = len(answer.token_ids)
    return [TENTHS * entry.position // size for entry in answer.exceptions or ()]


def _places(answers: list[ArmAnswer]) -> tuple[int, ...]:
    tenths = [tenth for answer in answers for tenth in _tenths(answer)]
    return tuple(int(n) for n in np.bincount(np.array(tenths, np.int64), minlength=TENTHS))


def _spent(answers: list[ArmAnswer]) -> tuple[float, ...]:
    shares = np.zeros((len(answers), TENTHS))
    for row, answer in zip(shares, answers, strict=True):
        for tenth, entry in zip(_tenths(answer), answer.exceptions or (), strict=True):
            row[tenth] += entry.regret / answer.budget
    return tuple(float(share) for share in shares.cumsum(axis=1).mean(axis=0))
