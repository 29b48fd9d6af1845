"""The authors' own test cases (tests/data/asd_vectors.json), and the cases that their ports miss.

Every entry of the variants that ASD must reproduce is run through real logits and our public
functions. Entries of the two ports are run too: where no tie is involved ours keeps as many tokens.
The file's arithmetic is float64 with a slack of 1e-9 in one variant; ours is exact float32. The
tables below say, entry by entry, where that or a difference in shape matters.
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asd_jax.types import Controls, Ledger, StopReason, Verdict
from asd_jax.verifier import settle, verify, verify_batch
from tests import oracles

ENTRIES = {
    entry["name"]: entry
    for entry in json.loads(
        (pathlib.Path(__file__).parent / "data" / "asd_vectors.json").read_text()
    )
    if entry["variant"]
    in ("primary", "hedge_v4", "torch_rule", "normalized_suffix", "hf_port", "lightllm")
}
G, V = 5, 16

# Entries of which `spent` is not the float32 number: the logits 4.8 and 4.9 are not floats, so the
# regret under 5.0 is 0.19999981 or 0.099999905. No decision depends on it: no budget or gate of
# these entries lies within 1e-6 of a sum, hence neither does the slack of 1e-9 ever act.
FLOAT32_SPENT = {
    "primary/cheap_mismatch": "5.0 - 4.8",
    "primary/budget_persists": "5.0 - 4.8, and 0.4 against a budget of 0.3",
    "primary/readme_demo_B8": "5.0 - 4.8",
    "primary/cli_demo": "5.0 - 4.8",
    "hedge/reset_before_slot_reuse": "5.0 - 4.8",
    "hedge/m1_caps_second": "5.0 - 4.9",
    "lightllm/all_plus_bonus": "10.0 - 8.0 + (10.0 - 7.4)",
}
# Entries that are no block of logits; each has a test of its own below.
NOT_A_BLOCK = {
    "primary/state_budget_must_match": "no drafts; a ledger state made for another budget",
    "hedge/block_size_mismatch": "4 drafts under a configured block size of 5",
    "values/width5": "the suffix values by themselves",
    "values/width0": "the suffix values of an empty block",
}
# Entries whose logits no model can give; what is left of them is asserted.
IMPOSSIBLE_LOGITS = {
    "hedge/regret_clamped": "every draft is the argmax, yet two differ from the top logit",
}
# Entries about a budget that is spent to its last bit. Their numbers are multiples of 1/4, which
# every number type holds exactly.
LIMIT_MET_EXACTLY = (
    "hedge/exhaustion_across_blocks_strict",
    "hedge/exhaustion_inside_block_blocks_tie",
    "torch/independent_rows_row1",
    "torch/persists_across_blocks",
    "torch/exhaustion_inside_block",
)
BLOCKS = [name for name in ENTRIES if name not in NOT_A_BLOCK]


@functools.cache
def compiled():
    return jax.jit(verify)


def rows_of(block: dict, next_id: int = 0) -> np.ndarray:
    """Returns the block's logits as whole rows."""
    return oracles.block_logits(
        V, block["top_ids"], block["top_logits"], block["draft"], block["draft_logits"], next_id
    )


def judge(block: dict, ledger: Ledger, controls: Controls, next_id: int = 0) -> Verdict:
    """Runs one block of the file through real logits, padded to one compiled shape."""
    n = len(block["draft"])
    padded = np.zeros((G + 1, V), np.float32)
    padded[: n + 1] = rows_of(block, next_id)
    got = compiled()(
        np.pad(np.asarray(block["draft"], np.int32), (0, G - n)),
        padded,
        ledger,
        controls,
        draft_length=np.int32(n),
    )
    return jax.tree.map(np.asarray, got)


def controls_of(entry: dict, block_size: int) -> Controls:
    if entry["value_scheme"] == "normalized_suffix":
        return Controls.from_normalized(entry["B"], entry["g"], entry["m"], block_size)
    return Controls(entry["B"], entry["g"], entry["m"])


def fresh(spent: float = 0.0) -> Ledger:
    return Ledger.zeros().replace(spent=jnp.float32(spent))


def emitted(draft: list[int], verdict: Verdict) -> list[int]:
    """What the decode loop commits: the accepted DRAFT ids, then the target's own token."""
    return [*draft[: int(verdict.num_accepted)], int(verdict.next_token)]


def possible(block: dict) -> dict:
    """Gives a draft that is the argmax the argmax's logit, as real logits would."""
    pairs = zip(
        block["draft"], block["top_ids"], block["draft_logits"], block["top_logits"], strict=True
    )
    return block | {"draft_logits": [top if x == y else z for x, y, z, top in pairs]}


def next_ids(entry: dict) -> list[int]:
    """Ids for the row behind each block: the entry's bonus where it names one."""
    expect = entry["expect"]
    first = expect["row_ids"][-1] if "row_ids" in expect else expect.get("bonus", 0)
    return [first] * len(entry["block"])


def run_entry(name: str) -> tuple[list[Verdict], list[Ledger], dict]:
    entry = ENTRIES[name]
    ledger, verdicts, ledgers = fresh(entry["spent_before"]), [], []
    for block, next_id in zip(entry["block"], next_ids(entry), strict=True):
        block = possible(block) if name in IMPOSSIBLE_LOGITS else block
        verdict = judge(block, ledger, controls_of(entry, len(block["draft"])), next_id)
        ledger = settle(ledger, verdict, verdict.num_accepted + 1, draft_length=len(block["draft"]))
        verdicts.append(verdict)
        ledgers.append(ledger)
    return verdicts, ledgers, entry


@pytest.mark.parametrize("name", BLOCKS)
def test_entry_keeps_and_charges_what_the_file_says(name):
    verdicts, ledgers, entry = run_entry(name)
    expect = dict(entry["expect"])
    drafts = [block["draft"] for block in entry["block"]]
    accepted = [int(v.num_accepted) for v in verdicts]
    assert accepted == expect.pop("accepted")

    relaxed = [int(v.exception_mask.sum()) for v in verdicts]
    if "relaxed" in expect:
        assert relaxed == expect.pop("relaxed")
    if "exact" in expect:
        assert [a - r for a, r in zip(accepted, relaxed, strict=True)] == expect.pop("exact")
    if "spent" in expect:
        charged = [float(v.regret.sum()) for v in verdicts]
        assert charged == pytest.approx(expect.pop("spent"), abs=1e-6)
    if "spent_after" in expect:
        assert float(ledgers[-1].spent) == pytest.approx(expect.pop("spent_after"), abs=1e-6)
    if "remaining_after" in expect:
        left = entry["B"] - float(ledgers[-1].spent)
        assert left == pytest.approx(expect.pop("remaining_after"), abs=1e-6)
    if "stopped_on" in expect:
        assert accepted == expect.pop("stopped_on")
        for verdict, draft, at in zip(verdicts, drafts, accepted, strict=True):
            assert at < len(draft) and verdict.stop_reason not in (
                StopReason.NONE,
                StopReason.END_OF_DRAFT,
            )
    if "accept_len" in expect:  # counts the target's own token
        assert [a + 1 for a in accepted] == expect.pop("accept_len")
    tokens = [emitted(draft, v) for draft, v in zip(drafts, verdicts, strict=True)]
    if "committed" in expect:
        assert tokens == [expect.pop("committed") + [expect.pop("bonus")]]
    if "committed_plus_bonus" in expect:
        assert tokens == [expect.pop("committed_plus_bonus")]
    if "row_ids" in expect:  # rows behind the target's own token were never committed
        rows = expect.pop("row_ids")
        assert tokens == [rows[: accepted[0] + 1]]
    if "accepted_index" in expect:
        kept = [int(i <= accepted[0]) for i in range(len(drafts[0]) + 1)]
        assert kept == expect.pop("accepted_index")
    if name in IMPOSSIBLE_LOGITS:
        expect.pop("regrets")  # see the test of this entry
    if "values" in expect:
        assert expect.pop("values") == ENTRIES["values/width5"]["expect"]  # tested there
    assert not expect, f"not compared: {expect}"


def test_no_entry_of_these_variants_is_left_out():
    assert set(BLOCKS) | set(NOT_A_BLOCK) == set(ENTRIES) and len(ENTRIES) == 42
    assert not set(BLOCKS) & set(NOT_A_BLOCK)
    assert set(IMPOSSIBLE_LOGITS) | set(FLOAT32_SPENT) <= set(BLOCKS)


def test_the_table_of_float32_differences_is_complete_and_holds_nothing_else():
    differing = set()
    for name in BLOCKS:
        verdicts, _, entry = run_entry(name)
        total = [float(verdict.regret.sum()) for verdict in verdicts]
        if "spent" in entry["expect"] and total != entry["expect"]["spent"]:
            differing.add(name)
    assert differing == set(FLOAT32_SPENT)


def test_no_decision_hangs_on_rounding_or_slack_but_where_a_limit_is_met_exactly():
    """Moves budget and gate by far more than a float32 step or the slack of 1e-9."""
    hanging = set()
    for name in BLOCKS:
        entry = ENTRIES[name]
        for factor in (1 - 1e-5, 1 + 1e-5):
            moved = entry | {"B": entry["B"] * factor, "g": entry["g"] * factor}
            ledger = fresh(entry["spent_before"])
            for block, accepted in zip(entry["block"], entry["expect"]["accepted"], strict=True):
                block = possible(block) if name in IMPOSSIBLE_LOGITS else block
                verdict = judge(block, ledger, controls_of(moved, len(block["draft"])))
                if verdict.num_accepted != accepted:
                    hanging.add(name)
                ledger = settle(ledger, verdict, verdict.num_accepted + 1)
    assert hanging == set(LIMIT_MET_EXACTLY)


# --- entries that are no plain block ----------------------------------------------------------


def test_regret_clamped_logits_cannot_be_built_and_a_match_is_free_at_any_logit():
    """The authors clamp a regret that real logits cannot make negative: the draft is the argmax."""
    block = ENTRIES["hedge/regret_clamped"]["block"][0]
    with pytest.raises(ValueError, match="1.25 and 1.0"):
        rows_of(block)
    # With the draft's own logit as the row's maximum, all that the entry asserts of a match holds.
    raised = block | {"top_logits": block["draft_logits"]}
    verdict = judge(raised, fresh(), Controls.from_normalized(1, 1, 1, 5))
    assert verdict.num_accepted == 5 and not verdict.regret.any()
    assert settle(fresh(), verdict, 6).spent == 0
    # Its one positive "regret" of 0.25 belongs to a match as well, and is never charged.
    assert ENTRIES["hedge/regret_clamped"]["expect"]["regrets"] == [[0, 0, 0.25, 0, 0]]


def test_state_budget_must_match_cannot_arise_because_a_ledger_holds_no_budget():
    """Theirs: a state made for budget 1 under a config of budget 2 is a ValueError.

    Our ledger holds what was spent, and the budget comes with each call. A budget below what is
    spent is no error: the request goes on strictly.
    """
    entry = ENTRIES["primary/state_budget_must_match"]
    assert "budget" not in Ledger.__dataclass_fields__
    tie = {"draft": [2], "top_ids": [1], "top_logits": [5.0], "draft_logits": [5.0]}
    spent = fresh(1.5)
    lowered = Controls(entry["state_total_budget"], entry["g"], entry["m"])
    assert judge(tie, spent, lowered).num_accepted == 0
    assert judge(tie, spent, Controls(entry["B"], entry["g"], entry["m"])).num_accepted == 1


def test_block_size_mismatch_is_a_value_error_about_rows_unless_the_cut_is_declared():
    """Theirs: 4 drafts under block size 5 are a ValueError. Ours: rows and drafts must fit.

    A block that was cut on purpose says so with `draft_length`, and with `value_length` whether
    its suffix values are those of the whole block.
    """
    entry = ENTRIES["hedge/block_size_mismatch"]
    draft = jnp.asarray(entry["block"][0]["draft"], jnp.int32)
    with pytest.raises(ValueError, match="target_logits: got 6 rows for 4 draft tokens"):
        verify(draft, jnp.zeros((entry["block_size"] + 1, V)), fresh(), Controls.strict())
    block = {"draft": [9, 2], "top_ids": [1, 2], "top_logits": [5, 5], "draft_logits": [4, 5]}
    logits = np.zeros((G + 1, V), np.float32)
    logits[:3] = rows_of(block)
    tokens = np.asarray([9, 2, 0, 0, 0], np.int32)
    kept = [
        int(
            jax.jit(verify)(
                tokens,
                logits,
                fresh(),
                Controls(8, 0.25, 2),
                draft_length=np.int32(2),
                value_length=np.int32(value_length),
            ).num_accepted
        )
        for value_length in (2, 5)
    ]
    assert kept == [0, 2]


def test_values_width5_are_the_gates_of_a_normalised_block_of_five():
    controls = Controls.from_normalized(100, 1, 5, ENTRIES["values/width5"]["inputs"])
    for index, value in enumerate(ENTRIES["values/width5"]["expect"]):
        for scale, accepted in ((1 - 1e-6, 5), (1 + 1e-6, index)):
            block = {
                "draft": [1] * index + [2] + [1] * (4 - index),
                "top_ids": [1] * 5,
                "top_logits": [0.0] * 5,
                "draft_logits": [0.0] * index + [-value * scale] + [0.0] * (4 - index),
            }
            assert judge(block, fresh(), controls).num_accepted == accepted, (index, scale)


def test_values_width0_is_refused_by_from_normalized():
    assert ENTRIES["values/width0"]["expect"] == "ValueError"
    with pytest.raises(ValueError, match="block_size: got 0"):
        Controls.from_normalized(1, 1, 1, ENTRIES["values/width0"]["inputs"])


def test_independent_rows_as_the_one_batch_of_two_of_the_authors():
    names = ("torch/independent_rows_row0", "torch/independent_rows_row1")
    entries = [ENTRIES[name] for name in names]
    blocks = [entry["block"][0] for entry in entries]
    logits = np.stack([rows_of(block) for block in blocks])
    ledger = Ledger.zeros((2,)).replace(
        spent=jnp.asarray([entry["spent_before"] for entry in entries], jnp.float32)
    )
    got = jax.jit(verify_batch)(
        np.asarray([b["draft"] for b in blocks], np.int32),
        logits,
        ledger,
        controls_of(entries[0], 5),
    )
    assert got.num_accepted.tolist() == [0, 2]
    assert got.exception_mask.sum(1).tolist() == [0, 2]


def test_reset_before_slot_reuse_leaves_no_trace_and_no_neighbour_pays():
    entry = ENTRIES["hedge/reset_before_slot_reuse"]
    block, controls = entry["block"][0], controls_of(entry, 5)
    other = fresh()
    first = judge(block, fresh(), controls)
    settled = settle(fresh(), first, 6)
    again = judge(block, fresh(), controls)  # a new request in the slot has a new ledger
    for name in oracles.VERDICT_FIELDS:
        assert np.array_equal(getattr(first, name), getattr(again, name)), name
    assert settle(fresh(), again, 6).spent == settled.spent > 0
    assert other.spent == 0


# --- ties: where both ports leave strict decoding ---------------------------------------------

PORTS = [name for name in BLOCKS if ENTRIES[name]["variant"] in ("hf_port", "lightllm")]


@pytest.mark.parametrize("name", PORTS)
def test_no_entry_of_a_port_contains_the_tie_that_breaks_it(name):
    for block in ENTRIES[name]["block"]:
        columns = (block[key] for key in ("draft", "top_ids", "draft_logits", "top_logits"))
        assert not any(x != y and z == top for x, y, z, top in zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("controls", "spent"),
    [((0, 1, 2), 0), ((4, 1, 0), 0), ((4, 0, 2), 0), ((4, 1, 2), 4)],
    ids=["B=0", "m=0", "g=0", "exhausted"],
)
@pytest.mark.parametrize("at", range(3))
def test_a_tie_commits_the_strict_token_where_nothing_may_be_spent(controls, spent, at):
    """The ports test `regret > 0`, keep the tie and emit the argmax over a cache of the draft."""
    draft, target = [3, 4, 5], [3, 4, 5]
    draft[at], target[at] = 9, 2
    block = {"draft": draft, "top_ids": target, "top_logits": [5.0] * 3, "draft_logits": [5.0] * 3}
    got = judge(block, fresh(spent), Controls(*controls), next_id=7)
    assert emitted(draft, got) == target[: at + 1]
    assert got.num_strict == at and not got.exception_mask.any()
    assert settle(fresh(spent), got, at + 1).spent == spent


def test_a_tie_is_refused_inside_the_block_that_exhausts_the_budget():
    block = {
        "draft": [9, 2, 8],
        "top_ids": [1, 2, 3],
        "top_logits": [5.0] * 3,
        "draft_logits": [4.75, 5.0, 5.0],
    }
    got = judge(block, fresh(), Controls(0.25, 10, 2), next_id=7)
    assert emitted(block["draft"], got) == [9, 2, 3]


def test_an_accepted_tie_commits_the_draft_id_so_text_and_cache_cannot_part():
    """The rows behind the tie were scored on the draft token, which is what the cache holds."""
    block = {
        "draft": [9, 2, 8],
        "top_ids": [1, 2, 3],
        "top_logits": [5.0] * 3,
        "draft_logits": [5.0] * 3,
    }
    got = judge(block, fresh(), Controls(4, 1, 2), next_id=7)
    assert emitted(block["draft"], got) == [9, 2, 8, 7]
    assert got.target_tokens[:3].tolist() == [1, 2, 3]
    after = settle(fresh(), got, 4)
    assert after.exceptions == 2 and after.spent == 0 and after.first_exception_at == 0


# --- derived: worth keeping -------------------------------------------------------------------


def exceptions(*regrets: float) -> dict:
    """A block of exceptions under tops of 0, whose regrets are exact in float32."""
    n = len(regrets)
    return {
        "draft": [2] * n,
        "top_ids": [1] * n,
        "top_logits": [0.0] * n,
        "draft_logits": [-np.float32(r) for r in regrets],
    }


def test_an_overspend_of_1e_10_is_below_float32_and_is_taken():
    assert 0.05 + 0.25 + 1e-10 > 0.3  # exact float64 refuses, the slack of 1e-9 takes it
    assert judge(exceptions(0.05, 0.25 + 1e-10), fresh(), Controls(0.3, 9, 9)).num_accepted == 2


def test_a_tenth_and_two_tenths_fit_into_three_tenths():
    assert judge(exceptions(0.1, 0.2), fresh(), Controls(0.3, 9, 9)).num_accepted == 2
    ledger = settle(fresh(), judge(exceptions(0.1), fresh(), Controls(0.3, 9, 9)), 2)
    assert judge(exceptions(0.2), ledger, Controls(0.3, 9, 9)).num_accepted == 1


@pytest.mark.parametrize(("column", "value"), [(2, -np.inf), (5, np.nan), (0, np.nan)])
def test_a_masked_draft_or_a_nan_row_is_refused_and_poisons_nothing(column, value):
    block = exceptions(0.5, 0.5, 0.5, 0.5, 0.5)
    logits = rows_of(block)
    logits[1, column] = value
    got = compiled()(
        np.asarray(block["draft"], np.int32),
        logits,
        fresh(),
        Controls(8, 9, 9),
        draft_length=np.int32(G),
    )
    assert got.num_accepted == 1 and got.stop_reason == StopReason.INVALID
    assert got.is_finite == np.isinf(value)
    ledger = settle(fresh(), got, 1 + int(got.is_finite))
    assert ledger.spent == 0.5
    assert judge(exceptions(0.5), ledger, Controls(8, 9, 9)).num_accepted == 1


@pytest.mark.parametrize(
    ("controls", "size", "thresholds"),
    [
        (Controls(8, 0.25, 2), 7, [1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]),
        (Controls.from_normalized(2.0625, 2.0625, 1, 5), 5, [2.0625, 1.65, 1.2375, 0.825, 0.4125]),
    ],
    ids=["Qwen3_K7", "DeepSeek_K5"],
)
def test_published_settings_gate_each_position_at_the_published_threshold(
    controls, size, thresholds
):
    run = jax.jit(verify)
    for index, threshold in enumerate(thresholds):
        for scale, accepted in ((1 - 1e-6, size), (1 + 1e-6, index)):
            logits = np.full((size + 1, V), -1000, np.float32)
            logits[:, 1] = 0
            logits[index, 2] = -threshold * scale
            tokens = np.ones((size,), np.int32)
            tokens[index] = 2
            got = run(tokens, logits, fresh(), controls)
            assert got.num_accepted == accepted, (index, scale)


def test_one_exception_may_spend_the_whole_frozen_budget_at_the_first_position():
    got = judge(exceptions(2.0625), fresh(), Controls.from_normalized(2.0625, 2.0625, 1, 1))
    assert got.num_accepted == 1
    assert settle(fresh(), got, 2).spent == np.float32(2.0625)


def test_a_sum_that_was_allowed_can_always_be_charged_block_by_block():
    """A ledger of what remains fails here: r1 + r2 <= B does not give r2 <= B - r1 in floats."""
    rng = np.random.default_rng(980406)
    first, second = rng.uniform(0.01, 2, (2, 512)).astype(np.float32)
    budget = first + second
    assert (second > budget - first).sum() > 20
    run = jax.jit(verify_batch)
    logits = np.full((512, 2, V), -1000, np.float32)
    logits[..., 1] = 0
    tokens = np.full((512, 1), 2, np.int32)
    ledger = Ledger.zeros((512,))
    for regret in (first, second):
        logits[:, 0, 2] = -regret
        got = run(tokens, logits, ledger, Controls(budget, np.inf, 1))
        assert (got.num_accepted == 1).all()
        ledger = jax.jit(jax.vmap(settle))(ledger, got, got.num_accepted + 1)
    assert np.array_equal(ledger.spent, budget)


@pytest.mark.parametrize("cut", range(1, G + 1))
def test_a_cut_window_keeps_and_charges_like_the_trimmed_whole_block(cut):
    """One engine judges the whole block and trims to min(accepted, cut): ours says so up front."""
    block = exceptions(0.5, 0.25, 0.125, 0.25, 0.5)
    controls = Controls(1.0, 0.25, 4)
    whole = judge(block, fresh(), controls)
    trimmed = min(int(whole.num_accepted), cut)
    got = jax.jit(verify)(
        np.asarray(block["draft"], np.int32),
        rows_of(block),
        fresh(),
        controls,
        draft_length=np.int32(cut),
        value_length=np.int32(G),
    )
    assert got.num_accepted == trimmed
    assert settle(fresh(), got, trimmed).spent == settle(fresh(), whole, trimmed).spent
