"""Tokens and seconds of one task by role, and the figures that are taken of them.

What is resampled is the batch, all its repeats together: timings of one prompt are alike. A task of
a single batch has nothing but its repeats to resample, which tells about the clock and not about
other prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from asd_jax.evaluation.statistics.bcb import Role
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval, bootstrap_interval
from asd_jax.evaluation.throughput.measurements import (
    AFTER,
    BEFORE,
    CANDIDATE,
    GREEDY,
    Measured,
    Unit,
)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Units = Mapping[Unit, Mapping[str, Measured]]
BATCHES, REPEATS = "batches", "repeats"


@dataclasses.dataclass(frozen=True)
class Clock:
    """Work and time of one task under one clock.

    Attributes:
      tokens: By role, of each resampled unit. [N].
      seconds: Likewise.
    """

    tokens: Mapping[str, Floats]
    seconds: Mapping[str, Floats]

    @property
    def size(self) -> int:
        """N."""
        return int(self.tokens[BEFORE].size)

    def rate(self, role: str, drawn: Indices | slice = slice(None)) -> Floats:
        """Returns tokens per second of the drawn units together: [..., M] to [...]."""
        tokens, seconds = self.tokens[role][drawn], self.seconds[role][drawn]
        return np.asarray(tokens.sum(axis=-1) / seconds.sum(axis=-1), np.float64)

    def baseline(self, drawn: Indices | slice = slice(None)) -> Floats:
        """Returns the mean of the two strict rates, as the B-C-B protocol has it."""
        return (self.rate(BEFORE, drawn) + self.rate(AFTER, drawn)) / 2

    def gain_percent(self, drawn: Indices | slice = slice(None)) -> Floats:
        """Returns by how many percent the candidate's rate is above the baseline's."""
        baseline = self.baseline(drawn)
        return 100 * (self.rate(CANDIDATE, drawn) - baseline) / baseline

    def strict_over_greedy(self, drawn: Indices | slice = slice(None)) -> Floats:
        """Returns the baseline's rate over that of decoding without a drafter."""
        return self.baseline(drawn) / self.rate(GREEDY, drawn)

    def candidate_over_greedy(self, drawn: Indices | slice = slice(None)) -> Floats:
        """Returns the candidate's rate over that of decoding without a drafter."""
        return self.rate(CANDIDATE, drawn) / self.rate(GREEDY, drawn)

    def roles(self) -> tuple[Role, Role, Role]:
        """Returns the three roles for `bcb.judge`."""
        before, candidate, after = (
            Role(float(self.rate(role)), int(self.tokens[role].sum()))
            for role in (BEFORE, CANDIDATE, AFTER)
        )
        return before, candidate, after


def resampled(units: Units) -> str:
    """Returns what the units of a task are resampled by: "batches", or "repeats" of a single one.

    Raises:
      ValueError: There are fewer than two units: no interval can be given.
    """
    if len(units) < 2:
        raise ValueError(f"units: got {len(units)}, needs 2 or more for an interval")
    return BATCHES if len({unit.batch for unit in units}) > 1 else REPEATS


def request_clock(units: Units, *, by: str) -> Clock:
    """Returns the clock of whole requests: prefills and rounds, and all tokens.

    Args:
      units: Of one task, complete.
      by: "batches" or "repeats", what becomes one number.
    """
    return Clock(
        _sums(units, by, lambda row: row.tokens),
        _sums(units, by, lambda row: row.seconds),
    )


def rounds_clock(units: Units, *, by: str) -> Clock:
    """Returns the clock of rounds alone, with the tokens that they emitted."""
    return Clock(
        _sums(units, by, lambda row: row.round_tokens),
        _sums(units, by, lambda row: row.rounds_seconds),
    )


def interval(
    clocks: Sequence[Clock], figure: Callable[[Clock, Indices], Floats], bootstrap: Bootstrap
) -> Interval:
    """Returns the interval of a figure, as a mean over tasks of the same weight.

    Args:
      clocks: One of each task, N >= 2 each; units are resampled within them.
      figure: A method of `Clock` that takes drawn units, such as `Clock.gain_percent`.
      bootstrap: How to resample.
    """

    def statistic(*drawn: Indices) -> Floats:
        figures = [figure(clock, index) for clock, index in zip(clocks, drawn, strict=True)]
        # They differ in shape where one task at a time loses a unit (jackknife).
        return np.asarray(np.mean(np.broadcast_arrays(*figures), axis=0), np.float64)

    return bootstrap_interval(statistic, [clock.size for clock in clocks], bootstrap)


def pooled(clocks: Sequence[Clock]) -> Clock:
    """Returns all tasks as one: every token and every second counts the same."""
    tokens, seconds = (
        {
            role: np.concatenate([getattr(clock, name)[role] for clock in clocks])
            for role in clocks[0].tokens
        }
        for name in ("tokens", "seconds")
    )
    return Clock(tokens, seconds)


def _sums(units: Units, by: str, amount: Callable[[Measured], float]) -> dict[str, Floats]:
    """Adds up by role what belongs to the same batch, or the same repeat."""
    labels = [unit.batch if by == BATCHES else unit.repeat for unit in units]
    places = np.unique(labels, return_inverse=True)[1]
    roles = next(iter(units.values())).keys()
    return {
        role: np.bincount(places, [amount(rows[role]) for rows in units.values()]).astype(float)
        for role in roles
    }
