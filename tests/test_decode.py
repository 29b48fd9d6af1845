"""The decode loop against a plain Python loop that keeps no cache, and its promises one by one."""

from __future__ import annotations

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asd_jax
from asd_jax.decode import DecodeConfig, _run_rounds, make_requests, prefill, run_rounds
from asd_jax.sampling import perturb, sampling_params
from asd_jax.types import Controls, FinishReason, Ledger, StopReason
from tests import oracles, tiny

G = 4
PROMPTS = [[5, 9, 2, 7], [11, 3], [8, 8, 1, 30, 22, 17, 4], [60]]
CONFIG = DecodeConfig(num_draft_tokens=G, max_new_tokens=24, max_len=64, record_rounds=24)


@functools.cache
def greedy_text(temperature: float = 0.0) -> list[list[int]]:
    """The autoregressive answers, 24 tokens each, through the loop with no drafter."""
    result = run(asd_jax.no_drafter(), CONFIG_NONE, temperature=temperature)
    return np.asarray(result.tokens).tolist()


CONFIG_NONE = DecodeConfig(num_draft_tokens=0, max_new_tokens=24, max_len=64)


def run(drafter, config, *, controls=None, rule=None, temperature=0.0, prompts=PROMPTS, **kwargs):
    requests = make_requests(
        prompts,
        controls=controls,
        max_new_tokens=kwargs.pop("max_new_tokens", 24),
        sampling_params=sampling_params(
            len(prompts), temperature=temperature, seed=list(range(3, 3 + len(prompts)))
        ),
        **kwargs,
    )
    return asd_jax.decode(tiny.tiny_target(), drafter, rule or asd_jax.asd(), requests, config)


def scripted(seed=0, prompts=PROMPTS, temperature=0.0):
    script = tiny.random_script(seed, greedy_text(temperature), prompts, G, 80)
    return tiny.scripted_drafter(*script), script


def oracle_decode(row, prompt, script, controls, *, stop_ids=(), max_new=24, max_len=64):
    """Decodes one request with full forwards, a Python drafter and the numpy verifier."""
    target = tiny.tiny_target()
    text = list(prompt)
    first = int(np.argmax(tiny.full_logits(target, text)[-1]))
    emitted, ledger, rounds = [first], oracles.fresh_ledger(), []
    reason = None
    while True:
        if emitted[-1] in stop_ids:
            reason = FinishReason.STOP
        elif len(emitted) == max_new:
            reason = FinishReason.LENGTH
        elif len(prompt) + len(emitted) == max_len:
            reason = FinishReason.CAPACITY
        if reason is not None:
            return emitted, ledger, rounds, reason
        anchor_at = len(prompt) + len(emitted) - 1
        room = min(max_new - len(emitted), max_len - len(prompt) - len(emitted))
        length = min(int(script[1][row, anchor_at]), room - 1)
        draft = script[0][row, anchor_at].tolist()
        logits = tiny.full_logits(target, prompt + emitted + draft)[-(G + 1) :]
        verdict = oracles.verify_loop(
            draft,
            logits,
            ledger["spent"],
            float(controls.budget),
            float(controls.gate),
            int(controls.block_cap),
            draft_length=length,
            protected_ids=stop_ids,
        )
        new = draft[: verdict["num_accepted"]] + [verdict["next_token"]]
        stops = [i for i, token in enumerate(new) if token in stop_ids]
        new = new[: stops[0] + 1] if stops else new
        new = new[:room]
        ledger = oracles.settle_loop(
            ledger, verdict, len(new), draft_length=length, position=len(emitted)
        )
        rounds.append((len(emitted), draft, length, verdict, len(new)))
        emitted = emitted + new


def assert_same_ledger(ledger: Ledger, row: int, expected: dict) -> None:
    for name in oracles.LEDGER_FIELDS:
        got = np.asarray(getattr(ledger, name))[row]
        if name == "spent":
            # The oracle's logits come from another program: rounding of the forward, not the rule.
            np.testing.assert_allclose(got, expected[name], rtol=1e-4, atol=1e-4)
        else:
            assert got == expected[name], name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("budget", "gate", "cap"), [(0.0, 1.0, 2), (6.0, 0.5, 2), (1.5, 1.0, 1), (np.inf, np.inf, G)]
)
def test_loop_equals_cacheless_python_loop(seed, budget, gate, cap):
    drafter, script = scripted(seed)
    controls = Controls(budget, gate, cap)
    stop_ids = (13, 40)
    config = DecodeConfig(G, 24, 64, stop_ids=stop_ids, record_rounds=24)
    result = run(drafter, config, controls=controls)
    for row, prompt in enumerate(PROMPTS):
        emitted, ledger, rounds, reason = oracle_decode(
            row, prompt, script, controls, stop_ids=stop_ids
        )
        count = int(result.num_emitted[row])
        assert np.asarray(result.tokens)[row, :count].tolist() == emitted
        assert result.finish_reason[row] == reason
        assert result.rounds[row] == len(rounds)
        assert_same_ledger(result.ledger, row, ledger)
        histogram = np.zeros(G + 1, int)
        proposed, accepted = np.zeros(G, int), np.zeros(G, int)
        for index, (start, draft, length, verdict, committed) in enumerate(rounds):
            kept = min(committed, verdict["num_accepted"])
            histogram[kept] += 1
            proposed[:length] += 1
            accepted[:kept] += 1
            at = (row, index)
            trace = jax.tree.map(lambda leaf: np.asarray(leaf)[at], result.trace)  # noqa: B023
            assert trace.start == start and trace.draft_length == length
            assert trace.draft_tokens.tolist() == draft
            assert trace.num_committed == committed
            for name in ("num_accepted", "stop_reason"):
                assert getattr(trace, name) == verdict[name], name
            np.testing.assert_array_equal(trace.target_tokens, verdict["target_tokens"])
            np.testing.assert_array_equal(trace.exception_mask, verdict["exception_mask"])
            np.testing.assert_allclose(trace.regret, verdict["regret"], atol=1e-4)
        assert np.all(np.asarray(result.trace.start)[row, len(rounds) :] == -1)
        np.testing.assert_array_equal(result.accept_histogram[row], histogram)
        np.testing.assert_array_equal(result.position_proposed[row], proposed)
        np.testing.assert_array_equal(result.position_accepted[row], accepted)


def test_scripts_exercise_exceptions_and_refusals():
    """Guards the test above: its scripts must reach the cases that it is there for."""
    result = run(scripted(1)[0], CONFIG, controls=Controls(6.0, 0.5, 2))
    assert np.sum(result.ledger.exceptions) > 3 and np.sum(result.ledger.reused) > 3
    reasons = set(np.asarray(result.trace.stop_reason)[np.asarray(result.trace.start) >= 0])
    assert {StopReason.GATE, StopReason.END_OF_DRAFT} <= reasons
    assert np.unique(result.rounds).size > 1  # rows really advance by different amounts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_draft", [1, 7])
def test_strict_equals_autoregressive_for_any_draft_length(temperature, num_draft):
    expected = greedy_text(temperature)
    config = DecodeConfig(num_draft, 24, 64)
    result = run(asd_jax.ngram(num_draft), config, rule=asd_jax.strict(), temperature=temperature)
    assert np.asarray(result.tokens).tolist() == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_strict_equals_autoregressive_with_a_good_drafter(temperature):
    drafter, _ = scripted(2, temperature=temperature)
    result = run(drafter, CONFIG, rule=asd_jax.strict(), temperature=temperature)
    assert np.asarray(result.tokens).tolist() == greedy_text(temperature)
    assert (
        np.sum(result.ledger.accepted) > 20
    )  # the drafter was of use, so the test means something


def test_zero_budget_equals_strict_bit_for_bit():
    drafter, _ = scripted(3)
    strict = run(drafter, CONFIG, rule=asd_jax.strict())
    for controls in (Controls(0, 5, 4), Controls(5, 0, 4), Controls(5, 5, 0)):
        chex.assert_trees_all_equal(run(drafter, CONFIG, controls=controls), strict)


def test_sampling_with_a_seed_draws_from_perturbed_logits():
    target, text = tiny.tiny_target(), greedy_text(1.0)
    params = sampling_params(len(PROMPTS), temperature=1.0, seed=[3, 4, 5, 6])
    for row, prompt in enumerate(PROMPTS):
        whole = prompt + text[row]
        logits = tiny.full_logits(target, whole)[len(prompt) - 1 : -1]
        mine = jax.tree.map(lambda leaf: leaf[row], params)  # noqa: B023
        _, noisy = perturb(jnp.asarray(logits), mine, jnp.int32(len(prompt)))
        assert np.argmax(noisy, axis=-1).tolist() == text[row]
    assert text != greedy_text()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rule_that_reads_whole_logits_fits_the_loop(temperature):
    """A rule of a user's own: the strict one again, but from the rows of logits."""

    def verify(block, ledger, controls, protected_ids):
        assert block.logits.shape == block.noisy_logits.shape == (G + 1, tiny.VOCAB)
        again = asd_jax.verify(
            block.draft_tokens,
            block.noisy_logits,
            ledger,
            Controls.strict(),
            draft_length=block.draft_length,
        )
        # Rows at temperature 0 have the logits themselves, the others are noisy.
        is_noisy = jnp.any(block.noisy_logits != block.logits)
        return again.replace(stop_reason=is_noisy.astype(jnp.int32))

    rule = asd_jax.AcceptanceRule("mine", verify, asd_jax.settle, needs_logits=True)
    result = run(scripted(2)[0], CONFIG, rule=rule, temperature=temperature)
    assert np.asarray(result.tokens).tolist() == greedy_text(temperature)
    reasons = np.asarray(result.trace.stop_reason)[np.asarray(result.trace.start) >= 0]
    assert set(reasons.tolist()) == {int(temperature > 0)}


def test_a_row_alone_equals_the_row_in_a_batch():
    drafter, script = scripted(4)
    controls = Controls([8.0, 0.0, 2.0, 1.0], [0.5, 1.0, 0.25, 2.0], [2, 1, 3, 1])
    temperature = [0.0, 1.0, 0.7, 0.0]
    batch = run(drafter, CONFIG, controls=controls, temperature=temperature)
    for row in range(len(PROMPTS)):
        requests = make_requests(
            [PROMPTS[row]],
            controls=jax.tree.map(lambda leaf: leaf[row : row + 1], controls),  # noqa: B023
            max_new_tokens=24,
            sampling_params=sampling_params(1, temperature=temperature[row], seed=3 + row),
        )
        alone = asd_jax.decode(
            tiny.tiny_target(),
            tiny.scripted_drafter(script[0][row : row + 1], script[1][row : row + 1]),
            asd_jax.asd(),
            requests,
            CONFIG,
        )
        of_batch = jax.tree.map(lambda leaf: np.asarray(leaf)[row : row + 1], batch)  # noqa: B023
        spent = of_batch.ledger.spent
        np.testing.assert_allclose(spent, alone.ledger.spent, atol=1e-4)
        np.testing.assert_allclose(of_batch.trace.regret, alone.trace.regret, atol=1e-4)
        chex.assert_trees_all_equal(_without_floats(of_batch), _without_floats(alone))


def _without_floats(result):
    """Leaves out what depends on the rounding of a differently shaped forward."""
    return result.replace(
        ledger=result.ledger.replace(spent=0),
        trace=result.trace.replace(regret=0, stop_regret=0),
    )


@pytest.mark.parametrize("rounds_per_chunk", [1, 3, 100])
def test_stream_equals_whole_run(rounds_per_chunk):
    drafter, _ = scripted(5)
    requests = make_requests(PROMPTS, max_new_tokens=24)
    arguments = (tiny.tiny_target(), drafter, asd_jax.asd(), requests, CONFIG)
    whole = asd_jax.decode(*arguments)
    results = list(asd_jax.stream(*arguments, rounds_per_chunk=rounds_per_chunk))
    chex.assert_trees_all_equal(results[-1], jax.tree.map(np.asarray, whole))
    counts = np.stack([result.num_emitted for result in results])
    assert np.all(np.diff(counts, axis=0) >= 0)
    for earlier in results[:-1]:  # what was yielded before is a prefix of the end, untouched
        for row, count in enumerate(earlier.num_emitted):
            np.testing.assert_array_equal(
                earlier.tokens[row, :count], results[-1].tokens[row, :count]
            )


def test_one_trace_serves_all_settings():
    drafter, _ = scripted(6)
    target = tiny.tiny_target()
    config = DecodeConfig(G, 23, 63)  # a size of its own: nothing is compiled yet

    def request(index):
        return make_requests(
            PROMPTS,
            max_new_tokens=4 + index,
            max_draft_tokens=index % 5,
            controls=Controls(float(index), [0.1 * index, 0.3, 0.0, 1.0], index % 4),
            sampling_params=sampling_params(
                len(PROMPTS),
                temperature=0.5 * (index % 3),
                top_k=index,
                top_p=1 - 0.01 * index,
                seed=index,
            ),
        )

    before = _run_rounds._cache_size()
    texts = set()
    for index in range(20):
        result = asd_jax.decode(target, drafter, asd_jax.asd(), request(index), config)
        texts.add(np.asarray(result.tokens).tobytes())
    assert _run_rounds._cache_size() == before + 1
    assert len(texts) > 5  # the settings did have an effect


def test_requests_survive_the_run_for_the_next_arm():
    drafter, _ = scripted(7)
    requests = make_requests(PROMPTS, max_new_tokens=24)
    arguments = (tiny.tiny_target(), drafter, asd_jax.asd(), requests, CONFIG)
    first = asd_jax.decode(*arguments)
    chex.assert_trees_all_equal(asd_jax.decode(*arguments), first)
    np.testing.assert_array_equal(requests.ledger.spent, np.zeros(len(PROMPTS)))


@pytest.mark.parametrize(("rows", "temperature"), [(1, 0.0), (4, 0.8)])
def test_plain_rounds_of_a_drafter_that_abstains_change_nothing(rows, temperature):
    tokens, lengths = scripted(9, temperature=temperature)[1]
    lengths = np.where(np.arange(lengths.shape[1]) % 3 == 0, lengths, 0)  # all rows at once, too
    drafter = tiny.scripted_drafter(tokens[:rows], lengths[:rows])
    arguments = dict(
        controls=Controls(30.0, 1.0, 2), temperature=temperature, prompts=PROMPTS[:rows]
    )
    results = [run(drafter.replace(can_abstain=can), CONFIG, **arguments) for can in (False, True)]
    asked = np.asarray(results[0].trace.draft_length)[np.asarray(results[0].trace.start) >= 0]
    assert (asked == 0).any() and (asked > 0).any()
    assert rows == 1 or int(results[0].ledger.exceptions.sum()) > 0
    for i, result in enumerate(results):
        trace = result.trace
        is_scored = np.arange(G + 1) <= np.asarray(trace.draft_length)[..., None]
        trace = trace.replace(target_tokens=np.where(is_scored, trace.target_tokens, -1))
        results[i] = result.replace(trace=trace)
    # Two widths of a forward may round apart; tokens, counts and places may not.
    leaves = [jax.tree.leaves(result) for result in results]
    floats, exact = (
        [[leaf for leaf in row if (leaf.dtype == np.float32) is is_float] for row in leaves]
        for is_float in (True, False)
    )
    chex.assert_trees_all_equal(*exact)
    chex.assert_trees_all_close(*floats, atol=1e-4)


def test_only_a_round_in_which_no_row_has_a_draft_is_a_forward_of_one_column():
    plain, mark = tiny.tiny_target(), 3

    def forward(params, tokens, cache, **kwargs):
        output = plain.forward(params, tokens, cache, **kwargs)
        if tokens.shape[1] > 1:
            return output
        return output.replace(logits=output.logits.at[..., mark].add(1e6))

    tokens, lengths = scripted(10)[1]
    lengths = np.stack([np.full_like(lengths[0], G), np.zeros_like(lengths[1])])
    drafter = tiny.scripted_drafter(tokens[:2], lengths)
    requests = make_requests(PROMPTS[::2], max_new_tokens=24)
    target = plain.replace(forward=forward)
    told = {}
    for can_abstain in (False, True):
        result = asd_jax.decode(
            target, drafter.replace(can_abstain=can_abstain), asd_jax.asd(), requests, CONFIG
        )
        told[can_abstain] = np.asarray(result.tokens) == mark
    assert not told[False].any() and not told[True][0].any()
    # The second row never has a draft; its steps are plain from when the first row has finished.
    first = int(np.argmax(told[True][1]))
    assert 1 < first < 23 and told[True][1, first:].all() and not told[True][1, :first].any()


@pytest.mark.parametrize("can_abstain", [False, True])
def test_while_body_copies_no_cache_buffer(can_abstain):
    drafter = scripted(8)[0].replace(can_abstain=can_abstain)
    target = tiny.tiny_target()
    requests = make_requests(PROMPTS, max_new_tokens=24)
    state = prefill(target, drafter, requests, CONFIG)
    arguments = (target, drafter, asd_jax.asd(), requests, CONFIG, state, jnp.int32(4))
    text = _run_rounds.lower(*arguments).compile().as_text()
    shape = ",".join(str(size) for size in state.cache.keys[0].shape)
    assert f"f32[{shape}]" in text  # the pattern below does describe the buffer
    assert not re.search(rf"= f32\[{shape}\]\S* copy\(", text)
    assert not re.search(rf"= f32\[{shape}\]\S* (select|transpose|convert)\(", text)


def _charges(trace, row):
    """Returns (round, emitted position, regret) of every accepted exception of a row."""
    return [
        (index, int(start) + int(offset), float(trace.regret[row, index, offset]))
        for index, start in enumerate(np.asarray(trace.start)[row])
        if start >= 0
        for offset in np.flatnonzero(np.asarray(trace.exception_mask)[row, index])
    ]


def test_stop_id_inside_a_block_cuts_the_block_and_its_charges():
    drafter, _ = scripted(1)
    controls = Controls(30.0, 1.0, G)
    free = run(drafter, CONFIG, controls=controls)
    cuts = []  # stops that fall before an exception which their block had accepted
    for row in range(len(PROMPTS)):
        tokens = np.asarray(free.tokens)[row].tolist()
        for index, position, _ in _charges(free.trace, row):
            start = int(free.trace.start[row, index])
            cuts += [(row, at) for at in range(start, position) if tokens.index(tokens[at]) == at]
    assert cuts
    for row, at in cuts[:1] + cuts[-1:]:
        tokens = np.asarray(free.tokens)[row].tolist()
        config = DecodeConfig(G, 24, 64, stop_ids=(tokens[at],), protect_stop_ids=False)
        result = run(drafter, config, controls=controls)
        assert result.num_emitted[row] == at + 1
        assert np.asarray(result.tokens)[row].tolist() == [*tokens[: at + 1], *[0] * (23 - at)]
        assert result.finish_reason[row] == FinishReason.STOP
        charged = [regret for _, position, regret in _charges(free.trace, row) if position <= at]
        assert result.ledger.exceptions[row] == len(charged)
        np.testing.assert_allclose(result.ledger.spent[row], sum(charged), atol=1e-4)


def test_first_token_may_be_the_stop_and_one_token_may_be_all():
    first = greedy_text()[0][0]
    config = DecodeConfig(G, 24, 64, stop_ids=(first,))
    result = run(asd_jax.ngram(G), config, prompts=PROMPTS[:1])
    assert (int(result.num_emitted[0]), int(result.rounds[0])) == (1, 0)
    assert result.finish_reason[0] == FinishReason.STOP
    result = run(asd_jax.ngram(G), CONFIG, max_new_tokens=1)
    assert np.all(np.asarray(result.num_emitted) == 1) and np.all(np.asarray(result.rounds) == 0)
    assert np.all(np.asarray(result.finish_reason) == FinishReason.LENGTH)


@pytest.mark.parametrize("limit", [2, 5, 8])
def test_length_limits_are_met_exactly_and_per_request(limit):
    drafter, _ = scripted(2)
    limits = [limit, limit + 1, limit + 7, 24]
    result = run(drafter, CONFIG, rule=asd_jax.strict(), max_new_tokens=limits)
    assert np.asarray(result.num_emitted).tolist() == limits
    for row, count in enumerate(limits):
        assert np.asarray(result.tokens)[row, :count].tolist() == greedy_text()[row][:count]


def test_capacity_ends_a_row_without_touching_live_slots():
    drafter, _ = scripted(2)
    config = DecodeConfig(G, 24, 20)
    result = run(drafter, config, rule=asd_jax.strict())
    for row, prompt in enumerate(PROMPTS):
        count = 20 - len(prompt)
        assert result.num_emitted[row] == count
        assert np.asarray(result.tokens)[row, :count].tolist() == greedy_text()[row][:count]
        assert result.finish_reason[row] == FinishReason.CAPACITY


def test_padding_rows_emit_nothing_and_change_nothing():
    drafter, script = scripted(2)
    alone = run(drafter, CONFIG)
    more = [np.concatenate([part, part[:2]]) for part in script]
    padded = run(tiny.scripted_drafter(*more), CONFIG, batch=6)
    assert np.asarray(padded.num_emitted)[4:].tolist() == [0, 0]
    np.testing.assert_array_equal(padded.tokens[:4], alone.tokens)
    np.testing.assert_array_equal(padded.rounds[:4], alone.rounds)


def test_nonfinite_row_stops_and_its_neighbours_do_not_notice():
    target, text = tiny.tiny_target(), greedy_text()
    row = 2
    poison = next(t for t in text[row] if all(t not in other for other in text[:row]))
    at = text[row].index(poison)
    graph_params = jax.tree.map(jnp.copy, target.params)
    table = graph_params["embed_tokens"]
    table[...] = table[...].at[poison].set(jnp.nan)  # untied: only reading the token hurts
    broken = target.replace(params=graph_params)
    requests = make_requests(PROMPTS, max_new_tokens=24)
    result = asd_jax.decode(
        broken, asd_jax.ngram(G), asd_jax.strict(), requests, DecodeConfig(G, 24, 64)
    )
    assert result.finish_reason[row] == FinishReason.NONFINITE
    assert result.num_emitted[row] == at + 1
    for other in range(len(PROMPTS)):
        count = int(result.num_emitted[other])
        assert np.asarray(result.tokens)[other, :count].tolist() == text[other][:count]
        if poison not in text[other]:
            assert count == 24


def test_nonfinite_prompt_emits_nothing():
    target = tiny.tiny_target()
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, target.params)
    requests = make_requests(PROMPTS[:1], max_new_tokens=4)
    result = asd_jax.decode(
        target.replace(params=params), asd_jax.ngram(G), asd_jax.asd(), requests, CONFIG
    )
    assert result.finish_reason[0] == FinishReason.NONFINITE and result.num_emitted[0] == 0


def test_next_logits_after_every_round_equal_a_fresh_prefill():
    drafter, _ = scripted(1)
    target = tiny.tiny_target()
    requests = make_requests(PROMPTS, max_new_tokens=24, controls=Controls(6.0, 0.5, 2))
    state = prefill(target, drafter, requests, CONFIG)
    step = jax.jit(lambda anchor, cache: target.forward(target.params, anchor, cache).logits)
    exceptions = 0
    for _ in range(6):
        state = run_rounds(target, drafter, asd_jax.asd(), requests, CONFIG, state, jnp.int32(1))
        logits = np.asarray(step(state.anchor[:, None], state.cache))
        for row, prompt in enumerate(PROMPTS):
            count = int(state.result.num_emitted[row])
            text = prompt + np.asarray(state.result.tokens)[row, :count].tolist()
            assert state.cache.length[row] == len(text) - 1
            fresh = tiny.full_logits(target, text)[-1]
            np.testing.assert_allclose(logits[row, 0], fresh, atol=1e-4)
        exceptions = int(np.sum(state.result.ledger.exceptions))
    assert exceptions > 0  # rollbacks behind accepted exceptions were among them


def test_ledger_equals_teacher_forced_replay_of_the_text():
    drafter, _ = scripted(1)
    result = run(drafter, CONFIG, controls=Controls(6.0, 0.5, 2))
    for row, prompt in enumerate(PROMPTS):
        count = int(result.num_emitted[row])
        text = np.asarray(result.tokens)[row, :count]
        logits = tiny.full_logits(tiny.tiny_target(), prompt + text.tolist())[len(prompt) - 1 : -1]
        top = logits.argmax(axis=1)
        found = np.flatnonzero(top != text)
        regret = logits.max(axis=1) - logits[np.arange(count), text]
        recorded = _charges(result.trace, row)
        assert [position for _, position, _ in recorded] == found.tolist()
        np.testing.assert_allclose([r for _, _, r in recorded], regret[found], atol=1e-3)
        np.testing.assert_allclose(result.ledger.spent[row], regret[found].sum(), atol=1e-3)
        assert result.ledger.exceptions[row] == len(found)
        first = found[0] if len(found) else -1
        assert result.ledger.first_exception_at[row] == first


def test_ledger_goes_on_across_turns():
    drafter, _ = scripted(1)
    controls = Controls(2.0, 1.0, 2)
    first = run(drafter, CONFIG, controls=controls)
    second = run(drafter, CONFIG, controls=controls, ledger=first.ledger)
    assert np.all(np.asarray(second.ledger.spent) <= 2.0)
    assert np.all(np.asarray(second.ledger.spent) >= np.asarray(first.ledger.spent))
    assert np.sum(second.ledger.rounds) == np.sum(first.ledger.rounds) + np.sum(second.rounds)


def test_trace_shorter_than_the_run_keeps_its_first_rounds():
    drafter, _ = scripted(1)
    short = run(drafter, DecodeConfig(G, 24, 64, record_rounds=2))
    whole = run(drafter, CONFIG)
    first = jax.tree.map(lambda leaf: leaf[:, :2], whole.trace)
    chex.assert_trees_all_close(short.trace, first, atol=1e-5)
    np.testing.assert_array_equal(short.tokens, whole.tokens)


def test_chunked_prefill_equals_whole_prefill():
    prompt = np.random.default_rng(0).integers(0, tiny.VOCAB, 47).tolist()
    prompts = [prompt, prompt[:5]]
    whole = run(asd_jax.ngram(G), DecodeConfig(G, 24, 96), prompts=prompts)
    chunked = run(asd_jax.ngram(G), DecodeConfig(G, 24, 96, prefill_chunk=16), prompts=prompts)
    np.testing.assert_array_equal(whole.tokens, chunked.tokens)
    assert whole.tokens[0, 0] == tiny.full_logits(tiny.tiny_target(), prompt)[-1].argmax()


def test_acceptance_length_counts_next_tokens_but_not_the_prefill():
    result = run(scripted(2)[0], CONFIG, rule=asd_jax.strict())
    expected = (np.asarray(result.num_emitted) - 1) / np.asarray(result.rounds)
    np.testing.assert_allclose(result.acceptance_length, expected)
    per_round = np.asarray(result.accept_histogram) @ (np.arange(G + 1) + 1)
    # A round cut by the length limit gives less than kept + 1.
    assert np.all(per_round - (np.asarray(result.num_emitted) - 1) <= 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(num_draft_tokens=-1), "num_draft_tokens: got -1"),
        (dict(num_draft_tokens=64), "num_draft_tokens: got 64"),
        (dict(num_draft_tokens=True), "num_draft_tokens: got True"),
        (dict(max_new_tokens=0), "max_new_tokens: got 0"),
        (dict(max_len=1), "num_draft_tokens|max_len"),
        (dict(record_rounds=-2), "record_rounds: got -2"),
        (dict(prefill_chunk=0), "prefill_chunk: got 0"),
        (dict(prefill_chunk=2.5), "prefill_chunk: got 2.5"),
    ],
)
def test_impossible_config_is_refused_by_name(change, words):
    fields = dict(num_draft_tokens=4, max_new_tokens=8, max_len=64) | change
    with pytest.raises(ValueError, match=words):
        DecodeConfig(**fields)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(prompts=[]), "prompts: got 0"),
        (dict(prompts=[[1], []]), r"prompts\[1\]: got 0 tokens"),
        (dict(prompts=[[1, -2]]), r"prompts\[0\]: allowed are token ids"),
        (dict(prompts=[[1.5]]), r"prompts\[0\]: allowed are token ids"),
        (dict(prompts=[[1, 64]], vocab_size=64), r"prompts\[0\]: got id 64"),
        (dict(prompts=[[1] * 9], padded_length=8), r"prompts\[0\]: got 9 tokens"),
        (dict(prompts=[[1]], max_new_tokens=0), "max_new_tokens: got 0"),
        (dict(prompts=[[1]], max_new_tokens=1.5), "max_new_tokens: got 1.5"),
        (dict(prompts=[[1]], max_draft_tokens=-1), "max_draft_tokens: got -1"),
        (dict(prompts=[[1], [2]], batch=1), "prompts: got 2 for a batch of 1"),
    ],
)
def test_impossible_requests_are_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_requests(**{"max_new_tokens": 4, **arguments})


def test_sizes_that_do_not_fit_are_refused_before_work():
    target, rule = tiny.tiny_target(), asd_jax.asd()
    requests = make_requests(PROMPTS, max_new_tokens=24)
    with pytest.raises(ValueError, match=r"max_len: got 300, allowed is <= .* 256"):
        asd_jax.decode(target, asd_jax.ngram(G), rule, requests, DecodeConfig(G, 24, 300))
    with pytest.raises(ValueError, match="num_draft_tokens: got 6, allowed is <= 4"):
        asd_jax.decode(target, asd_jax.ngram(G), rule, requests, DecodeConfig(6, 24, 64))
    with pytest.raises(ValueError, match="prompt: got 7 tokens, allowed is < max_len = 7"):
        asd_jax.decode(target, asd_jax.ngram(2), rule, requests, DecodeConfig(2, 24, 7))
    with pytest.raises(ValueError, match="max_new_tokens: got 24 for a request"):
        asd_jax.decode(target, asd_jax.ngram(G), rule, requests, DecodeConfig(G, 20, 64))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 48, 49, 100, 1000, 5000])
def test_bucket_holds_the_prompt_with_bounded_padding(length):
    bucket = asd_jax.bucket_length(length)
    assert bucket >= length and (bucket == 32 or bucket <= 1.5 * length)
    assert asd_jax.bucket_length(bucket) == bucket
