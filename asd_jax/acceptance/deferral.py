"""A rule that looks ahead: a mismatch is kept if the drafts behind it agree with the target."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from asd_jax import verifier
from asd_jax.acceptance import options
from asd_jax.acceptance.outcome import conclude, is_valid, matches, of_drafts, target_rows
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger, Verdict

_LARGEST_DEFAULT_WINDOW = 6


def fly(
    entropy_threshold: float = 0.3, window: int | None = None, entropy_top_k: int = 3
) -> AcceptanceRule:
    """Returns FLy: a mismatch is kept where the target wavers and the next `window` tokens match.

    All of it must hold: the entropy -sum p log p over the `entropy_top_k` largest probabilities
    (not renormalised) is at least the threshold, the window lies inside the draft, every token in
    it is what plain decoding would emit, and p(x) > 0. So a draft shorter than `window` + 1 is
    judged strictly, and so is any draft under a threshold above log `entropy_top_k`. Source: arXiv
    2511.22972, in the form of vllm-project/vllm#53987.

    At temperature 0 p is taken at temperature 1. At temperature T > 0 a token matches if it is the
    target's own sample with this seed, which is lossless; the engine compares p with the drafter's
    distribution there. A refused token is replaced by the target's own.

    Args:
      entropy_threshold: Least entropy, nats, >= 0.
      window: Tokens behind a mismatch that must match, 1..G-1. Default: min(6, G - 1).
      entropy_top_k: Probabilities that count, >= 1.

    Returns:
      The rule. Its `verify` raises a ValueError for one draft token a round, or a window that no
      draft can hold.

    Raises:
      ValueError: An option is out of range.
    """
    return _fly(
        options.number("entropy_threshold", entropy_threshold, 0),
        None if window is None else options.whole("window", window, 1),
        options.whole("entropy_top_k", entropy_top_k, 1),
    )


@functools.cache
def _fly(entropy_threshold: float, window: int | None, entropy_top_k: int) -> AcceptanceRule:
    def verify(
        block: Block, ledger: Ledger, controls: Controls, protected_ids: jax.Array
    ) -> Verdict:
        del ledger, controls
        num_draft = block.draft_tokens.shape[0]
        width = _window(window, num_draft)
        rows = target_rows(block)[:num_draft]
        is_open = _top_entropy(rows, entropy_top_k) >= entropy_threshold
        has_mass = of_drafts(jax.nn.softmax(rows, axis=-1), block.draft_tokens) > 0
        allowed = is_open & has_mass & _is_followed(block, width)
        return conclude(block, matches(block), allowed, protected_ids)

    return AcceptanceRule(name="fly", verify=verify, settle=verifier.settle, needs_logits=True)


def _window(window: int | None, num_draft: int) -> int:
    """Returns the window for G, or raises a ValueError; without drafts there is nothing to hold."""
    if num_draft == 0:
        return 1
    if num_draft == 1:
        raise ValueError("num_draft_tokens: got 1, allowed with rule fly is >= 2")
    if window is None:
        return min(_LARGEST_DEFAULT_WINDOW, num_draft - 1)
    if window >= num_draft:
        raise ValueError(
            f"window: got {window} for {num_draft} draft tokens a round, allowed is "
            f"1..{num_draft - 1}"
        )
    return window


def _is_followed(block: Block, window: int) -> jax.Array:
    """Returns where the next `window` tokens were proposed and all match, bool [G]."""
    index = jnp.arange(block.draft_tokens.shape[0], dtype=jnp.int32)
    good = matches(block) & is_valid(block) & (index < block.draft_length)
    offset = index[None, :] - index[:, None]
    hits = good[None, :] & (offset >= 1) & (offset <= window)
    return jnp.sum(hits, axis=1, dtype=jnp.int32) == window


def _top_entropy(rows: jax.Array, top_k: int) -> jax.Array:
    """Returns -sum p log p over the `top_k` likeliest tokens of each row [G, V], nats, [G]."""
    top, _ = jax.lax.top_k(rows, min(top_k, rows.shape[1]))
    log_probs = top - jax.nn.logsumexp(rows, axis=-1, keepdims=True)
    probs = jnp.exp(log_probs)
    return -jnp.sum(jnp.where(probs == 0, jnp.float32(0), probs * log_probs), axis=-1)
