"""The command line as a user meets it: files in, rows out, messages, exit status, kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.display import annotated

ARMS = ("greedy", "strict", "asd")
LINES = [
    b'{"id": "one", "prompt": "abcabcabcabc"}',
    b'{"id": "two", "turns": ["xyxyxyxy"], "budget": "inf", "gate": 9, "block_cap": 4}',
    b"{broken",
    b'{"id": "caf\xc3\xa9", "messages": [{"role": "user", "content": "\xe2\x98\x95 1212"}]}',
    b'{"id": "bytes", "prompt": "\xff"}',
    b'{"id": "empty", "prompt": ""}',
    b'{"id": "long", "prompt": "' + b"z" * 300 + b'"}',
    b'{"id": "talk", "turns": ["ab", "cd"], "max_new_tokens": 9, "task": "chat"}',
    b'{"id": "one", "prompt": "twice"}',
]
ANSWERED = ("one", "two", "café", "talk")


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(cli):
    """One run to the end over good and bad lines: (exit status, stdout, stderr)."""
    (cli.folder / "mixed.jsonl").write_bytes(b"\n".join(LINES) + b"\n")
    return cli.run(prompts="mixed.jsonl", output="whole.jsonl", trace=True)


def test_good_requests_are_answered_under_every_arm(cli, whole):
    status, stdout, stderr = whole
    assert status == 1, stderr  # some lines are bad
    header, *rows = rows_of(cli.folder / "whole.jsonl")
    assert {(row["id"], row["arm"]) for row in rows} == {(r, a) for r in ANSWERED for a in ARMS}
    assert len(rows) == 12
    by_arm = {(row["id"], row["arm"]): row for row in rows}
    for request in ANSWERED:
        strict, greedy = by_arm[request, "strict"], by_arm[request, "greedy"]
        assert strict["token_ids"] == greedy["token_ids"]
    assert len(by_arm["talk", "asd"]["turns"]) == 2
    assert by_arm["two", "asd"]["ledger"]["budget"] == "inf"
    assert any(row["exceptions"] for row in rows)
    assert set(rows[0]) == {
        "id", "arm", "text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason",
        "acceptance_length", "accept_histogram", "ledger", "exceptions",
        "refusals",
    }  # fmt: skip
    run = header["run"]
    assert run["config"]["target"] == "model" and run["config"]["trace"] is True
    assert len(run["target"]["digest"]) == 64 and run["drafter"]["name"] == "ngram"
    assert run["device"]["platform"] == "cpu" and run["versions"]["jax"]
    assert str(cli.folder) not in json.dumps(header)


def test_bad_lines_and_requests_are_told_by_number(cli, whole):
    _, _, stderr = whole
    told = stderr.splitlines()
    assert [line for line in told if not line.startswith("error: ")] == []
    assert "error: mixed.jsonl: line 3: not JSON" in stderr
    assert "error: mixed.jsonl: line 5: not UTF-8: byte 0xff" in stderr
    assert "error: mixed.jsonl: line 6: prompt: got ''" in stderr
    assert "error: mixed.jsonl: line 9: id: 'one' was used before, on line 1" in stderr
    assert "error: request long, line 7: the prompt is too long: got 300 tokens" in stderr


def test_the_summary_has_every_arm_and_every_ratio(cli, whole):
    summary = json.loads((cli.folder / "whole.summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "complete" and summary["resumed"] is False
    assert [p["line"] for p in summary["bad_lines"]] == [3, 5, 6, 9]
    assert [(f["id"], f["line"]) for f in summary["failures"]] == [("long", 7)]
    assert list(summary["arms"]) == list(ARMS)
    for arm in summary["arms"].values():
        assert arm["requests"] == 4 and arm["tokens_per_second"] > 0
    cost = summary["drafter"]
    assert (cost["name"], cost["num_params"], cost["num_draft_tokens"]) == ("ngram", 0, 4)
    assert cost["batch"] == 1 and 0 < cost["seconds"] < 1
    assert set(summary["ratios"]) == {"strict/greedy", "asd/greedy", "asd/strict"}
    assert summary["ratios"]["asd/greedy"]["batches"] == 4
    assert summary["arms"]["strict"]["same_as_greedy"] == {"same": 4, "of": 4}
    assert summary["peak_memory_bytes"] > 2**20 and summary["compile_seconds"] > 0


def test_what_is_shown_is_plain_text_with_exceptions_and_a_table(whole):
    _, stdout, _ = whole
    assert "\x1b" not in stdout
    assert "prompts  mixed.jsonl: 5 of 5 requests" in stdout
    assert "compiled loop of 256 tokens, asd" in stdout
    assert "[12/12]" in stdout
    assert "≠" in stdout and "of inf" in stdout
    assert "same tokens as" in stdout
    table = stdout[stdout.rindex(" arm ") :]
    assert [line.split()[0] for line in table.splitlines()[2:5]] == list(ARMS)
    assert "rows     whole.jsonl" in stdout and "peak memory" in stdout


def wait_for_rows(path: Path, process, number: int) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") > number:
            return
        time.sleep(0.01)
    raise AssertionError(f"no row came: {process.communicate()}")


def test_a_killed_run_that_is_resumed_gives_the_rows_of_a_whole_one(cli, whole):
    output = cli.folder / "killed.jsonl"
    fields = dict(prompts="mixed.jsonl", output="killed.jsonl", trace=True)
    process = cli.start(**fields)
    wait_for_rows(output, process, 1)  # the other arms are not compiled yet: far from the end
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = output.read_bytes()
    assert 2 <= killed.count(b"\n") < 10
    assert not (cli.folder / "killed.summary.json").exists()
    with output.open("ab") as file:
        file.write(b'{"id": "one", "arm": "as')  # a row that was being written

    status, stdout, stderr = cli.run(**fields, resume=True)
    assert status == 1, stderr
    assert output.read_bytes().startswith(killed)
    assert rows_of(output)[1:] == rows_of(cli.folder / "whole.jsonl")[1:]
    summary = json.loads((cli.folder / "killed.summary.json").read_text(encoding="utf-8"))
    assert summary["resumed"] is True
    assert summary["arms"]["asd"]["requests"] == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_is_finished(cli, whole, number):
    output = cli.folder / f"interrupted{number}.jsonl"
    process = cli.start(prompts="mixed.jsonl", output=output.name, trace=True)
    wait_for_rows(output, process, 1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with --config.output={output.name} --config.resume=True" in stderr
    assert "Traceback" not in stderr
    rows = rows_of(output)[1:]
    assert rows and rows == rows_of(cli.folder / "whole.jsonl")[1 : len(rows) + 1]
    summary = json.loads((cli.folder / f"{output.stem}.summary.json").read_text("utf-8"))
    assert summary["status"] == "interrupted"
    assert sum(arm["requests"] for arm in summary["arms"].values()) == len(rows)


def test_arms_and_limits_can_grow_on_resuming(cli, whole):
    fields = dict(prompts="mixed.jsonl", output="grown.jsonl", trace=True)
    status, _, stderr = cli.run(**fields, limit=1, arms="asd")
    assert status == 1, stderr
    first = (cli.folder / "grown.jsonl").read_bytes()
    status, stdout, stderr = cli.run(**fields, limit=2, arms="strict,asd", resume=True)
    assert status == 1, stderr
    assert (cli.folder / "grown.jsonl").read_bytes().startswith(first)
    wanted = [r for r in rows_of(cli.folder / "whole.jsonl")[1:] if r["id"] in ("one", "two")]
    found = rows_of(cli.folder / "grown.jsonl")[1:]
    for row in wanted:
        assert (row in found) == (row["arm"] != "greedy")
    # Nothing is left to do: nothing is loaded.
    status, stdout, _ = cli.run(**fields, limit=2, arms="strict,asd", resume=True)
    assert status == 1 and "nothing to do" in stdout and "loaded" not in stdout


def test_what_cannot_be_run_ends_with_2_and_a_message_before_loading(cli, whole):
    folder = cli.folder
    (folder / "taken.jsonl").write_text("mine\n")
    (folder / "bad.jsonl").write_text("[]\n")
    (folder / "wrong.py").write_text(
        (folder / "tiny.py").read_text().replace("config.prompts = ", "config.promptz = ")
    )
    (folder / "crash.py").write_text("def get_config():\n    return 1 / 0\n")
    (folder / "extra.py").write_text(
        "def get_config():\n    import ml_collections\n"
        "    return ml_collections.ConfigDict({'target': 'model', 'bogus': 1})\n"
    )
    cases = [
        (cli.arguments(verifier__budget=-1), "verifier.budget: got -1.0, allowed is a number >= 0"),
        (cli.arguments(verifier__budget="nan"), "verifier.budget: got nan, allowed"),
        (cli.arguments(num_draft_tokens=0), "num_draft_tokens: got 0, allowed"),
        (cli.arguments(num_draft_tokens="1.5"), "num_draft_tokens: got '1.5', allowed is a whole"),
        (cli.arguments(num_draft_tokens=255), "num_draft_tokens: got 255, allowed is a whole number"
                                              " 1..254 with this target's context of 256"),
        (cli.arguments(arms="greedy,fast"), "arms: got greedy, fast, allowed is one or more of"),
        (cli.arguments(arms="()"), "arms: got none"),
        (cli.arguments(trace="maybe"), "trace: got 'maybe', allowed is True or False"),
        (cli.arguments(batchsize=2), "batchsize: no such field; did you mean batch_size?"),
        (cli.arguments(verifier__gat=2), "verifier.gat: no such field"),
        (cli.arguments(drafter="magic"), "drafter: got 'magic'"),
        (cli.arguments(target="nowhere"), "nowhere: no such file or directory"),
        (cli.arguments(prompts="none.jsonl"), "none.jsonl: no such file"),
        (cli.arguments(prompts="bad.jsonl"), "bad.jsonl: none of its 1 lines is a request"),
        (cli.arguments(output="taken.jsonl"), "taken.jsonl: exists already"),
        (cli.arguments(output="taken.jsonl", resume=True), "taken.jsonl: cannot be resumed"),
        (cli.arguments(output="taken.jsonl/out.jsonl"), "taken.jsonl is not a folder"),
        (cli.arguments(output="model"), "model: cannot be written: Is a directory"),
        (cli.arguments(resume=True), "resume: got True, allowed with an output"),
        (cli.arguments(output="whole.jsonl", resume=True, seed=7, prompts="mixed.jsonl",
                       trace=True), "seed: 0 in the file, 7 now"),
        ([], "--config=FILE is missing"),
        (["--config=none.py"], "none.py"),
        (["--config=wrong.py"], "promptz"),
        (["--config=crash.py"], "division by zero"),
        (["--config=extra.py"], "bogus: no such field"),
        (["--config=tiny.py", "stray"], "got 'stray', allowed are only flags"),
        (["--config=tiny.py", "--bogus=1"], "bogus"),
    ]  # fmt: skip
    before = (folder / "whole.jsonl").read_bytes()
    outcomes = cli.run_each([arguments for arguments, _ in cases])
    for (arguments, message), (status, stdout, stderr) in zip(cases, outcomes, strict=True):
        assert status == 2, (arguments, stderr)
        assert message in stderr, (arguments, stderr)
        assert "Traceback" not in stderr and "loaded" not in stdout, (arguments, stderr)
        assert stderr.startswith("error: "), (arguments, stderr)
    assert (folder / "taken.jsonl").read_text() == "mine\n"
    assert (folder / "whole.jsonl").read_bytes() == before
    assert not (folder / "outputs").exists() or not list((folder / "outputs").iterdir())


def test_help_lists_every_field_and_ends_with_0(cli):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.decode", "--help"],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m experiments.decode --config=" in done.stdout
    assert "--config.verifier.budget=8.0" in done.stdout and "Exit status" in done.stdout


class Letters:
    """A tokenizer whose ids are code points."""

    def stream_decoder(self):
        return self

    def push(self, token):
        return chr(token)

    def flush(self):
        return ""


def test_an_exception_stands_in_the_text_with_what_the_target_preferred():
    def marked(text, *exceptions):
        row = {"token_ids": [ord(c) for c in text], "exceptions": list(exceptions)}
        return annotated(row, Letters())

    def exception(position, draft, target, reused=0):
        entry = dict(position=position, draft=draft, target=target, regret=0.4249)
        return entry | dict(reused=reused)

    text = marked("abcdef", exception(1, "b", "x", reused=2), exception(5, "f", "\n"))
    assert text.plain == "a[b≠x 0.42]cd" + "e[f≠⏎ 0.42]"
    styles = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert styles == [("[b≠x 0.42]", "bold red"), ("c", "green"), ("d", "green"),
                      ("[f≠⏎ 0.42]", "bold red")]  # fmt: skip
    # A space that both begin with stays in the text; one that tells them apart is shown.
    assert marked("a b", exception(1, " cat", " dog")).plain == "a [cat≠dog 0.42]b"
    assert marked("a b", exception(1, " ", "")).plain == "a [␣≠∅ 0.42]b"
    assert marked("a b", exception(1, " cat", "cat")).plain == "a [␣cat≠cat 0.42]b"
    turns = [{"token_ids": [97, 98]}, {"token_ids": [99]}]
    row = {"turns": turns, "exceptions": [exception(2, "c", "z")]}
    assert annotated(row, Letters()).plain == "ab\n--\n[c≠z 0.42]"
