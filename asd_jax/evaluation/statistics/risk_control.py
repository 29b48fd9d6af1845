"""Learn then Test: the fastest setting whose risk is bounded with a stated probability.

Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then Test: Calibrating Predictive Algorithms to
Achieve Risk Control" (arXiv 2110.01052). Every setting's null hypothesis is "its risk is above
epsilon"; a setting is certified if that is rejected while the chance of any false rejection stays
below delta. Whichever certified setting is then taken, its expected loss on a new example of the
same kind is at most epsilon, with probability 1 - delta over the calibration examples.

A loss here is what a setting costs against strict decoding on the same example, for instance 1
where strict is right and the setting is not and 0 elsewhere, or the signed difference in [-1, 1].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.p_values import p_values

T = TypeVar("T")
CORRECTIONS = ("fixed_sequence", "bonferroni")


@dataclasses.dataclass(frozen=True)
class Choice(Generic[T]):
    """Which setting to run.

    Attributes:
      setting: The fastest certified one; None means strict decoding, whose loss is 0 by definition
        and which needs no certificate.
      index: Its place among the settings, or None.
      certified: Places of all certified settings, ascending.
      p_values: Of all settings, before any correction. [S].
      risks: Mean losses on the calibration examples. [S].
      reason: Why this one, in words.
    """

    setting: T | None
    index: int | None
    certified: tuple[int, ...]
    p_values: tuple[float, ...]
    risks: tuple[float, ...]
    reason: str


def choose(
    settings: Sequence[T],
    losses: npt.ArrayLike,
    speed: npt.ArrayLike,
    epsilon: float,
    delta: float,
    method: str = "hoeffding_bentkus",
    *,
    correction: str = "fixed_sequence",
    loss_range: tuple[float, float] = (0.0, 1.0),
    strict_speed: float | None = None,
) -> Choice[T]:
    """Chooses the fastest of S settings among those whose risk is certified.

    The order of the settings and the range of the losses must not have been read off these
    examples. Speed may have been: certificates hold for all certified settings at once.

    Args:
      settings: From the safest to the fastest; the order matters to `fixed_sequence` alone.
      losses: Of each setting on each of the N examples. [S, N].
      speed: Larger is better, in any unit. [S].
      epsilon: Largest risk to be accepted, in units of the loss, inside `loss_range`.
      delta: Largest probability that the chosen setting's risk is above `epsilon`.
      method: One of `p_values.METHODS`.
      correction: See `certify`.
      loss_range: Smallest and largest possible loss.
      strict_speed: Speed of strict decoding. If given, a setting that is not faster is not chosen.

    Raises:
      ValueError: A shape, number or name is none of these, or a loss lies outside its range.
    """
    rates = np.asarray(speed, np.float64)
    table = np.asarray(losses, np.float64)
    if not settings or rates.shape != (len(settings),) or table.shape[:-1] != rates.shape:
        raise ValueError(
            f"got {len(settings)} settings, losses {table.shape} and speed {rates.shape}, "
            "needs S of 1 or more, [S, N] and [S]"
        )
    if not np.isfinite(rates).all():
        raise ValueError(f"speed: got {rates.tolist()}, needs finite numbers")
    _check_share("delta", delta)
    computed = p_values(table, epsilon, method, loss_range=loss_range, level=delta)
    places = np.flatnonzero(certify(computed, delta, correction))
    if not places.size:
        low, high = loss_range
        needed = smallest_calibration((epsilon - low) / (high - low), delta)
        index, reason = None, f"none is certified: the smallest p-value is {computed.min():.3g}"
        if table.shape[-1] < needed:
            reason += f"; {table.shape[-1]} examples are too few, no test does with under {needed}"
    else:
        index = int(places[np.argmax(rates[places])])
        reason = f"the fastest of {places.size} certified"
        if strict_speed is not None and rates[index] <= strict_speed:
            index, reason = None, f"{reason} is not faster than strict decoding"
    return Choice(
        setting=None if index is None else settings[index],
        index=index,
        certified=tuple(map(int, places)),
        p_values=tuple(map(float, computed)),
        risks=tuple(map(float, table.mean(axis=-1))),
        reason=reason,
    )


def certify(
    values: npt.ArrayLike, delta: float, correction: str = "fixed_sequence"
) -> npt.NDArray[np.bool_]:
    """Returns which null hypotheses are rejected: [..., S] to [..., S].

    The chance that a true one is among them is at most delta, however the p-values depend on each
    other.

    Args:
      values: P-values, of the safest setting first. [..., S].
      delta: In (0, 1).
      correction: `fixed_sequence` tests one setting after the other at delta and ends at the first
        that fails, which is the stronger where risk grows along the order. `bonferroni` tests every
        setting at delta / S.

    Raises:
      ValueError: The p-values have no axis, delta is out of range or the correction is unknown.
    """
    computed = np.asarray(values, np.float64)
    if not computed.ndim:
        raise ValueError("values: got one number, needs [..., S]")
    _check_share("delta", delta)
    if correction == "fixed_sequence":
        return np.logical_and.accumulate(computed <= delta, axis=-1)
    if correction == "bonferroni":
        return computed <= delta / computed.shape[-1]
    raise ValueError(f"correction: got {correction!r}, needs one of {', '.join(CORRECTIONS)}")


def smallest_calibration(epsilon: float, delta: float) -> int:
    """Returns how many examples it takes to certify a setting that never loses anything.

    A setting of risk epsilon shows no loss on N examples with probability (1 - epsilon) ** N, so no
    test can certify with fewer: 459 for 1 % at 99 % confidence, 230 at 90 %.

    Args:
      epsilon: Risk, for losses in [0, 1]; in (0, 1).
      delta: Probability of error, in (0, 1).

    Raises:
      ValueError: One is out of range.
    """
    _check_share("epsilon", epsilon)
    _check_share("delta", delta)
    return math.ceil(math.log(delta) / math.log1p(-epsilon))


def _check_share(name: str, number: float) -> None:
    if not 0 < number < 1:
        raise ValueError(f"{name}: got {number}, needs a number between 0 and 1")
