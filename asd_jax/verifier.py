"""The verifier of Approximate Speculative Decoding: which draft tokens of a block are kept.

Terms, each with unit and sign (arXiv 2608.03447, section 3):

- *regret* r_i = z_i[y_i] - z_i[x_i] >= 0: how far the draft token x_i lies below the target's
  argmax y_i, in logits, which equals nats of log-probability.
- *exception*: a draft token that is not the target's argmax, by id. A tie is one, of regret 0.
- *suffix value* q_i: how many tokens keeping x_i can be worth. Scheme "remaining" (the paper):
  n - i, the rest of the block counting x_i. Scheme "realised" (ours): 1 + the number of draft
  tokens right behind x_i that match the target, which is known by now.
- *gate*: an exception must have r_i <= gate * q_i.
- *cap*: at most `block_cap` exceptions a block.
- *ledger*: regret spent by the request so far; never above its *budget*.

`verify` decides and charges nothing; `settle` charges what was really committed. Both are for one
request and are vmapped over a batch. `verify` is `score_drafts`, the one pass over the vocabulary,
followed by `decide`, which is O(G).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from asd_jax.scoring import TokenScores, score_drafts
from asd_jax.types import Controls, Ledger, StopReason, Verdict

__all__ = [
    "Controls",
    "Ledger",
    "StopReason",
    "Verdict",
    "decide",
    "settle",
    "verify",
    "verify_batch",
]

ValueScheme = Literal["remaining", "realised"]
VALUE_SCHEMES: tuple[str, ...] = ("remaining", "realised")


def verify(
    draft_tokens: jax.Array,
    target_logits: jax.Array,
    ledger: Ledger,
    controls: Controls,
    *,
    draft_length: jax.Array | int | None = None,
    value_length: jax.Array | int | None = None,
    value_scheme: ValueScheme = "remaining",
    protected_ids: Sequence[int] | jax.Array = (),
) -> Verdict:
    """Decides how many tokens of one block to keep (arXiv 2608.03447, section 3, algorithm 1).

    Keeps the longest prefix in which every token is the target's argmax or an affordable exception.
    With budget, gate or cap 0, or a spent ledger, it is strict greedy verification, ties included.

    Args:
      draft_tokens: Draft ids x, integer [G]. Ids outside [0, V) are never kept.
      target_logits: z, any float type, [G+1, V]; z[i] scores x[i] given the history before it.
      ledger: The request's ledger, scalar leaves.
      controls: The request's limits, scalar leaves, traced.
      draft_length: n, the number of tokens really proposed, int32 [], 0..G. Default G.
      value_length: The n in q_i = n - i where it differs from `draft_length`, for a block that a
        confidence head cut short. Unused by the scheme "realised". Default `draft_length`.
      value_scheme: "remaining" or "realised", static.
      protected_ids: Ids that an exception may neither introduce nor skip; `()` is the paper's rule.

    Returns:
      A `Verdict` with scalar and [G] leaves.

    Raises:
      ValueError: Wrong ranks or sizes, or an unknown value scheme.
    """
    _check_block(draft_tokens, target_logits, ledger, controls)
    # Ids outside the vocabulary become V before the cast, which could wrap them into it.
    vocab_size = target_logits.shape[1]
    in_vocab = (draft_tokens >= 0) & (draft_tokens < vocab_size)
    draft_tokens = jnp.where(in_vocab, draft_tokens, vocab_size).astype(jnp.int32)
    return decide(
        draft_tokens,
        score_drafts(target_logits, draft_tokens),
        ledger,
        controls,
        draft_length=draft_length,
        value_length=value_length,
        value_scheme=value_scheme,
        protected_ids=protected_ids,
    )


def decide(
    draft_tokens: jax.Array,
    scores: TokenScores,
    ledger: Ledger,
    controls: Controls,
    *,
    draft_length: jax.Array | int | None = None,
    value_length: jax.Array | int | None = None,
    value_scheme: ValueScheme = "remaining",
    protected_ids: Sequence[int] | jax.Array = (),
) -> Verdict:
    """Decides like `verify`, from scores that were read off the logits before.

    Args:
      draft_tokens: int32 [G].
      scores: Of one request, leaves [G+1], [G+1] and [G].
      ledger: As in `verify`.
      controls: As in `verify`.
      draft_length: As in `verify`.
      value_length: As in `verify`.
      value_scheme: As in `verify`.
      protected_ids: As in `verify`.

    Returns:
      A `Verdict` with scalar and [G] leaves.

    Raises:
      ValueError: An unknown value scheme.
    """
    if value_scheme not in VALUE_SCHEMES:
        raise ValueError(f"value_scheme: got {value_scheme!r}, allowed is one of {VALUE_SCHEMES}")
    num_draft = draft_tokens.shape[0]
    if draft_length is None:
        draft_length = num_draft
    draft_length = jnp.clip(jnp.asarray(draft_length, jnp.int32), 0, num_draft)
    value_length = draft_length if value_length is None else jnp.asarray(value_length, jnp.int32)
    target_tokens, top_logits = scores.target_tokens, scores.top_logits

    position = jnp.arange(num_draft, dtype=jnp.int32)
    exception = draft_tokens != target_tokens[:num_draft]
    raw_regret = top_logits[:num_draft] - scores.draft_logits
    value = _suffix_value(value_scheme, exception, position, draft_length, value_length)
    is_protected = is_member(draft_tokens, protected_ids) | is_member(
        target_tokens[:num_draft], protected_ids
    )
    refusal, price = _refusals(exception, raw_regret, value, is_protected, ledger, controls)

    proposed = position < draft_length
    num_accepted = prefix_length((~exception | (refusal == StopReason.NONE)) & proposed)
    accepted_exception = exception & (position < num_accepted)
    reason = jnp.where(proposed, refusal, jnp.int32(StopReason.END_OF_DRAFT))
    reason = jnp.append(reason, jnp.int32(StopReason.NONE))
    num_finite = prefix_length(jnp.isfinite(top_logits))
    return Verdict(
        num_accepted=num_accepted,
        next_token=target_tokens[num_accepted],
        target_tokens=target_tokens,
        regret=jnp.where(accepted_exception, price, jnp.float32(0)),
        exception_mask=accepted_exception,
        num_strict=prefix_length(~exception & proposed),
        stop_reason=reason[num_accepted],
        stop_regret=regret_at(raw_regret, num_accepted, draft_length),
        is_finite=num_finite > num_accepted,
        num_finite=num_finite,
    )


def regret_at(raw_regret: jax.Array, position: jax.Array, draft_length: jax.Array) -> jax.Array:
    """Returns the regret of the draft token at a position, 0 at the end of the draft, float32 [].

    Args:
      raw_regret: Top minus draft logit, float32 [G]; infinite is returned where it is not finite.
      position: int32 [], 0..G.
      draft_length: int32 [].
    """
    padded = jnp.append(raw_regret, jnp.float32(0))
    padded = jnp.where(jnp.isfinite(padded), padded, jnp.float32(jnp.inf))
    return jnp.where(position < draft_length, padded[position], jnp.float32(0))


def _refusals(
    exception: jax.Array,
    raw_regret: jax.Array,
    value: jax.Array,
    is_protected: jax.Array,
    ledger: Ledger,
    controls: Controls,
) -> tuple[jax.Array, jax.Array]:
    """Judges every position as if all exceptions before it had been accepted.

    Args:
      exception: Whether the draft token is not the target's argmax, bool [G].
      raw_regret: May be NaN or infinite, float32 [G].
      value: Suffix values q, int32 [G].
      is_protected: bool [G].
      ledger: As in `verify`.
      controls: As in `verify`.

    Returns:
      Why an exception there is refused, a `StopReason` that is NONE where it is not, int32 [G];
      and what it costs, 0 where there is no valid exception, float32 [G].
    """
    valid = jnp.isfinite(raw_regret)  # false for ids outside the vocabulary: their logit is -inf
    # An invalid exception ends the prefix, so its price is never paid; 0 keeps NaN out of the sums.
    price = jnp.where(exception & valid, raw_regret, jnp.float32(0))
    spent_before, spent_after = _running_sum(ledger.spent, price)
    is_strict = (controls.budget <= 0) | (controls.gate <= 0) | (controls.block_cap <= 0)
    # In order of precedence: the reasons that no control can lift come first.
    tests = [
        (StopReason.INVALID, ~valid),
        (StopReason.STRICT, is_strict),
        (StopReason.PROTECTED, is_protected),
        (StopReason.GATE, ~(raw_regret <= controls.gate * value.astype(jnp.float32))),
        (StopReason.CAP, _running_count(exception) > controls.block_cap),
        (StopReason.BUDGET, ~((spent_before < controls.budget) & (spent_after <= controls.budget))),
    ]
    refusal = jnp.full(exception.shape, StopReason.NONE, jnp.int32)
    for reason, fails in reversed(tests):
        refusal = jnp.where(fails, jnp.int32(reason), refusal)
    return refusal, price


def verify_batch(
    draft_tokens: jax.Array,
    target_logits: jax.Array,
    ledger: Ledger,
    controls: Controls,
    *,
    draft_length: jax.Array | None = None,
    value_length: jax.Array | None = None,
    value_scheme: ValueScheme = "remaining",
    protected_ids: Sequence[int] | jax.Array = (),
) -> Verdict:
    """Applies `verify` to every request of a batch; rows never depend on each other.

    Args:
      draft_tokens: [B, G].
      target_logits: [B, G+1, V].
      ledger: Leaves [B].
      controls: Leaves [B] or scalar.
      draft_length: int32 [B], [] or None.
      value_length: int32 [B], [] or None.
      value_scheme: As in `verify`.
      protected_ids: As in `verify`, the same for all requests.

    Returns:
      A `Verdict` with a leading [B] on every leaf.

    Raises:
      ValueError: As in `verify`.
    """
    if draft_tokens.ndim != 2 or target_logits.ndim != 3:
        raise ValueError(
            "draft_tokens and target_logits: got ranks "
            f"{draft_tokens.ndim} and {target_logits.ndim}, allowed are 2 and 3"
        )
    batch, num_draft = draft_tokens.shape
    lengths = jnp.asarray(num_draft if draft_length is None else draft_length, jnp.int32)
    values = lengths if value_length is None else jnp.asarray(value_length, jnp.int32)

    def row(
        tokens: jax.Array,
        logits: jax.Array,
        ledger: Ledger,
        controls: Controls,
        draft_length: jax.Array,
        value_length: jax.Array,
    ) -> Verdict:
        return verify(
            tokens,
            logits,
            ledger,
            controls,
            draft_length=draft_length,
            value_length=value_length,
            value_scheme=value_scheme,
            protected_ids=protected_ids,
        )

    per_row = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (batch,)), (controls, lengths, values)
    )
    return jax.vmap(row)(draft_tokens, target_logits, ledger, *per_row)


def settle(
    ledger: Ledger,
    verdict: Verdict,
    num_committed: jax.Array | int,
    *,
    draft_length: jax.Array | int | None = None,
    position: jax.Array | int | None = None,
) -> Ledger:
    """Charges the ledger for the tokens of a block that were really committed.

    Nothing behind a stop or length cut is charged and nothing is ever refunded. The sum is formed
    in the order in which `verify` formed it, so `spent` is bit for bit the number that was compared
    with the budget.

    Args:
      ledger: The ledger that `verify` saw, scalar leaves.
      verdict: Its verdict on this block.
      num_committed: Emitted tokens kept, counting the accepted prefix and then `next_token`, int32
        [], 0..num_accepted + 1.
      draft_length: Tokens really proposed, int32 []. Default G.
      position: Index of this block's first emitted token in the completion, int32 []. Default: the
        number of tokens committed through this ledger so far.

    Returns:
      The new ledger.
    """
    num_draft = verdict.regret.shape[0]
    num_committed = jnp.asarray(num_committed, jnp.int32)
    draft_length = jnp.asarray(num_draft if draft_length is None else draft_length, jnp.int32)
    if position is None:
        position = ledger.accepted + ledger.rounds
    index = jnp.arange(num_draft, dtype=jnp.int32)
    num_kept = jnp.minimum(num_committed, verdict.num_accepted)
    charged = verdict.exception_mask & (index < num_kept)
    num_exceptions = jnp.sum(charged, dtype=jnp.int32)
    spent = _running_sum(ledger.spent, jnp.where(charged, verdict.regret, jnp.float32(0)))[1]
    first = jnp.min(jnp.where(charged, index, num_draft), initial=num_draft)
    refused_by_budget = (verdict.stop_reason == StopReason.BUDGET) & (
        num_committed > verdict.num_accepted
    )
    has_exception = num_exceptions > 0
    return ledger.replace(
        spent=spent[-1] if num_draft else ledger.spent,
        exceptions=ledger.exceptions + num_exceptions,
        reused=ledger.reused + jnp.where(has_exception, num_kept - first - 1, 0),
        proposed=ledger.proposed + draft_length,
        accepted=ledger.accepted + num_kept,
        strict_accepted=ledger.strict_accepted + jnp.minimum(num_committed, verdict.num_strict),
        rounds=ledger.rounds + 1,
        exhausted_at=jnp.where(
            refused_by_budget & (ledger.exhausted_at < 0), ledger.rounds, ledger.exhausted_at
        ),
        first_exception_at=jnp.where(
            has_exception & (ledger.first_exception_at < 0),
            position + first,
            ledger.first_exception_at,
        ),
    )


def _check_block(
    draft_tokens: jax.Array, target_logits: jax.Array, ledger: Ledger, controls: Controls
) -> None:
    """Raises a ValueError that names what does not fit."""
    if draft_tokens.ndim != 1 or target_logits.ndim != 2:
        raise ValueError(
            "draft_tokens and target_logits: got shapes "
            f"{draft_tokens.shape} and {target_logits.shape}, allowed are [G] and [G+1, V]"
        )
    num_draft = draft_tokens.shape[0]
    if target_logits.shape[0] != num_draft + 1:
        raise ValueError(
            f"target_logits: got {target_logits.shape[0]} rows for {num_draft} draft tokens, "
            f"allowed is {num_draft + 1}"
        )
    if not jnp.issubdtype(draft_tokens.dtype, jnp.integer):
        raise ValueError(f"draft_tokens: got {draft_tokens.dtype}, allowed is an integer type")
    if not jnp.issubdtype(target_logits.dtype, jnp.floating):
        raise ValueError(f"target_logits: got {target_logits.dtype}, allowed is a float type")
    scalars = {
        "ledger.spent": ledger.spent,
        "controls.budget": controls.budget,
        "controls.gate": controls.gate,
        "controls.block_cap": controls.block_cap,
    }
    for name, leaf in scalars.items():
        if jnp.ndim(leaf):
            raise ValueError(
                f"{name}: got shape {jnp.shape(leaf)}, allowed is a scalar; "
                "verify_batch takes one a request"
            )


# The helpers below use [G, G] masks instead of cumulative operations: G is small, and XLA fuses
# a mask and a reduction into one kernel where it would run a scan or a reduce-window.


def _running_sum(start: jax.Array, terms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the float32 partial sums of `start + terms[0] + ...` before and after each term.

    Strictly from left to right, so that `verify` and `settle` round alike whatever the backend.
    """
    num_terms = terms.shape[0]
    index = jnp.arange(num_terms, dtype=jnp.int32)
    before = after = jnp.broadcast_to(jnp.asarray(start, jnp.float32), (num_terms,))
    for i in range(num_terms):
        before = jnp.where(index > i, before + terms[i], before)
        after = jnp.where(index >= i, after + terms[i], after)
    return before, after


def _running_count(mask: jax.Array) -> jax.Array:
    """Returns how many entries up to and with each one are true, int32 [G]."""
    index = jnp.arange(mask.shape[0], dtype=jnp.int32)
    counted = mask[None, :] & (index[None, :] <= index[:, None])
    return jnp.sum(counted, axis=1, dtype=jnp.int32)


def prefix_length(mask: jax.Array) -> jax.Array:
    """Returns the length of the longest all-true prefix, int32 [].

    Args:
      mask: bool [N].
    """
    size = mask.shape[0]
    return jnp.min(jnp.where(mask, size, jnp.arange(size, dtype=jnp.int32)), initial=size)


def _suffix_value(
    scheme: str,
    exception: jax.Array,
    position: jax.Array,
    draft_length: jax.Array,
    value_length: jax.Array,
) -> jax.Array:
    """Returns q, int32 [G]: the tokens that keeping each position may (or does) save."""
    if scheme == "remaining":
        return value_length - position
    # Up to the next mismatch behind i, or the end of the draft.
    is_behind = exception[None, :] & (position[None, :] > position[:, None])
    next_mismatch = jnp.min(
        jnp.where(is_behind, position[None, :], draft_length),
        axis=1,
        initial=jnp.iinfo(jnp.int32).max,
    )
    return jnp.minimum(next_mismatch, draft_length) - position


def is_member(tokens: jax.Array, ids: Sequence[int] | jax.Array) -> jax.Array:
    """Returns which tokens are among some ids, bool [N].

    Args:
      tokens: int32 [N].
      ids: Any number of them.
    """
    ids = jnp.asarray(ids, jnp.int32)
    return jnp.any(tokens[:, None] == ids[None, :], axis=1)
