"""Acceptance rules: strict and asd, and that a rule of one's own fits the same contract."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import acceptance, verifier
from asd_jax.scoring import score_drafts
from asd_jax.types import AcceptanceRule, Block, Controls, Ledger, StopReason, Verdict
from tests import oracles

G, V, B = 4, 9, 64
NO_IDS = np.full((V,), -1, np.int32)  # one size of protected ids, so that rules compile once


def random_blocks(seed: int) -> Block:
    """Draws a batch of blocks with many ties, cut lengths and some NaN."""
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-6, 1, (B, G + 1, V)) / 4).astype(np.float32)
    tokens = np.where(
        rng.random((B, G)) < 0.6, logits[:, :G].argmax(-1), rng.integers(0, V, (B, G))
    ).astype(np.int32)
    logits[rng.random(logits.shape) < 0.003] = np.nan
    length = rng.integers(0, G + 1, B).astype(np.int32)
    return Block(
        draft_tokens=jnp.asarray(tokens),
        draft_length=jnp.asarray(length),
        value_length=jnp.asarray(length),
        draft_logits=None,
        scores=jax.jit(score_drafts)(logits, tokens),
        logits=jnp.asarray(logits),
        noisy_logits=jnp.asarray(logits),
        key=jax.random.split(jax.random.key(seed), B),
    )


@functools.cache
def run(rule: AcceptanceRule):
    """Calls a rule the way the decode loop does: vmapped, every argument by position."""

    def rows(blocks, ledger, controls, protected):
        return jax.vmap(lambda *row: rule.verify(*row, protected))(blocks, ledger, controls)

    return jax.jit(rows)


def per_row(controls: Controls) -> Controls:
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (B,)), controls)


def assert_same_bits(a, b) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_asd_decides_as_verify_on_the_noisy_logits():
    blocks, ledger = random_blocks(1), Ledger.zeros((B,))
    blocks = blocks.replace(logits=jnp.full_like(blocks.logits, jnp.nan))  # not to be read
    controls = per_row(Controls(2.0, 0.5, 2))
    got = run(acceptance.asd())(blocks, ledger, controls, NO_IDS)
    tokens, noisy = np.asarray(blocks.draft_tokens), np.asarray(blocks.noisy_logits)
    want = [
        oracles.verify_loop(
            tokens[i], noisy[i], 0.0, 2.0, 0.5, 2, draft_length=int(blocks.draft_length[i])
        )
        for i in range(B)
    ]
    for name in oracles.VERDICT_FIELDS:
        assert np.array_equal(getattr(got, name), np.stack([w[name] for w in want])), name
    assert (got.exception_mask.sum(1) == 2).sum() > 3


def test_strict_ignores_the_controls_and_the_protected_ids():
    blocks, ledger = random_blocks(2), Ledger.zeros((B,))
    rule = run(acceptance.strict())
    every_id = np.arange(V, dtype=np.int32)
    generous = rule(blocks, ledger, per_row(Controls(np.inf, np.inf, G)), every_id)
    nothing = rule(blocks, ledger, per_row(Controls.strict()), NO_IDS)
    assert_same_bits(generous, nothing)
    assert np.array_equal(generous.num_accepted, generous.num_strict)
    assert not generous.exception_mask.any()
    relaxed = run(acceptance.asd())(blocks, ledger, per_row(Controls(np.inf, np.inf, G)), NO_IDS)
    assert (relaxed.num_accepted > generous.num_accepted).sum() > 10


@pytest.mark.parametrize("scheme", ["remaining", "realised"])
def test_asd_with_a_zero_budget_equals_strict_bit_for_bit(scheme):
    blocks = random_blocks(3)
    ledger = Ledger.zeros((B,)).replace(spent=jnp.full((B,), 0.5, jnp.float32))
    protected = np.where(np.isin(np.arange(V), (1, 3)), np.arange(V), NO_IDS)
    strict = run(acceptance.strict())(blocks, ledger, per_row(Controls()), protected)
    asd = run(acceptance.asd(scheme))(blocks, ledger, per_row(Controls(0.0, np.inf, G)), protected)
    assert_same_bits(asd, strict)
    assert (strict.stop_reason == StopReason.STRICT).sum() > 20


def test_the_schemes_are_two_rules_that_decide_differently():
    blocks, ledger = random_blocks(4), Ledger.zeros((B,))
    controls = per_row(Controls(8.0, 0.25, 2))
    remaining = run(acceptance.asd("remaining"))(blocks, ledger, controls, NO_IDS)
    realised = run(acceptance.asd("realised"))(blocks, ledger, controls, NO_IDS)
    assert (realised.num_accepted <= remaining.num_accepted).all()
    assert (realised.num_accepted < remaining.num_accepted).any()


def test_value_length_of_the_block_reaches_the_rule():
    blocks, ledger = random_blocks(5), Ledger.zeros((B,))
    controls = per_row(Controls(8.0, 0.25, 2))
    cut = run(acceptance.asd())(blocks, ledger, controls, NO_IDS)
    whole = blocks.replace(value_length=jnp.full((B,), G, jnp.int32))
    uncut = run(acceptance.asd())(whole, ledger, controls, NO_IDS)
    assert (uncut.num_accepted >= cut.num_accepted).all()
    assert (uncut.num_accepted > cut.num_accepted).any()


def test_the_same_options_give_the_same_object():
    assert acceptance.strict() is acceptance.strict()
    assert acceptance.asd("realised") is acceptance.asd("realised")
    assert acceptance.asd("realised") is not acceptance.asd()
    for name, factory in acceptance.RULES.items():
        assert factory() is factory() and factory().name == name


def test_an_option_left_out_or_named_gives_the_same_object_too():
    assert acceptance.asd() is acceptance.asd("remaining")
    assert acceptance.asd() is acceptance.asd(value_scheme="remaining")


def test_rules_settle_with_the_verifiers_ledger():
    assert acceptance.asd().settle is verifier.settle
    assert acceptance.strict().settle is verifier.settle


def test_an_unknown_scheme_is_refused_by_name_and_value():
    with pytest.raises(ValueError, match="value_scheme.*'normalised'.*remaining.*realised"):
        acceptance.asd("normalised")


def token_v3(alpha: float) -> AcceptanceRule:
    """Speculative cascades, TokenV3: keep x if its target probability is >= (1 - alpha) * max."""
    slack = -np.log1p(-alpha).astype(np.float32)

    def verify(block: Block, ledger: Ledger, controls: Controls, protected_ids) -> Verdict:
        del ledger, controls, protected_ids
        num_draft = block.draft_tokens.shape[0]
        target, top = block.scores.target_tokens, block.scores.top_logits
        regret = top[:num_draft] - block.scores.draft_logits
        index = jnp.arange(num_draft, dtype=jnp.int32)
        proposed = index < block.draft_length
        match = block.draft_tokens == target[:num_draft]

        def prefix(mask):
            return jnp.sum(jnp.cumprod(mask.astype(jnp.int32)), dtype=jnp.int32)

        accepted = prefix((match | (regret <= slack)) & proposed)
        relaxed = ~match & (index < accepted)
        finite = prefix(jnp.isfinite(top))
        return Verdict(
            num_accepted=accepted,
            next_token=target[accepted],
            target_tokens=target,
            regret=jnp.where(relaxed, regret, jnp.float32(0)),
            exception_mask=relaxed,
            num_strict=prefix(match & proposed),
            stop_reason=jnp.where(
                accepted < num_draft, jnp.int32(StopReason.GATE), jnp.int32(StopReason.NONE)
            ),
            stop_regret=verifier.regret_at(regret, accepted, block.draft_length),
            is_finite=finite > accepted,
            num_finite=finite,
        )

    return AcceptanceRule(name="token_v3", verify=verify, settle=verifier.settle)


def test_a_rule_of_ones_own_fits_the_contract_of_the_loop():
    rule, blocks, ledger = token_v3(0.5), random_blocks(6), Ledger.zeros((B,))
    controls = per_row(Controls())
    got = run(rule)(blocks, ledger, controls, NO_IDS)
    ours = run(acceptance.asd())(blocks, ledger, controls, NO_IDS)
    shapes = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert shapes(got) == shapes(ours)

    after = jax.jit(
        jax.vmap(
            lambda ledger, verdict, committed, length, position: rule.settle(
                ledger, verdict, committed, draft_length=length, position=position
            )
        )
    )(ledger, got, got.num_accepted + 1, blocks.draft_length, jnp.zeros((B,), jnp.int32))
    limit = -np.log(0.5)
    got, after, blocks = jax.device_get((got, after, blocks.replace(key=None)))
    for i in range(B):
        spent, kept = np.float32(0), 0
        for x, row in zip(blocks.draft_tokens[i], blocks.logits[i], strict=False):
            if kept == blocks.draft_length[i] or not (
                x == np.argmax(row) or row.max() - row[x] <= limit
            ):
                break
            spent += np.float32(0) if x == np.argmax(row) else row.max() - row[x]
            kept += 1
        assert got.num_accepted[i] == kept
        assert after.spent[i] == spent
        assert after.accepted[i] == kept and after.proposed[i] == blocks.draft_length[i]
    assert (after.exceptions > 0).sum() > 10
