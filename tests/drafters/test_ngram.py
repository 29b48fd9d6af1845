"""Prompt lookup against a search by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asd_jax
from asd_jax.drafters.ngram import lookup

SLOTS, G, MAX_SUFFIX = 24, 5, 4


@functools.partial(jax.jit, static_argnames=("max_suffix",))
def jitted(history, position, max_suffix):
    return lookup(history, position, G, max_suffix)


def search(history: list[int], max_suffix: int) -> list[int]:
    """Returns the proposal: what followed the latest occurrence of the longest known suffix."""
    last = len(history) - 1
    for size in range(max_suffix, 0, -1):
        if size > len(history):
            continue
        suffix = history[last - size + 1 :]
        for end in range(last - 1, size - 2, -1):
            if history[end - size + 1 : end + 1] == suffix:
                return history[end + 1 : end + 1 + G]
    return []


def propose(history: list[int], max_suffix: int = MAX_SUFFIX) -> list[int]:
    buffer = np.full(SLOTS, 7, np.int32)  # garbage behind the last token must not match
    buffer[: len(history)] = history
    tokens, length = jitted(jnp.asarray(buffer), jnp.int32(len(history) - 1), max_suffix)
    return np.asarray(tokens)[: int(length)].tolist()


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # longest suffix; ends at the last token
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2]),  # the latest of two equal matches
        ([1, 2, 3, 5, 2, 3, 6, 1, 2, 3], [5, 2, 3, 6, 1]),  # longer beats later
        ([4, 4], [4]),
        ([4], []),  # nothing before
        ([1, 2, 3], []),  # nothing matches: a zero-length proposal
        ([7, 8, 9], []),  # the garbage behind is 7, and is not looked at
    ],
)
def test_known_histories(history, expected):
    assert propose(history) == expected


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=SLOTS),
    st.sampled_from([1, 2, 4]),
)
def test_equals_search_by_hand(history, max_suffix):
    assert propose(history, max_suffix) == search(history, max_suffix)


def test_batched_rounds_propose_from_the_committed_history_only():
    drafter = asd_jax.ngram(3)
    state = drafter.init((), 2, 16)
    prompts = jnp.asarray([[1, 2, 1, 0], [5, 6, 5, 6]], jnp.int32)
    lengths = jnp.asarray([3, 4], jnp.int32)
    nothing = jnp.zeros((2, 4, 0))
    state = drafter.prefill((), state, prompts, nothing, nothing, lengths)
    key = jax.vmap(jax.random.key)(jnp.arange(2))
    proposal, state = drafter.propose((), state, jnp.asarray([2, 5], jnp.int32), lengths, key)
    assert proposal.tokens[0, :2].tolist() == [1, 2] and proposal.length.tolist() == [2, 2]
    assert proposal.tokens[1, :2].tolist() == [6, 5]
    # Row 0 keeps anchor and one draft, row 1 (finished) keeps nothing.
    inputs = jnp.asarray([[2, 1, 9, 9], [5, 6, 5, 9]], jnp.int32)
    state = drafter.commit((), state, inputs, nothing, nothing, jnp.asarray([2, 0], jnp.int32))
    assert state.length.tolist() == [5, 4]
    assert state.tokens[0, :5].tolist() == [1, 2, 1, 2, 1]
    assert state.tokens[1, :4].tolist() == [5, 6, 5, 6]


def test_capacity_reached_while_drafting_writes_nothing_out_of_range():
    drafter = asd_jax.ngram(3)
    state = drafter.init((), 1, 4)
    prompt = jnp.asarray([[1, 2, 1, 2]], jnp.int32)
    nothing = jnp.zeros((1, 4, 0))
    state = drafter.prefill((), state, prompt, nothing, nothing, jnp.asarray([4], jnp.int32))
    key = jax.vmap(jax.random.key)(jnp.arange(1))
    _, state = drafter.propose((), state, jnp.asarray([1]), jnp.asarray([4], jnp.int32), key)
    state = drafter.commit((), state, prompt, nothing, nothing, jnp.asarray([3], jnp.int32))
    assert state.tokens.tolist() == [[1, 2, 1, 2]]


@pytest.mark.parametrize("arguments", [(0, {}), (3, {"max_suffix": 0})])
def test_sizes_below_one_are_refused(arguments):
    num_draft, options = arguments
    with pytest.raises(ValueError, match="got 0, allowed is a whole number >= 1"):
        asd_jax.ngram(num_draft, **options)


def test_equal_drafters_share_compiled_programs():
    assert asd_jax.ngram(4) == asd_jax.ngram(4)
    assert asd_jax.ngram(4) != asd_jax.ngram(5)
