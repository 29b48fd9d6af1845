"""Keeps track of the requests of one batch, turn after turn, on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax.decode import DecodeResult
from asd_jax.evaluation.arms import Arm
from asd_jax.evaluation.plan import Failure, Request, TextCodec, prompt_ids
from asd_jax.types import FinishReason, Target


@dataclasses.dataclass(frozen=True)
class Turn:
    """One answer of the model, on the host.

    Attributes:
      prompt_tokens: Tokens of its prompt, earlier turns included.
      token_ids: What was emitted.
      finish_reason: Why it ended.
      rounds: Target forwards, the prefill not counted.
      accept_histogram: Rounds by number of committed draft tokens, length G + 1.
      trace: This request's part of the `Trace`, leaves without [B], or None.
    """

    prompt_tokens: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    rounds: int
    accept_histogram: tuple[int, ...]
    trace: Any = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """All turns of one request under one arm.

    Attributes:
      request: The request.
      arm: The arm's name.
      turns: At least one.
      ledger: Where the ledger stands at the end: field name -> number.
      budget: What it was allowed to spend in this arm, logits.
    """

    request: Request
    arm: str
    turns: tuple[Turn, ...]
    ledger: dict[str, float]
    budget: float


class Conversations:
    """Where each request of a batch stands under one arm."""

    def __init__(
        self, batch: Sequence[Request], arm: Arm, tokenizer: TextCodec, target: Target
    ) -> None:
        self.batch = batch
        self.arm = arm
        self.prompts: list[Sequence[int]] = [request.first_ids for request in batch]
        self.failures: dict[int, Failure] = {}
        self._tokenizer = tokenizer
        self._sizes = dict(vocab_size=target.vocab_size, context_length=target.context_length)
        self._turns: list[list[Turn]] = [[] for _ in batch]
        self._texts: list[list[str]] = [[] for _ in batch]
        self._ledgers: list[Any] = [None for _ in batch]

    def next_rows(self) -> list[int]:
        """Returns the rows that have another turn, with `prompts` brought up to date."""
        for row, request in enumerate(self.batch):
            if self._has_more(row) and self._turns[row]:
                try:
                    self.prompts[row] = prompt_ids(
                        request.prompt,
                        self._texts[row],
                        self._tokenizer,
                        thinking=request.thinking,
                        **self._sizes,
                    )
                except ValueError as error:
                    self._fail(row, str(error))
        return [row for row in range(len(self.batch)) if self._has_more(row)]

    def _has_more(self, row: int) -> bool:
        num_turns = self.batch[row].prompt.num_turns
        return row not in self.failures and len(self._turns[row]) < num_turns

    def ledgers(self, rows: Sequence[int]) -> Any:
        """Returns the ledgers of earlier turns, leaves [len(rows)], or None in the first turn."""
        if self._ledgers[rows[0]] is None:
            return None
        ledgers = [self._ledgers[row] for row in rows]
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *ledgers)

    def take(self, rows: Sequence[int], result: DecodeResult) -> None:
        """Takes in one turn of `rows`, which are the first rows of a host-side result."""
        for at, row in enumerate(rows):
            ids = tuple(int(token) for token in result.tokens[at, : result.num_emitted[at]])
            self._ledgers[row] = jax.tree.map(lambda leaf, at=at: leaf[at], result.ledger)
            self._turns[row].append(
                Turn(
                    prompt_tokens=len(self.prompts[row]),
                    token_ids=ids,
                    finish_reason=FinishReason(int(result.finish_reason[at])),
                    rounds=int(result.rounds[at]),
                    accept_histogram=tuple(int(n) for n in result.accept_histogram[at]),
                    trace=jax.tree.map(lambda leaf, at=at: leaf[at], result.trace),
                )
            )
            self._texts[row].append(self._tokenizer.decode(ids))

    def fail_all(self, message: str) -> None:
        """Gives up on all requests that are not finished."""
        for row in range(len(self.batch)):
            if self._has_more(row):
                self._fail(row, message)

    def _fail(self, row: int, message: str) -> None:
        prompt = self.batch[row].prompt
        self.failures[row] = Failure(prompt.id, prompt.line, message, self.arm.name)

    def answers(self) -> list[Answer]:
        """Returns the finished requests."""
        return [
            Answer(
                request=request,
                arm=self.arm.name,
                turns=tuple(self._turns[row]),
                ledger={
                    field.name: np.asarray(getattr(ledger, field.name)).item()
                    for field in dataclasses.fields(ledger)
                },
                budget=request.budget if self.arm.has_controls else 0.0,
            )
            for row, request in enumerate(self.batch)
            if row not in self.failures and (ledger := self._ledgers[row]) is not None
        ]
