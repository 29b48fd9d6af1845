"""The planner as a user meets it: tables and JSON, messages, exit status, and little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import plan_config
from experiments.fields import ConfigError
from tests.experiments.forks import run_each

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = """
from experiments.plan_config import default_config

def get_config():
    config = default_config()
    config.target = {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
        "max_position_embeddings": 256,
    }
    config.drafter.family = "medusa"
    config.drafter.config = {
        "hidden_size": 32, "vocab_size": 96, "medusa_num_heads": 2, "medusa_num_layers": 1,
    }
    config.num_draft_tokens = 2
    config.batch_size = 4
    config.prompt_length = 16
    config.max_new_tokens = 8
    config.mesh.data = 2
    config.mesh.model = 2
    return config
"""


def plan(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs the planner in a process of its own; returns (exit status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "experiments.plan", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "110"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    return tmp_path


def test_a_tiny_plan_is_shown_and_written(folder):
    """The tests' own number of host devices is in the environment and must not win."""
    status, stdout, stderr = plan(folder, "--config=tiny.py", "--config.output=out/plan.json")
    assert (status, stderr) == (0, "")
    for shown in ("data 2 x model 2", "target weights", "temporaries, prefill", "all-reduce"):
        assert shown in stdout
    for chip in ("v5e", "v5p", "v6e", "A100", "H100", "H200"):
        assert [line.split()[-1] for line in stdout.splitlines() if line.split()[:1] == [chip]] == [
            "yes"
        ]
    record = json.loads((folder / "out" / "plan.json").read_text())
    assert record["chips"]["v6e"] == {
        "memory": 32 * 10**9,
        "source": "https://docs.cloud.google.com/tpu/docs/v6e",
        "fits": True,
    }
    sums = record["footprint"]["greedy_exchanges"][0]
    # Two layers of two sums, and the embedding; 2 rows a device of G + 1 tokens.
    assert (sums["times"], sums["elements"], sums["dtype"]) == (5, 32 * 2 * 3, "bf16")
    # Blocks lie whole on every device, output projections are divided.
    assert record["footprint"]["drafter_weights"] == 2 * (32 * 32 + 32 + 96 // 2 * 32) * 2
    assert record["config"]["target"]["vocab_size"] == 96

    again = plan(folder, "--config=tiny.py", "--config.output=out/plan.json")
    assert again[0] == 2 and "never overwritten" in again[2]


def test_a_plan_of_true_size_allocates_no_weights(tmp_path):
    """16 GB of weights on one device are told by a process that never had 1 GB."""
    config = REPOSITORY / "experiments/configs/plan_qwen3_8b_dspark.py"
    status, stdout, stderr = plan(
        tmp_path,
        f"--config={config}",
        "--config.compile=False",
        "--config.mesh.model=1",
        "--config.chip=v5e",
        "--config.output=plan.json",
    )
    assert (status, stderr) == (0, "")
    record = json.loads((tmp_path / "plan.json").read_text())
    footprint = record["footprint"]
    assert round(footprint["target_parameters"] / 1e9, 2) == 8.19
    assert footprint["target_weights"] == 2 * footprint["target_parameters"]
    assert footprint["drafter_weights"] == 4_742_163_458
    assert footprint["prefill"] is None and footprint["greedy_exchanges"] is None
    assert record["chips"] == {
        "v5e": record["chips"]["v5e"] | {"memory": 16 * 10**9, "fits": False}
    }
    assert "fits, without temporaries" in stdout and "all-reduce" not in stdout
    assert record["peak_memory_of_planning_bytes"] < 10**9 < footprint["target_weights"] / 16


def test_what_is_wrong_is_told_in_one_line_and_help_lists_all_fields(folder):
    wrong = {
        "--config.chip=v9": "chip: got 'v9', allowed is one of v5e, v6e, A100",
        "--config.chips=v5e": "chips: no such field; did you mean chip?",
        "--config.mesh.model=two": "mesh.model: got 'two', allowed is a whole number 1..1024",
        "--config.mesh.model=3": "mesh model axis: got 3, allowed is a divisor of num_heads 4",
        "--config.batch_size=3": "batch_size: got 3, allowed is a multiple of 2",
        "--config.target.model_type=gpt2": "model_type: got 'gpt2', allowed is one of",
        "more": "got 'more', allowed are only flags",
    }
    cases = [["--config=tiny.py", argument] for argument in wrong]
    *outcomes, missing, asked = run_each(
        [*cases, [], ["--help"]],
        program="plan",
        schema="plan_config",
        folder=folder,
        environment=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    for (status, _, stderr), message in zip(outcomes, wrong.values(), strict=True):
        assert status == 2
        assert stderr.startswith(f"error: {message}") and stderr.count("\n") == 1, stderr
    assert missing[0] == 2 and "--config=FILE is missing" in missing[2]
    assert asked[0] == 0
    assert all(f"--config.{name}=" in asked[1] for name, _, _ in plan_config.SCHEMA.table())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"headroom": 1.0}, "headroom: got 1.0, allowed is a number >= 0 and < 1"),
        ({"headroom": True}, "headroom: got True"),
        ({"batch_size": True}, "batch_size: got True, allowed is a whole number 1..65536"),
        ({"mesh": {"data": 64, "model": 64}}, "mesh: got 64 x 64 devices"),
        ({"output": " "}, "output: got ' '"),
        ({"target": 3}, "target: got 3, allowed is a dictionary"),
        ({"drafter": {"familly": "dspark"}}, "drafter.familly: no such field; did you mean"),
    ],
)
def test_impossible_values_are_named(change, message):
    with pytest.raises(ConfigError) as told:
        plan_config.SCHEMA.read({"target": {}} | change)
    assert str(told.value).startswith(message)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError) as told:
        plan_config.SCHEMA.read({"target": {}, "chip": "v9", "dtype": "int8", "batch": 1})
    assert len(str(told.value).splitlines()) == 3
