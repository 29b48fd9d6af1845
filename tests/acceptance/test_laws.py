"""What rules emit at temperature > 0: the target's distribution where they say so, and only there.

Chi-square tests with fixed seeds: a right rule must stay above a p-value of 1e-4, and the samples
are so many that each wrong one falls below 1e-10.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import asd_jax
from asd_jax import sampling
from asd_jax.acceptance import (
    fly,
    lenient_thresholds,
    mars,
    medusa_typical,
    rejection_sampling,
    relaxed_top_k,
    static_ensemble,
    strict,
    token_v3,
)
from asd_jax.decode import DecodeConfig, make_requests
from asd_jax.sampling import sampling_params
from asd_jax.scoring import score_drafts
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger
from tests.acceptance import bigram

RIGHT, WRONG = 1e-4, 1e-10
N, G, V = 20_000, 2, 5
TABLES = bigram.tables(0)
P, Q = TABLES[0][: G + 1], TABLES[1][:G]  # fixed rows: every position has its own distribution


def one_block(rule: AcceptanceRule, key: jax.Array, has_draft_logits: bool):
    """Judges one block of coupled drafts; returns the tokens it emits [G+1] and how many."""
    noise = jax.vmap(lambda at: sampling.gumbel_noise(key, at, V))(jnp.arange(3, G + 4))
    draft = jnp.argmax(Q + noise[:G], axis=-1).astype(jnp.int32)
    noisy = P + noise
    block = Block(
        draft_tokens=draft,
        draft_length=jnp.int32(G),
        value_length=jnp.int32(G),
        draft_logits=jnp.asarray(Q) if has_draft_logits else None,
        scores=score_drafts(noisy, draft),
        logits=jnp.asarray(P),
        noisy_logits=noisy,
        key=sampling.rule_key(key, jnp.int32(3)),
        temperature=jnp.float32(1),
    )
    verdict = rule.verify(block, Ledger.zeros(), Controls(), jnp.zeros((0,), jnp.int32))
    index = jnp.arange(G + 1)
    emitted = jnp.where(index < verdict.num_accepted, jnp.pad(draft, (0, 1)), verdict.next_token)
    return emitted, verdict.num_accepted


def p_values(rule: AcceptanceRule, has_draft_logits: bool = True) -> tuple[list[float], np.ndarray]:
    """Returns the p-value of every position's tokens, given that a block reached it; and counts."""
    keys = jax.random.split(jax.random.key(5), N)
    run = jax.jit(jax.vmap(lambda key: one_block(rule, key, has_draft_logits)))
    emitted, accepted = jax.device_get(run(keys))
    values = []
    for position in range(G + 1):
        tokens = emitted[accepted >= position, position]
        counts = np.bincount(tokens, minlength=V)
        law = np.exp(P[position].astype(np.float64))
        values.append(scipy.stats.chisquare(counts, law / law.sum() * counts.sum()).pvalue)
    return values, accepted


LOSSLESS = {
    "strict": (strict(), True),
    "rejection": (rejection_sampling(), True),
    "rejection_without_draft_logits": (rejection_sampling(), False),
    "thresholds_of_1": (lenient_thresholds(), True),
    "fly_of_no_entropy": (fly(1.2), True),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_rules_emit_the_targets_distribution(name):
    values, accepted = p_values(*LOSSLESS[name])
    assert min(values) > RIGHT, values
    assert all((accepted >= position).sum() > N / 20 for position in range(G + 1))


def _with_targets_sample(verdict):
    return verdict.replace(next_token=verdict.target_tokens[verdict.num_accepted])


def _after_rejection(change) -> AcceptanceRule:
    """Returns rejection sampling with a mistake."""
    rule = rejection_sampling()
    return rule._replace(verify=lambda *block: change(rule.verify(*block)))


WRONG_RULES = {
    # The target's coupled sample in place of the residual: it shares the refused draft's noise.
    "no_residual": _after_rejection(_with_targets_sample),
    "medusa": medusa_typical(),
    "relaxed": relaxed_top_k(3, 0.5),
    "token_v3": token_v3(0.5),
    "mars": mars(0.0),
    "fly": fly(0.1, 1),
    "thresholds": lenient_thresholds(0.9, 0.6),
    "ensemble": static_ensemble(0.6),
}


@pytest.mark.parametrize("name", WRONG_RULES)
def test_the_samples_suffice_to_see_a_wrong_distribution(name):
    values, _ = p_values(WRONG_RULES[name])
    assert min(values) < WRONG, values


def test_a_coin_keeps_as_much_as_the_distributions_overlap():
    p, q = (np.exp(z) / np.exp(z).sum() for z in (P[0].astype(float), Q[0].astype(float)))
    _, with_q = p_values(rejection_sampling())
    _, without = p_values(rejection_sampling(), False)
    for accepted, share in ((with_q, np.minimum(p, q).sum()), (without, (p * q).sum())):
        deviation = np.sqrt(share * (1 - share) / N)
        assert abs((accepted > 0).mean() - share) < 4 * deviation


@dataclasses.dataclass(frozen=True)
class Settings:
    temperature: float = 0.8
    top_k: int = 4
    top_p: float = 0.9


def pair_counts(rule, *, num_draft=3, seeds=4096) -> np.ndarray:
    """Decodes many seeds from one prompt; counts (second, third) completion token, [V, V]."""
    settings = Settings()
    requests = make_requests(
        [[2]] * seeds,
        max_new_tokens=3,
        sampling_params=sampling_params(
            seeds, seed=list(range(seeds)), **dataclasses.asdict(settings)
        ),
    )
    drafter = bigram.bigram_drafter(num_draft)
    config = DecodeConfig(num_draft_tokens=num_draft, max_new_tokens=3, max_len=8)
    target = bigram.bigram_target(bigram.tables()[0])
    result = asd_jax.decode(target, drafter, rule, requests, config)
    tokens = np.asarray(result.tokens)
    counts = np.zeros((V, V))
    np.add.at(counts, (tokens[:, 1], tokens[:, 2]), 1)
    return counts


def pair_law(settings: Settings) -> np.ndarray:
    """Returns the probability of every (second, third) token of a completion behind token 2."""
    params = jax.tree.map(lambda leaf: leaf[0], sampling_params(1, **dataclasses.asdict(settings)))
    rows = sampling.transform(jnp.asarray(bigram.tables()[0]), params)
    step = np.asarray(jax.nn.softmax(rows, axis=-1), np.float64)
    return (step[2] @ step)[:, None] * step


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    possible = law > 0
    assert counts[~possible].sum() == 0  # top-k and top-p hold
    expected = law[possible] / law.sum() * counts.sum()
    return scipy.stats.chisquare(counts[possible], expected).pvalue


def test_whole_answers_by_rejection_sampling_follow_the_target():
    counts = pair_counts(rejection_sampling())
    assert p_value(counts, pair_law(Settings())) > RIGHT
    assert p_value(counts, pair_law(Settings(temperature=0.9))) < WRONG
