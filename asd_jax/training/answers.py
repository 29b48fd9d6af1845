"""Reads an output file of `experiments.decode` as the answers of one target to one prompt file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Answers(NamedTuple):
    """An answers file, checked.

    Attributes:
      thinking: What the run's own setting was (see `Settings`).
      rows: Each with its place, "answers: FILE: line N", for messages.
    """

    thinking: bool | None
    rows: tuple[tuple[str, Mapping[str, Any]], ...]


def read_answers(
    path: str | Path, *, target_digest: str, prompts_digest: str, num_ids: int
) -> Answers:
    """Reads and checks a file. A last line that a kill cut short is left out.

    Args:
      path: The file.
      target_digest: Of the target that must have written it.
      prompts_digest: `PromptFile.digest` of the prompts that it must answer.
      num_ids: Ids that stand for a token.

    Raises:
      ValueError: It is no output file, was made with another target, other prompts or with stop
        ids ignored, or a row is malformed; the message names file, line and field.
      OSError: It cannot be read.
    """
    # Not splitlines(): texts hold U+2028 and other ends of lines as they are.
    first, *lines = Path(path).read_bytes().split(b"\n")[:-1] or [b""]
    try:
        header = json.loads(first)["run"]
        made_with = {part: header[part]["digest"] for part in ("target", "prompts")}
        config = dict(header["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"answers: {path}: not an output file of experiments.decode") from error
    for part, wanted in (("target", target_digest), ("prompts", prompts_digest)):
        if made_with[part] != wanted:
            raise ValueError(
                f"answers: {path}: line 1: {part} digest: got {made_with[part]}, allowed is "
                f"{wanted}"
            )
    if config.get("ignore_eos"):
        raise ValueError(
            f"answers: {path}: line 1: ignore_eos: got True, allowed is False: answers must end "
            "where the target ends them"
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        where = f"answers: {path}: line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        _check_row(row, where, num_ids)
        rows.append((where, row))
    return Answers(config.get("thinking"), tuple(rows))


def _check_row(row: Any, where: str, num_ids: int) -> None:
    """Raises a ValueError where a row lacks what is read of it."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: got {str(row)[:60]!r}, allowed is an object")
    for name in ("id", "arm"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{where}: {name}: got {row.get(name)!r:.60}, allowed is a text")
    turns = row.get("turns") or [row]
    for number, turn in enumerate(turns, start=1):
        turn = turn if isinstance(turn, dict) else {}
        place = f"{where}: id {row['id']!r}: " + (f"turn {number}: " if len(turns) > 1 else "")
        ids = turn.get("token_ids")
        if not _are_ids(ids, num_ids):
            raise ValueError(
                f"{place}token_ids: got {ids!r:.60}, allowed is a list of whole numbers "
                f"0..{num_ids - 1}"
            )
        for name, kind in (("prompt_tokens", int), ("finish_reason", str)):
            if type(turn.get(name)) is not kind:
                raise ValueError(
                    f"{place}{name}: got {turn.get(name)!r:.60}, allowed is "
                    f"{'a whole number' if kind is int else 'a text'}"
                )


def _are_ids(ids: Sequence[Any] | None, num_ids: int) -> bool:
    return isinstance(ids, list) and all(type(i) is int and 0 <= i < num_ids for i in ids)
