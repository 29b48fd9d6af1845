"""Rows of an output file, and the writer that survives being killed.

The first line is `{"run": {...}}` (see `receipt`), every other line one answered request under one
arm:

    id, arm             the request and how it was decoded
    text, token_ids     the answer; of several turns, all ids in order and the texts joined by
                        blank lines. A stop id at the end of a turn is in the ids, not in the text
    prompt_tokens       tokens prefilled, over all turns
    completion_tokens   length of token_ids
    finish_reason       of the last turn: stop, length, capacity or nonfinite
    acceptance_length   tokens emitted per round; each turn's first token, which its prefill
                        emits, is not counted
    accept_histogram    rounds by number of committed draft tokens
    ledger              spent, budget (logits; "inf" = no limit), exceptions, reused, proposed,
                        accepted, rounds, exhausted_at (round, -1 = never); over all turns
    exceptions          only with trace: position in token_ids, draft and target id and text,
                        regret in logits, reused, the draft tokens kept right behind it up to the
                        next exception or the end of the block, and where it stood in its block:
                        draft_position, from 0, of draft_length proposed tokens
    refusals            only with trace: [position, draft_position, draft_length, regret] of every
                        draft token that ended its block; "inf" is the regret of one without
    turns               only for several turns: text, token_ids, prompt_tokens, completion_tokens
                        and finish_reason of each

Rows hold no times, so that the same run gives the same rows.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from asd_jax.evaluation.conversation import Answer, Turn
from asd_jax.evaluation.plan import TextCodec
from asd_jax.evaluation.receipt import differences

try:
    import fcntl
except ImportError:  # not a Unix: no locks
    fcntl = None  # type: ignore[assignment]

_LEDGER = ("exceptions", "reused", "proposed", "accepted", "rounds", "exhausted_at")


class OutputError(ValueError):
    """An output file that cannot be written or taken up again; the message names it."""


def row(answer: Answer, tokenizer: TextCodec, *, with_exceptions: bool = False) -> dict[str, Any]:
    """Returns the output row of an answer, made of plain JSON types.

    Args:
      answer: From `interleaved.run`.
      tokenizer: The target's.
      with_exceptions: Whether to list the exceptions; the answer must have traces, except where
        no token was drafted.
    """
    turns = [_turn(turn, tokenizer) for turn in answer.turns]
    histogram = np.sum([turn.accept_histogram for turn in answer.turns], axis=0)
    rounds = sum(turn.rounds for turn in answer.turns)
    by_rounds = sum(max(turn["completion_tokens"] - 1, 0) for turn in turns)
    result = {
        "id": answer.request.prompt.id,
        "arm": answer.arm,
        "text": "\n\n".join(turn["text"] for turn in turns),
        "token_ids": [token for turn in turns for token in turn["token_ids"]],
        "prompt_tokens": sum(turn["prompt_tokens"] for turn in turns),
        "completion_tokens": sum(turn["completion_tokens"] for turn in turns),
        "finish_reason": turns[-1]["finish_reason"],
        "acceptance_length": by_rounds / rounds if rounds else 0.0,
        "accept_histogram": [int(count) for count in histogram],
        "ledger": {
            "spent": plain_number(answer.ledger["spent"]),
            "budget": plain_number(answer.budget),
            **{name: int(answer.ledger[name]) for name in _LEDGER},
        },
    }
    if with_exceptions:
        found, refused, offset = [], [], 0
        for turn in answer.turns:
            found += exceptions(turn, tokenizer, offset=offset)
            refused += refusals(turn, offset=offset)
            offset += len(turn.token_ids)
        result |= {"exceptions": found, "refusals": refused}
    if len(turns) > 1:
        result["turns"] = turns
    return result


def _turn(turn: Turn, tokenizer: TextCodec) -> dict[str, Any]:
    return {
        "text": tokenizer.decode(turn.token_ids),
        "token_ids": list(turn.token_ids),
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": len(turn.token_ids),
        "finish_reason": turn.finish_reason.name.lower(),
    }


def exceptions(turn: Turn, tokenizer: TextCodec, *, offset: int = 0) -> list[dict[str, Any]]:
    """Returns the committed exceptions of one turn, in order.

    Args:
      turn: With its trace; without one there are none.
      tokenizer: The target's.
      offset: Tokens of the answer before this turn, added to every position.
    """
    trace = turn.trace
    found: list[dict[str, Any]] = []
    if trace is None:
        return found
    for block in np.flatnonzero(trace.start >= 0):
        # What was accepted behind a stop or length cut was never committed.
        kept = int(min(trace.num_accepted[block], trace.num_committed[block]))
        places = [int(i) for i in np.flatnonzero(trace.exception_mask[block][:kept])]
        for place, following in zip(places, [*places[1:], kept], strict=False):
            draft = int(trace.draft_tokens[block, place])
            target = int(trace.target_tokens[block, place])
            found.append(
                {
                    "position": offset + int(trace.start[block]) + place,
                    "draft_id": draft,
                    "target_id": target,
                    "draft": tokenizer.decode([draft], skip_special_tokens=False),
                    "target": tokenizer.decode([target], skip_special_tokens=False),
                    "regret": plain_number(trace.regret[block, place]),
                    "reused": following - place - 1,
                    "draft_position": place,
                    "draft_length": int(trace.draft_length[block]),
                }
            )
    return found


def refusals(turn: Turn, *, offset: int = 0) -> list[list[Any]]:
    """Returns the draft tokens that ended their block, in order.

    Args:
      turn: With its trace; without one there are none.
      offset: Tokens of the answer before this turn, added to every position.

    Returns:
      [position, draft_position, draft_length, regret] of each, as in the module's table.
    """
    trace = turn.trace
    if trace is None:
        return []
    found = []
    for block in np.flatnonzero(trace.start >= 0):
        place, length = int(trace.num_accepted[block]), int(trace.draft_length[block])
        # Where the answer ended before it, the token was not refused by the rule.
        if place < length and place < int(trace.num_committed[block]):
            position = offset + int(trace.start[block]) + place
            found.append([position, place, length, plain_number(trace.stop_regret[block])])
    return found


def plain_number(value: Any) -> float | str:
    """Returns a float32 as the shortest decimal that gives it back; infinity as "inf"."""
    short = float(str(np.float32(value)))
    return short if math.isfinite(short) else str(short)


class Writer:
    """Appends rows to an output file, each written out at once.

    Opening checks and locks the file but does not change it; `start` writes or compares the first
    line. A last line that a kill cut short is dropped on resuming.

    Attributes:
      path: The file.
      done: (id, arm) of every row that is in the file.
      resumed_rows: The rows that were there when it was opened.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        """Opens `path`, making its folder if there is none.

        Args:
          path: The file.
          resume: Whether it may hold rows already.

        Raises:
          OutputError: It cannot be written, another process writes it, it exists and `resume` is
            False, or it holds something else than rows.
        """
        self.path = Path(path)
        self.done: set[tuple[str, str]] = set()
        self.resumed_rows: list[dict[str, Any]] = []
        self._header: Any = None
        self._size = 0
        self._is_new = not self.path.exists()
        self._file = self._open()
        try:
            if os.fstat(self._file.fileno()).st_size:
                if not resume:
                    raise OutputError(
                        f"{path}: exists already; choose another output, or resume=True to go on "
                        "with it"
                    )
                self._read()
        except OutputError:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a+b")
        except FileExistsError as error:
            raise OutputError(
                f"{self.path}: cannot be written: {self.path.parent} is not a folder"
            ) from error
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise OutputError(f"{self.path}: another run is writing it") from error
        except OSError:
            pass  # a file system without locks
        return file

    def _read(self) -> None:
        """Takes in what the file holds, up to the last whole line."""
        self._file.seek(0)
        content = self._file.read()
        self._size = content.rfind(b"\n") + 1
        start = b'{"run": '
        if self._size == 0 and content[: len(start)] != start[: len(content)]:
            raise OutputError(f"{self.path}: cannot be resumed: it is not an output file")
        for number, line in enumerate(content[: self._size].split(b"\n")[:-1], start=1):
            try:
                entry = json.loads(line)
                if number == 1:
                    self._header = entry["run"]
                else:
                    self.done.add((entry["id"], entry["arm"]))
                    self.resumed_rows.append(entry)
            except (ValueError, KeyError, TypeError) as error:
                raise OutputError(
                    f"{self.path}: cannot be resumed: line {number} is not "
                    f"{'the description of a run' if number == 1 else 'a row'}"
                ) from error

    def start(self, header: Mapping[str, Any]) -> None:
        """Writes the first line, or checks that the file's own agrees with it.

        Args:
          header: The run's description, from `receipt.run_header`.

        Raises:
          OutputError: The rows in the file were decoded in another way; the message names every
            field that differs. Or the file cannot be written.
        """
        if self._header is None:
            self._truncate(0)
            self._write({"run": header})
            return
        differing = differences(self._header, header)
        if differing:
            raise OutputError(
                f"{self.path}: cannot be resumed, it was made with other settings: "
                + "; ".join(differing)
            )
        self._truncate(self._size)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows and hands them to the operating system.

        Raises:
          OutputError: The file cannot be written (a full disk).
        """
        for entry in rows:
            self._write(entry)
            self.done.add((entry["id"], entry["arm"]))

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _truncate(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def close(self, *, keep_empty: bool = False) -> None:
        """Makes sure that the rows are on the disk.

        Args:
          keep_empty: Whether to leave a new file without any row where it is. Otherwise it is
            removed, so that the next try does not find an output that exists.
        """
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            pass  # a pipe or a full disk; `write` has told
        if self._is_new and not self.done and not keep_empty:
            self.path.unlink(missing_ok=True)
        self._file.close()
