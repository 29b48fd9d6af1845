"""Distillation as a user meets it: answers by one command, a drafter by the next, a run with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from experiments import distill_config
from experiments.fields import ConfigError

CONFIG = """
from experiments.distill_config import default_config

def get_config():
    config = default_config()
    config.target = "model"
    config.prompts = "train.jsonl"
    config.answers = "answers.jsonl"
    config.drafter.family = "medusa"
    config.drafter.num_draft_tokens = 2
    config.optimizer.num_steps = 12
    config.optimizer.learning_rate = 1e-2
    config.batch_size = 4
    config.max_tokens = 64
    config.held_out_fraction = 0.3
    config.evaluate_prompts = 4
    config.evaluate_tokens = 12
    config.evaluate_every = 6
    config.log_every = 3
    return config
"""


def distill(cli, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.distill", "--config=distill.py", *arguments],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_from_prompts_to_a_drafter_that_decodes(cli):
    prompts = [{"id": f"train/{i}", "prompt": "ab" * (i % 5 + 2) + str(i)} for i in range(24)]
    audit = {"id": "task/1", "split": "audit", "turns": [prompts[3]["prompt"]]}
    (cli.folder / "train.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (cli.folder / "audit.jsonl").write_text(json.dumps(audit))
    (cli.folder / "distill.py").write_text(CONFIG)
    status, _, stderr = cli.run(
        prompts="train.jsonl", arms="greedy", output="answers.jsonl", batch_size=8
    )
    assert status == 0, stderr

    status, stdout, stderr = distill(cli, "--config.exclude=audit.jsonl")
    assert status == 0, stderr
    # The question of the audit row, also with other numbers in it.
    assert "'excluded': 5" in stdout and "held out:" in stdout
    folder = cli.folder / "outputs" / "distilled"
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints", "log.jsonl", "curves.png", "drafter",
    }  # fmt: skip
    card = (folder / "drafter" / "README.md").read_text()
    assert "medusa drafter for model" in card and '"num_steps": 12' in card

    # Started again there is nothing left to train, and the same drafter is written.
    before = (folder / "drafter" / "medusa_lm_head.safetensors").read_bytes()
    status, _, stderr = distill(cli, "--config.exclude=audit.jsonl")
    assert status == 0, stderr
    assert (folder / "drafter" / "medusa_lm_head.safetensors").read_bytes() == before
    status, _, stderr = distill(cli, "--config.exclude=audit.jsonl", "--config.seed=1")
    assert status == 2 and "another configuration: seed differ" in stderr

    status, stdout, stderr = cli.run(
        prompts="train.jsonl", drafter=str(folder / "drafter"), limit=2,
        num_draft_tokens=2, output="with_drafter.jsonl",
    )  # fmt: skip
    assert status == 0, stderr
    rows = [json.loads(x) for x in (cli.folder / "with_drafter.jsonl").read_text().splitlines()]
    by_arm = {(row["id"], row["arm"]): row["token_ids"] for row in rows[1:]}
    for request in ("train/0", "train/1"):
        assert by_arm[request, "strict"] == by_arm[request, "greedy"]
    summary = json.loads((cli.folder / "with_drafter.summary.json").read_text())
    assert summary["drafter"]["name"] == "medusa" and summary["drafter"]["num_params"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafter": {"family": "lstm"}}, "drafter.family: got 'lstm'"),
        ({"drafter": {"feature_layers": ("1", "x")}}, "drafter.feature_layers: got 1,x"),
        ({"drafter": {"draft_vocab_size": 0}}, "drafter.draft_vocab_size: got 0"),
        ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate: got 0.0"),
        ({"batch_size": 3, "data_devices": 2}, "batch_size: got 3, allowed is a multiple"),
        ({"steps": 3}, "steps: no such field"),
    ],
)
def test_impossible_values_are_named(change, message):
    with pytest.raises(ConfigError) as told:
        distill_config.SCHEMA.read(change)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize("family", ["dspark", "eagle3", "medusa"])
def test_every_configuration_file_can_be_read(family):
    import importlib

    module = importlib.import_module(f"experiments.configs.distill_smollm2_{family}")
    assert distill_config.SCHEMA.read(module.get_config()).drafter.family == family
