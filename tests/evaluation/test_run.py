"""Interleaved runs on a tiny random target: batches, turns, ledgers, order, clocks, failures."""

from __future__ import annotations

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asd_jax
from asd_jax.decode import DecodeConfig, make_requests, prefill, run_rounds
from asd_jax.evaluation import interleaved
from asd_jax.evaluation.arms import make_arms
from asd_jax.evaluation.drafter_cost import DrafterCost
from asd_jax.evaluation.interleaved import Compiled, Finished, Started, pending, run
from asd_jax.evaluation.plan import Settings, make_plan, padded_sizes
from asd_jax.evaluation.prompts import parse_record
from asd_jax.evaluation.records import row
from asd_jax.types import Controls
from tests import tiny

NUM_DRAFT = 4
TARGET = tiny.tiny_target()
SIZES = dict(vocab_size=TARGET.vocab_size, context_length=TARGET.context_length)
CHAT = "<user>"
ARMS = make_arms(
    ("greedy", "strict", "asd"),
    drafter=asd_jax.ngram(NUM_DRAFT),
    rule=asd_jax.asd(),
    num_draft_tokens=NUM_DRAFT,
)


class Characters:
    """A codec of one id a character; ids 0..63 stand for the characters from "0" on."""

    stop_ids = (3,)

    def encode(self, text, *, add_bos=False):
        return ([1] if add_bos else []) + [(ord(c) - 48) % 64 for c in text if c != " "]

    def encode_chat(self, messages, *, enable_thinking=None):
        # Long enough to see whose text it is: a user turn begins with 5, an answer with 6.
        ids = []
        for message in messages:
            ids += [5 if message["role"] == "user" else 6, *self.encode(message["content"])]
        return ids

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(48 + i) for i in ids)


TOKENIZER = Characters()


def prompts(*records):
    return [parse_record(record, index=i, line=i + 1) for i, record in enumerate(records)]


def decode_all(records, arms=ARMS, is_done=lambda request, arm: False, target=TARGET, **settings):
    """Returns (events, rows by (id, arm), plan) of a whole run."""
    # The same sizes and flags everywhere: every other program costs seconds of compilation.
    defaults = dict(
        max_new_tokens=24, controls=Controls(6.0, 0.5, 2), batch_size=3, trace=True, ignore_eos=True
    )
    settings = Settings(**defaults | settings)
    plan = make_plan(prompts(*records), TOKENIZER, settings, **SIZES)
    events = list(run(target, arms, plan, TOKENIZER, settings, is_done=is_done))
    rows = {}
    for event in events:
        if isinstance(event, Finished):
            for answer in event.answers:
                entry = row(answer, TOKENIZER, with_exceptions=settings.trace)
                rows[entry["id"], entry["arm"]] = entry
    return events, rows, plan


RECORDS = [
    {"id": "a", "prompt": "abcabcabcab"},
    {"id": "b", "turns": ["xyxyxyxyxyxy"], "budget": 0},
    {"id": "c", "prompt_token_ids": [9, 8, 7, 9, 8, 7, 9, 8], "max_new_tokens": 7},
    {"id": "d", "prompt": "hello hello hello", "budget": "inf", "gate": 50, "block_cap": 9},
    {"id": "e", "messages": [{"role": "user", "content": "1212121212"}]},
]


@pytest.fixture(scope="module")
def watched():
    """A run of all records in batches of three, and how often each timed call compiled."""
    compiled: list[str] = []
    inside: list[int] = []
    timed = interleaved._Runner.timed

    def listen(event: str, duration: float, **details: object) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    def counted(self, *arguments):
        before = len(compiled)
        result = timed(self, *arguments)
        inside.append(len(compiled) - before)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved._Runner, "timed", counted)
        jax.monitoring.register_event_duration_secs_listener(listen)
        events, rows, plan = decode_all(RECORDS)
    return events, rows, plan, len(compiled), inside


def test_strict_and_a_zero_budget_give_the_greedy_tokens(watched):
    _, rows, *_ = watched
    assert len(rows) == 15
    for request in "abcde":
        assert rows[request, "strict"]["token_ids"] == rows[request, "greedy"]["token_ids"]
        assert rows[request, "greedy"]["acceptance_length"] == 1
        assert rows[request, "strict"]["ledger"]["budget"] == 0
    assert rows["b", "asd"]["token_ids"] == rows["b", "greedy"]["token_ids"]
    assert rows["b", "asd"]["ledger"]["budget"] == 0


def assert_alike(one, other):
    """Equal but for regrets, whose last bits depend on the batch."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4)
    else:
        assert one == other


def test_an_arm_decodes_what_the_loop_decodes_row_by_row(watched):
    _, rows, *_ = watched
    for record in RECORDS[:2]:
        _, alone, _ = decode_all([record], arms=ARMS[2:], batch_size=1)
        one, other = (part[record["id"], "asd"] for part in (alone, rows))
        assert_alike(one, other)

    prompt = TOKENIZER.encode("abcabcabcab", add_bos=True)
    config = DecodeConfig(
        num_draft_tokens=NUM_DRAFT, max_new_tokens=24, max_len=256, record_rounds=24
    )
    requests = make_requests(
        [prompt], controls=Controls(6.0, 0.5, 2), max_new_tokens=24, padded_length=128
    )
    drafter = ARMS[2].drafter
    state = prefill(TARGET, drafter, requests, config)
    requests = requests.replace(prompt_tokens=requests.prompt_tokens[:, :1])  # as compiled above
    result = run_rounds(
        TARGET, drafter, asd_jax.asd(), requests, config, state, jnp.int32(99)
    ).result
    answer = rows["a", "asd"]
    assert answer["token_ids"] == np.asarray(result.tokens[0]).tolist()
    assert answer["accept_histogram"] == np.asarray(result.accept_histogram[0]).tolist()
    assert answer["ledger"]["rounds"] == int(result.rounds[0])
    assert answer["ledger"]["exceptions"] == int(result.ledger.exceptions[0])
    assert answer["ledger"]["spent"] == pytest.approx(float(result.ledger.spent[0]), abs=1e-4)
    assert answer["acceptance_length"] == pytest.approx(float(result.acceptance_length[0]))
    assert answer["prompt_tokens"] == len(prompt)


def test_requests_have_their_own_limits(watched):
    _, rows, *_ = watched
    assert {rows["c", arm.name]["completion_tokens"] for arm in ARMS} == {7}
    assert rows["d", "asd"]["ledger"]["budget"] == "inf"
    assert rows["a", "asd"]["ledger"]["budget"] == 6
    for entry in rows.values():
        assert entry["finish_reason"] == "length"
        assert entry["ledger"]["spent"] <= float(entry["ledger"]["budget"])


def test_what_a_proposal_costs_is_measured_once_a_drafter(watched):
    events, *_ = watched
    costs = [event for event in events if isinstance(event, DrafterCost)]
    assert [(c.name, c.num_params, c.num_draft_tokens) for c in costs] == [("ngram", 0, NUM_DRAFT)]
    assert costs[0].seconds > 0


def test_exceptions_agree_with_the_ledger_and_the_tokens(watched):
    _, rows, *_ = watched
    total = 0
    for entry in rows.values():
        exceptions, ledger = entry["exceptions"], entry["ledger"]
        total += len(exceptions)
        assert len(exceptions) == ledger["exceptions"]
        assert sum(e["regret"] for e in exceptions) == pytest.approx(ledger["spent"], abs=1e-4)
        for exception in exceptions:
            assert entry["token_ids"][exception["position"]] == exception["draft_id"]
            assert exception["draft_id"] != exception["target_id"]
    assert total >= 5  # the cases mean something


def test_arms_are_interleaved_and_their_order_rotates(watched):
    events, _, plan, *_ = watched
    assert [len(batch) for batch in plan.batches] == [3, 2]
    order = [(e.batch, e.arm) for e in events if isinstance(e, Started)]
    names = ["greedy", "strict", "asd"]
    assert order == [(b, names[(b + i) % 3]) for b in range(2) for i in range(3)]
    finished = [e for e in events if isinstance(e, Finished)]
    assert [(e.batch, e.arm) for e in finished] == order
    assert [e.measurement.place for e in finished] == [0, 1, 2] * 2
    for event in finished:
        measurement = event.measurement
        assert measurement.prefill_seconds > 0 and measurement.rounds_seconds > 0
        assert measurement.requests == len(event.answers)
        assert measurement.tokens == measurement.round_tokens + measurement.requests


def test_each_program_is_compiled_and_announced_once_and_never_on_the_clock(watched):
    events, _, _, num_compiled, inside = watched
    programs = [event.program for event in events if isinstance(event, Compiled)]
    assert sorted(programs) == [
        "loop of 256 tokens, asd",
        "loop of 256 tokens, greedy",
        "loop of 256 tokens, strict",
        "prefill of 128 tokens, ngram",
        "prefill of 128 tokens, none",
    ]
    assert num_compiled >= len(programs)
    assert inside == [0] * 6


TALK = {"id": "talk", "turns": ["abab", "cdcd", "abab"], "max_new_tokens": 8}


def test_turns_build_on_the_models_own_answers_and_share_one_ledger():
    events, rows, plan = decode_all([TALK])
    for arm in ("greedy", "asd"):
        turns = rows["talk", arm]["turns"]
        conversation = []
        for text, turn in zip(TALK["turns"], turns, strict=True):
            conversation.append({"role": "user", "content": text})
            assert turn["prompt_tokens"] == len(TOKENIZER.encode_chat(conversation))
            conversation.append({"role": "assistant", "content": turn["text"]})
        # The second answer is that of a request with the whole conversation as its prompt.
        again = {"id": "x", "messages": conversation[:3], "max_new_tokens": 8}
        alone = decode_all([again], batch_size=3)[1]
        if arm == "greedy":
            assert alone["x", arm]["token_ids"] == turns[1]["token_ids"]
    entry = rows["talk", "asd"]
    assert entry["ledger"]["rounds"] == sum(entry["accept_histogram"])
    assert entry["ledger"]["exceptions"] == len(entry["exceptions"])
    assert entry["ledger"]["spent"] <= 6
    finished = [event for event in events if isinstance(event, Finished)]
    assert [event.measurement.tokens for event in finished] == [24, 24, 24]
    assert [event.measurement.round_tokens for event in finished] == [21, 21, 21]


@pytest.mark.parametrize(("own", "seen"), [(None, True), (False, False)])
def test_the_thinking_switch_reaches_every_turn_and_a_request_may_have_its_own(own, seen):
    calls = []

    class Switched(Characters):
        def encode_chat(self, messages, *, enable_thinking=None):
            calls.append((len(messages), enable_thinking))
            return super().encode_chat(messages)

    talk = TALK | ({} if own is None else {"thinking": own})
    settings = Settings(max_new_tokens=24, batch_size=3, thinking=True)
    plan = make_plan(prompts(talk), Switched(), settings, **SIZES)
    *_, last = run(TARGET, ARMS[:1], plan, Switched(), settings)
    assert not last.failures
    assert calls == [(1, seen), (3, seen), (5, seen)]


def test_a_spent_ledger_stays_spent_in_the_next_turn():
    talk = TALK | {"budget": 0.5, "gate": 9, "block_cap": 4}
    _, rows, _ = decode_all([talk], arms=ARMS[2:])
    entry = rows["talk", "asd"]
    assert sum(e["regret"] for e in entry["exceptions"]) <= 0.5 + 1e-6
    assert entry["ledger"]["exhausted_at"] >= 0


def test_a_stop_id_ends_a_request_unless_it_is_ignored():
    greedy = ARMS[:1]
    _, free, _ = decode_all(RECORDS[:1], arms=greedy)
    ids = free["a", "greedy"]["token_ids"]

    class Stopping(Characters):
        stop_ids = (ids[2],)

    settings = Settings(max_new_tokens=24, batch_size=3)
    plan = make_plan(prompts(*RECORDS[:1]), Stopping(), settings, **SIZES)
    *_, last = run(TARGET, greedy, plan, Stopping(), settings)
    (answer,) = last.answers
    assert answer.turns[0].token_ids == tuple(ids[: ids.index(ids[2]) + 1])
    assert answer.turns[0].finish_reason.name == "STOP"


def test_prompts_that_cannot_be_decoded_fail_alone():
    records = [
        {"id": "long", "prompt_token_ids": [1] * 256},
        {"id": "foreign", "prompt_token_ids": [1, 64]},
        {"id": "nothing", "turns": [" x "]},
        {"id": "fits", "prompt_token_ids": [1] * 255},
    ]
    settings = Settings()

    class Silent(Characters):
        def encode_chat(self, messages, *, enable_thinking=None):
            return []

    plan = make_plan(prompts(*records), Silent(), settings, **SIZES)
    assert [(failure.id, failure.line) for failure in plan.failures] == [
        ("long", 1), ("foreign", 2), ("nothing", 3)
    ]  # fmt: skip
    messages = [failure.message for failure in plan.failures]
    assert "got 256 tokens, allowed is < 256" in messages[0]
    assert "got token id 64, allowed is 0..63" in messages[1]
    assert "empty" in messages[2]
    assert [request.prompt.id for batch in plan.batches for request in batch] == ["fits"]


def test_a_prompt_that_fills_the_context_ends_at_capacity():
    record = {"id": "fits", "prompt_token_ids": [1] * 250}
    _, rows, _ = decode_all([record], arms=ARMS[1:2])
    assert rows["fits", "strict"]["completion_tokens"] == 6
    assert rows["fits", "strict"]["finish_reason"] == "capacity"


def test_a_later_turn_that_does_not_fit_fails_and_the_others_go_on():
    long = {"id": "long", "turns": ["ab", "cd" * 120]}
    events, rows, _ = decode_all([long, TALK | {"turns": ["x", "y"]}])
    assert set(rows) == {("talk", arm.name) for arm in ARMS}
    finished = [event for event in events if isinstance(event, Finished)]
    for event in finished:
        (failure,) = event.failures
        assert (failure.id, failure.arm, failure.line) == ("long", event.arm, 1)
        assert failure.message.startswith("turn 2: the prompt is too long")
        assert event.measurement is None  # its first turn took time that no row tells of


def test_a_failing_device_fails_its_batch_and_the_others_go_on(monkeypatch):
    real, calls = interleaved.run_rounds, collections.Counter()

    def fails_once(target, drafter, rule, requests, *arguments):
        # Both arms run the same rule; only asd has a budget. Its first call is the warm-up.
        calls["asd"] += bool(np.any(requests.controls.budget > 0))
        if calls["asd"] == 2:
            calls["asd"] += 1
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nlong story")
        return real(target, drafter, rule, requests, *arguments)

    monkeypatch.setattr(interleaved, "run_rounds", fails_once)
    events, rows, _ = decode_all(RECORDS, arms=ARMS[1:])
    assert set(rows) == {(r, "strict") for r in "abcde"} | {("d", "asd"), ("e", "asd")}
    failures = [f for event in events if isinstance(event, Finished) for f in event.failures]
    assert [(failure.id, failure.arm) for failure in failures] == [(r, "asd") for r in "abc"]
    assert failures[0].message == "the device failed: RESOURCE_EXHAUSTED: out of memory"


def test_what_is_done_is_not_given_out_again_and_batches_stay_whole(watched):
    _, together, *_ = watched
    done = {("a", "greedy"), ("b", "greedy"), ("c", "greedy"), ("a", "asd"), ("d", "strict")}
    _, rows, plan = decode_all(RECORDS, batch_size=3, is_done=lambda *pair: pair in done)
    assert rows == {pair: entry for pair, entry in together.items() if pair not in done}
    left = list(pending(plan, ARMS, lambda *pair: pair in done))
    assert [(batch, arm.name) for batch, _, arm in left] == [
        (0, "strict"), (0, "asd"), (1, "strict"), (1, "asd"), (1, "greedy")
    ]  # fmt: skip
    assert not list(pending(plan, ARMS, lambda *pair: True))


def test_seeds_follow_the_line_or_the_request_and_strict_samples_like_greedy():
    records = [RECORDS[0], RECORDS[0] | {"id": "b"}, RECORDS[0] | {"id": "c", "seed": 5}]
    settings = dict(temperature=0.8, top_k=20, top_p=0.95)
    _, rows, plan = decode_all(records, seed=5, **settings)
    seeds = [request.seed for batch in plan.batches for request in batch]
    assert seeds == [5, 6, 5]
    for request in "abc":
        assert rows[request, "strict"]["token_ids"] == rows[request, "greedy"]["token_ids"]
    texts = [rows[request, "greedy"]["text"] for request in "abc"]
    assert texts[0] == texts[2] != texts[1]


def test_batches_hold_alike_requests_short_ones_first():
    lengths = [10, 140, 20, 130, 30, 250]
    records = [{"id": str(n), "prompt_token_ids": [1] * n} for n in lengths]
    records.append({"id": "turns", "turns": ["a", "b"]})
    plan = make_plan(prompts(*records), TOKENIZER, Settings(batch_size=2), **SIZES)
    ids = [[request.prompt.id for request in batch] for batch in plan.batches]
    assert ids == [["10", "20"], ["30"], ["turns"], ["140", "130"], ["250"]]
    alone = make_plan(prompts(*records), TOKENIZER, Settings(), **SIZES)
    assert [batch[0].prompt.id for batch in alone.batches] == [*map(str, lengths), "turns"]


@pytest.mark.parametrize(
    ("longest", "new", "context", "sizes"),
    [
        (1, 1, 8192, (128, 256)),
        (128, 128, 8192, (128, 256)),
        (128, 129, 8192, (128, 384)),
        (129, 383, 8192, (192, 512)),
        (129, 384, 8192, (192, 768)),
        (1300, 128, 8192, (1536, 1536)),
        (2000, 128, 2048, (2048, 2048)),
        (50, 128, 64, (64, 64)),
        (1100, 128, 1300, (1300, 1300)),
    ],
)
def test_padded_sizes_are_few_and_fit(longest, new, context, sizes):
    assert padded_sizes(longest, new, context) == sizes
    assert longest <= sizes[0] <= sizes[1] <= context


def test_unknown_arms_are_refused():
    parts = dict(drafter=asd_jax.ngram(4), rule=asd_jax.asd(), num_draft_tokens=4)
    for names in ((), ("fast",), ("asd", "asd")):
        with pytest.raises(ValueError, match="allowed is each of greedy, strict, asd at most once"):
            make_arms(names, **parts)
    (arm,) = make_arms(("asd",), **parts)
    assert arm.has_controls and math.isclose(arm.num_draft_tokens, 4)
