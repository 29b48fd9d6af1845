"""The authors' B-C-B protocol: a candidate measured between two runs of the strict baseline.

The closing baseline shows whether the machine drifted while the candidate ran. Speed is measured
on fixed work (every role emits the same number of tokens), quality on answers that end by
themselves; one run never serves both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Role:
    """One of the three runs.

    Attributes:
      tokens_per_second: Emitted tokens over wall seconds.
      completion_tokens: Emitted tokens in total; None if they were not counted.
    """

    tokens_per_second: float
    completion_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tokens_per_second < math.inf:
            raise ValueError(
                f"tokens_per_second: got {self.tokens_per_second}, needs a positive finite number"
            )


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is asked of a candidate; the defaults are the authors'.

    Attributes:
      max_drift_percent: Largest change from opening to closing baseline, in either direction.
      min_gain_percent: Smallest gain in tokens per second that meets the target.
      min_accuracy_delta: Smallest change of accuracy, in percentage points.
      max_length_change_percent: Largest change of answer length, in either direction.
    """

    max_drift_percent: float = 3.0
    min_gain_percent: float = 5.0
    min_accuracy_delta: float = -1.0
    max_length_change_percent: float = 3.0


@dataclasses.dataclass(frozen=True)
class BcbResult:
    """Figures and four verdicts that are reported apart.

    Attributes:
      baseline: Mean tokens per second of the two strict runs.
      gain_percent: Candidate against `baseline`.
      drift_percent: Closing against opening baseline.
      protocol_valid: The speed figures may be used at all.
      speed_target_met: The protocol is valid and the gain is large enough.
      quality_constraints_met: None where no quality was measured.
      overall_success: All three hold; a quality that was not measured does not.
      reasons: Why verdicts are not True, as fixed names, in the order above.
    """

    baseline: float
    gain_percent: float
    drift_percent: float
    protocol_valid: bool
    speed_target_met: bool
    quality_constraints_met: bool | None
    overall_success: bool
    reasons: tuple[str, ...]


def judge(
    before: Role,
    candidate: Role,
    after: Role,
    *,
    fixed_work: bool,
    accuracy_delta: float | None = None,
    length_change_percent: float | None = None,
    limits: Limits | None = None,
) -> BcbResult:
    """Judges a candidate.

    Args:
      before: Opening run of the strict baseline.
      candidate: The run between.
      after: Closing run of the strict baseline.
      fixed_work: All roles must have emitted the same number of tokens. Otherwise answers ended by
        themselves and totals are not compared.
      accuracy_delta: Candidate's accuracy less strict's, in percentage points. None: not measured.
      length_change_percent: Candidate's mean answer length against strict's. None: not measured.
      limits: The authors' if not given.

    Raises:
      ValueError: An accuracy or length is not finite.
    """
    limits = limits or Limits()
    baseline = (before.tokens_per_second + after.tokens_per_second) / 2
    gain = percent_change(candidate.tokens_per_second, baseline)
    drift = percent_change(after.tokens_per_second, before.tokens_per_second)
    protocol = []
    if abs(drift) > limits.max_drift_percent:
        protocol.append("baseline_drift_exceeds_limit")
    if fixed_work:
        protocol += _token_reasons([before, candidate, after])
    speed = ["gain_below_target"] if gain < limits.min_gain_percent else []
    quality = _quality_reasons(accuracy_delta, length_change_percent, limits)
    is_measured = accuracy_delta is not None or length_change_percent is not None
    return BcbResult(
        baseline=baseline,
        gain_percent=gain,
        drift_percent=drift,
        protocol_valid=not protocol,
        speed_target_met=not protocol and not speed,
        quality_constraints_met=not quality if is_measured else None,
        overall_success=not (protocol or speed or quality),
        reasons=(*protocol, *speed, *quality),
    )


def percent_change(new: float, old: float) -> float:
    """Returns by how many percent `new` is above `old`.

    The difference is taken first: 100 * (new / old - 1) puts 103 against 100 above 3 percent.
    """
    return 100 * (new - old) / old


def _token_reasons(roles: Sequence[Role]) -> list[str]:
    totals = {role.completion_tokens for role in roles}
    if None in totals:
        return ["completion_tokens_missing"]
    return ["completion_tokens_differ"] if len(totals) > 1 else []


def _quality_reasons(
    accuracy_delta: float | None, length_change: float | None, limits: Limits
) -> list[str]:
    given = {"accuracy_delta": accuracy_delta, "length_change_percent": length_change}
    for name, number in given.items():
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{name}: got {number}, needs a finite number")
    if accuracy_delta is None and length_change is None:
        return ["quality_not_measured"]
    reasons = []
    if accuracy_delta is None:
        reasons.append("accuracy_delta_missing")
    elif accuracy_delta < limits.min_accuracy_delta:
        reasons.append("accuracy_delta_below_limit")
    if length_change is None:
        reasons.append("length_change_missing")
    elif abs(length_change) > limits.max_length_change_percent:
        reasons.append("length_change_exceeds_limit")
    return reasons
