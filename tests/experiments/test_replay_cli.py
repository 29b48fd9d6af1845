"""The ledger audit as a user meets it: right files pass, planted errors are found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest


def replay(cli, output, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.replay", output, *arguments],
        cwd=cli.folder, env=cli.environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(0.0, id="greedy"),
        pytest.param(0.9, id="sampled", marks=pytest.mark.slow),
    ],
)
def decoded(cli, request):
    """A traced run with exceptions, one conversation of two turns among its requests."""
    name = f"traced_{request.param}"
    prompts = [{"id": f"p{i}", "prompt": "abcab" * (i + 1) + str(i)} for i in range(4)]
    prompts.append({"id": "talk", "turns": ["abab", "cdcd"], "budget": 30.0})
    (cli.folder / f"{name}.prompts").write_text("\n".join(map(json.dumps, prompts)))
    status, _, stderr = cli.run(
        prompts=f"{name}.prompts", output=f"{name}.jsonl", trace=True, arms="greedy,strict,asd",
        max_new_tokens=24, num_draft_tokens=4, temperature=request.param,
        **{"verifier.budget": 20.0, "verifier.gate": 3.0},
    )  # fmt: skip
    assert status == 0, stderr
    rows = [json.loads(x) for x in (cli.folder / f"{name}.jsonl").read_text().splitlines()]
    assert sum(len(row["exceptions"]) for row in rows[1:]) >= 3
    return name


def test_a_right_file_passes_and_planted_errors_do_not(cli, decoded):
    status, stdout, stderr = replay(cli, f"{decoded}.jsonl")
    assert status == 0, stdout + stderr
    assert "15 answers" in stdout and "0 claims do not hold" in stdout

    first, *lines = (cli.folder / f"{decoded}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    with_exceptions = [row for row in rows if row["exceptions"]]
    with_exceptions[0]["ledger"]["spent"] = 0.0
    with_exceptions[1]["exceptions"].pop(0)
    changed = [row for row in rows if row["arm"] == "strict"][0]
    changed["token_ids"][3] = (changed["token_ids"][3] + 1) % 250
    (cli.folder / "planted.jsonl").write_text("\n".join([first, *map(json.dumps, rows)]) + "\n")
    (cli.folder / "planted.replay.jsonl").unlink(missing_ok=True)
    status, stdout, stderr = replay(cli, "planted.jsonl")
    assert status == 1, stdout + stderr
    lines = (cli.folder / "planted.replay.jsonl").read_text().splitlines()[1:]
    found = {
        (entry["id"], entry["arm"]): {finding["kind"] for finding in entry["findings"]}
        for entry in map(json.loads, lines)
        if entry["findings"]
    }
    wrong = {(row["id"], row["arm"]) for row in (*with_exceptions[:2], changed)}
    assert found.keys() == wrong
    assert found[with_exceptions[0]["id"], "asd"] == {"spent"}
    assert "unlisted" in found[with_exceptions[1]["id"], "asd"]
    assert found[changed["id"], "strict"] == {"unlisted"}


def test_cut_short_it_goes_on_and_ends_with_the_same_file(cli, decoded):
    shutil.copy(cli.folder / f"{decoded}.jsonl", cli.folder / "cut.jsonl")
    (cli.folder / "cut.replay.jsonl").unlink(missing_ok=True)
    assert replay(cli, "cut.jsonl")[0] == 0
    path = cli.folder / "cut.replay.jsonl"
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    path.write_bytes(whole[: start + (len(whole) - start) // 2])
    status, stdout, _ = replay(cli, "cut.jsonl")
    assert status == 0 and path.read_bytes() == whole
    assert 0 < stdout.count("findings,") < 15


def test_files_that_do_not_belong_together_are_named(cli, decoded):
    (cli.folder / "other.prompts").write_text('{"id": "p0", "prompt": "x"}\n')
    status, _, stderr = replay(cli, f"{decoded}.jsonl", "--prompts", "other.prompts")
    assert status == 2 and "prompts digest: got" in stderr
    status, _, stderr = replay(cli, f"{decoded}.prompts")
    assert status == 2 and "not an output file" in stderr
    status, _, stderr = replay(cli, "nowhere.jsonl")
    assert status == 2 and "nowhere.jsonl" in stderr
