"""Reads prompt files: one JSON object a line, every line checked, bad lines reported by number.

A line has an `id` and exactly one of

- `prompt`: raw text;
- `messages`: a conversation, `[{"role": ..., "content": ...}, ...]`, chat template applied;
- `turns`: user texts that are answered one after the other, chat template applied;
- `prompt_token_ids`: token ids, taken as they are.

`budget`, `gate`, `block_cap`, `draft_length`, `max_new_tokens` and `seed` override the run's own
values for that request, and `thinking` where a chat template is applied. A budget or gate without
limit is written `"inf"`, as JSON has no infinity. All other keys (`task`, `split`, `reference` and
so on) are carried along untouched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

KINDS = ("prompt", "messages", "turns", "prompt_token_ids")
_CHAT_KINDS = ("messages", "turns")
# owner/name, then optionally /config, :split and :column
_HUB_NAME = re.compile(
    r"(?P<path>[\w.-]+/[\w.-]+)(/(?P<config>[\w.-]+))?(:(?P<split>\w+)(:(?P<column>\w+))?)?"
)
_MAX_SEED = 2**63 - 1


class PromptError(ValueError):
    """A prompt file that cannot be used at all; the message names it and says why."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One request as its author wrote it.

    Attributes:
      id: Unique in its file.
      index: Number of its line among the lines that are not blank, from 0. A line that becomes
        good or bad does not move the others, nor the seeds made from their indices.
      line: Number of its line in the file, from 1.
      kind: Which of `KINDS` it has.
      content: The value under that key: str, or a tuple of messages, texts or ids.
      budget: Own regret budget in logits, or None for the run's.
      gate: Own gate in logits a token, or None.
      block_cap: Own cap, or None.
      draft_length: Most tokens that may be proposed to it in a round, or None.
      max_new_tokens: Own length limit in tokens, or None.
      seed: Own seed, or None.
      thinking: Whether the model is to think aloud, or None for the run's choice.
      extra: All other keys.
    """

    id: str
    index: int
    line: int
    kind: str
    content: Any
    budget: float | None = None
    gate: float | None = None
    block_cap: int | None = None
    draft_length: int | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    thinking: bool | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_turns(self) -> int:
        """How many answers it asks for."""
        return len(self.content) if self.kind == "turns" else 1


@dataclasses.dataclass(frozen=True)
class LineProblem:
    """A line that is no request.

    Attributes:
      line: Its number, from 1.
      message: What is wrong with it.
    """

    line: int
    message: str


@dataclasses.dataclass(frozen=True)
class PromptFile:
    """What a prompt file holds.

    Attributes:
      records: The good lines in order.
      problems: The bad lines in order.
      digest: SHA-256 of the good lines' content, the same for a copy under another name.
    """

    records: tuple[Prompt, ...]
    problems: tuple[LineProblem, ...]
    digest: str


def read_prompts(path: str | Path) -> PromptFile:
    """Reads a prompt file, or a data set of the Hugging Face hub where no such file exists.

    Args:
      path: A file, or `owner/name[/config][:split[:column]]`. The split is "test" unless given;
        with `column`, each row's text in that column becomes the only user turn of a request.
        Rows without an `id` get their number.

    Returns:
      A `PromptFile` with at least one record.

    Raises:
      PromptError: The file is missing or unreadable, or no line of it is good; the package
        `datasets` is missing; the hub does not give out the data set.
    """
    name = str(path)
    file = Path(name).expanduser()
    if file.is_file():
        try:
            lines = file.read_bytes().split(b"\n")
        except OSError as error:
            raise PromptError(f"{name}: cannot be read: {error.strerror or error}") from error
        return _collect(name, enumerate(lines, start=1))
    if file.is_dir():
        raise PromptError(f"{name}: is a directory, expected a file of JSON lines")
    match = None if isinstance(path, Path) else _HUB_NAME.fullmatch(name)
    # Something that looks like a file was meant as one: "data/gsm8k.jsonl" is no data set.
    if match is None or file.suffix in (".jsonl", ".json", ".txt"):
        raise PromptError(f"{name}: no such file, and not a data set id (owner/name[:split])")
    return _collect(name, enumerate(_hub_rows(name, **match.groupdict()), start=1))


def _collect(name: str, lines: Iterable[tuple[int, bytes | Mapping[str, Any]]]) -> PromptFile:
    """Checks every line and sorts them into records and problems."""
    records: list[Prompt] = []
    problems: list[LineProblem] = []
    seen: dict[str, int] = {}
    digest = hashlib.sha256(b"asd_jax prompts 1\n")
    index = -1
    for number, line in lines:
        if isinstance(line, bytes) and not line.strip():
            continue
        index += 1
        try:
            fields = _parse(line, is_first=number == 1) if isinstance(line, bytes) else line
            record = parse_record(fields, index=index, line=number)
            if record.id in seen:
                raise ValueError(f"id: {record.id!r} was used before, on line {seen[record.id]}")
        except ValueError as error:
            problems.append(LineProblem(number, str(error)))
            continue
        seen[record.id] = number
        records.append(record)
        digest.update(json.dumps(fields, sort_keys=True, default=str).encode() + b"\n")
    if not records:
        first = f"; line {problems[0].line}: {problems[0].message}" if problems else ""
        found = f"none of its {len(problems)} lines is a request" if problems else "is empty"
        raise PromptError(f"{name}: {found}{first}")
    return PromptFile(tuple(records), tuple(problems), digest.hexdigest())


def _parse(line: bytes, *, is_first: bool) -> Any:
    """Returns the JSON value of a line, or raises a ValueError in plain words."""
    try:
        text = line.decode("utf-8-sig" if is_first else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start}"
        ) from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error


def parse_record(fields: Any, *, index: int = 0, line: int = 1) -> Prompt:
    """Checks one parsed line and returns it as a `Prompt`.

    Args:
      fields: The JSON value.
      index: As in `Prompt`.
      line: As in `Prompt`.

    Raises:
      ValueError: It is not a request; the message names the field, what was got and what is
        allowed.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"got a JSON {_json_type(fields)}, allowed is an object")
    kinds = [kind for kind in KINDS if fields.get(kind) is not None]
    if len(kinds) != 1:
        raise ValueError(
            f"got {' and '.join(kinds) or 'none'} of {', '.join(KINDS)}, allowed is exactly one"
        )
    kind = kinds[0]
    known: dict[str, Any] = {}
    for name, (is_allowed, allowed) in _OVERRIDES.items():
        value = fields.get(name)
        if value is None:
            continue
        value = math.inf if value == "inf" and name in ("budget", "gate") else value
        if not is_allowed(value):
            raise _refusal(name, value, allowed)
        known[name] = value
    if "thinking" in known and kind not in _CHAT_KINDS:
        raise _refusal("thinking", known["thinking"], f"none with {kind}, which has no template")
    own_id = fields.get("id")
    if not isinstance(own_id, str) or not own_id.strip() or not _is_text(own_id):
        raise _refusal("id", own_id, "a text that is not empty")
    return Prompt(
        id=own_id,
        index=index,
        line=line,
        kind=kind,
        content=_CONTENT[kind](fields[kind]),
        extra={key: fields[key] for key in fields if key not in ("id", kind, *_OVERRIDES)},
        **known,
    )


def _content_prompt(value: Any) -> str:
    if not isinstance(value, str) or not value or not _is_text(value):
        raise _refusal("prompt", value, "a text that is not empty")
    return value


def _content_turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _refusal("turns", value, "a list of texts, at least one")
    for number, turn in enumerate(value):
        if not isinstance(turn, str) or not turn.strip() or not _is_text(turn):
            raise _refusal(f"turns[{number}]", turn, "a text that is not empty")
    return tuple(value)


def _content_messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _refusal("messages", value, "a list of messages, at least one")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise _refusal(f"messages[{number}]", message, "an object with role and content")
        for key in ("role", "content"):
            text = message.get(key)
            if not isinstance(text, str) or not _is_text(text) or (key == "role" and not text):
                raise _refusal(f"messages[{number}].{key}", text, "a text")
    if not value[-1]["content"].strip():
        raise _refusal("messages", value[-1]["content"], "a last message that is not empty")
    return tuple(value)


def _content_token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_whole(item) for item in value):
        raise _refusal("prompt_token_ids", value, "a list of whole numbers >= 0, at least one")
    return tuple(value)


_CONTENT: dict[str, Callable[[Any], Any]] = {
    "prompt": _content_prompt,
    "messages": _content_messages,
    "turns": _content_turns,
    "prompt_token_ids": _content_token_ids,
}


def _is_whole(value: Any, low: int = 0, high: int = 2**31 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and value >= 0  # False for NaN


_OVERRIDES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "budget": (_is_amount, 'a number >= 0 or "inf"'),
    "gate": (_is_amount, 'a number >= 0 or "inf"'),
    "block_cap": (_is_whole, "a whole number >= 0"),
    "draft_length": (_is_whole, "a whole number >= 0"),
    "max_new_tokens": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "seed": (lambda value: _is_whole(value, 0, _MAX_SEED), "a whole number in [0, 2**63)"),
    "thinking": (lambda value: isinstance(value, bool), "true or false"),
}


def _is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: JSON can smuggle in half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(name: str, value: Any, allowed: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ValueError(f"{name}: got {shown}, allowed is {allowed}")


def _json_type(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _hub_rows(
    name: str, path: str, config: str | None, split: str | None, column: str | None
) -> list[dict[str, Any]]:
    """Returns the rows of a hub data set as objects in the form of a prompt file."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise PromptError(
            f"{name}: no such file, and reading it from the hub needs the package datasets: "
            "pip install 'asd_jax[hub]'"
        ) from error
    try:
        data = datasets.load_dataset(path, config, split=split or "test")
        rows = [dict(row) for row in data]
    except Exception as error:  # any of a dozen network, access and parsing errors
        raise PromptError(f"{name}: no such file, and the hub gave no data: {error}") from error
    if column is not None and rows and column not in rows[0]:
        raise PromptError(f"{name}: has no column {column!r}, only {', '.join(rows[0])}")
    for number, row in enumerate(rows):
        row.setdefault("id", f"{path}/{number}")
        if column is not None:
            text = row[column]
            rows[number] = {
                "id": str(row["id"]),
                "turns": [text],
                "meta": {key: value for key, value in row.items() if key not in (column, "id")},
            }
    return rows
