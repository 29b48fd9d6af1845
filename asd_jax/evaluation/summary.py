"""Adds up rows and measurements: what each arm came to, and how the arms compare.

What was decoded (tokens, rounds, exceptions) is counted over all rows of the output file. What it
cost in time is counted over the batches of this run only, and arms are compared only over batches
that both of them ran, interleaved.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.arms import GREEDY
from asd_jax.evaluation.drafter_cost import DrafterCost
from asd_jax.evaluation.interleaved import Measurement
from asd_jax.evaluation.whole_files import write_text

NOTES = {
    "acceptance_length": (
        "tokens emitted per target forward, the target's own token included; the token that a "
        "prefill emits is not counted"
    ),
    "position_acceptance": "share of all rounds in which draft position g was committed",
    "tokens_per_second": (
        "tokens emitted by rounds over seconds of rounds, summed over the batches of this run"
    ),
    "tokens_per_second_with_prefill": "all tokens over seconds of prefills and rounds, likewise",
    "ratios": (
        "tokens_per_second is the ratio of the two arms' medians over the batches of this run that "
        "both decoded, interleaved; acceptance_length is the ratio over all requests that both "
        "arms answered"
    ),
    "same_as_greedy": "answers whose token ids equal those of arm greedy, of those that both gave",
}


def summary_path(output: str | Path) -> Path:
    """Returns where the summary of an output goes: `x.jsonl` -> `x.summary.json`."""
    path = Path(output)
    stem = path.stem if path.suffix == ".jsonl" else path.name
    return path.with_name(f"{stem}.summary.json")


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Writes a summary, whole or not at all.

    Raises:
      OSError: The file cannot be written.
    """
    text = json.dumps(summary, ensure_ascii=False, allow_nan=False, indent=1)
    write_text(path, text + "\n")


@dataclasses.dataclass
class _Count:
    """What the rows of one request and arm, or of one arm, came to."""

    requests: int = 0
    tokens: int = 0
    round_tokens: int = 0
    rounds: int = 0
    exceptions: int = 0
    reused: int = 0
    spent: float = 0.0
    proposed: int = 0
    accepted: int = 0
    exhausted: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Count:
        ledger = row["ledger"]
        turns = row.get("turns", [row])
        return cls(
            requests=1,
            tokens=row["completion_tokens"],
            round_tokens=sum(max(turn["completion_tokens"] - 1, 0) for turn in turns),
            rounds=ledger["rounds"],
            exceptions=ledger["exceptions"],
            reused=ledger["reused"],
            spent=ledger["spent"],
            proposed=ledger["proposed"],
            accepted=ledger["accepted"],
            exhausted=int(ledger["exhausted_at"] >= 0),
        )

    def add(self, other: _Count) -> None:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def acceptance_length(self) -> float:
        return self.round_tokens / self.rounds if self.rounds else 0.0


class Tally:
    """Counts rows and measurements as they come; `summary` can be asked at any time."""

    def __init__(self, arms: Sequence[str]) -> None:
        """Starts at nothing.

        Args:
          arms: Names in the order of the table. Arms that only the file knows are added behind.
        """
        self._arms = list(arms)
        self._totals: dict[str, _Count] = {}
        self._counts: dict[tuple[str, str], _Count] = {}  # by arm and id
        self._tokens: dict[tuple[str, str], int] = {}  # hashes of the token ids, likewise
        self._histograms: dict[str, list[int]] = {}
        self._finish: dict[str, collections.Counter[str]] = {}
        self._measurements: list[Measurement] = []
        self._drafter: DrafterCost | None = None

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Counts one output row."""
        arm, count = row["arm"], _Count.of(row)
        if arm not in self._arms:
            self._arms.append(arm)
        self._totals.setdefault(arm, _Count()).add(count)
        self._counts[arm, row["id"]] = count
        self._tokens[arm, row["id"]] = hash(tuple(row["token_ids"]))
        self._finish.setdefault(arm, collections.Counter())[row["finish_reason"]] += 1
        new = row["accept_histogram"]
        old = self._histograms.get(arm, [])
        size = max(len(old), len(new))
        self._histograms[arm] = [
            sum(part[i] for part in (old, new) if i < len(part)) for i in range(size)
        ]

    def add_measurement(self, measurement: Measurement) -> None:
        """Counts the time of one batch under one arm."""
        self._measurements.append(measurement)

    def add_drafter_cost(self, cost: DrafterCost) -> None:
        """Remembers what a proposal costs."""
        self._drafter = cost

    def summary(self) -> dict[str, Any]:
        """Returns what was counted, made of plain JSON types.

        `arms`, `ratios`, `measurements`, `notes`, and `drafter`: the cost of a proposal, None where
        nothing was proposed in this run.
        """
        arms = [arm for arm in self._arms if arm in self._totals]
        pairs = [(a, b) for i, a in enumerate(arms) for b in arms[:i]]
        return {
            "arms": {arm: self._arm(arm) for arm in arms},
            "ratios": {f"{a}/{b}": self._ratios(a, b) for a, b in pairs},
            "measurements": [dataclasses.asdict(m) for m in self._measurements],
            "drafter": None if self._drafter is None else dataclasses.asdict(self._drafter),
            "notes": dict(NOTES),
        }

    def _arm(self, arm: str) -> dict[str, Any]:
        total = self._totals[arm]
        histogram = self._histograms[arm]
        return {
            "requests": total.requests,
            "tokens": total.tokens,
            "rounds": total.rounds,
            "acceptance_length": total.acceptance_length,
            "accept_histogram": histogram,
            "position_acceptance": [
                sum(histogram[g + 1 :]) / max(total.rounds, 1) for g in range(len(histogram) - 1)
            ],
            "proposed": total.proposed,
            "accepted": total.accepted,
            "exceptions_per_request": total.exceptions / total.requests,
            "reused_per_request": total.reused / total.requests,
            "regret_per_request": total.spent / total.requests,
            "budget_exhausted": total.exhausted,
            "finish_reasons": dict(sorted(self._finish[arm].items())),
            "same_as_greedy": self._same_as_greedy(arm),
            **self._speed(arm),
        }

    def _speed(self, arm: str) -> dict[str, Any]:
        measured = [m for m in self._measurements if m.arm == arm]
        rounds_seconds = sum(m.rounds_seconds for m in measured)
        prefill_seconds = sum(m.prefill_seconds for m in measured)
        return {
            "timed_batches": len(measured),
            "timed_requests": sum(m.requests for m in measured),
            "prefill_seconds": prefill_seconds,
            "rounds_seconds": rounds_seconds,
            "tokens_per_second": _rate(sum(m.round_tokens for m in measured), rounds_seconds),
            "tokens_per_second_with_prefill": _rate(
                sum(m.tokens for m in measured), rounds_seconds + prefill_seconds
            ),
        }

    def _same_as_greedy(self, arm: str) -> dict[str, int] | None:
        both = [i for a, i in self._tokens if a == arm and (GREEDY, i) in self._tokens]
        if arm == GREEDY or not both:
            return None
        same = sum(self._tokens[arm, i] == self._tokens[GREEDY, i] for i in both)
        return {"same": same, "of": len(both)}

    def _ratios(self, a: str, b: str) -> dict[str, Any]:
        """Compares arm `a` with arm `b`; None where there is nothing to compare."""
        rates: dict[str, dict[int, float]] = {a: {}, b: {}}
        for m in self._measurements:
            rate = _rate(m.round_tokens, m.rounds_seconds)
            if m.arm in rates and rate:
                rates[m.arm][m.batch] = rate
        batches = sorted(rates[a].keys() & rates[b].keys())
        speed = None
        if batches:
            medians = [statistics.median(rates[arm][i] for i in batches) for arm in (a, b)]
            speed = medians[0] / medians[1]
        totals = [_Count(), _Count()]
        for arm, request in self._counts:
            if arm == a and (b, request) in self._counts:
                totals[0].add(self._counts[a, request])
                totals[1].add(self._counts[b, request])
        lengths = [total.acceptance_length for total in totals]
        return {
            "tokens_per_second": speed,
            "batches": len(batches),
            "acceptance_length": lengths[0] / lengths[1] if lengths[1] else None,
            "requests": totals[0].requests,
        }


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None
