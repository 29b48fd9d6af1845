"""The answers of one arm, read from its output file and put beside strict decoding's.

Unlike `audit.read_pairs` the arms come from different files, and a file may hold the answers of
many settings (see `calibration.grid`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.audit.answers import ArmAnswer, parse_answer
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.lines import read_lines
from asd_jax.evaluation.audit.pairs import Pair, Pairs
from asd_jax.evaluation.calibration.grid import split_id
from asd_jax.evaluation.tasks.example import Example

_SHOWN = 3  # ids in a message


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers of one arm under one setting.

    Attributes:
      name: File and arm, for messages.
      run: The description of the run that the file starts with.
      by_id: By id of the example.
    """

    name: str
    run: Mapping[str, Any]
    by_id: Mapping[str, ArmAnswer]


def read_answers(path: str | Path, arm: str) -> Answers:
    """Reads the answers of one arm of an output file.

    Raises:
      AuditError: The file cannot be read, a line is bad, or an answer comes twice.
    """
    run, answers = _read(Path(path), arm)
    by_id: dict[str, ArmAnswer] = {}
    for answer in answers:
        _add(by_id, answer, f"{path}, arm {arm}")
    return Answers(f"{path}, arm {arm}", run, by_id)


def read_grid_answers(path: str | Path, arm: str, num_settings: int) -> tuple[Answers, ...]:
    """Reads the answers of one arm of an output file to the rows of `calibration.grid_rows`.

    Args:
      path: The file.
      arm: The arm.
      num_settings: Settings of the grid.

    Returns:
      One `Answers` a setting, in the order of the grid.

    Raises:
      AuditError: As from `read_answers`, or an id is of no setting of the grid.
    """
    run, answers = _read(Path(path), arm)
    tables: list[dict[str, ArmAnswer]] = [{} for _ in range(num_settings)]
    for answer in answers:
        try:
            own, number = split_id(answer.id)
        except ValueError as error:
            raise AuditError(f"{path}: {error}") from error
        if number >= num_settings:
            raise AuditError(
                f"{path}: id {answer.id!r}: got setting {number}, allowed is 0..{num_settings - 1}"
            )
        _add(tables[number], dataclasses.replace(answer, id=own), f"{path}, setting {number}")
    return tuple(
        Answers(f"{path}, arm {arm}, setting {number}", run, table)
        for number, table in enumerate(tables)
    )


def join(examples: Sequence[Example], strict: Answers, candidate: Answers) -> Pairs:
    """Puts two arms' answers to the same examples together, in order of ids.

    Args:
      examples: What was asked; the files may hold answers to others as well.
      strict: Strict decoding's answers.
      candidate: The answers that are compared with it.

    Raises:
      AuditError: An answer is missing, has another number of turns than its question, or the runs
        had different targets or drafters.
    """
    for part in ("target", "drafter"):
        digests = [(answers.run.get(part) or {}).get("digest") for answers in (strict, candidate)]
        if digests[0] != digests[1]:
            raise AuditError(
                f"{candidate.name}: {part} digest: got {digests[1]}, allowed is that of "
                f"{strict.name}, {digests[0]}"
            )
    for answers in (strict, candidate):
        lost = sorted({example.id for example in examples} - answers.by_id.keys())
        if lost:
            shown = ", ".join(map(repr, lost[:_SHOWN])) + (", ..." if lost[_SHOWN:] else "")
            raise AuditError(
                f"{answers.name}: got {len(examples) - len(lost)} answers, allowed are all "
                f"{len(examples)}; missing are {shown}"
            )
    pairs = []
    for example in sorted(examples, key=lambda example: example.id):
        both = strict.by_id[example.id], candidate.by_id[example.id]
        for answers, answer in zip((strict, candidate), both, strict=True):
            if len(answer.turns) != len(example.turns):
                raise AuditError(
                    f"{answers.name}, id {example.id!r}: turns: got {len(answer.turns)}, allowed "
                    f"are {len(example.turns)}, as asked"
                )
        pairs.append(Pair(example, *both))
    return Pairs(tuple(pairs), candidate.run, {"strict": 0, "asd": 0})


def _read(path: Path, arm: str) -> tuple[Mapping[str, Any], Iterator[ArmAnswer]]:
    lines = read_lines(path)
    place, first = next(lines, (str(path), None))
    run = first.get("run") if isinstance(first, Mapping) else None
    if not isinstance(run, Mapping):
        raise AuditError(f"{place}: got no field 'run', allowed is the description of a run")

    def answers() -> Iterator[ArmAnswer]:
        for where, row in lines:
            try:
                answer = parse_answer(row)
            except AuditError as error:
                raise AuditError(f"{where}: {error}") from error
            if answer.arm == arm:
                yield answer

    return run, answers()


def _add(table: dict[str, ArmAnswer], answer: ArmAnswer, name: str) -> None:
    if answer.id in table:
        raise AuditError(f"{name}: id {answer.id!r}: got it again, allowed is one answer an arm")
    table[answer.id] = answer
