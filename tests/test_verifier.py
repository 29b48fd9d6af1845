"""The verifier and the ledger: against a plain loop, and each rule of the design by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.scoring import score_drafts
from asd_jax.types import Controls, Ledger, StopReason, Verdict
from asd_jax.verifier import settle, verify, verify_batch
from tests import oracles

INF = np.float32(np.inf)
G, V = 5, 11
WIDE_V = 96  # three chunks of the vocabulary pass; V is read in one piece
PADDING_ID = -7  # in a padded list of protected ids; no token is ever equal to it
SCHEMES = ("remaining", "realised")
BULK = 2048  # rows of each of the five bulk runs; some more cases come below


# --- random cases -----------------------------------------------------------------------------


def random_cases(seed: int, size: int, dtype: type, vocab: int = V) -> dict[str, np.ndarray]:
    """Draws blocks in which ties, exhaustion, NaN, infinities and bad ids are all common."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(-8, 1, (size, G + 1, vocab)) * 0.25
    fine = rng.normal(size=(size, G + 1, vocab)) * 0.7
    logits = np.where(rng.random((size, 1, 1)) < 0.6, coarse, fine).astype(np.float32)
    for value, share in ((-np.inf, 0.55), (np.nan, 0.09), (np.inf, 0.045)):
        logits[rng.random(logits.shape) < share / vocab] = value
    logits[rng.random((size, G + 1)) < 0.01] = -np.inf
    logits = logits.astype(dtype)

    wide = logits.astype(np.float32)
    best = wide.argmax(-1)[:, :G]
    second = np.argsort(-np.nan_to_num(wide, nan=-np.inf), -1, kind="stable")[:, :G, 1]
    kind = rng.choice(4, (size, G), p=[0.5, 0.33, 0.15, 0.02])
    bad = rng.choice([-1, vocab, vocab + 5, -(2**31), 2**31 - 1], (size, G))
    tokens = np.select(
        [kind == 0, kind == 1, kind == 2], [best, second, rng.integers(0, vocab, (size, G))], bad
    ).astype(np.int32)

    length = np.where(rng.random(size) < 0.5, G, rng.integers(0, G + 1, size))
    spent = np.where(rng.random(size) < 0.5, rng.integers(0, 9, size) * 0.25, rng.random(size))
    budget = rng.choice([0.0, 0.3, 1.0, 2.5, 8.0, np.inf], size, p=[0.04, 0.06, 0.2, 0.3, 0.3, 0.1])
    budget = np.where(rng.random(size) < 0.9, np.maximum(budget, spent), budget)
    return {
        "tokens": tokens,
        "logits": logits,
        "draft_length": length.astype(np.int32),
        "value_length": np.where(
            rng.random(size) < 0.7, length, rng.integers(0, G + 3, size)
        ).astype(np.int32),
        "protected": np.where(
            rng.random((size, 2)) < 0.25, rng.integers(0, V, (size, 2)), PADDING_ID
        ).astype(np.int32),
        "budget": np.where(rng.random(size) < 0.03, 0, budget).astype(np.float32),
        "gate": rng.choice(
            [0.0, 0.1, 0.25, 0.5, 1.0, np.inf], size, p=[0.03, 0.1, 0.27, 0.3, 0.2, 0.1]
        ).astype(np.float32),
        "block_cap": rng.choice(
            [0, 1, 2, 3, G, 2**31 - 1], size, p=[0.03, 0.2, 0.3, 0.2, 0.17, 0.1]
        ).astype(np.int32),
        "spent": spent.astype(np.float32),
        "committed_share": rng.random(size),
        "position": rng.integers(0, 500, size).astype(np.int32),
        "exhausted_at": rng.choice([-1, 3], size).astype(np.int32),
        "first_exception_at": rng.choice([-1, 7], size).astype(np.int32),
        **{
            name: rng.integers(0, 100, size).astype(np.int32)
            for name in (
                "exceptions", "reused", "proposed", "accepted", "strict_accepted", "rounds"
            )
        },
    }  # fmt: skip


def ledger_of(cases: dict[str, np.ndarray]) -> Ledger:
    return Ledger(**{name: jnp.asarray(cases[name]) for name in oracles.LEDGER_FIELDS})


def controls_of(cases: dict[str, np.ndarray]) -> Controls:
    return Controls(*(cases[name] for name in ("budget", "gate", "block_cap")))


def row_of(tree, row: int):
    return jax.tree.map(lambda leaf: leaf[row], tree)


def num_committed(cases: dict[str, np.ndarray], num_accepted: np.ndarray) -> np.ndarray:
    """Half of the blocks are committed whole, the others are cut anywhere, also to nothing."""
    share, whole = cases["committed_share"], num_accepted + 1
    cut = np.floor((share - 0.5) * 2 * (whole + 1))
    return np.where(share < 0.5, whole, np.minimum(cut, whole)).astype(np.int32)


def expected(
    cases: dict[str, np.ndarray], row: int, scheme: str, defaults: bool, protected: tuple
) -> tuple[dict, dict]:
    """Returns the oracle's verdict and settled ledger of one case."""
    case = {name: values[row] for name, values in cases.items()}
    lengths = (
        {}
        if defaults
        else {"draft_length": case["draft_length"], "value_length": case["value_length"]}
    )
    verdict = oracles.verify_loop(
        case["tokens"],
        case["logits"],
        case["spent"],
        case["budget"],
        case["gate"],
        case["block_cap"],
        value_scheme=scheme,
        protected_ids=protected if defaults else case["protected"],
        **lengths,
    )
    ledger = {name: case[name] for name in oracles.LEDGER_FIELDS}
    settled = oracles.settle_loop(
        ledger,
        verdict,
        int(num_committed({"committed_share": case["committed_share"]}, verdict["num_accepted"])),
        draft_length=None if defaults else case["draft_length"],
        position=None if defaults else case["position"],
    )
    return verdict, settled


def assert_same_bits(got, want: dict, names: tuple[str, ...], context: str) -> None:
    """Asserts that every field has the same bits; float32 is compared as int32."""
    for name in names:
        a, b = np.asarray(getattr(got, name)), np.asarray(want[name])
        if a.dtype == np.float32:
            a, b = a.view(np.int32), b.astype(np.float32).view(np.int32)
        assert a.shape == b.shape, f"{name}: shape {a.shape}, oracle {b.shape}; {context}"
        assert np.array_equal(a, b), (
            f"{name}: got {getattr(got, name)}, oracle {want[name]}; {context}"
        )


def assert_cases(
    cases, verdicts: Verdict, ledgers: Ledger, scheme: str, *, defaults=False, protected=()
) -> tuple[dict, dict]:
    """Compares all rows with the oracle in one go; on a difference, names the first row."""
    size = len(cases["tokens"])
    pairs = [expected(cases, row, scheme, defaults, protected) for row in range(size)]
    stacked = [
        {name: np.stack([np.asarray(pair[i][name]) for pair in pairs]) for name in names}
        for i, names in ((0, oracles.VERDICT_FIELDS), (1, oracles.LEDGER_FIELDS))
    ]
    for got, want, names in (
        (verdicts, stacked[0], oracles.VERDICT_FIELDS),
        (ledgers, stacked[1], oracles.LEDGER_FIELDS),
    ):
        got = jax.tree.map(np.asarray, got)
        try:
            assert_same_bits(got, want, names, "batch")
        except AssertionError:
            for row in range(size):
                one = {name: want[name][row] for name in names}
                case = {name: values[row].tolist() for name, values in cases.items()}
                assert_same_bits(row_of(got, row), one, names, f"row {row}: {case}")
            raise
    return stacked[0], stacked[1]


@functools.cache
def compiled_bulk(scheme: str):
    """Returns jitted, vmapped verify and settle in which everything differs from row to row."""

    def one(tokens, logits, ledger, controls, draft_length, value_length, protected):
        return verify(
            tokens,
            logits,
            ledger,
            controls,
            draft_length=draft_length,
            value_length=value_length,
            value_scheme=scheme,
            protected_ids=protected,
        )

    return jax.jit(jax.vmap(one))


@jax.jit
@jax.vmap
def compiled_settle(ledger, verdict, committed, draft_length, position):
    return settle(ledger, verdict, committed, draft_length=draft_length, position=position)


compiled_default_settle = jax.jit(jax.vmap(settle))


@pytest.mark.parametrize(
    ("dtype", "vocab", "scheme"),
    [
        (np.float32, V, "remaining"),
        (np.float32, WIDE_V, "realised"),
        (jnp.bfloat16, V, "realised"),
        (jnp.bfloat16, WIDE_V, "remaining"),
        (np.float16, WIDE_V, "realised"),
    ],
)
def test_vmapped_verdict_and_ledger_equal_the_loop_bit_for_bit(dtype, vocab, scheme):
    cases = random_cases(SCHEMES.index(scheme) + 10, BULK, dtype, vocab)
    ledger = ledger_of(cases)
    verdicts = compiled_bulk(scheme)(
        cases["tokens"],
        cases["logits"],
        ledger,
        controls_of(cases),
        cases["draft_length"],
        cases["value_length"],
        cases["protected"],
    )
    committed = num_committed(cases, np.asarray(verdicts.num_accepted))
    ledgers = compiled_settle(ledger, verdicts, committed, cases["draft_length"], cases["position"])
    want, settled = assert_cases(cases, verdicts, ledgers, scheme)

    # The comparison above says little unless the cases reach every branch.
    reasons = np.bincount(want["stop_reason"], minlength=len(StopReason))
    assert (reasons >= 20).all(), f"a stop reason is hardly reached: {reasons}"
    accepted = want["exception_mask"].sum(1)
    assert (accepted == 1).sum() > 200 and (accepted >= 2).sum() > 80
    assert (want["exception_mask"] & (want["regret"] == 0)).sum() > 100  # accepted ties
    assert (~want["is_finite"]).sum() > 50 and (want["num_finite"] <= G).sum() > 100
    assert (settled["spent"] > cases["spent"]).sum() > 200
    assert (settled["exhausted_at"] != cases["exhausted_at"]).sum() > 10


def test_verify_batch_with_default_lengths_equals_the_loop_bit_for_bit():
    scheme, cases = "realised", random_cases(21, 1024, np.float32)
    ledger, protected = ledger_of(cases), (1, 4)
    run = jax.jit(functools.partial(verify_batch, value_scheme=scheme, protected_ids=protected))
    verdicts = run(cases["tokens"], cases["logits"], ledger, controls_of(cases))
    committed = num_committed(cases, np.asarray(verdicts.num_accepted))
    ledgers = compiled_default_settle(ledger, verdicts, committed)
    assert_cases(cases, verdicts, ledgers, scheme, defaults=True, protected=protected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_jitted_single_request_equals_the_loop_bit_for_bit(scheme):
    cases = random_cases(31, 200, np.float32)
    run, charge = compiled_verify(scheme), jax.jit(settle)
    ledgers = jax.tree.map(np.asarray, ledger_of(cases))
    for row in range(200):
        case = {name: values[row] for name, values in cases.items()}
        ledger = row_of(ledgers, row)
        got = run(
            case["tokens"],
            case["logits"],
            ledger,
            controls_of(case),
            draft_length=case["draft_length"],
            value_length=case["value_length"],
            protected_ids=case["protected"],
        )
        committed = num_committed(case, np.asarray(got.num_accepted))
        settled = charge(
            ledger, got, committed, draft_length=case["draft_length"], position=case["position"]
        )
        verdict, new = expected(cases, row, scheme, False, ())
        assert_same_bits(got, verdict, oracles.VERDICT_FIELDS, f"row {row}")
        assert_same_bits(settled, new, oracles.LEDGER_FIELDS, f"row {row}")


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 150), (jnp.bfloat16, 60)])
def test_plain_unjitted_calls_equal_the_loop_bit_for_bit(dtype, size):
    cases = random_cases(41, size, dtype)
    for row in range(size):
        scheme = SCHEMES[row % 2]
        case = {name: values[row] for name, values in cases.items()}
        ledger = ledger_of(case)
        got = verify(
            jnp.asarray(case["tokens"]),
            jnp.asarray(case["logits"]),
            ledger,
            controls_of(case),
            draft_length=int(case["draft_length"]),
            value_length=int(case["value_length"]),
            value_scheme=scheme,
            protected_ids=tuple(case["protected"].tolist()),
        )
        committed = int(num_committed(case, np.asarray(got.num_accepted)))
        settled = settle(
            ledger,
            got,
            committed,
            draft_length=int(case["draft_length"]),
            position=int(case["position"]),
        )
        verdict, new = expected(cases, row, scheme, False, ())
        assert_same_bits(got, verdict, oracles.VERDICT_FIELDS, f"row {row}")
        assert_same_bits(settled, new, oracles.LEDGER_FIELDS, f"row {row}")


def test_logits_rounded_to_bfloat16_in_the_same_program_are_judged_as_rounded():
    """XLA may keep more digits than the type has between two fused steps; ties must stay ties."""
    rng = np.random.default_rng(51)
    size = 256
    hidden = rng.normal(size=(size, G + 1, 8)).astype(np.float32)
    head = rng.normal(size=(8, WIDE_V)).astype(np.float32)

    def score(hidden):
        return (jnp.tanh(hidden @ head) * 1.3).astype(jnp.bfloat16)

    rounded = np.asarray(jax.jit(score)(hidden)).astype(np.float32)
    tokens = np.argsort(-rounded[:, :G], -1, kind="stable")[..., 1].astype(np.int32)
    controls = Controls(budget=INF, gate=INF, block_cap=G)
    got = jax.jit(
        lambda hidden, tokens: verify_batch(tokens, score(hidden), Ledger.zeros((size,)), controls)
    )(hidden, tokens)
    want = [oracles.verify_loop(t, z, 0, INF, INF, G) for t, z in zip(tokens, rounded, strict=True)]
    stacked = {name: np.stack([w[name] for w in want]) for name in oracles.VERDICT_FIELDS}
    assert (stacked["exception_mask"] & (stacked["regret"] == 0)).sum() > 20
    assert_same_bits(got, stacked, oracles.VERDICT_FIELDS, "rounded in the program")


@pytest.mark.parametrize("vocab_major", [False, True])
def test_scores_are_read_alike_from_both_layouts_of_the_logits(vocab_major):
    cases = random_cases(61, 256, np.float32, WIDE_V)
    tokens, logits = cases["tokens"], cases["logits"]
    read = jax.jit(functools.partial(score_drafts, vocab_major=vocab_major))
    got = read(np.moveaxis(logits, -1, 0).copy() if vocab_major else logits, tokens)
    target = np.asarray(got.target_tokens)
    assert np.array_equal(target, logits.argmax(-1))
    assert np.isnan(logits).any(-1).sum() > 50
    top = np.take_along_axis(logits, target[..., None], -1)[..., 0]
    assert np.array_equal(got.top_logits, np.where(np.isnan(top), np.inf, top))
    inside = (tokens >= 0) & (tokens < WIDE_V)
    picked = np.take_along_axis(logits[:, :G], np.where(inside, tokens, 0)[..., None], -1)[..., 0]
    assert np.array_equal(got.draft_logits, np.where(inside, picked, -np.inf), equal_nan=True)


# --- by hand ----------------------------------------------------------------------------------


@functools.cache
def compiled_verify(scheme: str):
    return jax.jit(functools.partial(verify, value_scheme=scheme))


def judge(
    tokens,
    logits,
    *,
    spent=0.0,
    budget=INF,
    gate=INF,
    cap=2**31 - 1,
    draft_length=None,
    value_length=None,
    scheme="remaining",
    protected=(),
) -> Verdict:
    """Runs one block of up to G drafts in the one compiled shape, padded behind `draft_length`."""
    tokens, logits = np.asarray(tokens, np.int32), np.asarray(logits, np.float32)
    n = len(tokens) if draft_length is None else draft_length
    missing = G - len(tokens)
    filler = np.full((missing, logits.shape[1]), -5, np.float32)
    logits = np.concatenate([logits, filler])
    logits = np.pad(logits, ((0, 0), (0, V - logits.shape[1])), constant_values=-3000)
    ids = (tuple(protected) + (PADDING_ID,) * 2)[:2]
    ledger = Ledger.zeros().replace(spent=jnp.float32(spent))
    got = compiled_verify(scheme)(
        np.concatenate([tokens, np.zeros(missing, np.int32)]),
        logits,
        ledger,
        Controls(budget, gate, cap),
        draft_length=np.int32(n),
        value_length=np.int32(n if value_length is None else value_length),
        protected_ids=np.asarray(ids, np.int32),
    )
    return jax.tree.map(np.asarray, got)


def rows(draft, target, regrets, next_id=0, top=4.0):
    """Returns logits in which draft i lies `regrets[i]` under the target's token."""
    tops = [top] * len(draft)
    below = [np.float32(top) - np.float32(r) for r in regrets]
    return oracles.block_logits(V, target, tops, draft, below, next_id)


def reason_of(verdict: Verdict) -> StopReason:
    return StopReason(int(verdict.stop_reason))


def test_target_token_is_the_lowest_id_of_a_tie():
    logits = np.full((2, V), -1.0)
    logits[0, [3, 6, 9]] = 2.0
    logits[1, :] = 0.0
    got = judge([3], logits)
    assert got.target_tokens[:2].tolist() == [3, 0]
    assert got.num_accepted == 1 and not got.exception_mask.any()


def test_negative_zero_ties_with_zero_and_the_lower_id_wins():
    logits = np.full((2, V), -1.0)
    logits[:, 2], logits[:, 5] = -0.0, 0.0
    got = judge([5], logits, cap=0)
    assert got.target_tokens[:2].tolist() == [2, 2]
    assert got.num_accepted == 0 and got.next_token == 2


def test_regret_is_the_distance_to_the_target_token_in_logits():
    got = judge([1, 2], rows([1, 2], [3, 4], [0.75, 1.5]))
    assert got.regret[:2].tolist() == [0.75, 1.5]
    assert got.exception_mask.tolist() == [True, True, False, False, False]


def test_an_exact_tie_is_an_exception_of_regret_zero():
    got = judge([7, 2], rows([7, 2], [3, 2], [0, 0]), cap=1)
    assert got.num_accepted == 2 and got.num_strict == 0
    assert got.exception_mask.tolist() == [True, False, False, False, False]
    assert got.regret.tolist() == [0, 0, 0, 0, 0]


def test_a_tie_counts_against_the_cap():
    got = judge([7, 8], rows([7, 8], [3, 4], [0, 0.5]), cap=1)
    assert got.num_accepted == 1 and reason_of(got) == StopReason.CAP


@pytest.mark.parametrize("index", range(G))
def test_gate_allows_exactly_gate_times_remaining_length_and_not_a_float_more(index):
    gate = np.float32(0.25)
    limit = np.float32(gate * (G - index))
    draft, target = [1] * G, [1] * G
    draft[index] = 2
    for regret, kept in ((limit, G), (np.nextafter(limit, INF), index)):
        regrets = [0.0] * G
        regrets[index] = regret
        # With the top logit at 0 the draft's logit is -regret and the difference is exact.
        got = judge(draft, rows(draft, target, regrets, top=0.0), gate=gate)
        assert got.num_accepted == kept, (index, regret)
    assert reason_of(got) == StopReason.GATE


def test_remaining_value_counts_from_the_proposed_length():
    logits = rows([2, 1, 1], [1, 1, 1], [0.75, 0, 0])
    assert judge([2, 1, 1], logits, gate=0.25).num_accepted == 3
    assert judge([2, 1, 1], logits, gate=0.25, draft_length=2).num_accepted == 0


def test_value_length_keeps_the_value_of_the_uncut_block():
    logits = rows([2, 1, 1], [1, 1, 1], [1.25, 0, 0])
    assert judge([2, 1, 1], logits, gate=0.25, draft_length=2).num_accepted == 0
    got = judge([2, 1, 1], logits, gate=0.25, draft_length=2, value_length=G)
    assert got.num_accepted == 2 and reason_of(got) == StopReason.END_OF_DRAFT


def test_value_length_is_ignored_by_the_realised_scheme():
    logits = rows([2, 1], [1, 1], [1.25, 0])
    got = judge([2, 1], logits, gate=0.25, value_length=100, scheme="realised")
    assert got.num_accepted == 0


@pytest.mark.parametrize("bad_id", [-1, V, V + 1, 2**31 - 1, -(2**31)])
def test_an_id_outside_the_vocabulary_is_never_kept(bad_id):
    logits = np.full((2, V), 1.0)  # every token ties with the argmax
    got = judge([bad_id], logits)
    assert got.num_accepted == 0 and got.next_token == 0
    assert reason_of(got) == StopReason.INVALID


def test_an_unsigned_id_beyond_int32_is_never_kept():
    tokens = jnp.asarray([2**32 - 1, 2**31], jnp.uint32)
    got = jax.jit(verify)(tokens, jnp.zeros((3, 4)), Ledger.zeros(), Controls(INF, INF, 9))
    assert got.num_accepted == 0


def test_types_hold_and_wide_ids_are_refused_where_jax_has_64_bit_integers():
    with jax.enable_x64(True):
        tokens = jnp.asarray([0, 2**32 + 1], jnp.int64)
        logits = jnp.zeros((3, 4), jnp.float32).at[1, 1].set(1.0)
        got, after = jax.jit(
            lambda tokens, logits, ledger, controls: (
                got := verify(tokens, logits, ledger, controls),
                settle(ledger, got, 2),
            )
        )(tokens, logits, Ledger.zeros(), Controls(INF, INF, 9))
    assert got.num_accepted == 1
    before = Ledger.zeros()
    for name in oracles.LEDGER_FIELDS:
        assert getattr(after, name).dtype == getattr(before, name).dtype, name


def test_tokens_at_and_behind_draft_length_are_not_looked_at():
    logits = rows([1, 1, 1], [1, 1, 1], [0, 0, 0])
    logits[2] = np.nan
    got = judge([1, 1, 99], logits, draft_length=1)
    assert got.num_accepted == 1 and got.next_token == 1
    assert reason_of(got) == StopReason.END_OF_DRAFT
    assert got.is_finite and got.num_finite == 2


def test_an_empty_proposal_gives_the_plain_greedy_token():
    got = judge([], rows([], [], [], next_id=6))
    assert got.num_accepted == 0 and got.next_token == 6
    assert reason_of(got) == StopReason.END_OF_DRAFT


def test_a_block_of_no_drafts_is_greedy_decoding():
    logits = jnp.asarray(rows([], [], [], next_id=6))
    got = jax.jit(verify)(jnp.zeros((0,), jnp.int32), logits, Ledger.zeros(), Controls())
    assert got.next_token == 6 and got.num_accepted == 0
    assert reason_of(got) == StopReason.NONE
    ledger = jax.jit(settle)(Ledger.zeros(), got, 1)
    assert ledger.rounds == 1 and ledger.accepted == 0 and ledger.spent == 0


def test_a_match_behind_a_refused_token_is_not_kept():
    got = judge([2, 1, 1], rows([2, 1, 1], [1, 1, 1], [9, 0, 0]), gate=0.01)
    assert got.num_accepted == 0 and got.next_token == 1


def test_next_token_is_the_correction_or_the_bonus():
    logits = rows([1, 2], [1, 3], [0, 1], next_id=8)
    assert judge([1, 2], logits, budget=0).next_token == 3
    full = judge([1, 2], logits)
    assert full.num_accepted == 2 and full.next_token == 8


def test_stop_reason_none_only_when_all_positions_are_kept():
    whole = judge([1] * G, rows([1] * G, [1] * G, [0] * G))
    assert reason_of(whole) == StopReason.NONE and whole.num_accepted == G


def test_budget_is_shared_along_the_block():
    got = judge([2, 3, 4], rows([2, 3, 4], [1, 1, 1], [0.5, 0.5, 0.5]), budget=1.25)
    assert got.num_accepted == 2 and reason_of(got) == StopReason.BUDGET
    assert got.regret[:3].tolist() == [0.5, 0.5, 0]


def test_budget_starts_at_what_the_request_has_spent():
    logits = rows([2, 3], [1, 1], [0.5, 0.5])
    assert judge([2, 3], logits, budget=2, spent=1.0).num_accepted == 2
    assert judge([2, 3], logits, budget=2, spent=1.25).num_accepted == 1
    assert judge([2, 3], logits, budget=2, spent=1.75).num_accepted == 0


def test_budget_may_be_spent_to_the_last_bit_and_not_beyond():
    logits = rows([2], [1], [0.5])
    assert judge([2], logits, budget=0.5).num_accepted == 1
    assert judge([2], logits, budget=np.nextafter(np.float32(0.5), 0)).num_accepted == 0


def test_a_tie_is_refused_in_the_block_that_exhausts_the_budget():
    got = judge([2, 7, 1], rows([2, 7, 1], [1, 1, 1], [0.5, 0, 0]), budget=0.5)
    assert got.num_accepted == 1 and got.next_token == 1
    assert reason_of(got) == StopReason.BUDGET


@pytest.mark.parametrize(
    ("controls", "reason"),
    [
        ({"budget": 0}, StopReason.STRICT),
        ({"gate": 0}, StopReason.STRICT),
        ({"cap": 0}, StopReason.STRICT),
        ({"budget": 2, "spent": 2}, StopReason.BUDGET),
        ({"budget": 2, "spent": 3}, StopReason.BUDGET),
    ],
    ids=["budget_0", "gate_0", "cap_0", "exhausted", "spent_above_lowered_budget"],
)
def test_a_tie_is_refused_and_matches_are_kept_when_nothing_may_be_spent(controls, reason):
    got = judge([1, 7, 1], rows([1, 7, 1], [1, 3, 1], [0, 0, 0]), **controls)
    assert got.num_accepted == 1 and got.num_strict == 1
    assert got.next_token == 3  # the token of strict decoding, not the tied draft
    assert reason_of(got) == reason


def test_a_zero_control_keeps_a_whole_matching_block():
    logits = rows([1] * G, [1] * G, [0] * G, next_id=4)
    for controls in ({"budget": 0}, {"gate": 0}, {"cap": 0}, {"budget": 1, "spent": 9}):
        got = judge([1] * G, logits, **controls)
        assert got.num_accepted == G and got.next_token == 4
        assert reason_of(got) == StopReason.NONE


def test_infinite_budget_and_gate_keep_every_valid_token_of_finite_regret():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(G + 1, V)) * 1e30
    draft = [int(row.argmin()) for row in logits[:G]]
    got = judge(draft, logits, cap=G)
    assert got.num_accepted == G and got.exception_mask.all()
    logits[3, draft[3]] = -np.inf
    assert judge(draft, logits, cap=G).num_accepted == 3
    draft[1] = V
    assert judge(draft, logits, cap=G).num_accepted == 1


def test_normalised_controls_divide_the_gate_by_the_block_size():
    controls = Controls.from_normalized(2.0625, 2.0625, 1, 5)
    assert controls.gate == np.float32(2.0625) / np.float32(5)
    assert controls.budget == np.float32(2.0625) and controls.block_cap == 1
    thresholds = [2.0625, 1.65, 1.2375, 0.825, 0.4125]  # as published, DeepSeek-V4-Flash
    for index, threshold in enumerate(thresholds):
        for scale, kept in ((1 - 1e-6, G), (1 + 1e-6, index)):
            draft, regrets = [1] * G, [0.0] * G
            draft[index], regrets[index] = 2, threshold * scale
            logits = rows(draft, [1] * G, regrets, top=0.0)
            got = judge(draft, logits, gate=controls.gate, cap=1)
            assert got.num_accepted == kept, (index, scale)


@pytest.mark.parametrize(
    ("draft", "target", "index", "value"),
    [
        ([2, 1, 1, 1, 1], [1, 1, 1, 1, 1], 0, 5),
        ([2, 1, 1, 3, 1], [1, 1, 1, 1, 1], 0, 3),
        ([2, 3, 1, 1, 1], [1, 1, 1, 1, 1], 0, 1),
        ([1, 1, 2, 1, 3], [1, 1, 1, 1, 1], 2, 2),
        ([1, 1, 1, 1, 2], [1, 1, 1, 1, 1], 4, 1),
    ],
)
def test_realised_value_is_one_plus_the_matches_right_behind(draft, target, index, value):
    gate = np.float32(0.25)
    for regret, is_kept in ((gate * value, True), (np.nextafter(gate * value, INF), False)):
        regrets = [0.0 if x == y else 50.0 for x, y in zip(draft, target, strict=True)]
        regrets[index] = regret
        logits = rows(draft, target, regrets, top=0.0)
        got = judge(draft, logits, gate=gate, scheme="realised")
        assert (got.num_accepted > index) == is_kept, (regret, got)
        assert got.num_accepted in ((index + value,) if is_kept else (index,))


def test_realised_value_stops_at_the_proposed_length():
    logits = rows([2, 1, 1, 1], [1, 1, 1, 1], [0.75, 0, 0, 0])
    for length, kept in ((4, 4), (3, 3), (2, 0), (1, 0)):
        got = judge([2, 1, 1, 1], logits, gate=0.25, draft_length=length, scheme="realised")
        assert got.num_accepted == kept, length


def test_realised_value_counts_a_protected_match_and_not_a_tied_exception():
    logits = rows([2, 1, 7, 1], [1, 1, 1, 1], [0.5, 0, 0, 0])
    got = judge([2, 1, 7, 1], logits, gate=0.25, scheme="realised")
    assert got.num_accepted == 4  # 0.5 <= 0.25 * 2: the tie at 2 ends the run of matches
    logits = rows([2, 1, 7, 1], [1, 1, 1, 1], [0.75, 0, 0, 0])
    assert judge([2, 1, 7, 1], logits, gate=0.25, scheme="realised").num_accepted == 0


def test_a_protected_id_may_not_be_introduced_by_an_exception():
    logits = rows([2, 1], [1, 1], [0.1, 0])
    assert judge([2, 1], logits).num_accepted == 2
    got = judge([2, 1], logits, protected=(2,))
    assert got.num_accepted == 0 and reason_of(got) == StopReason.PROTECTED


def test_a_protected_id_may_not_be_skipped_by_an_exception():
    logits = rows([2, 1], [3, 1], [0.1, 0])
    assert judge([2, 1], logits).num_accepted == 2
    got = judge([2, 1], logits, protected=(3,))
    assert got.num_accepted == 0 and got.next_token == 3
    assert reason_of(got) == StopReason.PROTECTED


def test_a_protected_id_that_the_target_wants_is_kept():
    got = judge([3, 1], rows([3, 1], [3, 1], [0, 0]), protected=(3, 1), budget=0)
    assert got.num_accepted == 2


def test_a_protected_tie_is_refused():
    got = judge([7], rows([7], [3], [0]), protected=(7,))
    assert got.num_accepted == 0 and reason_of(got) == StopReason.PROTECTED


def test_a_draft_masked_to_minus_infinity_is_refused_and_costs_nothing():
    logits = rows([1, 2, 1], [1, 1, 1], [0, 1, 0])
    logits[1, 2] = -np.inf
    got = judge([1, 2, 1], logits)
    assert got.num_accepted == 1 and reason_of(got) == StopReason.INVALID
    assert got.is_finite and np.isfinite(got.regret).all()
    after = settle(Ledger.zeros(), got, 2)
    assert after.spent == 0
    # The request goes on spending: an infinite regret has not poisoned its ledger.
    next_block = judge([2], rows([2], [1], [0.5]), spent=after.spent, budget=1)
    assert next_block.num_accepted == 1


@pytest.mark.parametrize("where", range(V))
def test_a_nan_anywhere_in_a_row_refuses_its_exception_and_does_not_reach_the_ledger(where):
    logits = rows([2, 3, 1], [1, 1, 1], [0.5, 0.5, 0])
    logits[1, where] = np.nan
    draft = [2, 3 if where != 3 else 4, 1]
    got = judge(draft, logits)
    assert got.num_accepted == 1 and reason_of(got) == StopReason.INVALID
    assert not got.is_finite and got.num_finite == 1
    assert got.regret.tolist() == [0.5, 0, 0, 0, 0]
    after = settle(Ledger.zeros(), got, 1)
    assert after.spent == 0.5 and after.exceptions == 1


def test_a_nan_behind_the_accepted_prefix_and_its_next_token_is_harmless():
    logits = rows([2, 1, 1], [1, 1, 1], [0.5, 0, 0])
    logits[2, 5] = np.nan
    got = judge([2, 1, 1], logits, budget=0)
    assert got.num_accepted == 0 and got.is_finite and got.num_finite == 2


@pytest.mark.parametrize(
    ("batch", "num_draft", "vocab", "dtype"),
    [
        (64, G, V, np.float32),
        (1, 1, 5000, np.float32),
        (2, 7, 1024, np.float32),
        (2, 7, 1024, jnp.bfloat16),
    ],
)
def test_a_nan_shows_whatever_the_size_of_the_logits(batch, num_draft, vocab, dtype):
    """XLA's CPU backend drops NaN from the maximum of larger float32 arrays (openxla/xla#21461)."""
    logits = np.zeros((batch, num_draft + 1, vocab), np.float32)
    logits[:, 1, vocab - 2] = np.nan
    tokens = np.zeros((batch, num_draft), np.int32)
    got = jax.jit(verify_batch)(tokens, logits.astype(dtype), Ledger.zeros((batch,)), Controls())
    assert (got.num_finite == 1).all()
    assert (got.target_tokens[:, 1] == vocab - 2).all()
    if num_draft > 1:
        assert (got.num_accepted == 1).all() and not got.is_finite.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_whose_maximum_is_not_finite_is_reported(value):
    logits = rows([1, 1], [1, 1], [0, 0])
    logits[2] = value
    got = judge([1, 1], logits)
    assert got.num_accepted == 2 and not got.is_finite and got.num_finite == 2


def test_an_exception_below_a_plus_infinite_logit_is_refused():
    logits = rows([1, 2], [1, 1], [0, 0.5])
    logits[1, 6] = np.inf
    got = judge([1, 2], logits)
    assert got.num_accepted == 1 and got.next_token == 6
    assert reason_of(got) == StopReason.INVALID and not got.is_finite


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"draft": V}, StopReason.INVALID),
        ({}, StopReason.STRICT),
        ({"budget": 1}, StopReason.PROTECTED),
        ({"budget": 1, "protected": ()}, StopReason.GATE),
        ({"budget": 1, "protected": (), "gate": 9}, StopReason.CAP),
        ({"budget": 1, "protected": (), "gate": 9, "cap": 2}, StopReason.BUDGET),
    ],
)
def test_stop_reasons_are_reported_in_their_stated_priority(changes, reason):
    # Position 1 fails every test at once; each case lifts one more of them.
    settings = {"budget": 0, "gate": 1, "cap": 1, "protected": (3,)} | changes
    draft = [2, settings.pop("draft", 3)]
    logits = rows([2, 3], [1, 1], [0, 8])
    if settings["budget"] == 0:
        logits = rows([1, 3], [1, 1], [0, 8])
        draft[0] = 1
    got = judge(draft, logits, **settings)
    assert got.num_accepted == 1 and reason_of(got) == reason


def test_float32_sums_from_the_left_so_a_tenth_and_two_tenths_fit_into_three():
    logits = rows([2, 3], [1, 1], [0.1, 0.2], top=0.0)
    assert judge([2, 3], logits, budget=0.3).num_accepted == 2
    assert np.float64(0.1) + np.float64(0.2) > 0.3  # what an exact float64 rule refuses


def test_float32_takes_an_overspend_below_its_resolution():
    logits = rows([2, 3], [1, 1], [0.25, np.float32(0.05 + 1e-10)], top=0.0)
    assert judge([2, 3], logits, budget=0.3).num_accepted == 2


def test_changing_a_control_value_does_not_recompile():
    run = jax.jit(lambda *args: verify(*args))  # jit's cache belongs to the function
    logits = jnp.asarray(rows([2, 1], [1, 1], [0.5, 0]))
    tokens = jnp.asarray([2, 1], jnp.int32)
    kept = [
        int(run(tokens, logits, Ledger.zeros(), Controls(*limits)).num_accepted)
        for limits in ((8.0, 0.25, 2), (0, 1, 1), (np.inf, np.inf, 5), (1, 0.2, 2))
    ]
    assert kept == [2, 0, 2, 0]
    assert run._cache_size() == 1


def test_one_batch_mixes_strict_and_relaxed_requests():
    block = rows([2, 1], [1, 1], [0.5, 0], next_id=9)
    controls = Controls(
        budget=[0.0, 8.0, 8.0, 8.0], gate=[1.0, 1.0, 0.0, 0.3], block_cap=[2, 2, 2, 0]
    )
    got = jax.jit(verify_batch)(
        np.tile(np.asarray([[2, 1]], np.int32), (4, 1)),
        np.tile(block[None], (4, 1, 1)),
        Ledger.zeros((4,)),
        controls,
    )
    assert got.num_accepted.tolist() == [0, 2, 0, 0]
    assert got.next_token.tolist() == [1, 9, 1, 1]
    assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(got))


def test_scalar_controls_and_lengths_serve_a_whole_batch():
    block = rows([2, 1], [1, 1], [0.5, 0], next_id=9)
    args = (
        np.tile(np.asarray([[2, 1]], np.int32), (3, 1)),
        np.tile(block[None], (3, 1, 1)),
        Ledger.zeros((3,)).replace(spent=jnp.asarray([0.0, 7.75, 7.5])),
    )
    run = jax.jit(verify_batch)
    assert run(*args, Controls()).num_accepted.tolist() == [2, 0, 2]
    got = run(
        *args, Controls(), draft_length=np.int32(1), value_length=np.asarray([2, 2, 1], np.int32)
    )
    assert got.num_accepted.tolist() == [1, 0, 0]


# --- settle -----------------------------------------------------------------------------------


def accepted_block() -> Verdict:
    """Five drafts, exceptions at 1 and 3 of regret 0.5 and 0.25, all kept."""
    logits = rows([1, 2, 1, 3, 1], [1] * G, [0, 0.5, 0, 0.25, 0], next_id=8)
    got = judge([1, 2, 1, 3, 1], logits)
    assert got.num_accepted == G
    return got


@pytest.mark.parametrize(
    ("committed", "spent", "exceptions", "reused", "accepted", "strict"),
    [
        (0, 0.0, 0, 0, 0, 0),
        (1, 0.0, 0, 0, 1, 1),
        (2, 0.5, 1, 0, 2, 1),
        (3, 0.5, 1, 1, 3, 1),
        (4, 0.75, 2, 2, 4, 1),
        (5, 0.75, 2, 3, 5, 1),
        (6, 0.75, 2, 3, 5, 1),
    ],
)
def test_settle_counts_and_charges_committed_tokens_only(
    committed, spent, exceptions, reused, accepted, strict
):
    ledger = settle(Ledger.zeros(), accepted_block(), committed, draft_length=4)
    assert ledger.spent == spent and ledger.exceptions == exceptions
    assert ledger.reused == reused and ledger.accepted == accepted
    assert ledger.strict_accepted == strict
    assert ledger.proposed == 4 and ledger.rounds == 1
    assert ledger.first_exception_at == (1 if exceptions else -1)


def test_settle_takes_the_whole_block_as_proposed_by_default():
    assert settle(Ledger.zeros(), accepted_block(), 6).proposed == G


def test_settle_forms_the_sum_in_the_order_in_which_verify_compared_it():
    # (2**24 + 1) + 1 stays at 2**24 in float32; 2**24 + (1 + 1) does not.
    start, budget = np.float32(2**24), np.float32(2**24)
    assert np.float32(start + np.float32(1)) == start != np.float32(start + np.float32(2))
    got = judge([1, 2, 3], rows([1, 2, 3], [1, 1, 1], [0, 1, 1]), spent=start, budget=2 * budget)
    ledger = settle(Ledger.zeros().replace(spent=jnp.float32(start)), got, 4)
    assert ledger.exceptions == 2 and ledger.spent == start


def test_first_exception_is_noted_at_its_emitted_position_and_only_once():
    first = settle(Ledger.zeros(), accepted_block(), 6, position=10)
    assert first.first_exception_at == 11
    assert settle(first, accepted_block(), 6, position=40).first_exception_at == 11


def test_positions_default_to_the_tokens_committed_so_far():
    strict_block = judge([1, 1, 2], rows([1, 1, 2], [1, 1, 1], [0, 0, 1]), budget=0)
    ledger = settle(Ledger.zeros(), strict_block, 3)
    assert ledger.first_exception_at == -1
    assert settle(ledger, accepted_block(), 6).first_exception_at == 3 + 1


def test_exhaustion_is_noted_at_the_first_round_that_the_budget_ended():
    refused = judge([2, 3], rows([2, 3], [1, 1], [0.5, 0.5]), budget=0.5)
    assert reason_of(refused) == StopReason.BUDGET
    ledger = settle(settle(Ledger.zeros(), accepted_block(), 6), refused, 2)
    assert ledger.exhausted_at == 1
    assert settle(ledger, refused, 2).exhausted_at == 1


def test_a_budget_stop_that_was_cut_away_is_not_an_exhaustion():
    refused = judge([2, 3], rows([2, 3], [1, 1], [0.5, 0.5]), budget=0.5)
    assert settle(Ledger.zeros(), refused, 1).exhausted_at == -1


@pytest.mark.parametrize("controls", [{"gate": 0.1}, {"cap": 0}, {"budget": 0}])
def test_other_stops_are_not_an_exhaustion(controls):
    refused = judge([2], rows([2], [1], [0.5]), **controls)
    assert settle(Ledger.zeros(), refused, 1).exhausted_at == -1


# --- controls and argument errors -------------------------------------------------------------


@pytest.mark.parametrize("field", ["budget", "gate", "block_cap"])
@pytest.mark.parametrize(
    "value", [-1, -0.5, float("nan"), True, "two", [1, -1], np.float32(-3), [0.0, float("nan")]]
)
def test_a_bad_control_is_refused_by_field_and_value(field, value):
    with pytest.raises(ValueError) as caught:
        Controls(**{field: value})
    assert field in str(caught.value) and repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [1.5, float("inf"), [1, 2.25]])
def test_a_cap_that_is_no_whole_number_is_refused_by_field_and_value(value):
    with pytest.raises(ValueError, match="block_cap") as caught:
        Controls(block_cap=value)
    assert repr(value) in str(caught.value)


def test_a_bad_control_on_the_device_is_refused_too():
    with pytest.raises(ValueError, match="gate"):
        Controls(gate=jnp.float32(-1))


@pytest.mark.parametrize("value", [0, -1, 2.5, "5", True])
def test_a_bad_block_size_is_refused_by_field_and_value(value):
    with pytest.raises(ValueError, match="block_size") as caught:
        Controls.from_normalized(1, 1, 1, value)
    assert repr(value) in str(caught.value)


def test_controls_hold_float32_and_int32_and_default_to_the_published_setting():
    controls = Controls()
    assert (controls.budget, controls.gate, controls.block_cap) == (8.0, 0.25, 2)
    for made in (controls, Controls([1, 2], [1, 2], [1.0, 2.0]), Controls.strict()):
        dtypes = [np.asarray(leaf).dtype for leaf in jax.tree.leaves(made)]
        assert dtypes == [np.float32, np.float32, np.int32]


def test_strict_controls_are_all_zero():
    assert jax.tree.leaves(jax.tree.map(float, Controls.strict())) == [0, 0, 0]


def test_a_huge_cap_and_infinite_limits_are_allowed():
    controls = Controls(float("inf"), float("inf"), 10**12)
    assert controls.block_cap == 2**31 - 1 and np.isinf(controls.budget)


def test_controls_pass_through_jit_vmap_and_tree_map():
    controls = Controls([1.0, 2.0], [0.5, 0.25], [1, 2])
    doubled = jax.tree.map(lambda leaf: leaf * 2, controls)
    assert isinstance(doubled, Controls) and doubled.block_cap.tolist() == [2, 4]
    returned = jax.jit(lambda c: c)(controls)
    assert isinstance(returned, Controls) and returned.gate.tolist() == [0.5, 0.25]
    per_row = jax.vmap(lambda c: c.budget * c.gate)(controls)
    assert per_row.tolist() == [0.5, 0.5]
    shapes = jax.eval_shape(lambda c: c, controls)
    assert isinstance(shapes, Controls) and shapes.block_cap.shape == (2,)


def test_a_tracer_is_not_validated_and_a_negative_traced_budget_is_strict():
    logits = jnp.asarray(rows([7], [1], [0]))
    tokens = jnp.asarray([7], jnp.int32)
    run = jax.jit(
        lambda b: verify(tokens, logits, Ledger.zeros(), Controls(b, jnp.float32(1), jnp.int32(1)))
    )
    assert run(jnp.float32(-1)).num_accepted == 0
    assert run(jnp.float32(1)).num_accepted == 1


@pytest.mark.parametrize(
    ("tokens", "logits", "message"),
    [
        (np.zeros((3,), np.int32), np.zeros((3, V), np.float32), "target_logits"),
        (np.zeros((3,), np.int32), np.zeros((5, V), np.float32), "target_logits"),
        (np.zeros((1, 3), np.int32), np.zeros((4, V), np.float32), r"\(1, 3\)"),
        (np.zeros((3,), np.int32), np.zeros((1, 4, V), np.float32), r"\(1, 4, 11\)"),
        (np.zeros((3,), np.float32), np.zeros((4, V), np.float32), "draft_tokens.*float32"),
        (np.zeros((3,), np.int32), np.zeros((4, V), np.int32), "target_logits.*int32"),
    ],
)
def test_wrong_shapes_and_types_are_refused_by_name(tokens, logits, message):
    with pytest.raises(ValueError, match=message):
        verify(jnp.asarray(tokens), jnp.asarray(logits), Ledger.zeros(), Controls())


def test_controls_or_a_ledger_of_a_batch_are_refused_by_verify():
    """With as many requests as drafts they would broadcast against the positions."""
    block = jnp.zeros((3,), jnp.int32), jnp.zeros((4, V))
    with pytest.raises(ValueError, match="budget|controls"):
        jax.eval_shape(verify, *block, Ledger.zeros(), Controls(budget=[1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="spent|ledger"):
        jax.eval_shape(verify, *block, Ledger.zeros((3,)), Controls())


def test_an_unknown_value_scheme_is_refused_by_name_and_value():
    with pytest.raises(ValueError, match="value_scheme.*'suffix'.*remaining.*realised"):
        jax.eval_shape(
            functools.partial(verify, value_scheme="suffix"),
            jnp.zeros((1,), jnp.int32),
            jnp.zeros((2, V)),
            Ledger.zeros(),
            Controls(),
        )


def test_verify_batch_refuses_a_single_request():
    with pytest.raises(ValueError, match="ranks 1 and 2"):
        verify_batch(jnp.zeros((1,), jnp.int32), jnp.zeros((2, V)), Ledger.zeros((1,)), Controls())
