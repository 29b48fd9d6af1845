"""Configurations of calibrations: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.calibration.choice import TESTS
from asd_jax.evaluation.calibration.grid import Setting, grid
from asd_jax.evaluation.calibration.trials import SAFEST_FIRST
from asd_jax.evaluation.statistics.risk_control import CORRECTIONS
from asd_jax.evaluation.tasks import TASKS
from experiments import fields
from experiments.config import RunConfig
from experiments.fields import Schema
from experiments.study import TaskFields, task_misfits

Q25, FRONTIER, RISK = METHODS = ("q25", "frontier", "risk")
WHOLE_DRAFT = "all"
# What a calibration decides by itself.
_OWN = (
    "prompts", "output", "resume", "arms", "limit", "trace", "ignore_eos", "verifier.rule",
    "verifier.budget", "verifier.gate", "verifier.block_cap", "verifier.value_scheme",
    "processes.coordinator",
)  # fmt: skip


def _numbers(default: str, is_allowed: Any, allowed: str, about: str) -> Any:
    """Several numbers as one text, separated by commas."""
    return fields.setting(
        default,
        lambda value: bool(value.strip()) and all(map(is_allowed, _parts(value))),
        f"{allowed}, separated by commas",
        kind=str,
        about=about,
    )


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",")]


def _is_positive(part: str) -> bool:
    try:
        return float(part) > 0
    except ValueError:
        return False


def _is_count(part: str) -> bool:
    return part.isascii() and part.isdecimal() and 0 < int(part) < 2**31


def _is_length(part: str) -> bool:
    return part == WHOLE_DRAFT or _is_count(part)


@dataclasses.dataclass(frozen=True)
class CalibrateConfig:
    """A calibration."""

    method: str = fields.choice(Q25, METHODS, "how controls are chosen")
    budgets: str = _numbers(
        "2,4,8", _is_positive, "numbers > 0 or inf", "grid: regret a request, logits"
    )
    gates: str = _numbers(
        "0.125,0.25,0.5", _is_positive, "numbers > 0 or inf", "grid: regret a token, logits"
    )
    block_caps: str = _numbers("1,2", _is_count, "whole numbers >= 1", "grid: exceptions a block")
    draft_lengths: str = _numbers(
        WHOLE_DRAFT, _is_length, f"whole numbers >= 1 or {WHOLE_DRAFT}",
        "grid: most tokens proposed a round",
    )  # fmt: skip
    value_schemes: tuple[str, ...] = fields.names(
        ("remaining",), f"grid: what an exception is worth, of {', '.join(SAFEST_FIRST)}"
    )
    epsilon: float = fields.number(
        0.02, lambda x: 0 < x < 1, "a number > 0 and < 1",
        "frontier and risk: accuracy that may be lost, a share",
    )  # fmt: skip
    delta: float = fields.number(
        0.1, lambda x: 0 < x < 1, "a number > 0 and < 1",
        "risk: probability that more is lost all the same",
    )  # fmt: skip
    test: str = fields.choice("betting", TESTS, "risk: test of one setting")
    correction: str = fields.choice(
        "fixed_sequence", CORRECTIONS, "risk: correction for testing several"
    )
    directory: str = fields.text("outputs/calibration", "folder of the calibration")
    tasks: TaskFields = fields.group(TaskFields)
    decode: RunConfig = fields.group(RunConfig)

    def settings(self) -> tuple[Setting, ...]:
        """Returns the grid."""
        lengths = [None if x == WHOLE_DRAFT else int(x) for x in _parts(self.draft_lengths)]
        return grid(
            map(float, _parts(self.budgets)),
            map(float, _parts(self.gates)),
            map(int, _parts(self.block_caps)),
            lengths,
        )

    def parameters(self) -> dict[str, Any]:
        """Returns what decides the choice beside the answers, by field."""
        if self.method == Q25:
            return {}
        names = ["epsilon"]
        if self.method == RISK:
            names += ["delta", "test", "correction"]
        used = {name: getattr(self, name) for name in names}
        return {**used, "value_schemes": ", ".join(self.value_schemes)}


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = task_misfits(values)
    for name in _OWN:
        got = values[f"decode.{name}"]
        default = functools.reduce(getattr, name.split("."), RunConfig())
        if got != default:
            problems.append(
                f"decode.{name}: got {got}, allowed is {default}, as it is: a calibration sets it "
                "itself"
            )
    if values["decode.drafter"] == "none":
        problems.append("decode.drafter: got none, allowed is a drafter")
    schemes = values["value_schemes"]
    if not schemes or len(set(schemes)) != len(schemes) or not set(schemes) <= set(SAFEST_FIRST):
        problems.append(
            f"value_schemes: got {', '.join(schemes) or 'none'}, allowed is one or more of "
            f"{', '.join(SAFEST_FIRST)}, each once"
        )
    names = values["tasks.names"]
    is_graded = any(TASKS[name].is_graded for name in names if name in TASKS)
    if values["method"] != Q25 and set(names) <= set(TASKS) and not is_graded:
        problems.append(
            f"tasks.names: got {', '.join(names)}, allowed with method {values['method']} is one "
            "graded task or more: likeness is no quality"
        )
    most = values["decode.num_draft_tokens"] or math.inf
    lengths = [int(part) for part in _parts(values["draft_lengths"]) if part != WHOLE_DRAFT]
    if lengths and max(lengths) > most:
        problems.append(
            f"draft_lengths: got {max(lengths)}, allowed are whole numbers <= "
            f"decode.num_draft_tokens {most}"
        )
    return problems


SCHEMA = Schema(CalibrateConfig, _misfits)
default_config = SCHEMA.default_config
