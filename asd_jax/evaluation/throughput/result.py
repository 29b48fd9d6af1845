"""What a throughput study found, task by task and as a mean over tasks.

The gates are the authors' (`statistics.bcb.judge`): the baseline drifted by at most 3 percent and
all roles emitted the same number of tokens. One more is ours: both strict roles emitted the very
same token ids, each time. Where a gate fails nothing is called a gain; the numbers stay, as raw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asd_jax.evaluation.statistics.bcb import BcbResult, Limits, judge, percent_change
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.throughput.clocks import (
    REPEATS,
    Clock,
    Units,
    interval,
    pooled,
    request_clock,
    resampled,
    rounds_clock,
)
from asd_jax.evaluation.throughput.measurements import (
    AFTER,
    BEFORE,
    CANDIDATE,
    GREEDY,
    Measured,
)

INVALID, FASTER, SLOWER, NO_DIFFERENCE = (
    "protocol invalid", "faster", "slower", "no difference shown",
)  # fmt: skip
_TOKENS_DIFFER, _STRICT_DIFFERS = "completion_tokens_differ", "strict_token_ids_differ"
# What `judge` says beside the protocol: quality is never measured on fixed work.
_NOT_PROTOCOL = ("gain_below_target", "quality_not_measured")
DEFAULT = Bootstrap()


@dataclasses.dataclass(frozen=True)
class Speed:
    """Figures of speed that a task has, and a mean over tasks likewise.

    Attributes:
      verdict: `INVALID`, or what the interval of the gain shows.
      protocol_valid: Whether all gates hold.
      reasons: Gates that fail, as fixed names.
      speed_target_met: The protocol is valid and the gain is 5 percent or more.
      gain_percent: Candidate against strict over whole requests, prefill included; None where a
        gate fails.
      rounds_gain_percent: Over rounds alone; None where a gate fails.
      raw_gain_percent: As `gain_percent`, whatever the gates say.
      raw_rounds_gain_percent: As `rounds_gain_percent`, whatever the gates say.
      drift_percent: Closing against opening strict role, over whole requests.
      baseline_tokens_per_second: Mean of the strict roles, over whole requests.
      candidate_tokens_per_second: Over whole requests.
      strict_over_greedy: Tokens per second of strict decoding over those without a drafter, whole
        requests; None where that was not measured.
      candidate_over_greedy: Likewise of the candidate.
      tokens_per_forward: Of both, tokens that rounds emitted over target forwards; the target's own
        token counts, the prefill's does not.
      exceptions_per_request: Of the candidate.
      regret_per_request: Of the candidate, logits.
    """

    verdict: str
    protocol_valid: bool
    reasons: tuple[str, ...]
    speed_target_met: bool
    gain_percent: Interval | None
    rounds_gain_percent: Interval | None
    raw_gain_percent: Interval
    raw_rounds_gain_percent: Interval
    drift_percent: float
    baseline_tokens_per_second: float
    candidate_tokens_per_second: float
    strict_over_greedy: Interval | None
    candidate_over_greedy: Interval | None
    tokens_per_forward: Mapping[str, float]
    exceptions_per_request: float
    regret_per_request: float


@dataclasses.dataclass(frozen=True)
class TaskSpeed:
    """One task.

    Attributes:
      num_prompts: Requests of each role in a repeat.
      num_batches: Batches that they make.
      num_repeats: How often each batch was measured.
      resampled: What the intervals resample, "batches" (all repeats of one together) or "repeats".
      tokens_per_role: Tokens that each role emitted in all; None where they differ.
      repeats_drift_percent: The drift in each repeat alone. The gate is on all of them together,
        as the gain is.
      same_as_greedy: Share of the batches in which strict decoding emits the token ids of decoding
        without a drafter; None where that was not measured. No gate: forwards of other widths
        round in another way.
      speed: The figures.
    """

    num_prompts: int
    num_batches: int
    num_repeats: int
    resampled: str
    tokens_per_role: int | None
    repeats_drift_percent: tuple[float, ...]
    same_as_greedy: float | None
    speed: Speed


@dataclasses.dataclass(frozen=True)
class _Clocks:
    """A task's clocks, with the same units resampled in both."""

    request: Clock
    rounds: Clock


def measure_tasks(
    tasks: Mapping[str, Units], bootstrap: Bootstrap = DEFAULT
) -> tuple[dict[str, TaskSpeed], Speed]:
    """Returns the figures of each task and of their mean.

    Args:
      tasks: By name, the complete units of each, 2 or more; all with the same roles.
      bootstrap: How to resample.

    Raises:
      ValueError: There is no task, or one has fewer than two units.
    """
    if not tasks:
        raise ValueError("tasks: got none, needs 1 or more")
    clocks = {name: _clocks(name, units) for name, units in tasks.items()}
    found = {name: _task(units, clocks[name], bootstrap) for name, units in tasks.items()}
    return found, _mean(found, list(clocks.values()), bootstrap)


def _clocks(name: str, units: Units) -> _Clocks:
    try:
        by = resampled(units)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return _Clocks(request_clock(units, by=by), rounds_clock(units, by=by))


def _task(units: Units, clocks: _Clocks, bootstrap: Bootstrap) -> TaskSpeed:
    judged = judge(*clocks.request.roles(), fixed_work=True)
    totals = {int(tokens.sum()) for tokens in clocks.request.tokens.values()}
    prompts = {(unit.batch, i) for unit, rows in units.items() for i in rows[BEFORE].ids}
    batches = {unit.batch for unit in units}
    speed = _speed(
        [clocks],
        judged,
        _protocol_reasons(judged, units),
        bootstrap,
        baseline=judged.baseline,
        candidate=float(clocks.request.rate(CANDIDATE)),
        **_counts(units),
    )
    return TaskSpeed(
        num_prompts=len(prompts),
        num_batches=len(batches),
        num_repeats=len({unit.repeat for unit in units}),
        resampled=resampled(units),
        tokens_per_role=totals.pop() if len(totals) == 1 else None,
        repeats_drift_percent=_repeats_drift(units),
        same_as_greedy=_same_as_greedy(units),
        speed=speed,
    )


def _mean(
    tasks: Mapping[str, TaskSpeed],
    clocks: Sequence[_Clocks],
    bootstrap: Bootstrap,
) -> Speed:
    """Every task weighs the same in a figure; the gates are on all work together and on each."""
    judged = judge(*pooled([task.request for task in clocks]).roles(), fixed_work=True)
    reasons = [reason for reason in judged.reasons if reason not in _NOT_PROTOCOL]
    reasons += [f"{name}: {why}" for name, task in tasks.items() for why in task.speed.reasons]
    speeds = [task.speed for task in tasks.values()]

    def mean(name: str) -> float:
        return float(np.mean([getattr(speed, name) for speed in speeds]))

    return _speed(
        clocks,
        judged,
        tuple(reasons),
        bootstrap,
        baseline=mean("baseline_tokens_per_second"),
        candidate=mean("candidate_tokens_per_second"),
        tokens_per_forward={
            arm: float(np.mean([speed.tokens_per_forward[arm] for speed in speeds]))
            for arm in speeds[0].tokens_per_forward
        },
        exceptions_per_request=mean("exceptions_per_request"),
        regret_per_request=mean("regret_per_request"),
    )


def _speed(
    clocks: Sequence[_Clocks],
    judged: BcbResult,
    reasons: tuple[str, ...],
    bootstrap: Bootstrap,
    *,
    baseline: float,
    candidate: float,
    tokens_per_forward: Mapping[str, float],
    exceptions_per_request: float,
    regret_per_request: float,
) -> Speed:
    request, rounds = [task.request for task in clocks], [task.rounds for task in clocks]
    gain = interval(request, Clock.gain_percent, bootstrap)
    rounds_gain = interval(rounds, Clock.gain_percent, bootstrap)
    is_valid, has_greedy = not reasons, GREEDY in request[0].tokens
    return Speed(
        verdict=_verdict(gain) if is_valid else INVALID,
        protocol_valid=is_valid,
        reasons=reasons,
        speed_target_met=is_valid and gain.estimate >= Limits().min_gain_percent,
        gain_percent=gain if is_valid else None,
        rounds_gain_percent=rounds_gain if is_valid else None,
        raw_gain_percent=gain,
        raw_rounds_gain_percent=rounds_gain,
        drift_percent=judged.drift_percent,
        baseline_tokens_per_second=baseline,
        candidate_tokens_per_second=candidate,
        strict_over_greedy=(
            interval(request, Clock.strict_over_greedy, bootstrap) if has_greedy else None
        ),
        candidate_over_greedy=(
            interval(request, Clock.candidate_over_greedy, bootstrap) if has_greedy else None
        ),
        tokens_per_forward=tokens_per_forward,
        exceptions_per_request=exceptions_per_request,
        regret_per_request=regret_per_request,
    )


def _verdict(gain: Interval) -> str:
    return FASTER if gain.low > 0 else SLOWER if gain.high < 0 else NO_DIFFERENCE


def _protocol_reasons(judged: BcbResult, units: Units) -> tuple[str, ...]:
    reasons = [reason for reason in judged.reasons if reason not in _NOT_PROTOCOL]
    # Equal totals may hide a batch with more tokens and one with fewer.
    if any(len({row.tokens for row in rows.values()}) > 1 for rows in units.values()):
        reasons += [] if _TOKENS_DIFFER in reasons else [_TOKENS_DIFFER]
    digests: dict[int, set[str]] = {}
    for unit, rows in units.items():
        digests.setdefault(unit.batch, set()).update(rows[role].digest for role in (BEFORE, AFTER))
    if any(len(found) > 1 for found in digests.values()):
        reasons.append(_STRICT_DIFFERS)
    return tuple(reasons)


def _counts(units: Units) -> dict[str, Any]:
    """Returns what was decoded: the same in every repeat, so all of them are added up."""
    candidate = [rows[CANDIDATE] for rows in units.values()]
    strict = [rows[role] for rows in units.values() for role in (BEFORE, AFTER)]
    num_requests = sum(len(row.ids) for row in candidate)
    return {
        "tokens_per_forward": {
            "strict": _per_forward(strict),
            "candidate": _per_forward(candidate),
        },
        "exceptions_per_request": sum(sum(row.exceptions) for row in candidate) / num_requests,
        "regret_per_request": sum(sum(row.spent) for row in candidate) / num_requests,
    }


def _per_forward(rows: Sequence[Measured]) -> float:
    return sum(row.round_tokens for row in rows) / sum(sum(row.rounds) for row in rows)


def _repeats_drift(units: Units) -> tuple[float, ...]:
    clock = request_clock(units, by=REPEATS)
    return tuple(
        percent_change(float(clock.rate(AFTER, one)), float(clock.rate(BEFORE, one)))
        for one in (slice(i, i + 1) for i in range(clock.size))
    )


def _same_as_greedy(units: Units) -> float | None:
    if not all(GREEDY in rows for rows in units.values()):
        return None
    same = [rows[BEFORE].digest == rows[GREEDY].digest for rows in units.values()]
    return sum(same) / len(same)
