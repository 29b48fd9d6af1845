"""Rows of `measurements.jsonl`: one role of one batch in one repeat, as it was timed.

The first line is `{"run": {...}}` (see `receipt`), every other line

    id                  TASK/REPEAT/BATCH, the unit that the row belongs to
    arm                 how it was decoded: strict, the rule's name, or greedy
    role                before, candidate, after or greedy
    task, repeat, batch the same as numbers; repeats and a task's batches count from 0
    ids                 the requests of the batch; lists below are in their order
    tokens              emitted tokens, all requests together
    round_tokens        those of them that rounds emitted; a request's first comes from its prefill
    prefill_seconds     until the device had finished
    rounds_seconds      likewise
    rounds              target forwards of each request, the prefill not counted
    exceptions          of each request
    spent               regret of each request, logits
    digest              SHA-256 of the emitted token ids

The roles of a unit stand one behind the other, as they ran. A row of the first role begins its unit
anew: rows of a unit that a kill had cut short stay in the file and do not count, and of a unit that
was measured several times the last whole measurement counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asd_jax.evaluation.conversation import Answer
from asd_jax.evaluation.interleaved import Measurement
from asd_jax.evaluation.records import OutputError, plain_number
from asd_jax.evaluation.statistics.bcb import percent_change

BEFORE, CANDIDATE, AFTER, GREEDY = ROLES = ("before", "candidate", "after", "greedy")


class Unit(NamedTuple):
    """What is measured in one go: all roles of one batch in one repeat."""

    task: str
    repeat: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Measured:
    """One row, as in the module's table.

    Attributes:
      unit: Task, repeat and batch.
      role: One of `ROLES`.
      ids: Requests.
      tokens: Emitted tokens.
      round_tokens: Those that rounds emitted.
      prefill_seconds: Time of the prefill.
      rounds_seconds: Time of the rounds.
      rounds: Target forwards of each request.
      exceptions: Of each request.
      spent: Logits, of each request.
      digest: Of the emitted token ids.
    """

    unit: Unit
    role: str
    ids: tuple[str, ...]
    tokens: int
    round_tokens: int
    prefill_seconds: float
    rounds_seconds: float
    rounds: tuple[int, ...]
    exceptions: tuple[int, ...]
    spent: tuple[float, ...]
    digest: str

    @property
    def seconds(self) -> float:
        """Time of the whole request: prefill and rounds."""
        return self.prefill_seconds + self.rounds_seconds


def token_digest(answers: Iterable[Sequence[int]]) -> str:
    """Returns the SHA-256 of token ids, 64 hex digits; answers in another order give another."""
    listed = [list(map(int, answer)) for answer in answers]
    return hashlib.sha256(json.dumps(listed, separators=(",", ":")).encode()).hexdigest()


def measurement_row(
    unit: Unit, role: str, arm: str, answers: Sequence[Answer], measurement: Measurement
) -> dict[str, Any]:
    """Returns the row of one role, made of plain JSON types.

    Args:
      unit: Task, repeat and batch.
      role: One of `ROLES`.
      arm: How it was decoded.
      answers: All answers of the batch.
      measurement: Of the same batch and role.
    """
    return {
        "id": f"{unit.task}/{unit.repeat}/{unit.batch}",
        "arm": arm,
        "role": role,
        **unit._asdict(),
        "ids": [answer.request.prompt.id for answer in answers],
        "tokens": measurement.tokens,
        "round_tokens": measurement.round_tokens,
        "prefill_seconds": measurement.prefill_seconds,
        "rounds_seconds": measurement.rounds_seconds,
        "rounds": [sum(turn.rounds for turn in answer.turns) for answer in answers],
        "exceptions": [int(answer.ledger["exceptions"]) for answer in answers],
        "spent": [plain_number(answer.ledger["spent"]) for answer in answers],
        "digest": token_digest(
            [token for turn in answer.turns for token in turn.token_ids] for answer in answers
        ),
    }


def parse_measurement(row: Mapping[str, Any]) -> Measured:
    """Returns a row as a `Measured`.

    Raises:
      OutputError: It is none; the message names the field.
    """
    values: dict[str, Any] = {}
    for name, (allowed, is_allowed) in _FIELDS.items():
        value = row.get(name)
        if not is_allowed(value):
            raise OutputError(
                f"measurement {row.get('id')!r}: {name}: got {value!r}, allowed is {allowed}"
            )
        values[name] = tuple(value) if isinstance(value, list) else value
    for name in ("rounds", "exceptions", "spent"):
        if len(values[name]) != len(values["ids"]):
            raise OutputError(
                f"measurement {row.get('id')!r}: {name}: got {len(values[name])}, allowed is one "
                f"of each of its {len(values['ids'])} requests"
            )
    unit = Unit(*(values.pop(name) for name in Unit._fields))
    return Measured(unit=unit, **values)


def whole_measurements(
    rows: Iterable[Measured], roles: Sequence[str]
) -> dict[Unit, list[dict[str, Measured]]]:
    """Returns the units of which every role was measured, one right behind the other.

    Args:
      rows: In the order of the file.
      roles: Of every unit, in the order of running.

    Returns:
      For each unit its whole measurements, earlier ones first, each the rows by role.
    """
    found: dict[Unit, list[dict[str, Measured]]] = {}
    current: list[Measured] = []
    for row in rows:
        begins = row.role == roles[0]
        goes_on = (
            0 < len(current) < len(roles)
            and row.unit == current[0].unit
            and row.role == roles[len(current)]
        )
        current = [row] if begins else [*current, row] if goes_on else []
        if len(current) == len(roles):
            found.setdefault(row.unit, []).append(dict(zip(roles, current, strict=True)))
    return found


def is_steady(rows: Mapping[str, Measured], within_percent: float) -> bool:
    """Returns whether the two strict runs of a unit took times that differ by no more than that.

    The candidate is not looked at. But what slows only a strict run down has it measured again, and
    what slows only the candidate down does not: if at all, a gain is told too small. The drift gate
    is easier to pass with it, so a result says what the first attempts came to.

    Args:
      rows: Of one whole measurement, by role.
      within_percent: Largest change from the opening to the closing run, in either direction.
    """
    return abs(percent_change(rows[BEFORE].seconds, rows[AFTER].seconds)) <= within_percent


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < float("inf")


def _is_list_of(kinds: tuple[type, ...]) -> Any:
    return lambda value: (
        isinstance(value, list) and bool(value) and all(type(part) in kinds for part in value)
    )


_COUNT = ("a whole number >= 0", _is_count)
_SECONDS = ("a number of seconds > 0", _is_positive)
_COUNTS = ("a list of whole numbers", _is_list_of((int,)))
_TEXT = ("a text", lambda value: isinstance(value, str))
_FIELDS: dict[str, tuple[str, Any]] = {
    "task": _TEXT,
    "repeat": _COUNT,
    "batch": _COUNT,
    "role": (f"one of {', '.join(ROLES)}", lambda value: value in ROLES),
    "ids": ("a list of texts", _is_list_of((str,))),
    "tokens": _COUNT,
    "round_tokens": _COUNT,
    "prefill_seconds": _SECONDS,
    "rounds_seconds": _SECONDS,
    "rounds": _COUNTS,
    "exceptions": _COUNTS,
    "spent": ("a list of numbers", _is_list_of((int, float))),
    "digest": _TEXT,
}
