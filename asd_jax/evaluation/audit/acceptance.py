"""How many tokens a target forward yields in either arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from asd_jax.evaluation.audit.answers import ArmAnswer
from asd_jax.evaluation.audit.measures import ArmMeasures, Measures
from asd_jax.evaluation.audit.pairs import Pairs
from asd_jax.evaluation.audit.ratios import change_interval, ratio_interval
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval


@dataclasses.dataclass(frozen=True)
class ArmAcceptance:
    """What the rounds of one arm yield.

    Attributes:
      tokens_per_forward: Tokens that rounds emitted over rounds, the target's own token included
        and the one of each prefill not; resampled by request. None if there was no round.
      accept_histogram: Rounds by number of committed draft tokens. [G + 1]
      kept_share: Share of all rounds in which each draft position was committed. [G]
    """

    tokens_per_forward: Interval | None
    accept_histogram: tuple[int, ...]
    kept_share: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Both arms.

    Attributes:
      strict: The strict arm.
      asd: The ASD arm.
      change_percent: Change of the tokens per forward, paired by request; None if an arm had no
        round or no token.
    """

    strict: ArmAcceptance
    asd: ArmAcceptance
    change_percent: Interval | None


def acceptance(pairs: Pairs, measures: Measures, bootstrap: Bootstrap) -> Acceptance:
    """Compares what a target forward yields."""
    strict, asd = measures.strict, measures.asd
    return Acceptance(
        strict=_arm([pair.strict for pair in pairs], strict, bootstrap),
        asd=_arm([pair.asd for pair in pairs], asd, bootstrap),
        change_percent=change_interval(
            [((asd.round_tokens, asd.rounds), (strict.round_tokens, strict.rounds))], bootstrap
        ),
    )


def _arm(
    answers: Sequence[ArmAnswer], measures: ArmMeasures, bootstrap: Bootstrap
) -> ArmAcceptance:
    histogram = np.zeros(max(len(answer.accept_histogram) for answer in answers), np.int64)
    for answer in answers:
        histogram[: len(answer.accept_histogram)] += answer.accept_histogram
    rounds = max(int(histogram.sum()), 1)
    return ArmAcceptance(
        tokens_per_forward=ratio_interval(measures.round_tokens, measures.rounds, bootstrap),
        accept_histogram=tuple(int(n) for n in histogram),
        kept_share=tuple(float(histogram[g:].sum() / rounds) for g in range(1, histogram.size)),
    )
