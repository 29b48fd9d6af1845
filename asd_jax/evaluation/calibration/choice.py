"""Which of the tried settings to take: by the estimates alone, or with a certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from asd_jax.evaluation.calibration.trials import Outcome
from asd_jax.evaluation.statistics.p_values import p_values
from asd_jax.evaluation.statistics.risk_control import choose

LOSS_RANGE = (-1.0, 1.0)
# Losses of a setting that changes nothing lie in the middle of their range, which rules out the
# test for losses at its two ends.
TESTS = ("betting", "hoeffding_bentkus")
_MOST_EXAMPLES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which setting to run.

    Attributes:
      index: Its place among the candidates; None means strict decoding.
      reason: Why, in words.
      certified: Whether each candidate's risk is certified, or None where nothing was tested. [S].
      p_values: Of each candidate, before any correction, likewise. [S].
      needed: Examples at which a setting that never differs from strict decoding is certified;
        None where nothing was tested, or beyond a million.
    """

    index: int | None
    reason: str
    certified: tuple[bool, ...] | None = None
    p_values: tuple[float, ...] | None = None
    needed: int | None = None


def fastest_within(outcomes: Sequence[Outcome], epsilon: float) -> Selection:
    """Takes the fastest setting whose mean loss on these examples is at most epsilon.

    The best of many by the same examples that it is judged by: a discovery, which says nothing of
    other examples. Of equally fast ones it is the strictest.

    Args:
      outcomes: Of S candidates from strict to loose, on the same examples, some of them graded.
      epsilon: Accuracy that may be lost, a share.

    Raises:
      ValueError: There is no candidate, or no example is graded.
    """
    losses = _losses(outcomes).mean(axis=-1)
    allowed = [place for place, loss in enumerate(losses) if loss <= epsilon]
    if not allowed:
        return Selection(
            None, f"none loses {epsilon:g} or less: the smallest loss is {losses.min():.3g}"
        )
    index = max(allowed, key=lambda place: outcomes[place].speed)
    reason = f"the fastest of {len(allowed)} whose estimated loss is at most {epsilon:g}"
    if outcomes[index].speed <= outcomes[index].strict_speed:
        return Selection(None, f"{reason} is not faster than strict decoding")
    return Selection(index, reason)


def fastest_certified(
    outcomes: Sequence[Outcome],
    epsilon: float,
    delta: float,
    *,
    test: str = "betting",
    correction: str = "fixed_sequence",
) -> Selection:
    """Takes the fastest setting whose expected loss is certified to be at most epsilon.

    Learn then Test, see `statistics.risk_control`: the chance that the setting taken loses more
    than epsilon on examples of this kind is at most delta.

    Args:
      outcomes: As in `fastest_within`.
      epsilon: Accuracy that may be lost, a share.
      delta: Probability of error.
      test: One of `TESTS`.
      correction: One of `risk_control.CORRECTIONS`.

    Raises:
      ValueError: As `fastest_within`, or a number or name is not allowed.
    """
    if test not in TESTS:
        raise ValueError(f"test: got {test!r}, allowed is one of {', '.join(TESTS)}")
    chosen = choose(
        list(range(len(outcomes))),
        _losses(outcomes),
        [outcome.speed for outcome in outcomes],
        epsilon,
        delta,
        test,
        correction=correction,
        loss_range=LOSS_RANGE,
        strict_speed=outcomes[0].strict_speed,
    )
    level = delta / len(outcomes) if correction == "bonferroni" else delta
    needed = examples_needed(epsilon, delta, test=test, level=level)
    reason = chosen.reason
    num = outcomes[0].losses.size
    # What `choose` knows of examples that are too few holds for every test, this for the one used.
    if not chosen.certified and (needed is None or num < needed):
        shown = f"over {_MOST_EXAMPLES}" if needed is None else str(needed)
        reason = (
            f"none is certified: the smallest p-value is {min(chosen.p_values):.3g}; there are "
            f"{num} examples, and even a setting that changes no answer needs {shown}"
        )
    certified = set(chosen.certified)
    return Selection(
        index=chosen.index,
        reason=reason,
        certified=tuple(place in certified for place in range(len(outcomes))),
        p_values=chosen.p_values,
        needed=needed,
    )


def examples_needed(
    epsilon: float, delta: float, *, test: str = "betting", level: float | None = None
) -> int | None:
    """Returns how many examples certify a setting that never differs from strict decoding.

    One that loses now and then needs more. With bets it is 158 for epsilon 0.02 and delta 0.1, and
    62 for epsilon 0.05; Hoeffding's and Bentkus' bounds need 8102 and 1320, as they do not see that
    losses which are all 0 do not vary.

    Args:
      epsilon: Accuracy that may be lost, a share.
      delta: Probability of error, which bets are sized for.
      test: One of `TESTS`.
      level: What the p-value is compared with; delta if not given.

    Returns:
      The number, or None if it is above a million.
    """
    most = delta if level is None else level

    def is_enough(num: int) -> bool:
        values = p_values(np.zeros(num), epsilon, test, loss_range=LOSS_RANGE, level=delta)
        return bool(values <= most)

    high = 1
    while not is_enough(high):
        high *= 2
        if high > _MOST_EXAMPLES:
            return None
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _losses(outcomes: Sequence[Outcome]) -> np.ndarray:
    """Returns the losses of all candidates. [S, M]."""
    if not outcomes:
        raise ValueError("outcomes: got none, needs 1 or more")
    losses = np.stack([outcome.losses for outcome in outcomes])
    if not losses.shape[1]:
        raise ValueError("outcomes: got no graded example, needs 1 or more")
    return losses
