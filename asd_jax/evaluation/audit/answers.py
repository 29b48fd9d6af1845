"""One answer of one arm, read from a row of an output file (see `evaluation.records`)."""

from __future__ import annotations

import dataclasses
from typing import Any

from asd_jax.evaluation.audit.fields import AuditError, Fields, refusal

FINISH_REASONS = ("stop", "length", "capacity", "nonfinite")


@dataclasses.dataclass(frozen=True)
class ExceptionEntry:
    """A draft token that was kept though the target's argmax was another one.

    Attributes:
      position: Its index in the answer's token ids.
      draft_id: The token that was kept.
      target_id: The target's argmax.
      draft: Text of the one.
      target: Text of the other.
      regret: What it cost, in logits.
    """

    position: int
    draft_id: int
    target_id: int
    draft: str
    target: str
    regret: float


@dataclasses.dataclass(frozen=True)
class AnsweredTurn:
    """The model's answer to one user turn.

    Attributes:
      text: Without the stop token.
      token_ids: With it.
      finish_reason: One of `FINISH_REASONS`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclasses.dataclass(frozen=True)
class ArmAnswer:
    """All turns of one request under one arm.

    Attributes:
      id: The request's.
      arm: The arm's name.
      turns: At least one.
      accept_histogram: Rounds by number of committed draft tokens. [G + 1].
      rounds: Target forwards, prefills not counted.
      spent: Regret in logits.
      budget: Regret allowed, in logits; infinity if there was no limit.
      num_exceptions: Committed exceptions.
      reused: Draft tokens kept behind them in the same block.
      is_exhausted: Whether the budget was used up.
      exceptions: Each exception in order, or None where the run kept no trace.
    """

    id: str
    arm: str
    turns: tuple[AnsweredTurn, ...]
    accept_histogram: tuple[int, ...]
    rounds: int
    spent: float
    budget: float
    num_exceptions: int
    reused: int
    is_exhausted: bool
    exceptions: tuple[ExceptionEntry, ...] | None

    @property
    def text(self) -> str:
        """The texts of all turns, joined by blank lines."""
        return "\n\n".join(turn.text for turn in self.turns)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each turn, which is what a grader reads."""
        return tuple(turn.text for turn in self.turns)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of all turns, stop ids included."""
        return tuple(token for turn in self.turns for token in turn.token_ids)

    @property
    def round_tokens(self) -> int:
        """Tokens that rounds emitted; the first of each turn comes from its prefill."""
        return sum(max(len(turn.token_ids) - 1, 0) for turn in self.turns)


def parse_answer(row: Any) -> ArmAnswer:
    """Checks a JSON value and returns it as an `ArmAnswer`.

    Fields that are not needed here are not looked at. What a row says twice must agree: one that
    contradicts itself was put together by hand.

    Raises:
      AuditError: It is no answer; the message names the field, what was got and what is allowed.
    """
    fields = Fields(row)
    ledger = fields.object("ledger")
    turns = tuple(map(_turn, fields.objects("turns"))) if "turns" in fields else (_turn(fields),)
    answer = ArmAnswer(
        id=fields.filled("id"),
        arm=fields.filled("arm"),
        turns=turns,
        accept_histogram=fields.counts("accept_histogram"),
        rounds=ledger.count("rounds"),
        spent=ledger.amount("spent"),
        budget=ledger.limit("budget"),
        num_exceptions=ledger.count("exceptions"),
        reused=ledger.count("reused"),
        is_exhausted=ledger.integer("exhausted_at") >= 0,
        exceptions=_exceptions(fields),
    )
    ids = answer.token_ids
    if fields.counts("token_ids") != ids:
        raise AuditError("token_ids: got others than those of the turns, allowed are the same")
    if fields.text("text") != answer.text:
        raise AuditError("text: got another than that of the turns, allowed is the same")
    if fields.count("completion_tokens") != len(ids):
        raise refusal("completion_tokens", fields.count("completion_tokens"), f"{len(ids)}")
    if sum(answer.accept_histogram) != answer.rounds:
        raise refusal("accept_histogram", answer.accept_histogram, f"{answer.rounds} in all")
    _check_exceptions(answer)
    return answer


def _turn(fields: Fields) -> AnsweredTurn:
    return AnsweredTurn(
        text=fields.text("text"),
        token_ids=fields.counts("token_ids"),
        finish_reason=fields.one_of("finish_reason", FINISH_REASONS),
    )


def _exceptions(fields: Fields) -> tuple[ExceptionEntry, ...] | None:
    if "exceptions" not in fields:
        return None
    return tuple(
        ExceptionEntry(
            position=entry.count("position"),
            draft_id=entry.count("draft_id"),
            target_id=entry.count("target_id"),
            draft=entry.text("draft"),
            target=entry.text("target"),
            regret=entry.amount("regret"),
        )
        for entry in fields.objects("exceptions")
    )


def _check_exceptions(answer: ArmAnswer) -> None:
    if answer.exceptions is None:
        return
    if len(answer.exceptions) != answer.num_exceptions:
        allowed = f"as many as were charged, {answer.num_exceptions}"
        raise AuditError(f"exceptions: got {len(answer.exceptions)}, allowed are {allowed}")
    ids, last = answer.token_ids, -1
    for number, entry in enumerate(answer.exceptions):
        name = f"exceptions[{number}].position"
        if not last < entry.position < len(ids):
            raise refusal(name, entry.position, f"{last + 1}..{len(ids) - 1}")
        if ids[entry.position] != entry.draft_id:
            raise refusal(name, entry.position, f"a place of token {entry.draft_id}")
        last = entry.position
