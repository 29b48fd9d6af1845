"""Configurations of frontiers: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.calibration.grid import Setting, grid
from asd_jax.evaluation.frontier import RIVAL_VALUES, Rival, rival_settings
from asd_jax.evaluation.statistics.bootstrap import METHODS, Bootstrap
from asd_jax.evaluation.tasks import SPLITS, TASKS
from asd_jax.verifier import VALUE_SCHEMES
from experiments import fields
from experiments.config import RunConfig
from experiments.fields import ConfigError, Schema
from experiments.study import TaskFields, decode_misfits, task_misfits

# Fields of `decode` that the command sets itself: of rules, questions and files.
SET_HERE = (
    "prompts", "output", "resume", "arms", "limit", "trace", "ignore_eos", "verifier.rule",
    "verifier.options", "verifier.value_scheme", "verifier.budget", "verifier.gate",
    "verifier.block_cap", "processes.coordinator",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AsdFields:
    """The settings of ASD: every combination under each value scheme."""

    value_schemes: tuple[str, ...] = fields.names(
        VALUE_SCHEMES, f"value schemes, of {', '.join(VALUE_SCHEMES)}"
    )
    budgets: str = fields.numbers(
        "4,8,16", float, "one or more numbers > 0 or inf", "regret a request, logits"
    )
    gates: str = fields.numbers(
        "0.1,0.25,0.5", float, "one or more numbers > 0 or inf", "regret a token, logits"
    )
    block_caps: str = fields.numbers(
        "1,2", int, "one or more whole numbers > 0", "exceptions a block"
    )


@dataclasses.dataclass(frozen=True)
class BootstrapFields:
    """How intervals are computed; see `asd_jax.evaluation.statistics.bootstrap`."""

    method: str = fields.choice("bca", METHODS, "of the bootstrap")
    confidence: float = fields.number(
        0.95, lambda x: 0 < x < 1, "a number > 0 and < 1", "of every interval"
    )
    num_resamples: int = fields.whole(10_000, 1, "resamples")
    seed: int = fields.whole(0, 0, "of the resampling")


@dataclasses.dataclass(frozen=True)
class FrontierConfig:
    """A frontier."""

    tasks: TaskFields = fields.group(TaskFields)
    decode: RunConfig = fields.group(RunConfig)
    asd: AsdFields = fields.group(AsdFields)
    rules: tuple[str, ...] = fields.names(
        tuple(RIVAL_VALUES), f"rival rules, of {', '.join(RIVAL_VALUES)}"
    )
    rivals: dict[str, Any] = fields.free(
        "{rule: {option: [values]}} to draw beside a rule's defaults, instead of the built-in ones"
    )
    split: str = fields.choice("calibration", SPLITS, "questions that are asked")
    bootstrap: BootstrapFields = fields.group(BootstrapFields)
    directory: str = fields.text("outputs/frontier", "folder of the frontier")

    @property
    def grid(self) -> tuple[Setting, ...]:
        """The settings of ASD, the same under each value scheme."""
        return grid(
            fields.read_numbers(self.asd.budgets, float),
            fields.read_numbers(self.asd.gates, float),
            fields.read_numbers(self.asd.block_caps, int),
        )

    @property
    def rival_settings(self) -> tuple[Rival, ...]:
        """The settings of all rivals, whether the drafter can serve them or not."""
        return _rivals(self.rules, self.rivals)

    @property
    def resampling(self) -> Bootstrap:
        """How to resample."""
        return Bootstrap(**dataclasses.asdict(self.bootstrap))


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = task_misfits(values)
    if not problems and not any(TASKS[name].is_graded for name in values["tasks.names"]):
        graded = ", ".join(name for name, task in TASKS.items() if task.is_graded)
        problems.append(
            f"tasks.names: got {', '.join(values['tasks.names'])}, allowed is one or more of "
            f"{graded} among them: quality is a share of right answers"
        )
    problems += _decode_misfits(values)
    schemes = values["asd.value_schemes"]
    if len(set(schemes)) != len(schemes) or not schemes or not set(schemes) <= set(VALUE_SCHEMES):
        problems.append(
            f"asd.value_schemes: got {', '.join(schemes) or 'none'}, allowed is one or more of "
            f"{', '.join(VALUE_SCHEMES)}, each once"
        )
    try:
        _rivals(values["rules"], values["rivals"])
    except ConfigError as error:
        problems.append(str(error))
    return problems


def _decode_misfits(values: Mapping[str, Any]) -> list[str]:
    problems = decode_misfits(values, SET_HERE, "a frontier sets it itself")
    if values["decode.num_draft_tokens"] is None:
        problems.append(
            "decode.num_draft_tokens: got None, allowed is a whole number >= 1: all rules are "
            "compared at one draft length"
        )
    if values["decode.drafter"] == "none":
        problems.append("decode.drafter: got none, allowed is one that drafts")
    return problems


def _rivals(rules: Sequence[str], rivals: Mapping[str, Any]) -> tuple[Rival, ...]:
    if not set(rules) <= set(RIVAL_VALUES) or len(set(rules)) != len(rules):
        raise ConfigError(
            f"rules: got {', '.join(rules)}, allowed are {', '.join(RIVAL_VALUES)}, each at most "
            "once"
        )
    if others := [rule for rule in rivals if rule not in rules]:
        raise ConfigError(
            f"rivals: got {', '.join(others)}, allowed are those in rules, "
            f"{', '.join(rules) or 'none'}"
        )
    if bad := [rule for rule, values in rivals.items() if not isinstance(values, Mapping)]:
        raise ConfigError(
            f"rivals.{bad[0]}: got {rivals[bad[0]]!r}, allowed is a dictionary of options with "
            "lists of values"
        )
    try:
        return tuple(
            setting for rule in rules for setting in rival_settings(rule, rivals.get(rule))
        )
    except ValueError as error:
        raise ConfigError(f"rivals.{error}") from error


SCHEMA = Schema(FrontierConfig, _misfits)
default_config = SCHEMA.default_config
