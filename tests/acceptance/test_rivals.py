"""Rival rules: the formulas by an independent loop, cases by hand, limits, and their contract."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax import acceptance, verifier
from asd_jax.acceptance import (
    fly,
    lenient_thresholds,
    mars,
    medusa_typical,
    rejection_sampling,
    relaxed_top_k,
    static_ensemble,
    token_v3,
)
from asd_jax.scoring import score_drafts
from asd_jax.types import Block, Controls, Ledger, StopReason, Verdict
from tests import oracles
from tests.acceptance.rivals import CASES, B, G, V, coins_of, expected, random_blocks

RIVALS = sorted(set(acceptance.RULES) - {"asd", "strict"})
DEFAULTS = [acceptance.RULES[name]() for name in RIVALS]
LEDGERS = Ledger.zeros((B,))
CONTROLS = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (B,)), Controls())
NO_IDS = np.full((V,), -1, np.int32)  # one size of protected ids, so that rules compile once
EVERY_ID = np.arange(V, dtype=np.int32)


@functools.cache
def run(rules):
    """Calls rules the way the decode loop does: vmapped, every argument by position."""

    def rows(blocks, ledger, controls, protected):
        row = functools.partial(judge_row, rules, protected)
        return jax.vmap(row)(blocks, ledger, controls)

    return jax.jit(rows)


def judge_row(rules, protected, *row) -> list[Verdict]:
    return [rule.verify(*row, protected) for rule in rules]


def judge_all(rules, blocks, protected=NO_IDS, controls=CONTROLS) -> list[Verdict]:
    """Judges by many rules in one program: compiling is what takes time."""
    return jax.device_get(run(tuple(rules))(blocks, LEDGERS, controls, protected))


def judge(rule, blocks, protected=NO_IDS, controls=CONTROLS) -> Verdict:
    return judge_all([rule], blocks, protected, controls)[0]


def assert_same(a: Verdict, b: Verdict, *, but=()) -> None:
    for name in oracles.VERDICT_FIELDS:
        if name not in but:
            assert np.array_equal(getattr(a, name), getattr(b, name)), name


@functools.cache
def draws_of(seed):
    return coins_of(random_blocks(seed))


@functools.cache
def verdicts_of_cases(seed, ids=()) -> dict[str, Verdict]:
    protected = np.where(np.isin(EVERY_ID, ids), EVERY_ID, NO_IDS)
    rules = [case.rule for case in CASES.values()]
    return dict(zip(CASES, judge_all(rules, random_blocks(seed), protected), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_rule_equals_the_loop_over_its_formula(name):
    case, compared, overridden, refused = CASES[name], 0, 0, 0
    for seed, ids in enumerate([(), (0, 4), ()]):
        blocks = random_blocks(seed)
        coins, noise = draws_of(seed)
        got = verdicts_of_cases(seed, ids)[name]
        host = jax.device_get(blocks.replace(key=None))
        for row in range(B):
            want, margin = expected(case, host, row, coins[row], noise[row], set(ids))
            if margin < 1e-5:
                continue  # float32 may round either way
            compared += 1
            for field in oracles.VERDICT_FIELDS:
                if field == "next_token" and not want["is_finite"]:
                    continue  # never committed
                value = getattr(got, field)[row]
                assert np.array_equal(value, want[field]), (seed, row, field, value, want)
            overridden += int(want["num_accepted"] > want["num_strict"])
            refused += int(want["stop_reason"] == oracles.GATE)
    assert compared > 0.97 * 3 * B
    assert refused > 20 and overridden > 1


def test_every_rule_has_a_case():
    assert {case.rule.name for case in CASES.values()} == set(RIVALS)


def block_of(logits, tokens, *, draft_logits=None, length=None) -> Block:
    """Returns a block of 4 drafts and 4 ids at temperature 0, padded behind the given numbers."""
    length = jnp.int32(len(tokens) if length is None else length)
    rows = np.zeros((5, 4), np.float32)
    rows[: len(logits)] = -50
    rows[: len(logits), : len(logits[0])] = logits
    drafts = np.zeros((4,), np.int32)
    drafts[: len(tokens)] = tokens
    drafter = None
    if draft_logits is not None:
        drafter = jnp.zeros((4, 4), jnp.float32).at[: len(tokens)].set(np.float32(draft_logits))
    logits, tokens = jnp.asarray(rows), jnp.asarray(drafts)
    return Block(
        draft_tokens=tokens,
        draft_length=length,
        value_length=length,
        draft_logits=drafter,
        scores=score_drafts(logits, tokens),
        logits=logits,
        noisy_logits=logits,
        key=jax.random.key(0),
    )


def verdict_of(rule, block, protected=()) -> Verdict:
    ids = np.full((4,), -1, np.int32)
    ids[: len(protected)] = protected
    return rule.verify(block, Ledger.zeros(), Controls(), jnp.asarray(ids))


def accepted(rule, block, protected=()) -> int:
    return int(verdict_of(rule, block, protected).num_accepted)


def log_of(*probs: float) -> list[float]:
    return [math.log(p) for p in probs]


ONE = log_of(0.5, 0.3, 0.15, 0.05)  # H = 1.1421 nats, exp(-H) = 0.3191, of the top 3: 0.9923


@pytest.mark.parametrize(
    ("rule", "token", "keeps"),
    [
        (medusa_typical(), 2, True),  # 0.15 > min(0.09, 0.0957)
        (medusa_typical(), 3, False),
        (medusa_typical(0.09, 0.15), 3, True),  # 0.05 > 0.0479
        (medusa_typical(0.09, 0.16), 3, False),  # 0.05 < 0.0511
        (medusa_typical(0.04, 0.3), 3, True),
        (relaxed_top_k(), 1, False),
        (relaxed_top_k(2, 0.25), 1, True),  # 0.3 >= 0.5 - 0.25
        (relaxed_top_k(2, 0.15), 1, False),  # 0.3 < 0.35
        (relaxed_top_k(2, 1.0), 2, False),  # rank 3
        (relaxed_top_k(3, 1.0), 2, True),
        (token_v3(0.45), 1, True),  # 0.3 >= 0.55 * 0.5
        (token_v3(0.35), 1, False),  # 0.3 < 0.65 * 0.5
        (token_v3(1.0), 3, True),
        (token_v3(), 3, True),  # 0.05 >= 0.05 * 0.5
        (static_ensemble(), 1, True),  # below: q = (0.1, 0.7, 0.1, 0.1), v(1) = 0.5
        (static_ensemble(0.8), 1, False),  # v(0) = 0.42, v(1) = 0.38
        (static_ensemble(0.8), 0, True),
    ],
)
def test_formulas_on_one_distribution(rule, token, keeps):
    block = block_of([ONE], [token], draft_logits=[log_of(0.1, 0.7, 0.1, 0.1)])
    assert accepted(rule, block) == int(keeps)


@pytest.mark.parametrize(
    ("logits", "token", "theta", "keeps"),
    [
        ([10.0, 9.5, 9.4], 1, 0.9, True),
        ([10.0, 9.0, 8.0], 1, 0.9, False),  # the ratio must be larger
        ([10.0, 9.5, 9.4], 2, 0.9, False),  # only the second
        ([110.0, 109.0, 0.0], 1, 0.9, True),  # a constant more, and a regret of 1 passes
        ([-10.0, -9.5, -20.0], 0, 0.9, False),  # 1.05 here, but of negative logits
        ([5.0, 5.0, 5.0], 1, 0.9, True),  # a tie: the second by id
        ([5.0, 5.0, 5.0], 2, 0.9, False),
        ([5.0, 5.0, 5.0], 1, 1.0, False),
    ],
)
def test_mars_on_logits(logits, token, theta, keeps):
    assert accepted(mars(theta), block_of([logits], [token])) == int(keeps)


@pytest.mark.parametrize(
    ("tokens", "length", "options", "want"),
    [
        ([1, 0, 0, 0], 4, {"window": 3}, 4),
        ([1, 0, 0, 0], 4, {}, 4),  # min(6, G - 1) = 3
        ([1, 0, 0, 0], 3, {"window": 3}, 0),  # the window does not fit
        ([1, 0, 0, 0], 3, {"window": 2}, 3),
        ([1, 0, 1, 0], 4, {"window": 2}, 0),  # a mismatch in the window
        ([1, 0, 1, 0], 4, {"window": 1}, 4),  # both have a match behind
        ([1, 1, 0, 0], 4, {"window": 1}, 0),
        ([0, 0, 1, 0], 4, {"window": 1}, 4),
        ([0, 0, 0, 1], 4, {"window": 1}, 3),  # nothing behind
        ([1, 0, 0, 0], 4, {"entropy_threshold": 0.99}, 4),  # the top 3 have 0.9923
        ([1, 0, 0, 0], 4, {"entropy_threshold": 1.0}, 0),
        ([1, 0, 0, 0], 4, {"entropy_threshold": 1.0, "entropy_top_k": 4}, 4),  # 1.1421
    ],
)
def test_fly_looks_at_what_follows(tokens, length, options, want):
    assert accepted(fly(**options), block_of([ONE] * 4, tokens, length=length)) == want


def test_an_exception_may_neither_introduce_nor_skip_a_protected_id():
    block = block_of([ONE, ONE], [1, 0], draft_logits=[log_of(0.1, 0.7, 0.1, 0.1)] * 2)
    lossy = [
        medusa_typical(),
        relaxed_top_k(2, 1.0),
        token_v3(),
        fly(window=1),
        static_ensemble(),
    ]
    for rule in lossy:
        assert accepted(rule, block, [3]) == 2, rule.name
        for protected in ([0], [1]):
            verdict = verdict_of(rule, block, protected)
            assert int(verdict.num_accepted) == 0, rule.name
            assert int(verdict.stop_reason) == StopReason.PROTECTED
            assert int(verdict.next_token) == 0
    match = block_of([ONE, ONE], [0, 0], draft_logits=[ONE] * 2)
    for rule in lossy:  # a protected token that the target itself emits is no exception
        assert accepted(rule, match, [0, 1, 2, 3]) == 2, rule.name


def test_the_ledger_is_charged_without_a_limit():
    rule, block = token_v3(), block_of([ONE] * 4, [1, 0, 2, 0])
    verdict = verdict_of(rule, block)
    ledger = rule.settle(Ledger.zeros(), verdict, 5, draft_length=4, position=7)
    first, second = math.log(0.5 / 0.3), math.log(0.5 / 0.15)
    np.testing.assert_allclose(verdict.regret, [first, 0, second, 0], rtol=1e-5)
    np.testing.assert_allclose(ledger.spent, first + second, rtol=1e-5)
    counts = {"exceptions": 2, "reused": 3, "proposed": 4, "accepted": 4, "strict_accepted": 0}
    counts |= {"rounds": 1, "exhausted_at": -1, "first_exception_at": 7}
    assert {name: int(getattr(ledger, name)) for name in counts} == counts


def without_ties(blocks: Block) -> Block:
    """Moves every token's logit a little, at temperature 0."""
    logits = np.asarray(blocks.logits) + np.linspace(0, 1e-2, V, dtype=np.float32)
    scores = jax.jit(score_drafts)(logits, blocks.draft_tokens)
    logits = jnp.asarray(logits)
    return blocks.replace(logits=logits, noisy_logits=logits, scores=scores)


STRICT_AT_0 = [
    medusa_typical(1.0, 1e6),
    relaxed_top_k(),
    relaxed_top_k(1, 1.0),
    mars(1.0),
    fly(1.1),  # above log 3
    rejection_sampling(),
    lenient_thresholds(),
    lenient_thresholds(0.0, 0.0),
]
STRICT_BUT_FOR_TIES = [relaxed_top_k(V, 0.0), token_v3(0.0), static_ensemble(1 - 1e-6)]


def test_limits_are_strict_at_temperature_0():
    blocks = random_blocks(11, temperature=0.0, clean=True)
    for group, rows in ((STRICT_AT_0, blocks), (STRICT_BUT_FOR_TIES, without_ties(blocks))):
        strict, *limits = judge_all([acceptance.strict(), *group], rows)
        for limit in limits:
            assert_same(limit, strict, but={"stop_reason"})
        assert 0.1 < np.mean(strict.num_accepted == rows.draft_length) < 0.9


@pytest.mark.parametrize("rule", [medusa_typical(1.0, 1e6), fly(1.1)], ids=lambda rule: rule.name)
def test_limits_are_strict_at_temperature_1_too(rule):
    blocks = random_blocks(12, temperature=1.0)
    strict = judge(acceptance.strict(), blocks)
    assert_same(judge(rule, blocks), strict, but={"stop_reason"})


def test_thresholds_of_1_are_rejection_sampling_against_a_point_mass():
    blocks = random_blocks(14)
    rejection = judge(rejection_sampling(), blocks.replace(draft_logits=None))
    assert_same(judge(lenient_thresholds(), blocks), rejection, but={"stop_reason"})
    with_logits = judge(rejection_sampling(), blocks)
    assert with_logits.num_accepted.sum() > 1.1 * rejection.num_accepted.sum()


def test_an_override_is_what_protection_takes_from_lenient_coins():
    blocks = random_blocks(15, temperature=1.0)
    free = judge(lenient_thresholds(0.5, 0.5), blocks)
    guarded = judge(lenient_thresholds(0.5, 0.5), blocks, EVERY_ID)
    lossless = judge(lenient_thresholds(), blocks)
    assert_same(guarded, lossless, but={"stop_reason"})
    assert (free.num_accepted > guarded.num_accepted).sum() > 10
    assert_same(
        judge(rejection_sampling(), blocks, EVERY_ID), judge(rejection_sampling(), blocks, NO_IDS)
    )


@pytest.mark.parametrize(
    "names",
    [
        ("medusa_tight", "medusa"),
        ("relaxed", "relaxed_tight", "relaxed_blog"),
        ("token_v3_tight", "token_v3"),
        ("mars", "mars_loose"),
        ("fly", "fly_narrow"),
        ("thresholds", "thresholds_low"),
        ("ensemble_heavy", "ensemble"),
    ],
    ids=lambda names: names[0],
)
def test_more_leniency_keeps_more(names):
    counts = [verdicts_of_cases(1)[name].num_accepted for name in names]
    for tight, loose in zip(counts, counts[1:], strict=False):
        if names[0] not in ("fly", "ensemble_heavy"):  # of these, one part is tighter
            assert (tight <= loose).all()
        assert tight.sum() < loose.sum()


def test_a_whole_batch_equals_its_rows_one_by_one():
    blocks = random_blocks(17)
    batch = judge_all(DEFAULTS, blocks)
    alone = jax.jit(functools.partial(judge_row, DEFAULTS, NO_IDS))
    for i in range(24):
        block = jax.tree.map(lambda leaf: leaf[i], blocks)  # noqa: B023
        verdicts = alone(block, Ledger.zeros(), Controls())
        for one, rows in zip(verdicts, batch, strict=True):
            assert_same(one, jax.tree.map(lambda leaf: leaf[i], rows))  # noqa: B023


LOOSEST = [
    fly(0.0, 1),
    lenient_thresholds(0.0, 0.0),
    mars(0.0),
    medusa_typical(0.0, 0.0),
    rejection_sampling(),
    relaxed_top_k(V, 1.0),
    static_ensemble(0.01),
    token_v3(1.0),
]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_is_ever_kept(poison):
    """At the loosest settings, with draft tokens whose own logit is not finite."""
    blocks = random_blocks(18, clean=True)
    tokens = np.full((B, G), 3, np.int32)
    logits = np.array(blocks.logits)
    logits[:, :, 3] = poison
    noisy = np.array(blocks.noisy_logits)
    noisy[:, :, 3] = poison
    blocks = blocks.replace(
        draft_tokens=jnp.asarray(tokens),
        logits=jnp.asarray(logits),
        noisy_logits=jnp.asarray(noisy),
        scores=jax.jit(score_drafts)(noisy, tokens),
        draft_logits=blocks.draft_logits.at[:, :, 3].set(9.0),
    )
    assert {rule.name for rule in LOOSEST} == set(RIVALS)
    for verdict in judge_all(LOOSEST, blocks):
        kept = np.minimum(verdict.num_accepted, verdict.num_finite)  # what the loop commits
        assert (kept == 0).all()
        assert np.isfinite(verdict.regret).all()
        assert poison == -np.inf or not verdict.is_finite.any()


def test_controls_and_ledger_do_not_matter():
    blocks = random_blocks(17)
    nothing = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (B,)), Controls.strict())
    with_default = judge_all(DEFAULTS, blocks)
    for a, b in zip(with_default, judge_all(DEFAULTS, blocks, controls=nothing), strict=True):
        assert_same(a, b)


def test_without_drafts_the_target_goes_on_alone():
    blocks = random_blocks(20, temperature=1.0)
    empty = blocks.replace(
        draft_tokens=blocks.draft_tokens[:, :0],
        draft_length=jnp.zeros((B,), jnp.int32),
        draft_logits=blocks.draft_logits[:, :0],
        logits=blocks.logits[:, :1],
        noisy_logits=blocks.noisy_logits[:, :1],
        scores=score_drafts(blocks.noisy_logits[:, :1], blocks.draft_tokens[:, :0]),
    )
    strict = judge(acceptance.strict(), empty)
    for name in ("fly", "static_ensemble", "token_v3"):  # one of each kind
        assert_same(judge(acceptance.RULES[name](), empty), strict)


@pytest.mark.parametrize(
    ("make", "options", "field"),
    [
        (medusa_typical, {"epsilon": 1.5}, "epsilon: got 1.5, allowed is a number in .0, 1."),
        (medusa_typical, {"alpha": -1}, "alpha: got -1, allowed is a number in .0, inf."),
        (medusa_typical, {"alpha": math.nan}, "alpha: got nan"),
        (relaxed_top_k, {"top_k": 0}, "top_k: got 0, allowed is a whole number >= 1"),
        (relaxed_top_k, {"top_k": 2.0}, "top_k: got 2.0"),
        (relaxed_top_k, {"top_k": True}, "top_k: got True"),
        (relaxed_top_k, {"delta": "0.5"}, "delta: got '0.5'"),
        (token_v3, {"alpha": 1.01}, "alpha: got 1.01"),
        (mars, {"theta": -0.1}, "theta: got -0.1"),
        (mars, {"theta": False}, "theta: got False"),
        (fly, {"entropy_threshold": -1}, "entropy_threshold: got -1"),
        (fly, {"window": 0}, "window: got 0, allowed is a whole number >= 1"),
        (fly, {"entropy_top_k": 0}, "entropy_top_k: got 0"),
        (lenient_thresholds, {"threshold_single": 2}, "threshold_single: got 2"),
        (lenient_thresholds, {"threshold_acc": None}, "threshold_acc: got None"),
        (static_ensemble, {"weight": 0}, "weight: got 0, allowed is a number in .0, 1."),
        (static_ensemble, {"weight": 1.0}, "weight: got 1.0"),
    ],
)
def test_an_impossible_option_is_refused_by_name(make, options, field):
    with pytest.raises(ValueError, match=field):
        make(**options)


def test_what_a_block_lacks_is_refused_by_name():
    block = block_of([ONE, ONE], [1, 0])
    with pytest.raises(ValueError, match="draft_logits: got None.*static_ensemble.*with_logits"):
        accepted(static_ensemble(), block)
    wide = block.replace(draft_logits=jnp.zeros((4, 5), jnp.float32))
    with pytest.raises(ValueError, match=r"draft_logits: got shape \(4, 5\), allowed.*V <= 4"):
        accepted(rejection_sampling(), wide)
    for name in RIVALS:
        with pytest.raises(ValueError, match="logits: got None"):
            accepted(acceptance.RULES[name](), block.replace(logits=None))
    single = block.replace(draft_tokens=block.draft_tokens[:1])
    with pytest.raises(ValueError, match="num_draft_tokens: got 1, allowed with rule fly is >= 2"):
        accepted(fly(), single)
    with pytest.raises(ValueError, match="window: got 4 for 4 draft tokens a round, allowed is 1"):
        accepted(fly(window=4), block)


def test_ids_that_the_drafter_does_not_have_are_never_its_own():
    """As on a mesh, where only the target's vocabulary is padded."""
    blocks = random_blocks(21, clean=True)
    narrow = blocks.replace(draft_logits=blocks.draft_logits[:, :, :-2])
    masked = blocks.replace(draft_logits=blocks.draft_logits.at[:, :, -2:].set(-jnp.inf))
    rules = [rejection_sampling(), static_ensemble()]
    for a, b in zip(judge_all(rules, narrow), judge_all(rules, masked), strict=True):
        assert_same(a, b)


def test_the_same_options_give_the_same_object():
    assert medusa_typical() is medusa_typical(epsilon=0.09, alpha=np.float64(0.3))
    assert medusa_typical() is not medusa_typical(0.1)
    assert relaxed_top_k(1, 0) is relaxed_top_k()
    assert token_v3(1) is token_v3(1.0)
    assert fly(window=None) is fly()
    for name in RIVALS:
        rule = acceptance.RULES[name]()
        assert rule.name == name and rule.needs_logits
        assert rule.settle is verifier.settle
