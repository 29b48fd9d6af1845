"""Keeps the questions of the task sets out of training, whatever is in the prompts.

A prompt is dropped where it has the id of a calibration or audit row, or one of its texts is a
question of such a row or holds one as a whole. Texts are compared normalised (NFKC, case-folded,
each run of non-alphanumerics one space) and with every number masked. A question counts with and
without the answer options, tests and instructions around it.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asd_jax.evaluation.prompts import Prompt

EXCLUDED_SPLITS = ("audit", "calibration")
_SPLITS = (*EXCLUDED_SPLITS, "train")
# Fewer words than this may stand in any text by chance ("Can you explain why?").
_MIN_HELD_WORDS = 8


class Drop(NamedTuple):
    """A prompt that must not be trained on.

    Attributes:
      id: The prompt.
      line: Its line in the prompt file.
      reason: "id", "text", "masked text" (equal but for numbers), "held text" (a question of eight
        words or more as a part of the prompt) or "no text" (token ids, which cannot be compared).
      file: Name of the file of the row that it repeats; "" with "no text".
      row: Id of that row.
    """

    id: str
    line: int
    reason: str
    file: str
    row: str


@dataclasses.dataclass(frozen=True)
class Dropped:
    """What an exclusion takes out of a prompt file.

    Attributes:
      prompts: In the order of the file.
    """

    prompts: tuple[Drop, ...]

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many prompts by (reason, file)."""
        return dict(collections.Counter((drop.reason, drop.file) for drop in self.prompts))


class _Row(NamedTuple):
    file: str
    id: str


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """The rows that training must not see; without any, nothing is excluded.

    Attributes:
      ids: Row by id.
      texts: Row by normalised question.
      masked: Row by normalised question with its numbers masked.
      openings: Masked questions by their first words, for finding them in longer texts.
    """

    ids: Mapping[str, _Row] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, _Row] = dataclasses.field(default_factory=dict)
    masked: Mapping[str, _Row] = dataclasses.field(default_factory=dict)
    openings: Mapping[tuple[str, ...], tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def drop(self, prompt: Prompt) -> Drop | None:
        """Returns why a prompt must not be trained on, or None where it may be."""
        found = self._find(prompt)
        return found and Drop(prompt.id, prompt.line, found[0], *found[1])

    def dropped(self, prompts: Sequence[Prompt]) -> Dropped:
        """Returns which of some prompts must not be trained on, and why."""
        return Dropped(tuple(drop for prompt in prompts if (drop := self.drop(prompt))))

    def _find(self, prompt: Prompt) -> tuple[str, _Row] | None:
        if not self.ids:
            return None
        if prompt.id in self.ids:
            return "id", self.ids[prompt.id]
        if prompt.kind == "prompt_token_ids":
            return "no text", _Row("", "")
        for text in map(normalised, _prompt_texts(prompt)):
            if text in self.texts:
                return "text", self.texts[text]
            if (masked := with_numbers_masked(text)) in self.masked:
                return "masked text", self.masked[masked]
            if held := self._held(masked):
                return "held text", self.masked[held]
        return None

    def _held(self, masked: str) -> str | None:
        """Returns a question that is a part of a text, if one is."""
        words = masked.split()
        for start in range(len(words) - _MIN_HELD_WORDS + 1):
            opening = tuple(words[start : start + _MIN_HELD_WORDS])
            for question in self.openings.get(opening, ()):
                size = question.count(" ") + 1
                if " ".join(words[start : start + size]) == question:
                    return question
        return None


def read_exclusion(paths: Sequence[str | Path]) -> Exclusion:
    """Reads task sets: JSON lines with `id`, `split` and `turns`.

    Args:
      paths: Files. Rows of split audit or calibration are excluded, of split train are not.

    Raises:
      ValueError: A line is not such a row, or a file has no row to exclude, as a wrong file would
        have none; the message names file, line and field.
      OSError: A file cannot be read.
    """
    ids: dict[str, _Row] = {}
    texts: dict[str, _Row] = {}
    for path in map(Path, paths):
        num_before = len(ids)
        for fields in _rows(path):
            if fields["split"] not in EXCLUDED_SPLITS:
                continue
            row = _Row(path.name, fields["id"])
            ids.setdefault(row.id, row)
            for text in map(normalised, _questions(fields)):
                # A question of signs alone leaves nothing to compare.
                if text:
                    texts.setdefault(text, row)
        if len(ids) == num_before:
            raise ValueError(
                f"exclusion: {path}: got no new row of split {' or '.join(EXCLUDED_SPLITS)}, "
                "allowed is a task set with at least one"
            )
    masked: dict[str, _Row] = {}
    openings: dict[tuple[str, ...], tuple[str, ...]] = {}
    for text, row in texts.items():
        question = with_numbers_masked(text)
        if question in masked:
            continue
        masked[question] = row
        opening = tuple(question.split()[:_MIN_HELD_WORDS])
        if len(opening) == _MIN_HELD_WORDS:
            openings[opening] = (*openings.get(opening, ()), question)
    return Exclusion(ids, texts, masked, openings)


def normalised(text: str) -> str:
    """Returns a text in NFKC, case-folded, each run of non-alphanumerics one space."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[\W_]+", " ", folded).strip()


def with_numbers_masked(text: str) -> str:
    """Returns a text with "#" for each run of digits."""
    return re.sub(r"\d+", "#", text)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the checked rows of a file."""
    # Not splitlines(): a JSON string may hold U+2028 and other ends of lines as they are.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"exclusion: {path}: line {number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: got {str(fields)[:60]!r}, allowed is an object")
        turns = fields.get("turns")
        checks = (
            ("id", isinstance(fields.get("id"), str), "a text"),
            ("split", fields.get("split") in _SPLITS, f"one of {', '.join(_SPLITS)}"),
            (
                "turns",
                isinstance(turns, list) and turns and all(isinstance(t, str) for t in turns),
                "a list of texts, at least one",
            ),
        )
        for name, is_allowed, allowed in checks:
            if not is_allowed:
                raise ValueError(
                    f"{where}: {name}: got {fields.get(name)!r:.60}, allowed is {allowed}"
                )
        yield fields


def _questions(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yields the texts of a task-set row, as asked and bare."""
    turns, meta = fields["turns"], fields.get("meta")
    yield from turns
    if not isinstance(meta, Mapping):
        return
    # MBPP has the bare task in `text` and in `sanitized.prompt`, HumanEval the stub in `prompt`.
    sanitized = meta.get("sanitized")
    rewritten = sanitized.get("prompt") if isinstance(sanitized, Mapping) else None
    yield from (text for text in (meta.get("text"), meta.get("prompt"), rewritten) if text)
    choices = meta.get("choices")
    if isinstance(choices, list):
        options = (f"\n{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=False))
        yield turns[0].removesuffix("".join(options))


def _prompt_texts(prompt: Prompt) -> Iterator[str]:
    """Yields the texts of a prompt and the bare task where `meta.span` marks one."""
    if prompt.kind == "messages":
        texts = [message["content"] for message in prompt.content]
    else:
        texts = [prompt.content] if prompt.kind == "prompt" else list(prompt.content)
    yield from texts
    meta = prompt.extra.get("meta")
    span = meta.get("span") if isinstance(meta, Mapping) else None
    if isinstance(span, list) and [type(place) for place in span] == [int, int]:
        yield texts[0][slice(*span)]
