"""A small audit on the tiny target: questions, frozen controls, and studies to show beside it."""

from __future__ import annotations

import dataclasses
import json
import math

from asd_jax.checkpoints.locate import open_checkpoint
from asd_jax.evaluation.controls_file import FrozenControls, write_controls
from experiments.audit_config import SCHEMA, AuditConfig
from experiments.audit_inputs import Audit, prepare
from tests.experiments.conftest import Cli

TURNS = {"mmlu": ("abcabc 1\nA. a\nB. b", "xyxy\nA. y\nB. x"), "mt_bench": ("abab", "cdcd")}
META = {"mmlu": {"subject": "bytes"}, "mt_bench": {"reference_turns": None}}
CONFIG = """
from experiments.audit_config import default_config

def get_config():
    config = default_config()
    config.controls = "frozen.json"
    config.tasks.names = ("mmlu", "mt_bench")
    config.tasks.data = "audit_questions"
    config.decode.target = "model"
    config.decode.max_new_tokens = 20
    return config
"""


def example(task: str, number: int, split: str) -> dict:
    turns = TURNS[task] if task == "mt_bench" else TURNS[task][number % 2 :][:1]
    turns = [f"{turn}{number * 7}" for turn in turns]
    return {
        "id": f"{task}/{split}/{number}", "task": task, "split": split, "turns": turns,
        "reference": "A" if task == "mmlu" else "abab cdcd", "meta": META[task],
    }  # fmt: skip


def interval(estimate: float, spread: float = 1.0) -> dict:
    low, high = estimate - spread, estimate + spread
    return {"estimate": estimate, "low": low, "high": high, "confidence": 0.95}


def timing(percent: float, **fields: object) -> dict:
    """Returns a task of a throughput study, as far as the report shows it."""
    plain = {"raw_gain_percent": interval(percent), "protocol_valid": True, "drift_percent": 0.5}
    return plain | {"reasons": [], "triples": 9} | fields


THROUGHPUT = {
    "format": 1,
    "tasks": {"mmlu": timing(7.0), "mt_bench": timing(5.0)},
    "mean": {"gain_percent": interval(6.0)},
}
FRONTIER = {
    "points": [
        {"rule": "typical", "speed": interval(2.0), "quality": interval(0.0), "spare": 1},
        {
            "rule": "asd", "speed": interval(9.0), "quality": interval(0.0),
            "options": {"budget": "inf", "gate": 3.0, "block_cap": 2, "value_scheme": "remaining"},
        },
    ],
    "units": {"speed": "percent", "quality": "points"},
}  # fmt: skip


def set_up(cli: Cli) -> Cli:
    """Writes questions, frozen controls and two other studies into the command line's folder."""
    folder = cli.folder
    (folder / "audit_questions").mkdir(exist_ok=True)
    for task in TURNS:
        rows = [example(task, n, split) for split in ("calibration", "audit") for n in range(3)]
        (folder / "audit_questions" / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_controls(folder / "frozen.json", controls(cli))
    (folder / "audit.py").write_text(CONFIG)
    run = {"target": {"digest": controls(cli).target}, "drafter": {"name": "ngram", "digest": None}}
    run["config"] = {"decode": {"num_draft_tokens": 4}}
    of_controls = {"fingerprint": controls(cli).fingerprint, "rule": "asd"}
    throughput = THROUGHPUT | {"run": run, "controls": of_controls}
    (folder / "throughput.json").write_text(json.dumps(throughput))
    (folder / "frontier.json").write_text(json.dumps(FRONTIER | {"run": run}))
    return cli


def controls(cli: Cli, **changed: object) -> FrozenControls:
    """Returns controls that fit the tiny target and permit exceptions."""
    made = FrozenControls(
        budget=math.inf, gate=3.0, block_cap=2, value_scheme="remaining", num_draft_tokens=4,
        protect_stop_ids=True, status="frozen",
        target=open_checkpoint(cli.folder / "model").digest(), drafter="ngram",
        calibration_ids=("mmlu/calibration/0",),
        chosen={"method": "risk", "epsilon": 0.02, "table": [[n, n] for n in range(99)]}, run={},
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def config_of(decode: dict | None = None, **fields: object) -> AuditConfig:
    tasks = {"names": ("mmlu", "mt_bench"), "data": "audit_questions"} | fields.pop("tasks", {})
    run = {"target": "model", "max_new_tokens": 20} | (decode or {})
    values = {"controls": "frozen.json", "directory": "unused", "tasks": tasks, "decode": run}
    return SCHEMA.read(values | fields)


def prepared(place: Cli, monkeypatch, **fields: object) -> Audit:
    monkeypatch.chdir(place.folder)
    return prepare(config_of(**fields))
