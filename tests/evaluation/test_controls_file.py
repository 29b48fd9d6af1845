"""Controls files: what is written is what is read, and an audit takes only what it may."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from asd_jax.evaluation.controls_file import (
    ControlsError,
    FrozenControls,
    read_controls,
    write_controls,
)

CONTROLS = FrozenControls(
    budget=8.0,
    gate=0.25,
    block_cap=2,
    value_scheme="remaining",
    num_draft_tokens=5,
    protect_stop_ids=True,
    status="candidate",
    target="t" * 64,
    drafter="d" * 64,
    calibration_ids=("gsm8k/1", "gsm8k/2"),
    chosen={"method": "risk", "epsilon": 0.02},
    run={"command": "python -m experiments.calibrate", "commit": "abc"},
)


@pytest.mark.parametrize("budget", [8.0, math.inf, 2.0625])
def test_round_trip(tmp_path, budget):
    controls = dataclasses.replace(CONTROLS, budget=budget)
    write_controls(tmp_path / "sub" / "controls.json", controls)
    assert read_controls(tmp_path / "sub" / "controls.json") == controls
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["controls.json"]


def test_the_fingerprint_is_of_what_decides_a_decode_and_of_nothing_else():
    same = dataclasses.replace(CONTROLS, status="frozen", chosen={}, run={}, calibration_ids=())
    assert same.fingerprint == CONTROLS.fingerprint
    for change in (
        {"budget": 8.5}, {"gate": 0.3}, {"block_cap": 1}, {"value_scheme": "realised"},
        {"num_draft_tokens": 4}, {"protect_stop_ids": False}, {"target": "x"}, {"drafter": "x"},
    ):  # fmt: skip
        assert dataclasses.replace(CONTROLS, **change).fingerprint != CONTROLS.fingerprint, change


def test_a_discovery_is_not_frozen_and_only_the_frozen_is_audited():
    fits = {
        "target": "t" * 64, "drafter": "d" * 64, "tokenizer": "k", "audit_ids": ["gsm8k/9"],
    }  # fmt: skip
    with pytest.raises(ControlsError, match="status: got 'discovery'"):
        dataclasses.replace(CONTROLS, status="discovery").frozen()
    with pytest.raises(ControlsError, match="status: got 'candidate', allowed is 'frozen'"):
        CONTROLS.require_auditable(**fits)
    frozen = CONTROLS.frozen()
    frozen.require_auditable(**fits)
    with pytest.raises(ControlsError, match="target digest: got other, the controls were chosen"):
        frozen.require_auditable(**{**fits, "target": "other"})
    with pytest.raises(ControlsError, match="drafter digest"):
        frozen.require_auditable(**{**fits, "drafter": "other"})
    tokenized = dataclasses.replace(frozen, run={"tokenizer": {"digest": "k"}})
    tokenized.require_auditable(**fits)
    with pytest.raises(ControlsError, match="tokenizer digest: got l, the controls were chosen"):
        tokenized.require_auditable(**{**fits, "tokenizer": "l"})
    with pytest.raises(ControlsError, match="1 examples of the audit are among them.*gsm8k/2"):
        frozen.require_auditable(**{**fits, "audit_ids": ["gsm8k/9", "gsm8k/2"]})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("budget", -1.0, "budget: got -1.0, allowed is a number >= 0"),
        ("budget", "much", "budget: got 'much'"),
        ("gate", math.nan, "gate: got nan"),
        ("block_cap", 1.5, "block_cap: got 1.5, allowed is a whole number >= 0"),
        ("num_draft_tokens", 0, "num_draft_tokens: got 0"),
        ("value_scheme", "mean", "value_scheme: got 'mean'"),
        ("status", "final", "status: got 'final'"),
        ("budget", 9.0, "fingerprint: got .*: it was changed by hand"),
        ("target", "other", "changed by hand"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, field, value, message):
    path = tmp_path / "controls.json"
    write_controls(path, CONTROLS)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, field: value}))
    with pytest.raises(ControlsError, match=message):
        read_controls(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[]", "not a controls file"), ('{"format": 1}', "missing are block_cap")],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "controls.json").write_text(content)
    with pytest.raises(ControlsError, match=message):
        read_controls(tmp_path / "controls.json")
