"""How far ASD's answers drift from strict decoding's: length, where they part, how they end."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

import numpy as np

from asd_jax.evaluation.audit.answers import FINISH_REASONS, ArmAnswer
from asd_jax.evaluation.audit.measures import NO_POSITION, Measures
from asd_jax.evaluation.audit.pairs import Pairs
from asd_jax.evaluation.audit.ratios import change_interval
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.intervals import mean_difference_interval
from asd_jax.evaluation.statistics.paired import wilson_interval

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclasses.dataclass(frozen=True)
class Length:
    """Tokens of an answer, all turns together.

    Attributes:
      strict_mean: Mean of strict decoding's answers, tokens.
      asd_mean: Mean of ASD's, tokens.
      difference: ASD's mean less strict's, tokens, paired.
      change_percent: 100 (ASD's mean / strict's - 1), paired; None if all strict answers are empty.
    """

    strict_mean: float
    asd_mean: float
    difference: Interval
    change_percent: Interval | None


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Whose token ids differ at all.

    Attributes:
      num_different: Requests whose answers differ.
      share: Their share, Wilson's interval.
      without_exception: Those of them that part at another place than ASD's first exception: the
        rule is not what parted them, but arithmetic that differs in its last bits. None if that
        cannot be told without a trace.
    """

    num_different: int
    share: Interval
    without_exception: int | None


@dataclasses.dataclass(frozen=True)
class Stops:
    """How answers end, turn by turn; a turn is an answer to a prompt of its own.

    Attributes:
      num: Turns of one arm.
      strict: Turns by finish reason.
      asd: Turns by finish reason.
      earlier: Turns that ASD ends by a stop id after fewer tokens than strict decoding has.
      later: Turns that ASD ends by a stop id after more tokens than strict decoding has.
      only_strict: Turns that strict decoding ends by a stop id and ASD does not end at all.
      only_asd: Turns that ASD ends by a stop id and strict decoding does not end at all.
    """

    num: int
    strict: Mapping[str, int]
    asd: Mapping[str, int]
    earlier: int
    later: int
    only_strict: int
    only_asd: int


def length(measures: Measures, bootstrap: Bootstrap) -> Length:
    """Compares how long the answers are."""
    strict, asd = measures.strict.tokens, measures.asd.tokens
    ones = np.ones_like(strict)
    return Length(
        strict_mean=float(strict.mean()),
        asd_mean=float(asd.mean()),
        difference=mean_difference_interval(asd, strict, bootstrap),
        change_percent=change_interval([((asd, ones), (strict, ones))], bootstrap),
    )


def divergence(pairs: Pairs, measures: Measures, *, confidence: float) -> Divergence:
    """Counts the answers that differ."""
    num_different = int((measures.first_divergence != NO_POSITION).sum())
    unexplained: int | None = 0
    for pair, place in zip(pairs, measures.first_divergence.tolist(), strict=True):
        if place == NO_POSITION or unexplained is None:
            continue
        if pair.asd.num_exceptions == 0:
            unexplained += 1
        elif pair.asd.exceptions is None:
            unexplained = None
        else:
            unexplained += pair.asd.exceptions[0].position != place
    return Divergence(
        num_different=num_different,
        share=wilson_interval(num_different, len(pairs), confidence=confidence),
        without_exception=unexplained,
    )


def first_divergence(measures: Measures) -> dict[str, float] | None:
    """Returns quantiles of the first token position where differing answers part, from 0.

    Linear between neighbours; None if no answers differ.
    """
    places = measures.first_divergence[measures.first_divergence != NO_POSITION]
    if not places.size:
        return None
    return {f"{q:g}": float(np.quantile(places, q)) for q in QUANTILES}


def stops(pairs: Pairs) -> Stops:
    """Compares how the turns end."""
    counts = dict.fromkeys(("earlier", "later", "only_strict", "only_asd"), 0)
    for pair in pairs:
        for old, new in zip(pair.strict.turns, pair.asd.turns, strict=True):
            ends = (old.finish_reason == "stop", new.finish_reason == "stop")
            longer = len(new.token_ids) - len(old.token_ids)
            counts["earlier"] += ends[1] and longer < 0
            counts["later"] += ends[1] and longer > 0
            counts["only_strict"] += ends == (True, False)
            counts["only_asd"] += ends == (False, True)
    strict = _reasons([pair.strict for pair in pairs])
    asd = _reasons([pair.asd for pair in pairs])
    return Stops(num=sum(strict.values()), strict=strict, asd=asd, **counts)


def _reasons(answers: list[ArmAnswer]) -> dict[str, int]:
    counts = collections.Counter(turn.finish_reason for each in answers for turn in each.turns)
    return {reason: counts[reason] for reason in FINISH_REASONS}
