"""The frontier as a user meets it: points, files that a kill does not change, and messages."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asd_jax.acceptance import RULES
from asd_jax.evaluation.frontier import RIVAL_VALUES
from asd_jax.evaluation.report.study import read_study
from experiments import config as run_configs
from experiments.fields import ConfigError
from experiments.frontier_config import SCHEMA, default_config

CONFIG = """
from experiments.frontier_config import default_config

def get_config():
    config = default_config()
    config.tasks.names = ("gsm8k", "alpaca")
    config.tasks.data = "frontier_questions"
    config.decode.target = "model"
    config.decode.drafter = "ngram"
    config.decode.num_draft_tokens = 3
    config.decode.max_new_tokens = 16
    config.decode.batch_size = 4
    config.asd.budgets = "20,inf"
    config.asd.gates = "4"
    config.asd.block_caps = "2"
    config.rules = ("mars", "static_ensemble", "rejection_sampling")
    config.rivals = {"mars": {}}
    config.bootstrap.num_resamples = 200
    config.directory = "drawn"
    return config
"""
OWN_FILES = ("frontier.json", "frontier.md")
SETTINGS = ("asd_remaining.jsonl", "asd_realised.jsonl", "anchors.jsonl", "rivals/mars.jsonl")


# All rivals at their defaults, and one of them at another value as well.
EVERY = CONFIG.replace('"mars", "static_ensemble", "rejection_sampling"', "*RIVAL_VALUES,").replace(
    'config.rivals = {"mars": {}}',
    'config.rivals = dict.fromkeys(RIVAL_VALUES, {}) | {"static_ensemble": {"weight": [0.9]}}',
)
EVERY = "from asd_jax.evaluation.frontier import RIVAL_VALUES" + EVERY


def start(cli, name="frontier_tiny", **changed):
    flags = [f"--config.{name.replace('__', '.')}={value}" for name, value in changed.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.frontier", f"--config={name}.py", *flags],
        cwd=cli.folder, env=cli.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process):
    stdout, stderr = process.communicate(timeout=900)
    return process.returncode, stdout, stderr


def question(task, number, split="calibration"):
    return {
        "id": f"{task}/{number}", "task": task, "split": split, "turns": ["ab" * (number + 2)],
        "reference": "4" if task == "gsm8k" else None, "meta": {},
    }  # fmt: skip


@pytest.fixture(scope="module")
def ready(cli):
    """The folder with questions, a configuration, and a drafter that is nearly the target."""
    (cli.folder / "frontier_questions").mkdir()
    for task in ("gsm8k", "alpaca"):
        rows = [question(task, i) for i in range(3)] + [question(task, 3, "audit")]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (cli.folder / "frontier_questions" / f"{task}.jsonl").write_text(text)
    (cli.folder / "frontier_tiny.py").write_text(CONFIG)
    (cli.folder / "frontier_every.py").write_text(EVERY)
    shutil.copytree(cli.folder / "model", cli.folder / "small")
    rng = np.random.default_rng(1)
    weights = load_file(cli.folder / "small" / "model.safetensors")
    noisy = {n: w + rng.normal(0, 0.02, w.shape).astype(w.dtype) for n, w in weights.items()}
    save_file(noisy, cli.folder / "small" / "model.safetensors")
    return cli


@pytest.fixture(scope="module")
def drawn(ready):
    """A frontier: (stdout, what frontier.json holds)."""
    status, stdout, stderr = finish(start(ready))
    assert status == 0, stdout + stderr
    return stdout, json.loads((ready.folder / "drawn" / "frontier.json").read_text())


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def test_every_setting_is_a_point_and_what_cannot_be_drawn_is_told(ready, drawn):
    stdout, found = drawn
    study = read_study(
        {"run": found["run"], "frontier": found["points"], "frontier_units": found["units"]}
    )
    assert study.not_shown == []
    names = [(p["rule"], p["options"].get("value_scheme")) for p in found["points"]]
    asd = [("asd", "remaining")] * 2 + [("asd", "realised")] * 2
    assert names == [("strict", None), ("autoregressive", None), *asd, ("mars", None)]
    assert [p["options"]["budget"] for p in found["points"][2:6]] == [20.0, "inf"] * 2
    assert found["points"][6]["options"] == {"theta": 0.9}
    by_rule = {point["rule"]: point for point in found["points"]}
    assert by_rule["strict"]["speed"]["estimate"] == by_rule["strict"]["quality"]["high"] == 0
    single = by_rule["autoregressive"]["details"]
    assert single["tokens_per_forward"]["estimate"] == 1 and single["divergence"]["estimate"] == 0
    reasons = {entry["rule"]: entry["reason"] for entry in found["left_out"]}
    assert reasons.keys() == {"static_ensemble", "rejection_sampling"}
    assert "static_ensemble: it reads the drafter's distribution" in stdout
    assert "written drawn/frontier.md" in stdout
    assert found["schemes"]["verdict"] in (ready.folder / "drawn" / "frontier.md").read_text()


def test_points_are_those_of_the_rows_and_only_calibration_is_asked(ready, drawn):
    _, found = drawn
    folder = ready.folder / "drawn"
    asked = [json.loads(line)["id"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert asked == [f"{task}/{i}" for task in ("gsm8k", "alpaca") for i in range(3)]
    strict = [row for row in rows_of(folder / "anchors.jsonl") if row["arm"] == "strict"]
    loose = [row for row in rows_of(folder / "asd_remaining.jsonl") if row["id"].endswith("#1")]
    exceptions = [row["ledger"]["exceptions"] for row in loose]
    assert sum(exceptions) >= 3  # there is something to see

    def rate(rows, task):
        own = [row for row in rows if row["id"].startswith(task)]
        tokens = sum(row["completion_tokens"] - 1 for row in own)
        return tokens / sum(row["ledger"]["rounds"] for row in own)

    changes = [100 * (rate(loose, t) / rate(strict, t) - 1) for t in ("gsm8k", "alpaca")]
    point = found["points"][3]
    assert point["speed"]["estimate"] == pytest.approx(np.mean(changes))
    details = point["details"]
    assert details["exceptions_per_answer"]["estimate"] == pytest.approx(np.mean(exceptions))
    assert details["num_examples"] == {"gsm8k": 3, "alpaca": 3} and details["num_graded"] == 3
    seeds = {json.loads(x)["id"]: json.loads(x)["seed"] for x in (folder / "grid.jsonl").open()}
    assert [seeds[f"gsm8k/1#{n}"] for n in (0, 1)] == [1, 1]


def test_cut_short_it_goes_on_and_ends_with_the_same_files(ready, drawn):
    whole, cut = ready.folder / "drawn", ready.folder / "cut"
    shutil.copytree(whole, cut)
    for name in OWN_FILES:
        (cut / name).unlink()
    for name in ("asd_realised.jsonl", "grades.jsonl"):  # as if killed while writing a line
        content = (cut / name).read_bytes()
        (cut / name).write_bytes(content[: 3 * len(content) // 4 - 1])
    shutil.move(cut, ready.folder / "elsewhere" / "drawn")
    status, stdout, stderr = finish(start(ready, directory="elsewhere/drawn"))
    assert status == 0, stdout + stderr
    assert stdout.count("nothing to do: all answers are there") == 3
    again = ready.folder / "elsewhere" / "drawn"
    for name in SETTINGS:
        assert rows_of(again / name) == rows_of(whole / name)
    for name in ("grades.jsonl", "frontier.md"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()
    documents = [json.loads((folder / "frontier.json").read_text()) for folder in (again, whole)]
    for document in documents:
        del document["run"]["config"]["directory"]
        command = document["run"].pop("command")
        assert command.startswith("python -m experiments.frontier --config=")
    assert documents[0] == documents[1]


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_files(ready, drawn):
    whole, killed = ready.folder / "drawn", ready.folder / "frontier_killed" / "drawn"
    for output, number in (
        ("anchors.jsonl", signal.SIGKILL),
        ("asd_remaining.jsonl", signal.SIGTERM),
        ("asd_realised.jsonl", signal.SIGKILL),
    ):
        process = start(ready, directory="frontier_killed/drawn")
        deadline = time.monotonic() + 200
        while process.poll() is None and time.monotonic() < deadline:
            if (killed / output).exists() and (killed / output).read_bytes().count(b"\n") > 1:
                break  # a row has come, behind the header
            time.sleep(0.005)
        process.send_signal(number)
        process.communicate()
        assert not (killed / "frontier.json").exists()
    status, stdout, stderr = finish(start(ready, directory="frontier_killed/drawn"))
    assert status == 0, stdout + stderr
    for name in ("grades.jsonl", "frontier.md"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    for name in SETTINGS:
        assert rows_of(killed / name) == rows_of(whole / name)


@pytest.mark.slow
def test_all_rivals_are_drawn_with_a_drafter_that_has_a_distribution(ready):
    status, stdout, stderr = finish(
        start(ready, "frontier_every", directory="frontier_all", decode__drafter="small",
              decode__temperature=0.7, asd__value_schemes="realised", asd__budgets="20",
              split="audit", tasks__data="samples", tasks__names="mmlu", tasks__limit=2)
    )  # fmt: skip
    assert status == 0, stdout + stderr
    found = json.loads((ready.folder / "frontier_all" / "frontier.json").read_text())
    assert found["left_out"] == [] and found["schemes"] is None and found["split"] == "audit"
    assert found["run"]["command"].startswith("python -m experiments.frontier --config=")
    assert {p["rule"] for p in found["points"]} == (set(RULES) | {"autoregressive"})
    assert all(point["options"]["split"] == "audit" for point in found["points"])
    assert "These are audit examples" in (ready.folder / "frontier_all" / "frontier.md").read_text()
    ensemble = (ready.folder / "frontier_all" / "rivals").glob("static_ensemble*.jsonl")
    runs = [json.loads(path.read_text().splitlines()[0])["run"] for path in ensemble]
    assert [run["config"]["verifier"].get("options") for run in runs].count({"weight": 0.9}) == 1


def changed(**fields):
    config = default_config().to_dict()
    config["tasks"]["names"] = ("gsm8k",)
    config["decode"]["num_draft_tokens"] = 3
    for name, value in fields.items():
        *path, last = name.split("__")
        group = config
        for part in path:
            group = group[part]
        group[last] = value
    return config


def test_the_configuration_that_comes_along_can_be_run():
    file = importlib.import_module("experiments.configs.frontier_smollm2")
    config = SCHEMA.read(file.get_config())
    assert len(config.grid) == 4 and config.rules == tuple(RIVAL_VALUES)
    assert len(SCHEMA.read(changed()).rival_settings) > len(RIVAL_VALUES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"decode__arms": ("strict",)},
            r"decode\.arms: got \('strict',\), allowed is .*, as it is",
        ),
        ({"decode__ignore_eos": True}, r"decode\.ignore_eos: got True, allowed is False"),
        ({"decode__limit": 3}, r"decode\.limit: got 3"),
        ({"decode__verifier": {"budget": 4.0}}, r"decode\.verifier\.budget: got 4\.0"),
        ({"decode__verifier": {"options": {"x": 1}}}, r"decode\.verifier\.options: got {'x': 1}"),
        ({"decode__num_draft_tokens": None}, r"decode\.num_draft_tokens: got None"),
        ({"decode__drafter": "none"}, r"decode\.drafter: got none, allowed is one that drafts"),
        ({"tasks__names": ("alpaca",)}, r"tasks\.names: got alpaca, allowed is one or more of gsm"),
        ({"tasks__names": ("gsm",)}, r"tasks\.names: got gsm, allowed"),
        ({"asd__budgets": "8,0"}, r"asd\.budgets: got '8,0', allowed is one or more numbers > 0"),
        ({"asd__gates": "x"}, r"asd\.gates: got 'x', allowed is one or more numbers > 0"),
        (
            {"asd__block_caps": "1,1.5"},
            r"asd\.block_caps: got '1,1\.5', allowed is one or more whole",
        ),
        ({"asd__value_schemes": ("raw",)}, r"asd\.value_schemes: got raw, allowed is one or more"),
        ({"rules": ("asd",)}, r"rules: got asd, allowed are rejection_sampling"),
        ({"rules": ("fly",), "rivals": {"mars": {}}}, r"rivals: got mars, allowed are .* fly"),
        ({"rivals": {"mars": 3}}, r"rivals\.mars: got 3, allowed is a dictionary"),
        ({"rivals": {"mars": {"theta": [7]}}}, r"rivals\.mars\.theta: got 7, allowed is a number"),
        ({"rivals": {"mars": {"beta": [7]}}}, r"rivals\.mars\.beta: no such option"),
        ({"split": "test"}, r"split: got 'test', allowed is one of calibration, audit"),
    ],
)
def test_a_bad_field_is_named_before_any_work(fields, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        SCHEMA.read(changed(**fields))


def test_a_run_takes_options_of_its_rule_and_refuses_others():
    def read(rule, **fields):
        options, drafter = fields.get("options", {}), fields.get("drafter", "ngram")
        verifier = {"rule": rule, "options": options}
        config = {"verifier": verifier, "drafter": drafter, "arms": ("strict", rule)}
        return run_configs.SCHEMA.read(config | fields.get("more", {}))

    config = read("mars", options={"theta": 0.5})
    assert config.verifier.options == {"theta": 0.5}
    rule = run_configs.make_rule("mars", "remaining", {"theta": 0.5})
    assert rule is RULES["mars"](0.5) and not rule.reads_draft_logits
    for message, arguments in (
        ("verifier.options: got beta, allowed is theta", ("mars", {"beta": 1})),
        (r"verifier.options.theta: got 2, allowed is a number", ("mars", {"theta": 2})),
        ("verifier.options: got value_scheme, allowed is none", ("asd", {"value_scheme": "x"})),
    ):
        name, options = arguments
        with pytest.raises(ConfigError, match=message):
            run_configs.SCHEMA.read({"verifier": {"rule": name, "options": options},
                                     "arms": ("strict", name)})  # fmt: skip
    with pytest.raises(ConfigError, match="verifier.rule: got static_ensemble with drafter ngram"):
        read("static_ensemble")
    assert read("static_ensemble", drafter="some/model").drafter == "some/model"
    read("static_ensemble", more={"arms": ("strict",)})
