"""From a prompt file and the target's own answers to texts with labels.

The answers are an output file of `experiments.decode` (see `asd_jax.evaluation.records`) with an
arm that writes what the target itself would: greedy or strict. Every turn of a request is an
example, with the conversation up to it as its prompt.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asd_jax.evaluation.arms import GREEDY, STRICT
from asd_jax.evaluation.plan import prompt_ids
from asd_jax.evaluation.prompts import Prompt, PromptFile
from asd_jax.tokenizer import Tokenizer
from asd_jax.training.answers import read_answers
from asd_jax.training.exclusion import Dropped, Exclusion

# The first token of an answer comes with the prefill: a drafter has a label from the second on.
_MIN_ANSWER = 2
_NO_LIMIT = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of an answers file. Counts are of turns, but for `unanswered`.

    Attributes:
      used: Examples.
      held_out: How many of them are held out.
      tokens: Tokens of the examples, prompts included.
      answer_tokens: Tokens of their answers.
      cut: Examples whose answer was cut at `max_tokens`.
      dropped: Turns without an example by reason: "excluded", "arm" (not the target's own),
        "repeated" (an answer of another arm came first), "no prompt" (an id that is not in the
        prompt file), "not finite", "short answer" and "long prompt" (no room for an answer).
      unanswered: Prompts without an answer, excluded ones not counted.
      exclusion: The excluded prompts, answered or not.
    """

    used: int
    held_out: int
    tokens: int
    answer_tokens: int
    cut: int
    dropped: Mapping[str, int]
    unanswered: int
    exclusion: Dropped


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """Texts of E examples, one behind the other.

    Attributes:
      tokens: Prompts with answers, int32 [sum of lengths].
      offsets: Where each example begins, and the end, int64 [E + 1].
      answer_start: Place in its example at which the answer begins, int32 [E].
      is_held_out: Which examples are for measuring only, bool [E].
      ids: Request of each; several turns share one.
      stop_ids: Ids that end an answer.
      report: How they came about.
      learns_prompts: Whether the tokens of prompts are to be learnt as well.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    answer_start: np.ndarray
    is_held_out: np.ndarray
    ids: tuple[str, ...]
    stop_ids: tuple[int, ...]
    report: Report
    learns_prompts: bool = False

    @property
    def label_start(self) -> np.ndarray:
        """Place in each example at which the tokens to learn begin, int32 [E]."""
        return np.ones_like(self.answer_start) if self.learns_prompts else self.answer_start

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, int64 [E]."""
        return np.diff(self.offsets)

    def rows(self, *, held_out: bool = False) -> np.ndarray:
        """Returns the numbers of the examples of one part, ascending, int64 [E of the part]."""
        return np.flatnonzero(self.is_held_out == held_out)

    def text(self, row: int) -> np.ndarray:
        """Returns the tokens of an example, int32 [its length]."""
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def labels(self, *, held_out: bool = False) -> np.ndarray:
        """Returns the answer tokens of one part, one example behind the other, int32 [M]."""
        begins = self.offsets[:-1] + self.answer_start
        mask = np.zeros(self.tokens.shape, bool)
        for row in self.rows(held_out=held_out):
            mask[begins[row] : self.offsets[row + 1]] = True
        return self.tokens[mask]


def read_examples(
    prompts: PromptFile,
    answers_path: str | Path,
    tokenizer: Tokenizer,
    *,
    target_digest: str,
    max_tokens: int,
    exclusion: Exclusion,
    held_out_fraction: float = 0.02,
    learns_prompts: bool = False,
) -> Examples:
    """Joins prompts and answers.

    An answer's stop id is its last token and a label, where one was emitted and is not cut away.

    Args:
      prompts: The file that was answered.
      answers_path: The answers.
      tokenizer: The target's.
      target_digest: `CheckpointSource.digest()` of the target.
      max_tokens: Longest example, tokens; longer answers lose their end.
      exclusion: What must not be trained on.
      held_out_fraction: Share of the requests to hold out, in [0, 1). A request's id alone decides,
        so that more prompts or another order move none.
      learns_prompts: As in `Examples`.

    Raises:
      ValueError: The file is no output file, was made with another target, other prompts or with
        stop ids ignored, a row does not fit its prompt, or no example is left for training; the
        message names file, line, id, what was got and what is allowed.
      OSError: The file cannot be read.
    """
    if max_tokens < _MIN_ANSWER + 1:
        raise ValueError(f"max_tokens: got {max_tokens}, allowed is >= {_MIN_ANSWER + 1}")
    if not 0 <= held_out_fraction < 1:
        raise ValueError(f"held_out_fraction: got {held_out_fraction}, allowed is 0 <= it < 1")
    answers = read_answers(
        answers_path,
        target_digest=target_digest,
        prompts_digest=prompts.digest,
        num_ids=tokenizer.num_ids,
    )
    by_id = {prompt.id: prompt for prompt in prompts.records}
    excluded = exclusion.dropped(prompts.records)
    kept = by_id.keys() - {drop.id for drop in excluded.prompts}
    dropped: collections.Counter[str] = collections.Counter()
    gathered = _Gathered(max_tokens, dropped)
    answered: set[str] = set()
    for where, row in answers.rows:
        request, turns = row["id"], row.get("turns") or [row]
        refusal = _row_refusal(request, row["arm"], by_id=by_id, kept=kept, answered=answered)
        if refusal:
            dropped[refusal] += len(turns)
            continue
        answered.add(request)
        try:
            for ids, turn in _conversation(by_id[request], turns, tokenizer, answers.thinking):
                gathered.add(request, ids, turn)
        except ValueError as error:
            raise ValueError(f"{where}: id {request!r}: {error}") from error
    examples = _packed(
        gathered,
        tokenizer.stop_ids,
        held_out_fraction,
        unanswered=len(kept - answered),
        exclusion=excluded,
        learns_prompts=learns_prompts,
    )
    if not examples.rows().size:
        raise ValueError(
            f"answers: {answers_path}: got no example for training, allowed is at least one; "
            f"held out: {examples.report.held_out}, dropped: {dict(dropped)}"
        )
    return examples


def is_held_out(request_id: str, fraction: float) -> bool:
    """Returns whether a request is among the `fraction` that is held out."""
    digest = hashlib.sha256(b"asd_jax held out\n" + request_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def _row_refusal(
    request: str, arm: str, *, by_id: Mapping[str, Prompt], kept: set[str], answered: set[str]
) -> str | None:
    """Returns why no turn of a row becomes an example, or None."""
    if request not in by_id:
        return "no prompt"
    if request not in kept:
        return "excluded"
    # Rules with a budget emit what the target would not: nothing to distil.
    if arm not in (GREEDY, STRICT):
        return "arm"
    return "repeated" if request in answered else None


def _conversation(
    prompt: Prompt,
    turns: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    thinking: bool | None,
) -> Iterator[tuple[list[int], Mapping[str, Any]]]:
    """Yields each turn with the ids of the conversation up to it, as it was decoded."""
    if len(turns) != prompt.num_turns:
        raise ValueError(f"turns: got {len(turns)}, allowed is {prompt.num_turns}")
    texts: list[str] = []
    for turn in turns:
        ids = prompt_ids(
            prompt,
            texts,
            tokenizer,
            thinking=thinking if prompt.thinking is None else prompt.thinking,
            vocab_size=_NO_LIMIT,
            context_length=_NO_LIMIT,
        )
        # A chat template that has changed since would teach on texts that the target never saw.
        if len(ids) != turn["prompt_tokens"]:
            raise ValueError(
                f"turn {len(texts) + 1}: prompt_tokens: got {turn['prompt_tokens']}, allowed is "
                f"{len(ids)}, as its prompt has now"
            )
        yield ids, turn
        texts.append(tokenizer.decode(turn["token_ids"]))


class _Gathered:
    """Examples as they come, and the turns that become none."""

    def __init__(self, max_tokens: int, dropped: collections.Counter[str]) -> None:
        self.texts: list[np.ndarray] = []
        self.starts: list[int] = []
        self.requests: list[str] = []
        self.dropped = dropped
        self.cut = 0
        self._max_tokens = max_tokens

    def add(self, request: str, ids: list[int], turn: Mapping[str, Any]) -> None:
        answer = turn["token_ids"]
        if turn["finish_reason"] == "nonfinite":
            self.dropped["not finite"] += 1
        elif len(answer) < _MIN_ANSWER:
            self.dropped["short answer"] += 1
        elif len(ids) + _MIN_ANSWER > self._max_tokens:
            self.dropped["long prompt"] += 1
        else:
            self.cut += len(ids) + len(answer) > self._max_tokens
            self.texts.append(np.asarray([*ids, *answer][: self._max_tokens], np.int32))
            self.starts.append(len(ids))
            self.requests.append(request)


def _packed(
    gathered: _Gathered,
    stop_ids: tuple[int, ...],
    held_out_fraction: float,
    *,
    unanswered: int,
    exclusion: Dropped,
    learns_prompts: bool,
) -> Examples:
    """Puts what was gathered into arrays, with a report."""
    lengths = np.asarray([len(text) for text in gathered.texts], np.int64)
    answer_start = np.asarray(gathered.starts, np.int32)
    held_out = np.asarray([is_held_out(i, held_out_fraction) for i in gathered.requests], bool)
    report = Report(
        used=len(lengths),
        held_out=int(held_out.sum()),
        tokens=int(lengths.sum()),
        answer_tokens=int((lengths - answer_start).sum()),
        cut=gathered.cut,
        dropped=dict(gathered.dropped),
        unanswered=unanswered,
        exclusion=exclusion,
    )
    return Examples(
        tokens=np.concatenate([np.zeros(0, np.int32), *gathered.texts]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        answer_start=answer_start,
        is_held_out=held_out,
        ids=tuple(gathered.requests),
        stop_ids=stop_ids,
        report=report,
        learns_prompts=learns_prompts,
    )
