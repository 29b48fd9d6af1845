"""What every drafter must do, whatever its family; see `tests/drafters/contract.py`."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import (
    Controls,
    DecodeConfig,
    FinishReason,
    asd,
    decode,
    load_drafter,
    load_target,
    make_requests,
    ngram,
    no_drafter,
    sampling_params,
    strict,
)
from tests.drafters.contract import Driver

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
NUM_DRAFT = 4
# Family -> (target, drafter); both below tests/data/golden, or a name that needs no files.
FAMILIES = {
    "ngram": ("target_qwen25", "ngram"),
    "corpus": ("target_qwen25", "ngram"),
    "draft_model": ("eagle3_llama_original/target", "target_qwen25"),
    "dspark": ("dspark_qwen3_vanilla/target", "dspark_qwen3_vanilla/drafter"),
    "eagle3": ("eagle3_llama_original/target", "eagle3_llama_original/drafter"),
    "medusa": ("medusa_llama_5heads/target", "medusa_llama_5heads/drafter"),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def target_of(family):
    return load_target(str(GOLDEN / FAMILIES[family][0]))


@functools.cache
def drafter_of(family, with_logits=True):
    name = FAMILIES[family][1]
    if family == "corpus":
        vocab = target_of(family).target.vocab_size
        rng = np.random.default_rng(9)
        return ngram(NUM_DRAFT, corpus=[rng.integers(0, vocab, 12).tolist() for _ in range(5)])
    if name == "ngram":
        return load_drafter(name, num_draft_tokens=NUM_DRAFT)
    return load_drafter(
        str(GOLDEN / name),
        target=target_of(family),
        num_draft_tokens=NUM_DRAFT,
        with_logits=with_logits,
    )


@functools.cache
def driver(family):
    return Driver(target_of(family).target, drafter_of(family), NUM_DRAFT)


def texts(family, seed=0):
    """Four rows of other lengths, the anchor last; the shortest prompt is a single token."""
    rng = np.random.default_rng(seed)
    vocab = target_of(family).target.vocab_size
    # A small alphabet repeats itself, so prompt lookup finds something.
    return [rng.integers(0, min(vocab, 9), n).tolist() for n in (6, 2, 11, 8)]


def assert_same_proposal(one, other, *, rows=slice(None), exact=False):
    """Tokens as far as they count, lengths, and logits where there are any."""
    length = np.asarray(one.length)[rows]
    np.testing.assert_array_equal(length, np.asarray(other.length)[rows])
    real = np.arange(one.tokens.shape[1]) < length[:, None]
    tokens = [np.where(real, np.asarray(p.tokens)[rows], -1) for p in (one, other)]
    np.testing.assert_array_equal(*tokens)
    if one.logits is not None:
        a, b = (np.where(real[..., None], np.asarray(p.logits)[rows], 0) for p in (one, other))
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        np.testing.assert_allclose(a, b, atol=0 if exact else 1e-4, rtol=0)


def play(run, family, *, rounds=3, seed=1, finished=()):
    """Runs rounds with outcomes drawn at random: none, some or all drafts are kept."""
    rng = np.random.default_rng(seed)
    vocab = target_of(family).target.vocab_size
    for index in range(rounds):
        proposal, run = driver(family).propose(run)
        length = np.minimum(np.asarray(proposal.length), NUM_DRAFT)
        kept = [int(rng.integers(0, n + 1)) for n in length]
        kept[index % len(kept)] = int(length[index % len(kept)])  # a whole block in its turn
        kept = [None if row in finished else n for row, n in enumerate(kept)]
        run = driver(family).commit(run, proposal, kept, rng.integers(0, vocab, len(kept)).tolist())
    return run


@every_family
def test_shapes_types_and_determinism(family):
    run = driver(family).start(texts(family))
    proposal, after = driver(family).propose(run)
    vocab = target_of(family).target.vocab_size
    assert proposal.tokens.shape == (4, NUM_DRAFT) and proposal.tokens.dtype == jnp.int32
    assert proposal.length.shape == (4,) and proposal.length.dtype == jnp.int32
    length = np.asarray(proposal.length)
    assert ((length >= 0) & (length <= NUM_DRAFT)).all()
    real = np.arange(NUM_DRAFT) < length[:, None]
    tokens = np.asarray(proposal.tokens)[real]
    assert ((tokens >= 0) & (tokens < vocab)).all()
    if family not in ("ngram", "corpus"):
        assert (length == NUM_DRAFT).all()
        assert proposal.logits.dtype == jnp.float32
        assert proposal.logits.shape == (4, NUM_DRAFT, target_of(family).config.vocab_size)
        np.testing.assert_array_equal(np.argmax(proposal.logits, -1), proposal.tokens)
    again, _ = driver(family).propose(run)
    assert_same_proposal(proposal, again, exact=True)
    for before, leaf in zip(jax.tree.leaves(run.state), jax.tree.leaves(after.state), strict=True):
        assert before.shape == leaf.shape and before.dtype == leaf.dtype
        assert before.shape[0] == 4  # the batch leads, so that a mesh can divide it


@every_family
def test_a_rejected_proposal_leaves_no_trace(family):
    run = play(driver(family).start(texts(family)), family, rounds=1)
    proposal, proposed = driver(family).propose(run)
    again, _ = driver(family).propose(proposed)
    assert_same_proposal(proposal, again, exact=True)
    # All drafts rejected: only the anchor's own row is kept, and another token follows.
    rejected = driver(family).commit(proposed, proposal, [0, 0, 0, 0], [1, 2, 3, 4])
    one, _ = driver(family).propose(rejected)
    other, _ = driver(family).propose(driver(family).start(rejected.texts))
    assert_same_proposal(one, other)


@every_family
@pytest.mark.parametrize("seed", [1, 2])
def test_after_any_rounds_it_drafts_as_from_a_fresh_prefill(family, seed):
    """Kept drafts are exceptions at will: the history that counts is the realised one."""
    run = play(driver(family).start(texts(family, seed)), family, rounds=4, seed=seed)
    one, _ = driver(family).propose(run)
    other, _ = driver(family).propose(driver(family).start(run.texts))
    assert_same_proposal(one, other)


@every_family
def test_finished_rows_are_inert(family):
    start = driver(family).start(texts(family))
    first, _ = driver(family).propose(start)
    run = play(start, family, rounds=3, finished=(0, 2))
    assert run.texts[0] == start.texts[0]
    later, _ = driver(family).propose(run)
    assert_same_proposal(first, later, rows=[0, 2], exact=True)


@every_family
def test_a_row_drafts_as_it_would_alone(family):
    run = play(driver(family).start(texts(family)), family)
    together, _ = driver(family).propose(run)
    for row in (1, 2):
        alone = driver(family).start([run.texts[row]])
        proposal, _ = driver(family).propose(alone)
        for leaf, whole in zip(jax.tree.leaves(proposal), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(leaf[0], whole[row], atol=1e-4)


@every_family
def test_drafts_are_drawn_with_the_noise_of_their_positions(family):
    """The same seed and history give the same drafts in any round; other seeds give others."""
    run = play(driver(family).start(texts(family)), family, rounds=2)
    fresh = driver(family).start(run.texts)
    draws = {}
    for seed in (5, 6):
        one, _ = driver(family).propose(run, temperature=1.5, top_k=40, top_p=0.95, seed=seed)
        other, _ = driver(family).propose(fresh, temperature=1.5, top_k=40, top_p=0.95, seed=seed)
        assert_same_proposal(one, other)
        draws[seed] = np.asarray(one.tokens)
    if family not in ("ngram", "corpus"):
        assert (draws[5] != draws[6]).any()


# Through the loop


def prompts(family):
    return [text[:-1] for text in texts(family, 3)]


@functools.cache
def decoded(family, rule, *, budget=0.0, temperature=0.0, max_len=64, plain=False, cap=None):
    num_draft = 0 if plain else NUM_DRAFT
    config = DecodeConfig(num_draft_tokens=num_draft, max_new_tokens=20, max_len=max_len)
    loose = budget > 0
    requests = make_requests(
        prompts(family),
        controls=Controls(budget, np.inf if loose else 0.25, 3 if loose else 2),
        max_new_tokens=20,
        max_draft_tokens=list(cap) if cap else None,
        sampling_params=sampling_params(4, temperature=temperature, seed=[3, 4, 5, 6]),
    )
    drafter = no_drafter() if plain else drafter_of(family, False)
    result = decode(target_of(family).target, drafter, rule, requests, config)
    return jax.tree.map(np.asarray, result)


@every_family
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_strict_decoding_emits_what_plain_decoding_emits(family, temperature):
    plain = decoded(family, asd(), temperature=temperature, plain=True)
    speculative = decoded(family, asd(), temperature=temperature)
    np.testing.assert_array_equal(speculative.tokens, plain.tokens)
    assert speculative.ledger.proposed.sum() > 0
    assert speculative.rounds.sum() <= plain.rounds.sum()


@pytest.mark.slow  # a program more to compile for every family
@every_family
def test_budget_zero_is_the_strict_rule_bit_for_bit(family):
    zero, rule = decoded(family, asd()), decoded(family, strict())
    for a, b in zip(jax.tree.leaves(zero), jax.tree.leaves(rule), strict=True):
        np.testing.assert_array_equal(a, b)


@every_family
def test_exceptions_are_kept_and_charged(family):
    loose = decoded(family, asd(), budget=1e6)
    assert loose.ledger.exceptions.sum() > 0
    assert (loose.ledger.spent <= 1e6).all() and loose.ledger.spent.sum() > 0
    assert loose.ledger.accepted.sum() > loose.ledger.strict_accepted.sum()


@pytest.mark.parametrize(
    "family",
    [
        family if family in ("ngram", "eagle3") else pytest.param(family, marks=pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_capacity_reached_within_a_draft(family):
    """The longest row fills its slots; nothing is emitted that plain decoding would not emit."""
    full = decoded(family, asd(), plain=True)
    cut = decoded(family, asd(), max_len=21)
    assert (cut.finish_reason == FinishReason.CAPACITY).sum() >= 1
    for row, prompt in enumerate(prompts(family)):
        count = int(cut.num_emitted[row])
        assert count == min(20, 21 - len(prompt))
        np.testing.assert_array_equal(cut.tokens[row, :count], full.tokens[row, :count])


@every_family
def test_requests_may_cap_their_proposals(family):
    """A cap of 0 is plain decoding of that row, beside rows that draft."""
    free = decoded(family, asd())
    capped = decoded(family, asd(), cap=(0, 4, 1, 0))
    np.testing.assert_array_equal(capped.tokens, free.tokens)
    assert capped.ledger.proposed[[0, 3]].tolist() == [0, 0]
    assert capped.rounds[0] == 19
    assert capped.ledger.proposed[2] <= capped.rounds[2]
