"""What must hold for every block: properties of the verifier and the ledger under hypothesis."""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from asd_jax.types import Controls, Ledger, Verdict
from asd_jax.verifier import settle, verify, verify_batch
from tests import oracles

G, V, ROUNDS, ROWS = 5, 7, 12, 6
INF = np.float32(np.inf)

# One logit grid step is 1/8, so that sums, differences and row constants are exact in float32.
grid_logits = hnp.arrays(np.int8, (G + 1, V), elements=st.integers(-8, 8)).map(
    lambda a: a.astype(np.float32) / 8
)
drafts = hnp.arrays(np.int32, (G,), elements=st.integers(0, V - 1))
limits = st.floats(0, 4, width=32) | st.sampled_from([np.float32(0), INF])
positive = st.floats(np.float32(2**-10), 4, width=32) | st.just(INF)
caps = st.integers(0, G)
lengths = st.integers(0, G)
schemes = st.sampled_from(["remaining", "realised"])
# Regrets are -(logit) under a top of exactly 0, hence any float32 can be a regret.
regrets = st.floats(0, 2, width=32, allow_subnormal=False)


@functools.cache
def compiled(scheme: str):
    return jax.jit(functools.partial(verify, value_scheme=scheme))


charge = jax.jit(settle)


def judge(
    tokens,
    logits,
    *,
    spent=0.0,
    budget=INF,
    gate=INF,
    cap=G,
    draft_length=G,
    value_length=None,
    scheme="remaining",
) -> Verdict:
    value_length = draft_length if value_length is None else value_length
    got = compiled(scheme)(
        tokens,
        logits,
        Ledger.zeros().replace(spent=jnp.float32(spent)),
        Controls(np.float32(budget), np.float32(gate), cap),
        draft_length=np.int32(draft_length),
        value_length=np.int32(value_length),
    )
    return jax.tree.map(np.asarray, got)


def assert_same_decision(a: Verdict, b: Verdict) -> None:
    for name in oracles.VERDICT_FIELDS:
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@jax.jit
def run_chain(regret, is_exception, committed, controls) -> tuple[Ledger, Ledger, Verdict]:
    """Verifies and settles [rounds, G] blocks one behind the other; returns every step."""
    target, tokens = 0, jnp.where(is_exception, 1, 0)
    padded = jnp.pad(jnp.where(is_exception, regret, 0), ((0, 0), (0, 1)), constant_values=1)
    logits = jnp.full((*padded.shape, V), -jnp.inf).at[..., 1].set(-padded).at[..., target].set(0)

    def block(ledger, inputs):
        tokens, logits, committed = inputs
        verdict = verify(tokens, logits, ledger, controls)
        kept = jnp.minimum(committed, verdict.num_accepted + 1)
        after = settle(ledger, verdict, kept)
        return after, (after, verdict)

    last, (ledgers, verdicts) = jax.lax.scan(block, Ledger.zeros(), (tokens, logits, committed))
    return last, ledgers, verdicts


@given(
    hnp.arrays(np.float32, (ROUNDS, G), elements=regrets),
    hnp.arrays(np.bool_, (ROUNDS, G)),
    hnp.arrays(np.int32, (ROUNDS,), elements=st.integers(0, G + 1)),
    st.floats(0, 8, width=32, allow_subnormal=False),
    caps,
)
def test_spent_never_exceeds_the_budget_and_is_the_sum_of_the_charges(
    regret, is_exception, committed, budget, cap
):
    controls = Controls(np.float32(budget), INF, cap)
    _, ledgers, verdicts = jax.tree.map(
        np.asarray, run_chain(regret, is_exception, committed, controls)
    )
    assert (ledgers.spent <= np.float32(budget)).all()
    total, reused = np.float32(0), 0
    for block in range(ROUNDS):
        kept = min(int(verdicts.num_accepted[block]), int(committed[block]))
        charged = [i for i in range(kept) if verdicts.exception_mask[block, i]]
        for i in charged:
            total = np.float32(total + regret[block, i])
        reused += kept - charged[0] - 1 if charged else 0
        assert ledgers.spent[block] == total
        assert ledgers.reused[block] == reused
    assert (ledgers.exceptions <= ledgers.accepted).all()
    assert (ledgers.strict_accepted <= ledgers.accepted).all()


@given(regrets, regrets, regrets)
@example(np.float32(1.3), np.float32(1.5), np.float32(1.1))
@example(np.float32(0.9), np.float32(1.9), np.float32(1.0))
@example(np.float32(0.0), np.float32(0.1), np.float32(0.2))
def test_a_budget_of_exactly_the_rounded_sum_is_payable_and_then_exhausted(spent, first, second):
    """A ledger of what remains raises on an eighth of such sums; another order errs by a bit."""
    spent, first, second = (np.float32(r) for r in (spent, first, second))
    budget = np.float32(np.float32(spent + first) + second)
    assume(np.float32(spent + first) < budget)
    draft = np.asarray([1, 1, 1, 0, 0], np.int32)
    logits = np.full((G + 1, V), -1000, np.float32)
    logits[:, 0] = 0
    logits[range(3), 1] = [-first, -second, 0]  # the third is a tie
    got = judge(draft, logits, spent=spent, budget=budget)
    assert got.num_accepted == 2 and got.next_token == 0
    ledger = charge(Ledger.zeros().replace(spent=jnp.float32(spent)), got, np.int32(3))
    assert ledger.spent == budget and ledger.exhausted_at == 0


@given(drafts, grid_logits, limits, limits, limits, caps, st.floats(0, 2, width=32), schemes)
def test_a_larger_budget_never_accepts_less(tokens, logits, low, high, gate, cap, spent, scheme):
    low, high = sorted((low, high))
    common = {"gate": gate, "cap": cap, "spent": spent, "scheme": scheme}
    less = judge(tokens, logits, budget=low, **common)
    more = judge(tokens, logits, budget=high, **common)
    assert less.num_accepted <= more.num_accepted
    assert less.num_strict == more.num_strict <= less.num_accepted


@given(drafts, grid_logits, limits, limits, limits, caps, schemes)
def test_a_larger_gate_never_accepts_less(tokens, logits, low, high, budget, cap, scheme):
    low, high = sorted((low, high))
    common = {"budget": budget, "cap": cap, "scheme": scheme}
    less = judge(tokens, logits, gate=low, **common)
    more = judge(tokens, logits, gate=high, **common)
    assert less.num_accepted <= more.num_accepted


@given(drafts, grid_logits, limits, limits, caps, caps, schemes)
def test_a_larger_cap_never_accepts_less(tokens, logits, budget, gate, low, high, scheme):
    low, high = sorted((low, high))
    common = {"budget": budget, "gate": gate, "scheme": scheme}
    less = judge(tokens, logits, cap=low, **common)
    more = judge(tokens, logits, cap=high, **common)
    assert less.num_accepted <= more.num_accepted


@given(drafts, grid_logits, positive, positive, st.integers(1, G), lengths, schemes)
def test_the_realised_gate_is_never_laxer_than_the_remaining_gate(
    tokens, logits, budget, gate, cap, length, scheme
):
    common = {"budget": budget, "gate": gate, "cap": cap, "draft_length": length}
    realised = judge(tokens, logits, scheme="realised", **common)
    remaining = judge(tokens, logits, scheme="remaining", **common)
    assert realised.num_strict <= realised.num_accepted <= remaining.num_accepted <= length


@given(
    drafts,
    grid_logits,
    hnp.arrays(np.int8, (G + 1, 1), elements=st.integers(-64, 64)),
    limits,
    limits,
    caps,
    schemes,
)
def test_adding_a_constant_to_a_row_changes_nothing(
    tokens, logits, constants, budget, gate, cap, scheme
):
    common = {"budget": budget, "gate": gate, "cap": cap, "scheme": scheme}
    shifted = logits + constants.astype(np.float32)
    assert_same_decision(judge(tokens, logits, **common), judge(tokens, shifted, **common))


@pytest.mark.parametrize(
    "zero",
    [{"budget": 0}, {"gate": 0}, {"cap": 0}, {"budget": 2, "spent": 2}],
    ids=["budget_0", "gate_0", "cap_0", "exhausted"],
)
@given(
    tokens=drafts, logits=grid_logits, budget=limits, gate=limits, length=lengths, scheme=schemes
)
def test_nothing_to_spend_means_the_longest_prefix_of_target_tokens(
    zero, tokens, logits, budget, gate, length, scheme
):
    got = judge(
        tokens,
        logits,
        draft_length=length,
        scheme=scheme,
        **({"budget": budget, "gate": gate} | zero),
    )
    target = logits.argmax(-1)
    prefix = 0
    while prefix < length and tokens[prefix] == target[prefix]:
        prefix += 1
    assert got.num_accepted == got.num_strict == prefix
    assert got.next_token == target[prefix]
    assert not got.exception_mask.any() and not got.regret.any()


@given(drafts, grid_logits, limits, limits, caps, schemes, st.integers(0, G + 1), st.integers(0, 9))
def test_every_charged_token_is_a_committed_one(
    tokens, logits, budget, gate, cap, scheme, committed, position
):
    got = judge(tokens, logits, budget=budget, gate=gate, cap=cap, scheme=scheme)
    committed = min(committed, int(got.num_accepted) + 1)
    after = charge(Ledger.zeros(), got, np.int32(committed), position=np.int32(position))
    emitted = [*tokens[: got.num_accepted], got.next_token][:committed]
    target = logits.argmax(-1)
    charged = [i for i, x in enumerate(emitted) if x != target[i]]
    cost = sum((logits[i, target[i]] - logits[i, emitted[i]] for i in charged), np.float32(0))
    assert after.exceptions == len(charged)
    assert after.spent == cost
    assert after.first_exception_at == (position + charged[0] if charged else -1)
    assert after.accepted == min(committed, int(got.num_accepted))
    behind = max(int(after.accepted) - charged[0] - 1, 0) if charged else 0
    assert after.reused == behind


@given(drafts, drafts, grid_logits, grid_logits, st.integers(0, G), lengths, limits, limits, caps)
def test_the_first_tokens_do_not_depend_on_later_drafts(
    tokens, other_tokens, logits, other_logits, shared, length, budget, gate, cap
):
    """Scheme "remaining" with fixed lengths; row i of the logits depends on drafts before i."""
    second = np.concatenate([tokens[:shared], other_tokens[shared:]])
    second_logits = np.concatenate([logits[: shared + 1], other_logits[shared + 1 :]])
    common = {"budget": budget, "gate": gate, "cap": cap, "draft_length": length}
    a = judge(tokens, logits, value_length=G, **common)
    b = judge(second, second_logits, value_length=G, **common)
    assert min(a.num_accepted, shared) == min(b.num_accepted, shared)
    assert np.array_equal(a.regret[:shared], b.regret[:shared])
    assert np.array_equal(a.exception_mask[:shared], b.exception_mask[:shared])
    if a.num_accepted < shared:
        assert a.stop_reason == b.stop_reason and a.next_token == b.next_token


@given(
    hnp.arrays(np.int32, (ROWS, G), elements=st.integers(-1, V)),
    hnp.arrays(np.int8, (ROWS, G + 1, V), elements=st.integers(-8, 8)),
    hnp.arrays(np.float32, (ROWS, 3), elements=st.floats(0, 4, width=32)),
    st.permutations(range(ROWS)),
    st.sampled_from([np.nan, np.inf, -np.inf, 3e38]),
)
def test_a_row_never_depends_on_its_neighbours(tokens, logits, controls, order, garbage):
    logits = logits.astype(np.float32) / 8
    order = np.asarray(order)

    def run(tokens, logits, numbers):
        ledger = Ledger.zeros((ROWS,)).replace(spent=jnp.asarray(numbers[:, 2]))
        limits = Controls(numbers[:, 0], numbers[:, 1], np.floor(numbers[:, 1] * 2))
        got = compiled_batch(tokens, logits, ledger, limits)
        return jax.tree.map(np.asarray, got)

    whole = run(tokens, logits, controls)
    permuted = run(tokens[order], logits[order], controls[order])
    for name in oracles.VERDICT_FIELDS:
        assert np.array_equal(getattr(whole, name)[order], getattr(permuted, name)), name

    spoilt, spoilt_tokens, spoilt_controls = logits.copy(), tokens.copy(), controls.copy()
    spoilt[1:], spoilt_tokens[1:], spoilt_controls[1:] = garbage, 2**31 - 1, 0
    alone = run(spoilt_tokens, spoilt, spoilt_controls)
    for name in oracles.VERDICT_FIELDS:
        assert np.array_equal(getattr(whole, name)[0], getattr(alone, name)[0]), name


compiled_batch = jax.jit(verify_batch)
