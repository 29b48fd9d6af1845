"""One question of a task set, and reading them from JSON lines.

A line is an object with these fields and no others:

- `id`: a text, unique in the file;
- `task`: the name of a task, as in `TASKS`;
- `split`: `calibration` (for choosing anything) or `audit` (for reporting only);
- `turns`: a list of user texts without any template or instruction on the form of the answer;
- `reference`: a text, or null where there is none;
- `meta`: an object, what the task needs for grading and where the row is from.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SPLITS = ("calibration", "audit")
_FIELDS = ("id", "task", "split", "turns", "reference", "meta")


class ExampleError(ValueError):
    """A file or data set whose rows cannot be used; the message names place, field and value."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
      id: Unique over all task sets, like `gsm8k/test/12`.
      task: Name of its task.
      split: One of `SPLITS`.
      turns: The bare user texts, at least one.
      reference: The right answer or something to compare with, or None.
      meta: What else its task needs, by name.
    """

    id: str
    task: str
    split: str
    turns: tuple[str, ...]
    reference: str | None
    meta: Mapping[str, Any]


def read_examples(path: str | Path, task: str | None = None) -> tuple[Example, ...]:
    """Reads a file of JSON lines; blank lines are skipped.

    Unlike a prompt file, a task set is refused as a whole at the first bad line: an accuracy over
    the rows that happened to be readable is not comparable with anything.

    Args:
      path: The file.
      task: The task that every row must belong to, or None for any.

    Returns:
      At least one example, in the file's order.

    Raises:
      ExampleError: The file cannot be read or has no rows, or a line is bad.
    """
    name = str(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ExampleError(f"{name}: cannot be read: {error.strerror or error}") from error
    lines: dict[str, int] = {}
    examples = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            example = parse_example(_parse(line), task)
            if example.id in lines:
                raise _refusal(
                    "id", example.id, f"a new id, this is that of line {lines[example.id]}"
                )
        except ValueError as error:
            raise ExampleError(f"{name}, line {number}: {error}") from error
        lines[example.id] = number
        examples.append(example)
    if not examples:
        raise ExampleError(f"{name}: has no rows")
    return tuple(examples)


def parse_example(row: Any, task: str | None = None) -> Example:
    """Checks a JSON value and returns it as an `Example`.

    Args:
      row: The value.
      task: As in `read_examples`.

    Raises:
      ValueError: It is no example; the message names the field, what was got and what is allowed.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"got a {type(row).__name__}, allowed is an object")
    for field in _FIELDS:
        if field not in row:
            raise ValueError(f"{field}: is missing, allowed are all of {', '.join(_FIELDS)}")
    for field in row:
        if field not in _FIELDS:
            raise ValueError(f"{field}: is unknown, allowed are {', '.join(_FIELDS)}")
    for field in ("id", "task"):
        if not _is_filled(row[field]):
            raise _refusal(field, row[field], "a text that is not empty")
    if task is not None and row["task"] != task:
        raise _refusal("task", row["task"], repr(task))
    if row["split"] not in SPLITS:
        raise _refusal("split", row["split"], " or ".join(map(repr, SPLITS)))
    if not isinstance(row["turns"], (list, tuple)) or not row["turns"]:
        raise _refusal("turns", row["turns"], "a list of texts, at least one")
    for number, turn in enumerate(row["turns"]):
        if not _is_filled(turn):
            raise _refusal(f"turns[{number}]", turn, "a text that is not empty")
    if row["reference"] is not None and not isinstance(row["reference"], str):
        raise _refusal("reference", row["reference"], "a text or null")
    if not isinstance(row["meta"], Mapping):
        raise _refusal("meta", row["meta"], "an object")
    return Example(
        id=row["id"],
        task=row["task"],
        split=row["split"],
        turns=tuple(row["turns"]),
        reference=row["reference"],
        meta=row["meta"],
    )


def required_reference(example: Example) -> str:
    """Returns the reference of an example that cannot be graded without one.

    Raises:
      ExampleError: It has none.
    """
    if example.reference is None:
        raise ExampleError(f"{example.id}: reference: got None, allowed is a text")
    return example.reference


def required_meta(example: Example, name: str, kind: type) -> Any:
    """Returns a field of `meta` that a task cannot do without.

    Raises:
      ExampleError: It is missing or of another type than `kind`.
    """
    value = example.meta.get(name)
    if not isinstance(value, kind):
        raise ExampleError(f"{example.id}: {_refusal(f'meta.{name}', value, f'a {kind.__name__}')}")
    return value


def only_answer(example: Example, answers: Sequence[str]) -> str:
    """Returns the answer to an example of one turn.

    Raises:
      ValueError: There is not exactly one.
    """
    if isinstance(answers, str):
        raise ValueError(f"{example.id}: answers: got a text, allowed is a list of one")
    if len(answers) != 1:
        raise ValueError(f"{example.id}: answers: got {len(answers)}, allowed is 1")
    return answers[0]


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error


def _is_filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _refusal(field: str, value: Any, allowed: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ValueError(f"{field}: got {shown}, allowed is {allowed}")
