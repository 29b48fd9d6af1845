"""Rival rules in the decode loop: they finish, keep their promises and compile once."""

import functools

import jax
import numpy as np
import pytest

import asd_jax
from asd_jax import acceptance
from asd_jax.decode import DecodeConfig, _run_rounds, make_requests
from asd_jax.sampling import sampling_params
from asd_jax.types import Controls, FinishReason
from tests.acceptance import bigram

pytestmark = pytest.mark.slow  # eight programs

G, V, STOP = 3, 12, 4
PROMPTS = [[1, 2], [3], [0, 0, 2, 1]]
CONFIG = DecodeConfig(num_draft_tokens=G, max_new_tokens=40, max_len=64, stop_ids=(STOP,))
RULES = {
    "rejection_sampling": acceptance.rejection_sampling(),
    "medusa_typical": acceptance.medusa_typical(),
    "relaxed_top_k": acceptance.relaxed_top_k(3, 0.5),
    "lenient_thresholds": acceptance.lenient_thresholds(0.5, 0.5),
    "token_v3": acceptance.token_v3(),
    "static_ensemble": acceptance.static_ensemble(),
    "mars": acceptance.mars(0.0),
    "fly": acceptance.fly(0.2, 1),
}
LOSSLESS_AT_0 = ("rejection_sampling", "lenient_thresholds")


def run(rule, *, seed=0, temperature=0.0, top_k=0, controls=None, max_new_tokens=40):
    table = bigram.tables(vocab_size=V)[0].copy()
    table[:, STOP] -= 1  # answers of some length
    requests = make_requests(
        PROMPTS,
        controls=controls,
        max_new_tokens=max_new_tokens,
        sampling_params=sampling_params(3, temperature=temperature, top_k=top_k, seed=seed),
    )
    drafter = bigram.bigram_drafter(G, vocab_size=V, draws=False)
    return jax.device_get(
        asd_jax.decode(bigram.bigram_target(table), drafter, rule, requests, CONFIG)
    )


@functools.cache
def strict_text():
    return run(asd_jax.strict(), seed=9).tokens


@pytest.mark.parametrize("name", RULES)
def test_a_whole_decode_ends_adds_up_and_compiles_once(name):
    rule, before = RULES[name], _run_rounds._cache_size()
    greedy = run(rule, seed=9)
    warm = run(rule, seed=9, temperature=[1.0, 0.0, 0.7], top_k=[0, 2, 4])
    others = [
        run(rule, seed=seed, temperature=0.5 + seed, controls=Controls(seed, 0.1 * seed, seed))
        for seed in range(2)
    ]
    assert _run_rounds._cache_size() == before + 1
    ends = (FinishReason.STOP, FinishReason.LENGTH)
    for result in (greedy, warm, *others):
        assert np.isin(result.finish_reason, ends).all()
        ledger = result.ledger
        # The first token comes from the prefill; the stop id may be a draft token.
        assert (result.num_emitted <= 1 + ledger.accepted + ledger.rounds).all()
        assert (ledger.accepted <= ledger.proposed).all()
        assert (ledger.spent[ledger.exceptions > 0] > 0).all()
        assert (ledger.exhausted_at == -1).all()
        for row, length in enumerate(result.num_emitted):
            stops = np.flatnonzero(result.tokens[row, :length] == STOP)
            assert len(stops) == 0 or stops[0] == length - 1
    # A row at temperature 0 is judged the same beside rows that sample.
    np.testing.assert_array_equal(warm.tokens[1], greedy.tokens[1])
    if name in LOSSLESS_AT_0:
        np.testing.assert_array_equal(greedy.tokens, strict_text())
        assert not greedy.ledger.exceptions.any()
    else:
        assert sum(result.ledger.exceptions.sum() for result in (greedy, warm, *others)) > 3


def test_a_drafter_without_logits_is_refused_by_name():
    requests = make_requests(PROMPTS, max_new_tokens=8)
    target = bigram.bigram_target(bigram.tables(vocab_size=V)[0])
    drafter = bigram.bigram_drafter(G, with_logits=False, vocab_size=V, draws=False)
    with pytest.raises(ValueError, match="draft_logits: got None.*with_logits=True"):
        asd_jax.decode(target, drafter, acceptance.static_ensemble(), requests, CONFIG)
