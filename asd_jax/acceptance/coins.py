"""Rules that toss a coin for every draft token: p is the target's distribution, q the drafter's.

x is kept natively if u * q(x) < p(x), with u uniform in [0, 1): the test of speculative sampling
(arXiv 2211.17192, 2302.01318), written without a quotient, so that no token of probability 0 is
kept. The first refused token is replaced by a draw from the residual (p - q)+, and when all are
kept the target's own sample follows. Both distributions are those after temperature, top-k and
top-p.

Drafter and target share the noise of a position, so coins and residual draw from the rule's own
key: given the draft, they are independent of it. A drafter without logits stands for a point mass
on its token, for which the test reads u < p(x) and the residual is p without x. That is exact for
any drafter, though a drafter's real q accepts more.

At temperature 0 p and q are one-hot: all coins show the same side, and native means strict.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from asd_jax import verifier
from asd_jax.acceptance import options
from asd_jax.acceptance.outcome import conclude, is_valid, matches, of_drafts, target_rows
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger, Verdict

# (block, u [G], p [G, V], q [G, V]) -> the tokens that the rule keeps beyond the native ones, [G].
_Lenience = Callable[[Block, jax.Array, jax.Array, jax.Array], jax.Array]


@functools.cache
def rejection_sampling() -> AcceptanceRule:
    """Returns speculative sampling: keep x with probability min(1, p(x) / q(x)). Lossless.

    What is emitted is distributed as the target's own samples, but it is not the sample that plain
    decoding draws with the same seed; `strict` emits that one, and is lossless too. So exceptions
    and regret in the ledger tell how far the text is from that sample, not what was lost.
    Protected ids are ignored: stop ids come as often as they do in the target's samples.

    At temperature 0 it is `strict`. With a drafter that hands out logits (`with_logits`) q is its
    distribution, otherwise a point mass.
    """

    def nothing_more(
        block: Block, uniform: jax.Array, target_probs: jax.Array, draft_probs: jax.Array
    ) -> jax.Array:
        del block, target_probs, draft_probs
        return jnp.zeros(uniform.shape, bool)

    return _rule("rejection_sampling", nothing_more, has_draft_probs=True, is_lossless=True)


def lenient_thresholds(threshold_single: float = 1.0, threshold_acc: float = 1.0) -> AcceptanceRule:
    """Returns SGLang's thresholds: keep x if u < p(x) / threshold_acc or p(x) >= threshold_single.

    The engine takes drafts as given, so q is a point mass whatever the drafter's logits. Both
    thresholds 1, its defaults, are lossless and equal `rejection_sampling` with such a drafter.
    In a chain of drafts nothing accumulates over siblings. The coins of the defaults are native;
    a token that only lower thresholds keep may not introduce a protected id, nor be kept where the
    target's sample with this seed is one.

    At temperature 0 it is `strict`, as in the engine.

    Args:
      threshold_single: Probability from which a token is kept without a coin, 0..1.
      threshold_acc: Divisor of the probability with which a token is kept, 0..1; 0 keeps every
        token of positive probability.

    Raises:
      ValueError: An option is out of range.
    """
    return _lenient_thresholds(
        options.number("threshold_single", threshold_single, 0, 1),
        options.number("threshold_acc", threshold_acc, 0, 1),
    )


@functools.cache
def _lenient_thresholds(threshold_single: float, threshold_acc: float) -> AcceptanceRule:
    def lenient(
        block: Block, uniform: jax.Array, target_probs: jax.Array, draft_probs: jax.Array
    ) -> jax.Array:
        del draft_probs
        own = of_drafts(target_probs, block.draft_tokens)
        is_kept = (uniform * threshold_acc < own) | (own >= threshold_single)
        return is_kept & _is_sampled(block)

    return _rule("lenient_thresholds", lenient, has_draft_probs=False)


def static_ensemble(weight: float = 0.5) -> AcceptanceRule:
    """Returns verification against v = weight * p + (1 - weight) * q, the mean of both models.

    x is kept with probability min(1, v(x) / q(x)), and the residual is that of p and q all the
    same. Weight 1 would be lossless. Tokens that `rejection_sampling` would keep with the same coin
    are native; protected ids hold for the others, as in `lenient_thresholds`. The drafter must hand
    out logits (`with_logits`). Source: arXiv 2604.07622, `assistant_ensemble_weight` of
    huggingface/transformers#45979, which has no default.

    At temperature 0 x is kept if it is the argmax of v, with p and q at temperature 1, or of p. A
    refused token is replaced by the argmax of p, the counterpart of the residual (transformers
    takes that of v), so that all regret lies in exceptions.

    Args:
      weight: The target's share, between 0 and 1.

    Returns:
      The rule. Its `verify` raises a ValueError if the drafter has no logits.

    Raises:
      ValueError: The option is out of range.
    """
    return _static_ensemble(options.number("weight", weight, 0, 1, is_open=True))


@functools.cache
def _static_ensemble(weight: float) -> AcceptanceRule:
    def lenient(
        block: Block, uniform: jax.Array, target_probs: jax.Array, draft_probs: jax.Array
    ) -> jax.Array:
        if block.draft_logits is None:
            raise ValueError(
                "draft_logits: got None, allowed with rule static_ensemble is a drafter made with "
                "with_logits=True"
            )
        mean = weight * target_probs + (1 - weight) * draft_probs
        own = of_drafts(mean, block.draft_tokens)
        is_kept = uniform * of_drafts(draft_probs, block.draft_tokens) < own
        is_best = (block.draft_tokens == jnp.argmax(mean, axis=-1)) & jnp.isfinite(own)
        return jnp.where(_is_sampled(block), is_kept, is_best)

    rule = _rule("static_ensemble", lenient, has_draft_probs=True)
    return rule._replace(needs_draft_logits=True)


def _rule(
    name: str, lenience: _Lenience, *, has_draft_probs: bool, is_lossless: bool = False
) -> AcceptanceRule:
    """Returns a rule that keeps native tokens and those that `lenience` keeps beyond them.

    Args:
      name: Of the rule.
      lenience: Its own test.
      has_draft_probs: Whether the drafter's logits count; otherwise q is a point mass.
      is_lossless: Whether protected ids are ignored because nothing is ever overridden.
    """

    def verify(
        block: Block, ledger: Ledger, controls: Controls, protected_ids: jax.Array
    ) -> Verdict:
        del ledger, controls
        num_draft = block.draft_tokens.shape[0]
        target_probs = jax.nn.softmax(target_rows(block)[:num_draft], axis=-1)
        draft_probs = _draft_probs(block, target_probs.shape[1], has_draft_probs)
        coin_key, residual_key = jax.random.split(block.key)
        uniform = jax.random.uniform(coin_key, (num_draft,), jnp.float32)
        own = of_drafts(target_probs, block.draft_tokens)
        is_kept = is_valid(block) & (uniform * of_drafts(draft_probs, block.draft_tokens) < own)
        native = jnp.where(_is_sampled(block), is_kept, matches(block))
        allowed = lenience(block, uniform, target_probs, draft_probs)
        if is_lossless:
            protected_ids = jnp.zeros((0,), jnp.int32)
        verdict = conclude(block, native, allowed, protected_ids)
        if num_draft == 0:
            return verdict
        is_refused = _is_sampled(block) & (verdict.num_accepted < block.draft_length)
        drawn = _draw_residual(target_probs, draft_probs, verdict.num_accepted, residual_key)
        return verdict.replace(next_token=jnp.where(is_refused, drawn, verdict.next_token))

    return AcceptanceRule(
        name=name,
        verify=verify,
        settle=verifier.settle,
        needs_logits=True,
        reads_draft_logits=has_draft_probs,
    )


def _is_sampled(block: Block) -> jax.Array:
    """Returns whether the request's temperature is above 0, bool []."""
    return jnp.asarray(False) if block.temperature is None else block.temperature > 0


def _draft_probs(block: Block, vocab_size: int, has_draft_probs: bool) -> jax.Array:
    """Returns q, float32 [G, V]; ids outside the vocabulary have a q of zeros."""
    if block.draft_logits is None or not has_draft_probs:
        return jax.nn.one_hot(block.draft_tokens, vocab_size, dtype=jnp.float32)
    num_draft, width = block.draft_logits.shape
    if num_draft != block.draft_tokens.shape[0] or width > vocab_size:
        raise ValueError(
            f"draft_logits: got shape {block.draft_logits.shape}, allowed is "
            f"[{block.draft_tokens.shape[0]}, V] with V <= {vocab_size}, the target's"
        )
    # On a mesh the target's vocabulary is padded, the drafter's need not be.
    probs = jax.nn.softmax(block.draft_logits, axis=-1)
    return jnp.pad(probs, ((0, 0), (0, vocab_size - width)))


def _draw_residual(
    target_probs: jax.Array, draft_probs: jax.Array, position: jax.Array, key: jax.Array
) -> jax.Array:
    """Draws from (p - q)+ at one position, int32 []. The key is consumed.

    Args:
      target_probs: p, float32 [G, V].
      draft_probs: q, float32 [G, V].
      position: int32 []; G is clipped.
      key: PRNG key.
    """
    row = functools.partial(jnp.take, indices=position, axis=0, mode="clip")
    target_row = row(target_probs)
    excess = jnp.maximum(target_row - row(draft_probs), jnp.float32(0))
    # Rounding may refuse a token though p = q, and a drafter may hand out NaN, with which nothing
    # is kept: p is the right distribution for both, and false is what NaN compares to.
    weights = jnp.where(jnp.sum(excess) > 0, excess, target_row)
    noise = jax.random.gumbel(key, weights.shape, jnp.float32)
    return jnp.argmax(jnp.log(weights) + noise).astype(jnp.int32)
