"""Configurations of calibrations: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
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
from experiments.study import TaskFields, decode_misfits, task_misfits

Q25, FRONTIER, RISK = METHODS = ("q25", "frontier", "risk")
WHOLE_DRAFT = "all"
# What a calibration decides by itself.
_OWN = (
    "prompts", "output", "resume", "arms", "limit", "trace", "ignore_eos", "verifier.rule",
    "verifier.budget", "verifier.gate", "verifier.block_cap", "verifier.value_scheme",
    "processes.coordinator",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CalibrateConfig:
    """A calibration."""

    method: str = fields.choice(Q25, METHODS, "how controls are chosen")
    budgets: str = fields.numbers(
        "2,4,8", float, "numbers > 0 or inf", "grid: regret a request, logits"
    )
    gates: str = fields.numbers(
        "0.125,0.25,0.5", float, "numbers > 0 or inf", "grid: regret a token, logits"
    )
    block_caps: str = fields.numbers("1,2", int, "whole numbers >= 1", "grid: exceptions a block")
    draft_lengths: str = fields.numbers(
        WHOLE_DRAFT, int, f"whole numbers >= 1 or {WHOLE_DRAFT}",
        "grid: most tokens proposed a round", word=WHOLE_DRAFT,
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
        return grid(
            fields.read_numbers(self.budgets, float),
            fields.read_numbers(self.gates, float),
            fields.read_numbers(self.block_caps, int),
            fields.read_numbers(self.draft_lengths, int, word=WHOLE_DRAFT),
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
    problems += decode_misfits(values, _OWN, "a calibration sets it itself", show=str)
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
    lengths = fields.read_numbers(values["draft_lengths"], int, word=WHOLE_DRAFT)
    lengths = [length for length in lengths if length is not None]
    if lengths and max(lengths) > most:
        problems.append(
            f"draft_lengths: got {max(lengths)}, allowed are whole numbers <= "
            f"decode.num_draft_tokens {most}"
        )
    return problems


SCHEMA = Schema(CalibrateConfig, _misfits)
default_config = SCHEMA.default_config
