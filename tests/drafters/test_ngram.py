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
from tests import tiny

SLOTS, CORPUS_SLOTS, G, MAX_SUFFIX = 24, 32, 5, 4


@functools.partial(jax.jit, static_argnames=("max_suffix",))
def jitted(history, position, max_suffix, corpus=None):
    return lookup(history, position, G, max_suffix, corpus)


def search(history: list[int], max_suffix: int, corpus=()) -> list[int]:
    """Returns the proposal: what followed the latest occurrence of the longest known suffix."""
    last = len(history) - 1
    for size in range(max_suffix, 0, -1):
        if size > len(history):
            continue
        suffix = history[last - size + 1 :]
        for end in range(last - 1, size - 2, -1):
            if history[end - size + 1 : end + 1] == suffix:
                return history[end + 1 : end + 1 + G]
        for text in reversed(corpus):
            for end in range(len(text) - 2, size - 2, -1):
                if text[end - size + 1 : end + 1] == suffix:
                    return text[end + 1 : end + 1 + G]
    return []


def propose(history: list[int], max_suffix: int = MAX_SUFFIX, corpus=None) -> list[int]:
    buffer = np.full(SLOTS, 7, np.int32)  # garbage behind the last token must not match
    buffer[: len(history)] = history
    if corpus is not None:
        corpus = jnp.asarray(in_slots(asd_jax.ngram(G, corpus=corpus)))
    tokens, length = jitted(jnp.asarray(buffer), jnp.int32(len(history) - 1), max_suffix, corpus)
    return np.asarray(tokens)[: int(length)].tolist()


def in_slots(drafter) -> np.ndarray:
    """Returns the corpus of a drafter in a fixed size, so that few programs are compiled."""
    slots = np.full(CORPUS_SLOTS, -1, np.int32)  # end marks: as many empty sequences
    if drafter.params != ():
        slots[: drafter.params.tokens.size] = drafter.params.tokens
    return slots


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


@pytest.mark.parametrize(
    ("history", "corpus", "expected"),
    [
        ([8, 1, 2], [[1, 2, 3, 4]], [3, 4]),  # nothing in the history
        ([1, 2, 9, 1, 2], [[1, 2, 3]], [9, 1, 2]),  # equally long: the history first
        ([1, 2, 9, 5, 2], [[5, 2, 3]], [3]),  # longer in the corpus
        ([1, 2, 9, 1, 2], [[6, 2, 3]], [9, 1, 2]),  # longer in the history
        ([1, 2], [[1, 2, 3], [1, 2, 4]], [4]),  # later sequences first
        ([1, 2], [[1, 2, 3, 1, 2, 5]], [5]),  # and later places in them
        ([1, 2], [[1, 2, 3], [1, 2]], [3]),  # nothing follows at a sequence's end
        ([1, 2], [[1], [2, 5]], [5]),  # no match across an end
        ([1, 2], [[1, 2, 3], [4, 5, 6]], [3]),  # no continuation across one
        ([1, 2], [[1, 2, 3, 4, 5, 6, 7, 8]], [3, 4, 5, 6, 7]),  # G at most
        ([1, 2], [[], [2, 6], []], [6]),  # empty sequences are nothing
        ([1, 2], [[3, 4]], []),
        ([5], [[1, 5, 6]], [6]),  # one token of history is enough
    ],
)
def test_known_corpora(history, corpus, expected):
    assert propose(history, MAX_SUFFIX, corpus) == expected


TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=7), max_size=4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=SLOTS), TEXTS, st.sampled_from([1, 2, 4]))
def test_with_a_corpus_equals_search_by_hand(history, corpus, max_suffix):
    assert propose(history, max_suffix, corpus) == search(history, max_suffix, corpus)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=SLOTS), TEXTS)
def test_a_corpus_that_matches_nothing_changes_nothing(history, corpus):
    elsewhere = [[token + 4 for token in text] for text in corpus]
    assert propose(history, MAX_SUFFIX, elsewhere) == propose(history)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), TEXTS)
def test_a_text_of_the_corpus_is_continued_from_its_own_beginning(text, corpus):
    """The last sequence wins every tie, so its longest suffixes lead along it."""
    drafts = propose(text[:1], 1, [*corpus, text])
    assert drafts == search(text[:1], 1, [text])


def test_no_corpus_is_the_drafter_without_one():
    assert asd_jax.ngram(4, corpus=[]) == asd_jax.ngram(4) == asd_jax.ngram(4, corpus=[[], []])
    assert asd_jax.ngram(4, corpus=[]).params == ()


def test_rounds_look_into_the_corpus_as_an_argument():
    drafter = asd_jax.ngram(3, corpus=[np.asarray([9, 1, 2, 3, 4], np.int64), (5, 6)])
    assert drafter.params.tokens.tolist() == [9, 1, 2, 3, 4, -1, 5, 6, -1]
    assert drafter.params.tokens.dtype == jnp.int32
    state = drafter.init(drafter.params, 3, 16)
    prompts = jnp.asarray([[9, 1, 0], [7, 8, 7], [4, 3, 0]], jnp.int32)
    lengths = jnp.asarray([2, 3, 2], jnp.int32)
    nothing = jnp.zeros((3, 3, 0))
    state = drafter.prefill(drafter.params, state, prompts, nothing, nothing, lengths)
    step = jax.jit(lambda params, state: drafter.propose(params, state, anchors, lengths, None))
    anchors = jnp.asarray([2, 8, 5], jnp.int32)
    proposal, after = step(drafter.params, state)
    assert proposal.length.tolist() == [2, 2, 1]
    assert [row[:n].tolist() for row, n in zip(proposal.tokens, [2, 2, 1], strict=True)] == [
        [3, 4],
        [7, 8],
        [6],
    ]
    # The corpus is neither in the state nor in the program: another of its size is looked up.
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    other = drafter.params.replace(tokens=drafter.params.tokens.at[3].set(0))
    assert step(other, state)[0].tokens[0, 0] == 0
    assert step._cache_size() == 1


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ([[1, 2], [3, -1]], r"corpus\[1\]: got id -1, allowed is 0\.\.2147483647"),
        ([[2**31]], r"corpus\[0\]: got id 2147483648"),
        ([[2**70]], r"corpus\[0\]: got \[1180591620717411303424\], allowed is a sequence of"),
        ([[1.0, 2.0]], r"corpus\[0\]: got \[1\.0, 2\.0\], allowed is a sequence of token ids"),
        ([[True, False]], r"corpus\[0\]"),
        ([1, 2, 3], r"corpus\[0\]: got 1, allowed is a sequence of token ids"),
        (["text"], r"corpus\[0\]: got 'text'"),
        ([[[1, 2]]], r"corpus\[0\]"),
    ],
)
def test_sequences_that_are_not_token_ids_are_refused(corpus, message):
    with pytest.raises(ValueError, match=message):
        asd_jax.ngram(3, corpus=corpus)


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


def test_an_earlier_output_is_accepted_again_on_any_mesh(tmp_path):
    """One program for both: the corpus is an argument, on every device of the mesh."""
    folder = tiny.write_checkpoint(tmp_path / "target")
    target = asd_jax.load_target(str(folder), mesh=asd_jax.make_mesh(data=2, model=4)).target
    config = asd_jax.DecodeConfig(num_draft_tokens=3, max_new_tokens=16, max_len=40)
    prompts = [[5, 9, 2], [7, 8], [1, 2, 3, 4], [50]]

    def run(corpus):
        requests = asd_jax.make_requests(prompts, max_new_tokens=16)
        drafter = asd_jax.ngram(3, corpus=corpus)
        return asd_jax.decode(target, drafter, asd_jax.strict(), requests, config)

    without = run([[60] * 17] * 4)
    earlier = [
        [prompt[-1], *row] for prompt, row in zip(prompts, without.tokens.tolist(), strict=True)
    ]
    again = run(earlier)
    np.testing.assert_array_equal(again.tokens, without.tokens)
    assert (again.rounds < without.rounds).all()


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
