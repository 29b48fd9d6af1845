"""The state of a batch: static sizes, what was emitted and counted so far, the loop's carry.

A row is *active* while its `finish_reason` is `RUNNING`. Finished rows still take part in every
forward, but nothing is committed for them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from asd_jax.types import FinishReason, Ledger, PyTree, Verdict


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """What the compiled program depends on; everything else is traced.

    Attributes:
      num_draft_tokens: G, 0 for plain autoregressive decoding.
      max_new_tokens: Size of the output buffer, tokens; requests may ask for fewer.
      max_len: Most tokens of a row, prompt and completion together.
      stop_ids: Ids that end a request; the first one is kept.
      protect_stop_ids: Whether exceptions may neither introduce nor skip a stop id.
      record_rounds: Rounds recorded in the trace; 0 for no trace.
      prefill_chunk: Prompt tokens of a row in one forward of the prefill.
    """

    num_draft_tokens: int
    max_new_tokens: int
    max_len: int
    stop_ids: tuple[int, ...] = ()
    protect_stop_ids: bool = True
    record_rounds: int = 0
    prefill_chunk: int = 256

    def __post_init__(self) -> None:
        bounds = {
            "num_draft_tokens": (0, self.max_len - 1),
            "max_new_tokens": (1, None),
            "max_len": (2, None),
            "record_rounds": (0, None),
            "prefill_chunk": (1, None),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole or value < low or (high is not None and value > high):
                allowed = f">= {low}" if high is None else f"{low}..{high}"
                raise ValueError(f"{name}: got {value!r}, allowed is a whole number {allowed}")

    @property
    def num_slots(self) -> int:
        """Cache slots of a row: every forward writes G + 1 slots, the last ones as slack."""
        return self.max_len + self.num_draft_tokens + 1


class Trace(struct.PyTreeNode):
    """What happened in each of a row's first R rounds.

    Attributes:
      start: Emitted position of the round's first token, int32 [B, R]; -1 = no such round.
      draft_tokens: int32 [B, R, G].
      draft_length: int32 [B, R].
      target_tokens: int32 [B, R, G+1]; entries behind `draft_length` mean nothing.
      regret: Regret of accepted exceptions, float32 [B, R, G].
      exception_mask: bool [B, R, G].
      num_accepted: int32 [B, R].
      num_committed: Tokens emitted by the round, int32 [B, R].
      stop_reason: `StopReason`, int32 [B, R].
      stop_regret: Regret of the draft token that was refused, 0 where none was, float32 [B, R].
    """

    start: jax.Array
    draft_tokens: jax.Array
    draft_length: jax.Array
    target_tokens: jax.Array
    regret: jax.Array
    exception_mask: jax.Array
    num_accepted: jax.Array
    num_committed: jax.Array
    stop_reason: jax.Array
    stop_regret: jax.Array


class DecodeResult(struct.PyTreeNode):
    """What a batch of requests came to.

    Attributes:
      tokens: Emitted ids, int32 [B, max_new_tokens]; entries behind `num_emitted` are 0.
      num_emitted: int32 [B].
      finish_reason: `FinishReason`, int32 [B].
      ledger: Leaves [B].
      rounds: Target forwards of each row in this call, the prefill not counted, int32 [B].
      accept_histogram: Rounds by number of committed draft tokens, int32 [B, G+1].
      position_proposed: Rounds in which position g was proposed, int32 [B, G].
      position_accepted: Rounds in which position g was committed, int32 [B, G].
      trace: A `Trace`, or None.
    """

    tokens: jax.Array
    num_emitted: jax.Array
    finish_reason: jax.Array
    ledger: Ledger
    rounds: jax.Array
    accept_histogram: jax.Array
    position_proposed: jax.Array
    position_accepted: jax.Array
    trace: Trace | None

    @property
    def acceptance_length(self) -> jax.Array:
        """Emitted tokens per round, `next_token` included, float [B].

        The first token comes from the prefill and is not counted. 0 where there was no round.
        """
        emitted = jnp.maximum(jnp.asarray(self.num_emitted) - 1, 0)
        return emitted / jnp.maximum(jnp.asarray(self.rounds), 1)


class DecodeState(struct.PyTreeNode):
    """The carry of the loop: fixed shapes, updated only by `replace`.

    Attributes:
      result: What has been emitted and counted so far.
      cache: The target's cache: the committed history without the anchor.
      drafter_state: The drafter's own state.
      anchor: Last committed token of each row, int32 [B].
    """

    result: DecodeResult
    cache: PyTree
    drafter_state: PyTree
    anchor: jax.Array

    @property
    def is_active(self) -> jax.Array:
        """True for rows that still run, bool [B]."""
        return self.result.finish_reason == FinishReason.RUNNING


def empty_result(ledger: Ledger, config: DecodeConfig) -> DecodeResult:
    """Returns the result before anything is emitted; `ledger` has leaves [B]."""
    batch = ledger.spent.shape[0]
    num_draft, num_recorded = config.num_draft_tokens, config.record_rounds

    def zeros(*shape: int, dtype: Any = jnp.int32) -> jax.Array:
        return jnp.zeros((batch, *shape), dtype)

    trace = Trace(
        start=zeros(num_recorded) - 1,
        draft_tokens=zeros(num_recorded, num_draft),
        draft_length=zeros(num_recorded),
        target_tokens=zeros(num_recorded, num_draft + 1),
        regret=zeros(num_recorded, num_draft, dtype=jnp.float32),
        exception_mask=zeros(num_recorded, num_draft, dtype=bool),
        num_accepted=zeros(num_recorded),
        num_committed=zeros(num_recorded),
        stop_reason=zeros(num_recorded),
        stop_regret=zeros(num_recorded, dtype=jnp.float32),
    )
    return DecodeResult(
        tokens=zeros(config.max_new_tokens),
        num_emitted=zeros(),
        finish_reason=zeros(),
        ledger=ledger,
        rounds=zeros(),
        accept_histogram=zeros(num_draft + 1),
        position_proposed=zeros(num_draft),
        position_accepted=zeros(num_draft),
        trace=trace if num_recorded else None,
    )


def count_round(
    result: DecodeResult,
    is_active: jax.Array,
    length: jax.Array,
    verdict: Verdict,
    num_committed: jax.Array,
) -> DecodeResult:
    """Adds one round to the statistics of active rows.

    Args:
      result: Before the round.
      is_active: bool [B].
      length: Tokens proposed, int32 [B].
      verdict: Leaves with a leading [B].
      num_committed: Tokens emitted, int32 [B].

    Returns:
      The result with its counts brought up to date.
    """
    active = is_active[:, None]
    num_draft = result.position_proposed.shape[1]
    kept = jnp.minimum(num_committed, verdict.num_accepted)[:, None]
    position = jnp.arange(num_draft, dtype=jnp.int32)[None, :]
    counts = jnp.arange(num_draft + 1, dtype=jnp.int32)[None, :]

    def one_where(mask: jax.Array) -> jax.Array:
        return (mask & active).astype(jnp.int32)

    return result.replace(
        rounds=result.rounds + is_active.astype(jnp.int32),
        accept_histogram=result.accept_histogram + one_where(counts == kept),
        position_proposed=result.position_proposed + one_where(position < length[:, None]),
        position_accepted=result.position_accepted + one_where(position < kept),
    )


def record_round(
    result: DecodeResult,
    before: DecodeResult,
    is_active: jax.Array,
    tokens: jax.Array,
    length: jax.Array,
    verdict: Verdict,
    num_committed: jax.Array,
) -> DecodeResult:
    """Writes a round into the trace; rounds beyond its end are dropped.

    Args:
      result: With a trace.
      before: The result before the round.
      is_active: bool [B].
      tokens: Drafts, int32 [B, G].
      length: Tokens proposed, int32 [B].
      verdict: Leaves with a leading [B].
      num_committed: Tokens emitted, int32 [B].

    Returns:
      The result with the round recorded.
    """
    assert result.trace is not None
    num_recorded = result.trace.start.shape[1]
    slot = jnp.where(is_active, before.rounds, num_recorded)
    entry = Trace(
        start=before.num_emitted,
        draft_tokens=tokens,
        draft_length=length,
        target_tokens=verdict.target_tokens,
        regret=verdict.regret,
        exception_mask=verdict.exception_mask,
        num_accepted=verdict.num_accepted,
        num_committed=num_committed,
        stop_reason=verdict.stop_reason,
        stop_regret=verdict.stop_regret,
    )
    trace = jax.tree.map(
        lambda leaf, new: jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))(
            leaf, slot, new
        ),
        result.trace,
        entry,
    )
    return result.replace(trace=trace)
