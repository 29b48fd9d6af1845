"""Cuts an answer's text at its exceptions, so that they can be highlighted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from asd_jax.evaluation.audit.answers import AnsweredTurn, ArmAnswer, ExceptionEntry
from asd_jax.evaluation.audit.fields import AuditError

Decode = Callable[[list[int]], str]


@dataclasses.dataclass(frozen=True)
class Mark:
    """The exception, or exceptions, that a piece of text is.

    Attributes:
      position: Index of the first in the answer's token ids.
      draft: Text of the kept tokens, one after the other.
      target: Text of what strict decoding would have taken in their places.
      regret: What they cost together, in logits.
      num: How many they are: more than one only where they share a character.
    """

    position: int
    draft: str
    target: str
    regret: float
    num: int


class Piece(NamedTuple):
    """A part of an answer's text, and its exception if it is one."""

    text: str
    exception: Mark | None


def cut(answer: ArmAnswer, decode: Decode) -> tuple[Piece, ...]:
    """Returns the pieces of an answer; their texts put together are the answer's text.

    A token that holds only a part of a character cannot stand alone: its piece reaches to the next
    places, before and behind, where the text can be cut. An exception without text, as of a token
    that is not shown, has an empty piece. Without a trace there is one piece.

    Args:
      answer: The answer.
      decode: The target's tokenizer: token ids to text, without special tokens.

    Raises:
      AuditError: `decode` gives another text for the answer's ids than the answer has.
    """
    pieces: list[Piece] = []
    offset = 0
    for number, turn in enumerate(answer.turns):
        end = offset + len(turn.token_ids)
        inside = [e for e in answer.exceptions or () if offset <= e.position < end]
        name = f"{answer.id}, {answer.arm}, turn {number}"
        pieces.append(Piece("\n\n" if number else "", None))
        pieces += _cut_turn(name, turn, inside, offset, decode)
        offset = end
    return _joined(pieces)


def _cut_turn(
    name: str,
    turn: AnsweredTurn,
    entries: Sequence[ExceptionEntry],
    offset: int,
    decode: Decode,
) -> list[Piece]:
    ids, text = list(turn.token_ids), turn.text
    if not entries:
        return [Piece(text, None)]
    whole = decode(ids)
    if whole != text:
        raise AuditError(
            f"{name}: decode: got {whole[:40]!r} of the token ids, allowed is the row's text "
            f"{text[:40]!r}"
        )

    @functools.cache
    def end_of(num: int) -> int | None:
        """Returns where the first tokens end in the text, None if within a character."""
        if num in (0, len(ids)):
            return len(text) if num else 0
        prefix = decode(ids[:num])
        return len(prefix) if text.startswith(prefix) else None

    pieces, at = [], 0
    for start, end, group in _groups(entries, offset, end_of):
        first, last = (max(end_of(num) or 0, at) for num in (start, end))
        pieces += [Piece(text[at:first], None), Piece(text[first:last], _mark(group))]
        at = last
    return [*pieces, Piece(text[at:], None)]


def _groups(
    entries: Sequence[ExceptionEntry], offset: int, end_of: Callable[[int], int | None]
) -> list[tuple[int, int, list[ExceptionEntry]]]:
    """Returns the token ranges to cut out, with their exceptions; ranges that overlap are one."""
    groups: list[tuple[int, int, list[ExceptionEntry]]] = []
    for entry in entries:
        start = entry.position - offset
        end = start + 1
        while end_of(start) is None:
            start -= 1
        while end_of(end) is None:
            end += 1
        if groups and start < groups[-1][1]:
            first, _, group = groups.pop()
            groups.append((first, end, [*group, entry]))
        else:
            groups.append((start, end, [entry]))
    return groups


def _mark(group: Sequence[ExceptionEntry]) -> Mark:
    return Mark(
        position=group[0].position,
        draft="".join(entry.draft for entry in group),
        target="".join(entry.target for entry in group),
        regret=sum(entry.regret for entry in group),
        num=len(group),
    )


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Puts neighbours without an exception together and leaves empty ones out."""
    joined: list[Piece] = []
    for piece in pieces:
        if piece.exception is None and joined and joined[-1].exception is None:
            joined[-1] = Piece(joined[-1].text + piece.text, None)
        elif piece.exception is not None or piece.text:
            joined.append(piece)
    return tuple(joined)
