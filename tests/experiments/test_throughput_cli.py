"""Throughput studies as a user meets them: a killed one goes on, and refusals come before work."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.evaluation.controls_file import ControlsError, FrozenControls, write_controls
from asd_jax.evaluation.records import OutputError
from asd_jax.evaluation.throughput import (
    ROLES,
    for_report,
    make_document,
    measure_tasks,
    parse_measurement,
)
from experiments import throughput
from experiments.fields import ConfigError
from experiments.throughput_config import SCHEMA
from experiments.throughput_inputs import prepare
from tests.evaluation.throughput.measured import last_whole

TOKENS, REPEATS = 12, 2
_CONFIG = f"""
from experiments.throughput_config import default_config

def get_config():
    config = default_config()
    config.directory = "study"
    config.repeats = {REPEATS}
    config.tasks.names = ("alpaca", "mt_bench")
    config.tasks.data = "speed_questions"
    config.decode.target = "model"
    config.decode.num_draft_tokens = 4
    config.decode.max_new_tokens = {TOKENS}
    config.decode.batch_size = 2
    config.decode.verifier.budget = 20.0
    config.decode.verifier.gate = 3.0
    return config
"""


def question(task, number, *turns, split="audit"):
    return {
        "id": f"{task}/{number}", "task": task, "split": split, "turns": list(turns),
        "reference": None, "meta": {},
    }  # fmt: skip


QUESTIONS = {
    "alpaca": [
        *(question("alpaca", i, "abcab" * (i + 1)) for i in range(3)),
        question("alpaca", 3, "not of this split", split="calibration"),
        question("alpaca", 4, "x" * 232),  # leaves no room for an answer
    ],
    "mt_bench": [question("mt_bench", i, "xyxyxy" + str(i), "never asked") for i in range(2)],
}
UNITS = {("alpaca", 0), ("alpaca", 1), ("mt_bench", 0)}
KEYS = {(*unit, repeat, role) for unit in UNITS for repeat in range(REPEATS) for role in ROLES}


@pytest.fixture(scope="module")
def folder(cli):
    """The folder of the command line, with questions and a configuration."""
    (cli.folder / "speed_questions").mkdir()
    for task, rows in QUESTIONS.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (cli.folder / "speed_questions" / f"{task}.jsonl").write_text(text)
    (cli.folder / "speed.py").write_text(_CONFIG)
    return cli.folder


def start(cli, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.throughput", "--config=speed.py", *arguments],
        cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def rows_of(path):
    first, *rows = map(json.loads, path.read_text().splitlines())
    assert list(first) == ["run"]
    return rows


def units_of(rows):
    return last_whole(map(parse_measurement, rows))


def key_of(row):
    return row["task"], row["batch"], row["repeat"], row["role"]


@pytest.fixture(scope="module")
def finished(cli, folder):
    """(stdout, bytes when it was killed) of a study that was killed inside a unit and went on."""
    path = folder / "study" / "measurements.jsonl"
    process = start(cli)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= 6:  # one unit and a bit
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    told = process.communicate()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 6, told
    # Where exactly it was killed is chance: inside the second unit, in the middle of a row.
    killed = b"".join(lines[:6]) + lines[5][:40]
    path.write_bytes(killed)
    assert not (folder / "study" / "throughput.json").exists()

    process = start(cli)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    return stdout, killed


def test_a_killed_study_ends_with_every_measurement_and_no_torn_unit(folder, finished):
    stdout, killed = finished
    path = folder / "study" / "measurements.jsonl"
    assert path.read_bytes().startswith(b"".join(killed.splitlines(keepends=True)[:-1]))
    rows = rows_of(path)
    assert {key_of(row) for row in rows} == KEYS
    # The first role of the second unit was there before, and was measured again with the others.
    assert len(rows) == len(KEYS) + 1
    assert key_of(rows[4]) == key_of(rows[5])
    assert "1 of 6 units of work are measured" in stdout and f"[20/{len(KEYS) - 4}]" in stdout
    units = units_of(rows)
    assert {(unit.task, unit.batch) for unit in units} == UNITS
    assert len(units) == len(UNITS) * REPEATS


def test_every_role_does_the_same_work_on_the_first_turns(folder, finished):
    prompts = [
        json.loads(line) for line in (folder / "study" / "prompts.jsonl").read_text().splitlines()
    ]
    assert [prompt["id"] for prompt in prompts] == [
        *(f"alpaca/{i}" for i in (0, 1, 2, 4)), "mt_bench/0", "mt_bench/1"
    ]  # fmt: skip
    assert prompts[-1]["turns"] == ["xyxyxy1"]
    rows = rows_of(folder / "study" / "measurements.jsonl")
    for row in rows:
        assert row["tokens"] == TOKENS * len(row["ids"])
        assert row["round_tokens"] == (TOKENS - 1) * len(row["ids"])
        assert row["prefill_seconds"] > 0 and row["rounds_seconds"] > 0
        assert row["arm"] == {"candidate": "asd", "greedy": "greedy"}.get(row["role"], "strict")
        assert (sum(row["exceptions"]) > 0) <= (row["role"] == "candidate")
    digests = {}
    for row in rows:
        digests.setdefault((row["task"], row["batch"], row["role"]), set()).add(row["digest"])
    assert all(len(found) == 1 for found in digests.values())
    # A random model's drafts are bad, but the controls are generous: ASD says something else.
    assert any(digests[*unit, "candidate"] != digests[*unit, "before"] for unit in UNITS)
    assert sum(sum(row["exceptions"]) for row in rows) > 0


def test_the_result_is_what_the_measurements_come_to(folder, finished):
    document = json.loads((folder / "study" / "throughput.json").read_text())
    units = units_of(rows_of(folder / "study" / "measurements.jsonl"))
    by_task = {
        name: {unit: rows for unit, rows in units.items() if unit.task == name}
        for name in QUESTIONS
    }
    again = make_document(
        *measure_tasks(by_task),
        run=document["run"], controls=document["controls"], left_out=document["left_out"],
    )  # fmt: skip
    assert again == document
    assert list(document["left_out"]) == ["alpaca"]
    assert list(document["left_out"]["alpaca"]) == ["alpaca/4"]
    assert document["tasks"]["alpaca"]["num_prompts"] == 3
    assert document["tasks"]["mt_bench"]["resampled"] == "repeats"
    assert document["tasks"]["alpaca"]["tokens_per_role"] == TOKENS * 3 * REPEATS
    # All gates but that of the clock hold on any machine.
    assert set(document["tasks"]["alpaca"]["reasons"]) <= {"baseline_drift_exceeds_limit"}
    run = document["run"]
    assert run["command"] == "python -m experiments.throughput --config=speed.py"
    assert run["prompts"]["name"] == "prompts.jsonl" and run["prompts"]["count"] == 6
    assert run["device"]["platform"] == "cpu" and run["versions"]["jax"] and "commit" in run
    assert document["controls"]["budget"] == 20.0 and document["controls"]["status"] is None
    assert set(for_report(document)[0]) == set(QUESTIONS)
    assert finished[0].rstrip().endswith("throughput.json and throughput.md")
    assert (folder / "study" / "throughput.md").read_text() in finished[0]


def test_batches_whose_strict_runs_differ_are_measured_again(cli, folder, finished):
    shutil.copytree(folder / "study", folder / "unsteady")
    # No two runs are that alike, so everything is unsteady until there were enough attempts.
    limits = ("--config.steady_percent=1e-9", "--config.max_attempts=2")
    process = start(cli, "--config.directory=unsteady", *limits)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    num_units = len(UNITS) * REPEATS
    assert f"{num_units} of {num_units} units of work are measured" in stdout
    assert f"{num_units} batches, as their two strict runs differ" in stdout
    rows, earlier = (
        rows_of(folder / name / "measurements.jsonl") for name in ("unsteady", "study")
    )
    assert rows[: len(earlier)] == earlier and len(rows) == len(earlier) + len(KEYS)
    counts = {name: REPEATS * sum(unit[0] == name for unit in UNITS) for name in QUESTIONS}
    document = json.loads((folder / "unsteady" / "throughput.json").read_text())
    first = json.loads((folder / "study" / "throughput.json").read_text())
    found = document["steadied"]
    assert (found["within_percent"], found["max_attempts"]) == (1e-9, 2)
    assert found["set_aside"] == counts and found["unsteady"] == counts
    assert first["steadied"] is None
    assert found["first_attempts"]["raw_gain_percent"] == first["mean"]["raw_gain_percent"]
    assert found["first_attempts"]["reasons"] == first["mean"]["reasons"]
    for name, task in first["tasks"].items():
        assert found["first_attempts"]["drift_percent"][name] == task["drift_percent"]
    # The later measurements are those that count.
    assert units_of(rows) == units_of(rows[len(earlier) :])
    assert "measurements were set aside: alpaca 4, mt_bench 2" in stdout
    assert "count and are not steady: alpaca 4, mt_bench 2" in stdout
    process = start(cli, "--config.directory=unsteady")
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2 and "steady_percent: got None, allowed is a number" in stderr


def config_of(folder, **changes):
    """The configuration of the file with some fields replaced; `a__b` is `a.b`."""
    names: dict = {}
    exec(_CONFIG, names)
    config = names["get_config"]()
    for name, value in changes.items():
        *path, last = name.split("__")
        node = config
        for part in path:
            node = node[part]
        node[last] = value
    return SCHEMA.read(config)


def test_a_finished_study_is_concluded_again_without_the_weights(folder, finished, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(throughput, "_measure", None)
    # The devices of this process are not those of the study's, which the receipt tells.
    real = throughput.prepare

    def prepared(config):
        found = real(config)
        timed_with = found.header["config"]["timed_with"]
        assert timed_with["count"] == 8
        fields = found.header["config"] | {"timed_with": timed_with | {"count": 1}}
        return dataclasses.replace(found, header={**found.header, "config": fields})

    monkeypatch.setattr(throughput, "prepare", prepared)
    path = folder / "study" / "throughput.json"
    before, measurements = path.read_bytes(), (folder / "study" / "measurements.jsonl").read_bytes()
    path.unlink()
    assert throughput.run(config_of(folder), "speed") == 0
    assert path.read_bytes() == before
    assert (folder / "study" / "measurements.jsonl").read_bytes() == measurements


def test_measurements_of_other_machines_and_settings_are_not_mixed(folder, finished, monkeypatch):
    monkeypatch.chdir(folder)
    before = (folder / "study" / "measurements.jsonl").read_bytes()
    with pytest.raises(OutputError, match="timed_with.count: 1 in the file, 8 now"):
        throughput.run(config_of(folder), "speed")
    for field, value in (("repeats", 3), ("with_greedy", False), ("decode__verifier__gate", 2.0)):
        name = field.removeprefix("decode__").replace("__", ".")
        with pytest.raises(OutputError, match=f"{name}: .* in the file, {value} now"):
            throughput.run(config_of(folder, **{field: value}), "speed")
    with pytest.raises(ConfigError, match="directory: .* holds other questions"):
        throughput.run(config_of(folder, tasks__limit=1), "speed")
    assert (folder / "study" / "measurements.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("decode__arms", ("strict",), "decode.arms: got .*sets it itself"),
        ("decode__trace", True, "decode.trace: got True, allowed is False"),
        ("decode__ignore_eos", True, "decode.ignore_eos: got True"),
        ("decode__limit", 3, "decode.limit: got 3, allowed is 0"),
        ("decode__output", "x.jsonl", "decode.output: got 'x.jsonl', allowed is None"),
        ("decode__prompts", "x.jsonl", "decode.prompts: got 'x.jsonl'"),
        ("decode__resume", True, "decode.resume: got True"),
        ("decode__processes__coordinator", "auto", "decode.processes.coordinator: got 'auto'"),
        ("decode__drafter", "none", "decode.drafter: got none, allowed is a drafter"),
        ("decode__max_new_tokens", 1, "decode.max_new_tokens: got 1, allowed is .* >= 2"),
        ("decode__verifier__rule", "strict", "decode.verifier.rule: got strict"),
        ("decode__mesh__data", 3, "decode.batch_size: got 2, allowed is a multiple"),
        ("controls", "controls.json", "decode.verifier.budget: got 20.0, .* controls file"),
        ("split", "test", "split: got 'test', allowed is one of calibration, audit"),
        ("repeats", 0, "repeats: got 0, allowed is a whole number >= 1"),
        ("tasks__names", ("gsm9k",), "tasks.names: got gsm9k"),
    ],
)
def test_fields_that_cannot_be_are_named(field, value, told):
    with pytest.raises(ConfigError, match=told):
        config_of(None, **{field: value})


def controls_of(folder, **changes):
    source = open_checkpoint(resolve(str(folder / "model")))
    controls = FrozenControls(
        20.0, 3.0, 1, "realised", 3, True, "discovery", source.digest(), "ngram", (), {}, {}
    )
    path = folder / "controls.json"
    write_controls(path, dataclasses.replace(controls, **changes))
    return dict(
        controls=str(path), directory=str(folder / "controlled"), tasks__names=("mt_bench",),
        decode__num_draft_tokens=None, decode__verifier__budget=8.0, decode__verifier__gate=0.25,
    )  # fmt: skip


def test_controls_of_any_status_are_taken_from_their_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    study = prepare(config_of(folder, **controls_of(folder)))
    assert study.run.num_draft_tokens == 3
    assert (study.settings.controls.budget, study.settings.controls.gate) == (20.0, 3.0)
    assert study.settings.controls.block_cap == 1 and study.settings.ignore_eos
    assert study.run.verifier.value_scheme == "realised"
    assert study.controls["status"] == "discovery" and len(study.controls["fingerprint"]) == 64


@pytest.mark.parametrize("name", ["target", "drafter"])
def test_controls_of_another_target_or_drafter_are_refused(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    with pytest.raises(ControlsError, match=f"controls.json: {name} digest: got"):
        prepare(config_of(folder, **controls_of(folder, **{name: "other"})))


def test_a_single_measurement_and_prompts_without_room_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    fields = dict(tasks__names=("mt_bench",), directory="single")
    with pytest.raises(ConfigError, match="repeats: got 1, allowed is 2 or more, as mt_bench"):
        prepare(config_of(folder, repeats=1, **fields))
    with pytest.raises(ConfigError, match="no prompt of mt_bench can be decoded, such as mt_b"):
        prepare(config_of(folder, decode__max_new_tokens=250, **fields))


@pytest.mark.slow
def test_the_command_tells_mistakes_with_status_2_and_goes_on_after_ctrl_c(cli, folder):
    process = start(cli, "--config.decode.drafter=none")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 2 and stderr.startswith("error: decode.drafter: got none")

    path = folder / "interrupted" / "measurements.jsonl"
    process = start(cli, "--config.directory=interrupted", "--config.repeats=1000")
    while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and "start the same command again" in stderr
    assert path.read_bytes().endswith(b"\n") and len(rows_of(path)) >= 2
