"""Rows, the writer that survives a kill, run headers, and the arithmetic of the summary."""

import json
import math
import subprocess

import numpy as np
import pytest

from asd_jax.decode import Trace
from asd_jax.evaluation import receipt
from asd_jax.evaluation.conversation import Answer, Turn
from asd_jax.evaluation.interleaved import Measurement
from asd_jax.evaluation.plan import Request
from asd_jax.evaluation.prompts import Prompt
from asd_jax.evaluation.records import OutputError, Writer, plain_number, row
from asd_jax.evaluation.summary import Tally, summary_path, write_summary
from asd_jax.types import FinishReason

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Letters:
    """Id 0 is a stop token without text, id n the n-th letter."""

    stop_ids = (0,)

    def decode(self, ids, skip_special_tokens=True):
        stop = "" if skip_special_tokens else "<s>"
        return "".join(LETTERS[i - 1] if i else stop for i in ids)


def make_trace(blocks, num_rounds=4, num_draft=3):
    """Builds a row's trace from (start, draft, target, regret, mask, accepted, committed)."""

    def table(width, dtype):
        return np.zeros((num_rounds, width), dtype)

    trace = Trace(
        start=np.full(num_rounds, -1),
        draft_tokens=table(num_draft, int),
        draft_length=np.zeros(num_rounds, int),
        target_tokens=table(num_draft + 1, int),
        regret=table(num_draft, np.float32),
        exception_mask=table(num_draft, bool),
        num_accepted=np.zeros(num_rounds, int),
        num_committed=np.zeros(num_rounds, int),
        stop_reason=np.zeros(num_rounds, int),
        stop_regret=np.zeros(num_rounds, np.float32),
    )
    for i, (start, draft, target, regret, mask, accepted, committed) in enumerate(blocks):
        trace.start[i], trace.draft_length[i] = start, num_draft
        if accepted < num_draft:
            trace.stop_regret[i] = 0.75
        trace.draft_tokens[i], trace.target_tokens[i] = draft, target
        trace.regret[i], trace.exception_mask[i] = regret, mask
        trace.num_accepted[i], trace.num_committed[i] = accepted, committed
    return trace


def make_answer(turns, *, arm="asd", budget=8.0, **ledger):
    fields = {
        "spent": 0.0,
        "exceptions": 0,
        "reused": 0,
        "proposed": 0,
        "accepted": 0,
        "rounds": sum(turn.rounds for turn in turns),
        "exhausted_at": -1,
        "strict_accepted": 0,
        "first_exception_at": -1,
    }
    prompt = Prompt("p/1", 0, 1, "prompt", "hi")
    request = Request(prompt, (1, 2), budget, 0.25, 2, 16, draft_length=9, seed=0)
    return Answer(request, arm, tuple(turns), fields | ledger, budget)


FIRST = Turn(
    prompt_tokens=2,
    token_ids=(1, 2, 3, 4, 5, 6, 7),
    finish_reason=FinishReason.LENGTH,
    rounds=2,
    accept_histogram=(0, 0, 1, 1),
    # Round 1: b (target z) and d (target y) are exceptions with c between them. Round 2: f is one,
    # and the one behind it was accepted but not committed.
    trace=make_trace(
        [
            (1, (2, 3, 4), (26, 3, 25, 5), (0.1, 0, 1.5), (True, False, True), 3, 4),
            (5, (6, 7, 8), (24, 7, 23, 9), (0.25, 0, 2), (True, False, True), 3, 2),
        ]
    ),
)
SECOND = Turn(
    prompt_tokens=9,
    token_ids=(1, 9, 0),
    finish_reason=FinishReason.STOP,
    rounds=1,
    accept_histogram=(0, 1, 0, 0),
    trace=make_trace([(1, (9, 2, 3), (8, 0, 0, 0), (0.5, 0, 0), (True, False, False), 1, 2)]),
)


def test_a_row_has_the_documented_keys_and_counts():
    answer = make_answer(
        [FIRST], spent=np.float32(1.85), exceptions=3, reused=3, proposed=6, accepted=5
    )
    assert row(answer, Letters()) == {
        "id": "p/1",
        "arm": "asd",
        "text": "abcdefg",
        "token_ids": [1, 2, 3, 4, 5, 6, 7],
        "prompt_tokens": 2,
        "completion_tokens": 7,
        "finish_reason": "length",
        "acceptance_length": 3.0,  # six tokens of two rounds; the prefill emitted the first
        "accept_histogram": [0, 0, 1, 1],
        "ledger": {
            "spent": 1.85,
            "budget": 8.0,
            "exceptions": 3,
            "reused": 3,
            "proposed": 6,
            "accepted": 5,
            "rounds": 2,
            "exhausted_at": -1,
        },
    }


def test_exceptions_stand_at_their_positions_and_count_what_they_reused():
    entries = row(make_answer([FIRST]), Letters(), with_exceptions=True)["exceptions"]
    assert entries == [
        {"position": 1, "draft_id": 2, "target_id": 26, "draft": "b", "target": "z",
         "regret": 0.1, "reused": 1, "draft_position": 0, "draft_length": 3},
        {"position": 3, "draft_id": 4, "target_id": 25, "draft": "d", "target": "y",
         "regret": 1.5, "reused": 0, "draft_position": 2, "draft_length": 3},
        {"position": 5, "draft_id": 6, "target_id": 24, "draft": "f", "target": "x",
         "regret": 0.25, "reused": 1, "draft_position": 0, "draft_length": 3},
    ]  # fmt: skip
    assert all(FIRST.token_ids[entry["position"]] == entry["draft_id"] for entry in entries)


def test_a_row_of_several_turns_adds_them_up_and_keeps_them_apart():
    result = row(make_answer([FIRST, SECOND]), Letters(), with_exceptions=True)
    assert result["text"] == "abcdefg\n\nai"
    assert result["token_ids"] == [1, 2, 3, 4, 5, 6, 7, 1, 9, 0]
    assert (result["prompt_tokens"], result["completion_tokens"]) == (11, 10)
    assert result["finish_reason"] == "stop"
    assert result["acceptance_length"] == 8 / 3
    assert result["accept_histogram"] == [0, 1, 1, 1]
    assert [turn["text"] for turn in result["turns"]] == ["abcdefg", "ai"]
    assert [turn["prompt_tokens"] for turn in result["turns"]] == [2, 9]
    last = result["exceptions"][-1]
    assert (last["position"], last["draft_id"], last["reused"]) == (8, 9, 0)
    assert result["token_ids"][last["position"]] == last["draft_id"]
    # The first turn's blocks were kept whole, or cut by its end; the second's was refused at its
    # second token, where the target's own came instead.
    assert result["refusals"] == [[9, 1, 3, 0.75]]


def test_an_answer_without_a_round_or_a_token_is_a_row_too():
    stopped = Turn(2, (0,), FinishReason.STOP, 0, (0,))
    broken = Turn(2, (), FinishReason.NONFINITE, 0, (0,))
    assert row(make_answer([stopped]), Letters(), with_exceptions=True)["exceptions"] == []
    assert row(make_answer([stopped]), Letters())["acceptance_length"] == 0.0
    assert row(make_answer([broken]), Letters())["finish_reason"] == "nonfinite"


def test_numbers_are_short_and_infinity_is_text():
    assert plain_number(np.float32(0.1)) == 0.1
    assert np.float32(plain_number(np.float32(5.8437))) == np.float32(5.8437)
    assert plain_number(math.inf) == "inf"
    json.dumps(row(make_answer([FIRST], budget=math.inf), Letters()), allow_nan=False)


HEADER = {
    "config": {"seed": 0, "verifier": {"budget": 8.0}, "limit": 3, "output": "a", "arms": ["asd"]},
    "target": {"name": "t", "digest": "1"},
    "drafter": {"name": "ngram", "digest": None},
    "prompts": {"name": "p", "digest": "2"},
}


def entry(request="p/1", arm="asd", **fields):
    return {"id": request, "arm": arm, "text": "é\u2028", **fields}


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_row_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    writer = Writer(path)
    writer.start(HEADER)
    writer.write([entry("a"), entry("b")])
    assert lines(path) == [{"run": HEADER}, entry("a"), entry("b")]
    assert writer.done == {("a", "asd"), ("b", "asd")}
    writer.close()


def test_an_output_that_exists_is_refused_unless_resumed(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    with pytest.raises(OutputError, match="exists already"):
        Writer(path)
    with pytest.raises(OutputError, match="line 1 is not the description of a run"):
        Writer(path, resume=True)
    path.write_text("precious, without a line end")
    with pytest.raises(OutputError, match="not an output file"):
        Writer(path, resume=True)
    assert path.read_text() == "precious, without a line end"
    path.write_text(json.dumps({"run": HEADER}) + '\n{"id": 3}\n')
    with pytest.raises(OutputError, match="line 2 is not a row"):
        Writer(path, resume=True)


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written: .*file is not a folder"):
        Writer(tmp_path / "file" / "out.jsonl")
    with pytest.raises(OutputError, match="cannot be written: Is a directory"):
        Writer(tmp_path)


def test_two_runs_cannot_write_one_file(tmp_path):
    first = Writer(tmp_path / "out.jsonl")
    first.start(HEADER)
    with pytest.raises(OutputError, match="another run is writing it"):
        Writer(tmp_path / "out.jsonl", resume=True)
    first.close()


@pytest.mark.parametrize("cut", range(1, 12))
def test_resuming_drops_a_last_line_that_was_cut_short(tmp_path, cut):
    path = tmp_path / "out.jsonl"
    writer = Writer(path)
    writer.start(HEADER)
    writer.write([entry("a"), entry("b")])
    writer.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Writer(path, resume=True)
    again.start(HEADER)
    assert again.done == {("a", "asd")}
    assert again.resumed_rows == [entry("a")]
    again.write([entry("b")])
    again.close()
    assert lines(path) == [{"run": HEADER}, entry("a"), entry("b")]


def test_resuming_a_first_line_that_was_cut_short_starts_anew(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text('{"run": {"config": {"se')
    writer = Writer(path, resume=True)
    writer.start(HEADER)
    writer.close(keep_empty=True)
    assert lines(path) == [{"run": HEADER}]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": {"name": "t", "digest": "9"}}, "target digest: '1' in the file, '9' now"),
        ({"drafter": {"name": "none", "digest": None}}, "drafter name: 'ngram' in the file"),
        ({"prompts": {"name": "p", "digest": "9"}}, "prompts digest"),
        ({"config": {"seed": 1, "verifier": {"budget": 8.0}}}, "seed: 0 in the file, 1 now"),
        (
            {"config": {"seed": 0, "verifier": {"budget": 4.0}}},
            "verifier.budget: 8.0 in the file, 4.0 now",
        ),
    ],
)
def test_resuming_with_other_settings_is_refused_and_changes_nothing(tmp_path, change, told):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({"run": HEADER}) + '\n{"id": "cut')
    before = path.read_bytes()
    writer = Writer(path, resume=True)
    with pytest.raises(OutputError, match="other settings") as caught:
        writer.start(HEADER | change)
    assert told in str(caught.value)
    writer.close()
    assert path.read_bytes() == before


def test_resuming_may_change_what_does_not_reach_the_decoding(tmp_path):
    config = HEADER["config"] | {"limit": 9, "output": "b", "arms": ["greedy"]}
    header = HEADER | {"config": config, "versions": {"jax": "9"}}
    assert receipt.differences(HEADER, header) == []


def test_a_new_file_without_rows_is_removed_and_an_old_one_is_not(tmp_path):
    path = tmp_path / "out.jsonl"
    writer = Writer(path)
    writer.start(HEADER)
    writer.close()
    assert not path.exists()
    path.write_text("")
    writer = Writer(path)
    writer.start(HEADER)
    writer.close()
    assert path.exists()


def test_the_header_is_json_and_holds_no_machine_path(tmp_path):
    config = {
        "target": str(tmp_path / "secret" / "model"),
        "output": "~/secret/out.jsonl",
        "prompts": "data/p.jsonl",
        "drafter": "ngram",
        "verifier": {"budget": math.inf},
        "arms": ("greedy", "asd"),
    }
    header = receipt.run_header(config, target="1", drafter=None, prompts="2", num_prompts=4)
    text = json.dumps(header, allow_nan=False)
    assert "secret" not in text
    assert header["target"] == {"name": "model", "digest": "1"}
    assert header["config"]["verifier"]["budget"] == "inf"
    assert header["config"]["prompts"] == "data/p.jsonl"
    assert {"python", "jax", "jaxlib", "flax", "numpy", "asd_jax"} == set(header["versions"])
    device = header["device"]
    assert device["platform"] == "cpu" and device["cpu"] and device["cores"] >= 1


def test_the_commit_is_that_of_the_source_tree_or_null(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(("git", "-C", tmp_path, *arguments), check=True, capture_output=True)

    package = tmp_path / "asd_jax" / "evaluation"
    package.mkdir(parents=True)
    monkeypatch.setattr(receipt, "__file__", str(package / "receipt.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert receipt.git_commit() is None
    git("init", "-q")
    (package / "receipt.py").write_text("1\n")
    git("add", ".")
    git("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qm", "m")
    commit = receipt.git_commit()
    assert commit is not None and len(commit) == 40
    (package / "receipt.py").write_text("2\n")
    assert receipt.git_commit() == f"{commit}-dirty"
    # Installed inside somebody else's repository, the commit would be theirs.
    monkeypatch.setattr(receipt, "__file__", str(package / "site" / "a" / "b" / "receipt.py"))
    (package / "site").mkdir()
    assert receipt.git_commit() is None


def counted(request, arm, tokens, rounds, histogram, *, spent=0.0, exceptions=0, **more):
    ledger = {
        "spent": spent,
        "budget": 8.0,
        "exceptions": exceptions,
        "reused": 2 * exceptions,
        "proposed": 3 * rounds,
        "accepted": sum(i * n for i, n in enumerate(histogram)),
        "rounds": rounds,
        "exhausted_at": -1,
    }
    return {
        "id": request,
        "arm": arm,
        "token_ids": list(range(tokens)),
        "completion_tokens": tokens,
        "finish_reason": "length",
        "accept_histogram": histogram,
        "ledger": ledger,
        **more,
    }


def test_the_summary_adds_up_rows():
    tally = Tally(["greedy", "strict", "asd"])
    tally.add_row(counted("a", "greedy", 9, 8, [8]))
    tally.add_row(counted("a", "asd", 9, 4, [1, 1, 2], spent=1.5, exceptions=3))
    last = counted("b", "asd", 11, 4, [0, 3, 1], spent=0.5, exceptions=1, finish_reason="stop")
    last["ledger"]["exhausted_at"] = 2
    # Two answers of 5 and 6 tokens: each has a first token from its prefill.
    tally.add_row({**last, "turns": [{"completion_tokens": 5}, {"completion_tokens": 6}]})
    summary = tally.summary()
    assert list(summary["arms"]) == ["greedy", "asd"]
    asd = summary["arms"]["asd"]
    assert (asd["requests"], asd["tokens"], asd["rounds"]) == (2, 20, 8)
    assert asd["acceptance_length"] == (8 + 9) / 8
    assert asd["accept_histogram"] == [1, 4, 3]
    assert asd["position_acceptance"] == [7 / 8, 3 / 8]
    assert (asd["proposed"], asd["accepted"]) == (24, 10)
    assert (asd["exceptions_per_request"], asd["reused_per_request"]) == (2.0, 4.0)
    assert asd["regret_per_request"] == 1.0
    assert asd["budget_exhausted"] == 1
    assert asd["finish_reasons"] == {"length": 1, "stop": 1}
    assert asd["same_as_greedy"] == {"same": 1, "of": 1}
    assert asd["tokens_per_second"] is None
    assert summary["arms"]["greedy"]["position_acceptance"] == []
    ratio = summary["ratios"]["asd/greedy"]
    # Over request a alone, which both answered: 8/4 against 8/8.
    assert ratio == {
        "tokens_per_second": None, "batches": 0, "acceptance_length": 2.0, "requests": 1
    }  # fmt: skip
    json.dumps(summary, allow_nan=False)


def test_speeds_are_sums_and_ratios_are_medians_over_common_batches():
    def measured(batch, arm, round_tokens, seconds):
        return Measurement(batch, arm, 0, 2, round_tokens + 2, round_tokens, 0.5, seconds)

    tally = Tally(["greedy", "asd"])
    for arm in ("greedy", "asd"):
        tally.add_row(counted("a", arm, 9, 8, [8]))
    for batch, seconds in enumerate((10.0, 1.0, 2.0)):
        tally.add_measurement(measured(batch, "greedy", 20, seconds))  # 2, 20 and 10 tokens/s
    for batch, seconds in enumerate((5.0, 0.5, 1.0)):
        tally.add_measurement(measured(batch, "asd", 15, seconds))  # 3, 30 and 15 tokens/s
    tally.add_measurement(measured(3, "asd", 1000, 1.0))  # greedy did not get that far
    summary = tally.summary()
    greedy, asd = summary["arms"]["greedy"], summary["arms"]["asd"]
    assert greedy["tokens_per_second"] == pytest.approx(60 / 13)
    assert greedy["tokens_per_second_with_prefill"] == pytest.approx(66 / 14.5)
    assert asd["tokens_per_second"] == pytest.approx(1045 / 7.5)
    assert (asd["timed_batches"], asd["timed_requests"]) == (4, 8)
    ratio = summary["ratios"]["asd/greedy"]
    assert (ratio["tokens_per_second"], ratio["batches"]) == (pytest.approx(15 / 10), 3)
    assert len(summary["measurements"]) == 7
    assert "median" in summary["notes"]["ratios"] and "this run" in summary["notes"]["ratios"]


def test_the_summary_stands_beside_its_output(tmp_path):
    assert summary_path(tmp_path / "a.jsonl") == tmp_path / "a.summary.json"
    assert summary_path("out.data") == summary_path("out.data.jsonl")
    path = tmp_path / "a.summary.json"
    write_summary(path, {"text": "é"})
    write_summary(path, {"text": "ü"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "ü"}
    assert list(tmp_path.iterdir()) == [path]
