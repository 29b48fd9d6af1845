"""What every rival rule shares: reading rows of logits, and turning its tests into a `Verdict`.

A rule says of each position whether the draft token is *native*, kept without any leniency, and
whether its own test would keep it all the same. A token kept by that test alone is an override.
Overrides need a finite regret and may neither introduce nor skip a protected id, as the exceptions
of ASD. The longest prefix of kept tokens is accepted, and its draft ids are committed.

The ledger is filled as for ASD, so that rules can be compared: an exception is an accepted token
that is not the argmax of the noisy logits, which is what plain decoding with the same seed would
emit, and its regret is measured there. `spent` is the sum, which here no budget limits.
A refusal by a rule's own test is recorded as `StopReason.GATE`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from asd_jax.types import Block, StopReason, Verdict
from asd_jax.verifier import is_member, prefix_length, regret_at


def target_rows(block: Block) -> jax.Array:
    """Returns the target's logits for the draft positions and the one behind, float32 [G+1, V].

    They are those after temperature, top-k and top-p and without noise; at temperature 0 the
    model's own, so that a probability read off them is the one at temperature 1.

    Raises:
      ValueError: The block carries none.
    """
    if block.logits is None:
        raise ValueError("logits: got None, allowed is float32 [G+1, V]: this rule reads them")
    return block.logits


def of_drafts(rows: jax.Array, draft_tokens: jax.Array) -> jax.Array:
    """Returns each row's entry at its draft token, [G]; ids outside the vocabulary are clipped.

    Args:
      rows: [G, V].
      draft_tokens: int32 [G].
    """
    index = jnp.clip(draft_tokens, 0, rows.shape[1] - 1)
    return jnp.take_along_axis(rows, index[:, None], axis=1)[:, 0]


def matches(block: Block) -> jax.Array:
    """Returns where the draft token is what plain decoding with this seed would emit, bool [G]."""
    return block.draft_tokens == block.scores.target_tokens[: block.draft_tokens.shape[0]]


def is_valid(block: Block) -> jax.Array:
    """Returns where draft token and target token have finite logits, bool [G]."""
    return jnp.isfinite(_regret(block))


def conclude(
    block: Block, native: jax.Array, allowed: jax.Array, protected_ids: jax.Array
) -> Verdict:
    """Keeps the longest prefix of draft tokens that are native or may be overrides.

    Args:
      block: One request's block.
      native: Kept whatever the rule's own test says, bool [G].
      allowed: What that test says, bool [G].
      protected_ids: int32 [M]; ids outside the vocabulary protect nothing.

    Returns:
      The verdict, with the target's own token as the next one.
    """
    scores = block.scores
    num_draft = block.draft_tokens.shape[0]
    target_tokens = scores.target_tokens
    is_protected = is_member(block.draft_tokens, protected_ids) | is_member(
        target_tokens[:num_draft], protected_ids
    )
    # In order of precedence, as in the verifier: what no option can lift comes first.
    refusal = jnp.select(
        [native, ~is_valid(block), is_protected, ~allowed],
        [
            jnp.int32(StopReason.NONE),
            jnp.int32(StopReason.INVALID),
            jnp.int32(StopReason.PROTECTED),
            jnp.int32(StopReason.GATE),
        ],
        jnp.int32(StopReason.NONE),
    )
    position = jnp.arange(num_draft, dtype=jnp.int32)
    proposed = position < block.draft_length
    num_accepted = prefix_length((refusal == StopReason.NONE) & proposed)
    is_exception = ~matches(block) & (position < num_accepted)
    reason = jnp.where(proposed, refusal, jnp.int32(StopReason.END_OF_DRAFT))
    reason = jnp.append(reason, jnp.int32(StopReason.NONE))
    num_finite = prefix_length(jnp.isfinite(scores.top_logits))
    return Verdict(
        num_accepted=num_accepted,
        next_token=target_tokens[num_accepted],
        target_tokens=target_tokens,
        regret=jnp.where(is_exception, _regret(block), jnp.float32(0)),
        exception_mask=is_exception,
        num_strict=prefix_length(matches(block) & proposed),
        stop_reason=reason[num_accepted],
        stop_regret=regret_at(_regret(block), num_accepted, block.draft_length),
        is_finite=num_finite > num_accepted,
        num_finite=num_finite,
    )


def _regret(block: Block) -> jax.Array:
    """Returns top minus draft logit, float32 [G]; infinite or NaN for what has no regret."""
    num_draft = block.draft_tokens.shape[0]
    return block.scores.top_logits[:num_draft] - block.scores.draft_logits
