"""Puts together the two arms' answers to the same examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.audit.answers import ArmAnswer, parse_answer
from asd_jax.evaluation.audit.fields import AuditError
from asd_jax.evaluation.audit.lines import read_lines
from asd_jax.evaluation.receipt import differences
from asd_jax.evaluation.tasks.example import Example

ARMS = ("strict", "asd")
_SHOWN = 3  # ids in a message


@dataclasses.dataclass(frozen=True)
class Pair:
    """One example and both arms' answers to it."""

    example: Example
    strict: ArmAnswer
    asd: ArmAnswer

    @property
    def id(self) -> str:
        """The example's id."""
        return self.example.id

    @property
    def is_same(self) -> bool:
        """Whether the two answers have the same token ids."""
        return self.strict.token_ids == self.asd.token_ids


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The examples that both arms answered.

    Attributes:
      pairs: In order of their ids, so that nothing depends on the order of a file.
      run: The description of the run that the (first) output file starts with.
      missing: Examples without an answer, by arm; they are in no figure.
    """

    pairs: tuple[Pair, ...]
    run: Mapping[str, Any]
    missing: Mapping[str, int]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


def read_pairs(
    path: str | Path | Sequence[str | Path],
    examples: Iterable[Example],
    *,
    arms: tuple[str, str] = ARMS,
    allow_missing: bool = False,
    allow_others: bool = False,
) -> Pairs:
    """Joins the rows of both arms by id with the examples that were asked.

    Rows of other arms are passed over. A last line that a kill cut short counts as not there.

    Args:
      path: An output file, or several that share the answers of one run's settings between them.
      examples: What was asked: one task's examples, with unique ids.
      arms: Names of the arm that is strict and of the one that is compared with it.
      allow_missing: Whether to compare only those examples that both arms have answered. An
        accuracy over the answers that happen to be there may flatter the arm that lost the hard
        ones, so they are counted in `Pairs.missing`, and refused by default.
      allow_others: Whether the files may hold answers to other examples, which are passed over.

    Raises:
      AuditError: A file cannot be read, a line is bad, an answer comes twice, answers are missing
        or nothing is left, or the files were made with different settings.
    """
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    if not paths:
        raise AuditError("path: got no file, allowed is 1 or more")
    known = {example.id: example for example in examples}
    answers: dict[tuple[str, str], ArmAnswer] = {}
    places: dict[tuple[str, str], str] = {}
    runs: list[Mapping[str, Any]] = []
    for each in paths:
        lines = read_lines(Path(each))
        runs.append(_header(each, lines))
        _check_same_run(str(each), runs)
        for place, row in lines:
            try:
                answer = parse_answer(row)
            except AuditError as error:
                raise AuditError(f"{place}{_named(row)}: {error}") from error
            key = (answer.arm, answer.id)
            if answer.arm not in arms or (allow_others and answer.id not in known):
                continue
            if answer.id not in known:
                raise AuditError(
                    f"{place}: id: got {answer.id!r}, allowed are the {len(known)} ids of the "
                    "examples"
                )
            _check_turns(place, answer, known[answer.id])
            if key in answers:
                raise AuditError(
                    f"{place}, id {answer.id!r}: arm: got {answer.arm!r} again, allowed is one "
                    f"answer an arm, and that is at {places[key]}"
                )
            answers[key], places[key] = answer, place
    return _join(", ".join(map(str, paths)), known, answers, runs[0], arms, allow_missing)


def _join(
    name: str,
    known: Mapping[str, Example],
    answers: Mapping[tuple[str, str], ArmAnswer],
    run: Mapping[str, Any],
    arms: tuple[str, str],
    allow_missing: bool,
) -> Pairs:
    ids = sorted(known)
    missing = {arm: [i for i in ids if (arm, i) not in answers] for arm in arms}
    if not allow_missing:
        for arm, lost in missing.items():
            if lost:
                shown = ", ".join(map(repr, lost[:_SHOWN])) + (", ..." if lost[_SHOWN:] else "")
                raise AuditError(
                    f"{name}: arm {arm!r}: got {len(ids) - len(lost)} answers, allowed are all "
                    f"{len(ids)}; missing are {len(lost)}: {shown}"
                )
    pairs = tuple(
        Pair(known[i], answers[arms[0], i], answers[arms[1], i])
        for i in ids
        if all((arm, i) in answers for arm in arms)
    )
    if not pairs:
        raise AuditError(f"{name}: got no example that both {' and '.join(arms)} answered")
    return Pairs(pairs, run, {arm: len(lost) for arm, lost in missing.items()})


def _header(path: str | Path, lines: Iterator[tuple[str, Any]]) -> Mapping[str, Any]:
    allowed = "the description of a run"
    place, row = next(lines, (f"{path}, line 1", None))
    if row is None:
        raise AuditError(f"{place}: got nothing, allowed is {allowed}")
    run = row.get("run") if isinstance(row, Mapping) else None
    if not isinstance(run, Mapping):
        raise AuditError(f"{place}: got no field 'run', allowed is {allowed}")
    return run


def _named(row: Any) -> str:
    return f", id {row['id']!r}" if isinstance(row, Mapping) and "id" in row else ""


def _check_turns(place: str, answer: ArmAnswer, example: Example) -> None:
    if len(answer.turns) != len(example.turns):
        raise AuditError(
            f"{place}, id {answer.id!r}: turns: got {len(answer.turns)}, allowed are "
            f"{len(example.turns)}, as asked"
        )


def _check_same_run(name: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Refuses files of different settings; prompts may be spread over several files."""
    differing = [
        text for text in differences(runs[0], runs[-1]) if not text.startswith("prompts digest")
    ]
    if differing:
        raise AuditError(
            f"{name}, line 1: got other settings than in the first file ('in the file'), allowed "
            f"are the same: {'; '.join(differing)}"
        )
