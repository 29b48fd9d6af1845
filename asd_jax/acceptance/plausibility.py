"""Rules that keep a draft token which the target finds plausible enough, each judged by itself.

A token that is what plain decoding would emit is always kept: where such a rule would refuse it,
the target would emit it all the same. Every test reads the target's distribution p, or its logits
z, after temperature, top-k and top-p and without noise. At temperature 0 that is the model's own
softmax (temperature 1), and a refused token is replaced by the argmax. At temperature T > 0 it is
replaced by the target's sample; what is emitted then is not distributed as p.

None of these rules bounds what a request may lose in all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from asd_jax import verifier
from asd_jax.acceptance import options
from asd_jax.acceptance.outcome import conclude, matches, of_drafts, target_rows
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger, Verdict


def medusa_typical(epsilon: float = 0.09, alpha: float = 0.3) -> AcceptanceRule:
    """Returns Medusa's typical acceptance: p(x) > min(epsilon, alpha * exp(-H(p))).

    H is the entropy of the target's distribution in nats. With epsilon 1 and alpha >= exp(H) the
    rule is strict. Source: arXiv 2401.10774, section 2.3.1.

    At temperature 0 the test is the same, with p at temperature 1. (Medusa's code compares with the
    argmax there, which is `strict`.)

    Args:
      epsilon: Largest threshold, a probability.
      alpha: Threshold relative to exp(-H), >= 0.

    Raises:
      ValueError: An option is out of range.
    """
    return _medusa_typical(
        options.number("epsilon", epsilon, 0, 1), options.number("alpha", alpha, 0)
    )


@functools.cache
def _medusa_typical(epsilon: float, alpha: float) -> AcceptanceRule:
    def allows(block: Block) -> jax.Array:
        log_probs = jax.nn.log_softmax(_draft_rows(block), axis=-1)
        probs = jnp.exp(log_probs)
        # A masked token has probability 0 and log-probability -inf: 0 times inf counts as 0.
        terms = jnp.where(probs == 0, jnp.float32(0), probs * log_probs)
        threshold = jnp.minimum(epsilon, alpha * jnp.exp(jnp.sum(terms, axis=-1)))
        return of_drafts(probs, block.draft_tokens) > threshold

    return _rule("medusa_typical", allows)


def relaxed_top_k(top_k: int = 1, delta: float = 0.0) -> AcceptanceRule:
    """Returns TensorRT-LLM's relaxed acceptance: x among the top k, and p(x) >= max p - delta.

    The defaults are the engine's own: at temperature 0 they are strict. Its published setting for
    DeepSeek-R1 is top_k 10, delta 0.6, and it applies the rule only while the model thinks; here it
    applies everywhere. Ties rank by id, the lowest first.

    At temperature T > 0 the argmax of p is kept too where the target's sample is another token.

    Args:
      top_k: Ranks that may be kept, >= 1.
      delta: Largest loss of probability, 0..1.

    Raises:
      ValueError: An option is out of range.
    """
    return _relaxed_top_k(options.whole("top_k", top_k, 1), options.number("delta", delta, 0, 1))


@functools.cache
def _relaxed_top_k(top_k: int, delta: float) -> AcceptanceRule:
    def allows(block: Block) -> jax.Array:
        rows = _draft_rows(block)
        probs = jax.nn.softmax(rows, axis=-1)
        is_close = of_drafts(probs, block.draft_tokens) >= jnp.max(probs, axis=-1) - delta
        return (_rank(rows, block.draft_tokens) < top_k) & is_close

    return _rule("relaxed_top_k", allows)


def token_v3(alpha: float = 0.95) -> AcceptanceRule:
    """Returns the TokenV3 rule of speculative cascades: p(x) >= (1 - alpha) * max p.

    That is a regret of at most -log(1 - alpha) nats a token, the gate of ASD without suffix value
    and budget. At temperature 0 and alpha 0 it keeps exact ties and is strict otherwise. Source:
    arXiv 2405.19261. The paper names no default; 0.95 is the setting of the published trial
    (MTPLX#485).

    At temperature 0 p is taken at temperature 1. At temperature T > 0 the regret is that of the
    distribution, not of the noisy logits, so the argmax of p is always kept.

    Args:
      alpha: Share of the largest probability that may be lost, 0..1.

    Raises:
      ValueError: The option is out of range.
    """
    return _token_v3(options.number("alpha", alpha, 0, 1))


@functools.cache
def _token_v3(alpha: float) -> AcceptanceRule:
    largest = -math.log1p(-alpha) if alpha < 1 else math.inf

    def allows(block: Block) -> jax.Array:
        rows = _draft_rows(block)
        return jnp.max(rows, axis=-1) - of_drafts(rows, block.draft_tokens) <= largest

    return _rule("token_v3", allows)


def mars(theta: float = 0.9) -> AcceptanceRule:
    """Returns MARS: x is the top token, or the second and z2 / z1 > theta.

    z1 and z2 are the two largest logits. Their ratio changes when a constant is added to the row,
    and means nothing unless z1 > 0: other rows are judged strictly. Ties rank by id. With theta 1
    the rule is strict at temperature 0. Source: arXiv 2601.15498.

    At temperature 0 the test reads the model's logits. At temperature T > 0 the ratio is the same,
    and the top token of p is kept too where the target's sample is another one.

    Args:
      theta: Least ratio, 0..1.

    Raises:
      ValueError: The option is out of range.
    """
    return _mars(options.number("theta", theta, 0, 1))


@functools.cache
def _mars(theta: float) -> AcceptanceRule:
    def allows(block: Block) -> jax.Array:
        rows = _draft_rows(block)
        rank = _rank(rows, block.draft_tokens)
        top, own = jnp.max(rows, axis=-1), of_drafts(rows, block.draft_tokens)
        return (rank == 0) | ((rank == 1) & (top > 0) & (own > theta * top))

    return _rule("mars", allows)


def _rule(name: str, allows: Callable[[Block], jax.Array]) -> AcceptanceRule:
    """Returns a rule that keeps matches and what `allows` (block -> bool [G]) keeps."""

    def verify(
        block: Block, ledger: Ledger, controls: Controls, protected_ids: jax.Array
    ) -> Verdict:
        del ledger, controls
        return conclude(block, matches(block), allows(block), protected_ids)

    return AcceptanceRule(name=name, verify=verify, settle=verifier.settle, needs_logits=True)


def _draft_rows(block: Block) -> jax.Array:
    """Returns the target's logits for the draft positions, float32 [G, V]."""
    return target_rows(block)[:-1]


def _rank(rows: jax.Array, draft_tokens: jax.Array) -> jax.Array:
    """Returns how many tokens of each row [G, V] come before its draft token, int32 [G]."""
    own = of_drafts(rows, draft_tokens)[:, None]
    ids = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
    is_ahead = (rows > own) | ((rows == own) & (ids < draft_tokens[:, None]))
    return jnp.sum(is_ahead, axis=-1, dtype=jnp.int32)
