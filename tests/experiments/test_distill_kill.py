"""A training run that is killed, or runs out of disk, loses nothing that was saved."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

CONFIG = """
from experiments.distill_config import default_config

def get_config():
    config = default_config()
    config.target = "model"
    config.prompts = "train.jsonl"
    config.answers = "answers.jsonl"
    config.drafter.family = "medusa"
    config.drafter.num_draft_tokens = 2
    config.drafter.num_layers = 4
    config.optimizer.num_steps = 60
    config.optimizer.accumulation = 2
    config.optimizer.learning_rate = 1e-2
    config.feature_cache.directory = "features"
    config.batch_size = 4
    config.max_tokens = 64
    config.held_out_fraction = 0.3
    config.evaluate_prompts = 2
    config.evaluate_tokens = 8
    config.evaluate_every = 8
    config.log_every = 1
    return config
"""
# Files beyond this cannot be written: a disk that is full where it matters.
LIMITED = (
    "import resource, runpy, sys; sys.argv = ['distill', *sys.argv[1:]];"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
    "runpy.run_module('experiments.distill', run_name='__main__')"
)
MODULE = ("-m", "experiments.distill")
pytestmark = pytest.mark.slow


def start(cli, directory, how=MODULE, *arguments):
    return subprocess.Popen(
        [sys.executable, *how, "--config=distill.py", f"--config.directory={directory}",
         *arguments],
        cwd=cli.folder, env=cli.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process):
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


def logged(directory):
    path = directory / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    steps = []
    for line in lines:
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            continue
    return max(steps, default=0)


def weights(directory):
    return safetensors.numpy.load_file(directory / "drafter" / "medusa_lm_head.safetensors")


@pytest.fixture(scope="module")
def trained(cli):
    """A folder in which a run has gone through undisturbed."""
    prompts = [{"id": f"train/{i}", "prompt": "ab" * (i % 5 + 2) + str(i)} for i in range(24)]
    (cli.folder / "train.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (cli.folder / "distill.py").write_text(CONFIG)
    status, _, stderr = cli.run(
        prompts="train.jsonl", arms="greedy", output="answers.jsonl", batch_size=8
    )
    assert status == 0, stderr
    status, _, stderr = finish(start(cli, "whole"))
    assert status == 0, stderr
    return cli


def assert_the_same(cli, one, other):
    a, b = weights(cli.folder / one), weights(cli.folder / other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    lines = [(cli.folder / x / "log.jsonl").read_text().splitlines() for x in (one, other)]
    plain = [
        [{k: v for k, v in json.loads(x).items() if k != "seconds_per_batch"} for x in part]
        for part in lines
    ]
    assert plain[0] == plain[1]


def test_killed_at_a_random_step_it_ends_with_the_same_bits(trained):
    draw = random.Random()  # another step in each run of this test
    kills = sorted(draw.sample(range(2, 110), 2))
    print("killed at steps", kills)  # shown where the test fails
    directory = trained.folder / "killed"
    for kill in kills:
        process = start(trained, "killed")
        until = time.monotonic() + 200
        while logged(directory) < kill and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        status, stdout, stderr = finish(process)
        assert status == -signal.SIGKILL, stderr + stdout
    status, _, stderr = finish(start(trained, "killed"))
    assert status == 0, stderr
    assert_the_same(trained, "whole", "killed")


def test_a_full_disk_is_named_and_the_last_step_is_kept(trained):
    process = start(trained, "full")
    directory = trained.folder / "full"
    until = time.monotonic() + 200
    while logged(directory) < 20 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    finish(process)
    before = {path.name for path in (directory / "checkpoints" / "last").iterdir()}
    status, _, stderr = finish(start(trained, "full", ("-c", LIMITED)))
    assert status == 2, stderr
    # Orbax's own threads may complain as well; the message is what the user is left with.
    told = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert any("cannot be saved" in line and "checkpoints" in line for line in told), stderr
    kept = {path.name for path in (directory / "checkpoints" / "last").iterdir()}
    assert {name for name in before if name.isdecimal()} <= kept
    status, _, stderr = finish(start(trained, "full"))
    assert status == 0, stderr
    assert_the_same(trained, "whole", "full")
