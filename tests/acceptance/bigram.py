"""A target and a drafter that are tables: the next token depends on the last one alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from asd_jax.cache import KVCache
from asd_jax.sampling import draw
from asd_jax.types import Drafter, Proposal, Target, TargetOutput

VOCAB = 5


def tables(seed: int = 0, vocab_size: int = VOCAB) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits [V, V] of the target and of a drafter that is somewhat like it.

    A token seldom follows itself, so that greedy texts wander.
    """
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(vocab_size, vocab_size)) * 1.5 - 3 * np.eye(vocab_size)
    drafter = target + rng.normal(size=(vocab_size, vocab_size)) * 1.5
    return target.astype(np.float32), drafter.astype(np.float32)


def bigram_target(table: np.ndarray) -> Target:
    return Target(
        params=jnp.asarray(table),
        forward=_forward,
        init_cache=_init_cache,
        vocab_size=table.shape[0],
        context_length=1 << 20,
    )


@functools.cache
def bigram_drafter(
    num_draft: int, with_logits: bool = True, vocab_size: int = VOCAB, draws: bool = True
) -> Drafter:
    """Returns a drafter over `tables(...)[1]` that draws with the target's noise, or is greedy."""
    return Drafter(
        params=jnp.asarray(tables(vocab_size=vocab_size)[1]),
        init=lambda params, batch, num_slots: (),
        prefill=lambda params, state, *rest: state,
        propose=functools.partial(
            _propose, num_draft=num_draft, with_logits=with_logits, draws=draws
        ),
        commit=lambda params, state, *rest: state,
        name="bigram",
        num_draft_tokens=num_draft,
    )


def _forward(params, tokens, cache, *, logit_rows=None, feature_layers=()):
    del feature_layers
    logits = params[tokens]
    if logit_rows is not None:
        logits = jnp.take_along_axis(logits, logit_rows[:, None, None], axis=1)
    nothing = jnp.zeros((*tokens.shape, 0), jnp.float32)
    return TargetOutput(logits=logits, hidden=nothing, features=nothing, cache=cache)


def _init_cache(batch, num_slots):
    del num_slots
    return KVCache(keys=(), values=(), length=jnp.zeros((batch,), jnp.int32))


def _propose(params, state, anchor, position, sampling, *, num_draft, with_logits, draws):
    def step(token, index):
        logits = params[token]
        if draws:
            is_sampled = jnp.any(sampling.temperature > 0)
            token = draw(logits, sampling, position + 1 + index, is_sampled)
        else:
            token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return token, (token, logits)

    offsets = jnp.arange(num_draft, dtype=jnp.int32)
    _, (tokens, logits) = jax.lax.scan(step, anchor, offsets)
    proposal = Proposal(
        tokens=tokens.T,
        length=jnp.full(anchor.shape, num_draft, jnp.int32),
        logits=logits.transpose(1, 0, 2) if with_logits else None,
    )
    return proposal, state
