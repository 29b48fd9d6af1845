"""What an audit refuses before any work: it would prove nothing, or end badly hours later."""

from __future__ import annotations

import json
import math
import signal

import pytest

from asd_jax.evaluation.audit import AuditError
from asd_jax.evaluation.controls_file import ControlsError, write_controls
from asd_jax.evaluation.tasks import read_examples, sample_path
from experiments import audit as audit_cli
from experiments import command_line
from experiments.fields import ConfigError
from tests.experiments.audit_study import (
    config_of,
    controls,
    example,
    prepared,
    set_up,
    timing,
)
from tests.experiments.conftest import Cli


@pytest.fixture(scope="module")
def place(cli) -> Cli:
    """The command line's folder with what an audit needs."""
    return set_up(cli)


def test_an_unusable_audit_ends_with_status_2_and_writes_nothing(place, monkeypatch, capfd):
    write_controls(place.folder / "candidate.json", controls(place, status="candidate"))
    config = config_of(controls="candidate.json", directory="refused")
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(command_line, "checked_config", lambda schema: (config, "audit"))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert audit_cli.main(["audit"]) == 2
    finally:
        signal.signal(signal.SIGTERM, handler)
    told = capfd.readouterr()
    assert "candidate.json: status: got 'candidate', allowed is 'frozen'" in told.err
    assert not told.out and not (place.folder / "refused").exists()


def test_controls_reach_the_run(place, monkeypatch):
    run = prepared(place, monkeypatch).run
    assert (run.verifier.budget, run.verifier.gate, run.verifier.block_cap) == (math.inf, 3.0, 2)
    assert run.num_draft_tokens == 4 and not run.ignore_eos


@pytest.mark.parametrize(
    ("limits", "mmlu", "mt_bench"),
    [({}, 64, 100), ({"mt_bench": 30}, 64, 30), ({"mt_bench": 200, "mmlu": 80}, 64, 100)],
)
def test_the_lowest_of_a_tasks_own_the_runs_and_the_named_limit_holds(
    place, monkeypatch, limits, mmlu, mt_bench
):
    audit = prepared(place, monkeypatch, decode={"max_new_tokens": 100}, limits=limits)
    assert [(row["task"], row["max_new_tokens"]) for row in audit_cli._rows(audit)] == (
        [("mmlu", mmlu)] * 3 + [("mt_bench", mt_bench)] * 3
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"status": "discovery"}, "other.json: status: got 'discovery'"),
        ({"target": "f" * 64}, "target digest: got .*, the controls were chosen for ffff"),
        ({"drafter": "e" * 64}, "drafter digest: got ngram, the controls were chosen for eeee"),
        ({"run": {"tokenizer": {"digest": "k"}}}, "tokenizer digest: got .*, .* chosen for k"),
        ({"calibration_ids": ("mt_bench/audit/2", "x")}, "calibration_ids: 1 .*mt_bench/audit/2"),
    ],
)
def test_controls_that_prove_nothing_are_refused(place, monkeypatch, changed, told):
    write_controls(place.folder / "other.json", controls(place, **changed))
    with pytest.raises(ControlsError, match=told) as caught:
        prepared(place, monkeypatch, controls="other.json")
    assert "samples" not in str(caught.value)


def test_samples_that_chose_the_controls_cannot_audit_them(place, monkeypatch):
    asked = read_examples(sample_path("mmlu"), "mmlu")
    write_controls(
        place.folder / "sampled.json", controls(place, calibration_ids=(asked[0].id, "gone"))
    )
    tasks = {"data": "samples", "names": ("mmlu",)}
    with pytest.raises(ControlsError, match="tasks.data: got samples, .* allowed is real data"):
        prepared(place, monkeypatch, controls="sampled.json", tasks=tasks)
    assert len(prepared(place, monkeypatch, tasks=tasks).examples["mmlu"]) == len(asked)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"decode": {"verifier": {"budget": 4.0}}}, "decode.verifier.budget: got 4.0, allowed is"),
        ({"decode": {"num_draft_tokens": 4}}, "decode.num_draft_tokens: got 4, allowed is None"),
        ({"decode": {"ignore_eos": True}}, "decode.ignore_eos: got True, allowed is False"),
        ({"decode": {"trace": True}}, "decode.trace: got True.*experiments.audit sets it itself"),
        ({"decode": {"arms": ("asd",)}}, "decode.arms: got .*allowed is greedy,strict,asd"),
        ({"decode": {"limit": 3}}, "decode.limit: got 3, allowed is 0"),
        ({"decode": {"top_p": 2.0}}, "decode.top_p: got 2.0, allowed is a number > 0"),
        ({"decode": {"drafter": "none"}}, "decode.arms: .*with drafter none"),
        ({"controls": None}, "controls: got None, allowed is the path"),
        ({"controls": "gone.json"}, "controls: gone.json cannot be read: No such file"),
        ({"frontier": "gone.json"}, "frontier: gone.json cannot be read: No such file"),
        ({"throughput": "audit.py"}, "throughput: audit.py cannot be read as JSON"),
        ({"limits": {"gsm8k": 9}}, "limits: got 'gsm8k', allowed are the tasks asked: mmlu, mt_"),
        ({"limits": {"mmlu": 0}}, "limits.mmlu: got 0, allowed is a whole number >= 1"),
        ({"limits": {"mmlu": "9"}}, "limits.mmlu: got '9', allowed is a whole number >= 1"),
        ({"judge": {"url": "http://x"}}, "judge.url and judge.model: got http://x and None"),
        ({"judge": {"url": "x", "model": "m"}}, "judge.url: got 'x', allowed is an http"),
        (
            {"judge": {"url": "http://x", "model": "m", "key_variable": "ASD_JAX_NOT_SET"}},
            "judge.key_variable: got ASD_JAX_NOT_SET, allowed is a variable that is set",
        ),
        ({"tasks": {"names": ("mmlu", "mmlu")}}, "tasks.names: got mmlu, mmlu"),
        ({"tasks": {"limit": 1}}, "tasks: got 1 audit question of mmlu, allowed are 2 or more"),
    ],
)
def test_fields_that_are_not_the_users_are_named(place, monkeypatch, fields, told):
    with pytest.raises(ConfigError, match=told):
        prepared(place, monkeypatch, **fields)


def test_questions_that_cannot_be_graded_or_told_apart_are_refused(place, monkeypatch):
    folder = place.folder / "bad_questions"
    folder.mkdir()
    mmlu = [example("mmlu", n, "audit") for n in range(2)]
    talk = [example("mt_bench", n, "audit") for n in range(2)]
    (folder / "mt_bench.jsonl").write_text("\n".join(map(json.dumps, talk)))
    for row, told in (
        (mmlu[1] | {"reference": None}, "mmlu cannot be graded: .*reference: got None"),
        (mmlu[1] | {"id": talk[0]["id"]}, "got id 'mt_bench/audit/0' in mt_bench and in mmlu"),
    ):
        (folder / "mmlu.jsonl").write_text("\n".join(map(json.dumps, (mmlu[0], row))))
        with pytest.raises(ConfigError, match=told):
            prepared(place, monkeypatch, tasks={"data": "bad_questions"})


@pytest.mark.parametrize(
    ("field", "changed", "error", "told"),
    [
        ("throughput", {"controls": {"fingerprint": "0"}}, AuditError, "controls.fingerprint: got"),
        ("throughput", {"controls": None}, AuditError, "controls.fingerprint: got None, allowed"),
        ("throughput", {"run": {"target": {"digest": "0"}}}, AuditError, "run.target.digest: got"),
        ("throughput", {"tasks": {"gsm8k": timing(1.0)}}, AuditError, "tasks: got gsm8k, allowed"),
        ("throughput", {"tasks": None}, AuditError, "tasks: got None, allowed is an object"),
        ("throughput", {"tasks": {"mmlu": {}}}, AuditError, "no result of a throughput study: 'ra"),
        (
            "throughput",
            {"tasks": {"mmlu": timing(1.0, protocol_valid=3)}},
            ConfigError,
            "throughput.mmlu.valid: expected true or false, got 3",
        ),
        ("frontier", {"run": None}, AuditError, "run.target.digest: got None, allowed"),
        ("frontier", {"points": [{"rule": "asd"}]}, ConfigError, r"frontier\[0\].speed: is miss"),
        ("frontier", {"points": 3}, AuditError, "points: got 3, allowed is a list"),
    ],
)
def test_other_studies_must_belong_to_this_one(place, monkeypatch, field, changed, error, told):
    base = json.loads((place.folder / f"{field}.json").read_text())
    (place.folder / "changed.json").write_text(json.dumps(base | changed))
    with pytest.raises(error, match=told):
        prepared(place, monkeypatch, **{field: "changed.json"})
