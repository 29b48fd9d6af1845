"""Configurations of throughput studies: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.arms import GREEDY, STRICT
from asd_jax.evaluation.tasks import SPLITS
from experiments import fields, study
from experiments.config import RunConfig
from experiments.fields import Schema

# What the command sets itself.
_SET_BY_THE_COMMAND = (
    "arms", "ignore_eos", "limit", "output", "processes.coordinator", "processes.count",
    "processes.index", "prompts", "resume", "trace",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ThroughputConfig:
    """One run of `experiments.throughput`."""

    directory: str = fields.text("outputs/throughput", "folder of the study")
    controls: str | None = fields.text(
        None, "controls file of any status; None: the controls are decode.verifier"
    )
    split: str = fields.choice("audit", SPLITS, "questions that are decoded")
    repeats: int = fields.whole(3, 1, "times that each batch is measured")
    with_greedy: bool = fields.flag(True, "time decoding without a drafter as well")
    warmup_batches: int = fields.whole(
        1, 0, "batches that are decoded and not counted, at every start"
    )
    steady_percent: float | None = fields.number(
        None,
        lambda value: 0 < value < math.inf,
        "a number > 0, or None",
        "a batch whose two strict runs differ by more is measured again",
    )
    max_attempts: int = fields.whole(3, 1, "times that a batch is measured until it is steady")
    tasks: study.TaskFields = fields.group(study.TaskFields)
    decode: RunConfig = fields.group(RunConfig)


def run_arms(rule: str, *, with_greedy: bool) -> tuple[str, ...]:
    """Returns the names of the arms in the order of running, as in `experiments.decode`."""
    return (STRICT, rule, *([GREEDY] if with_greedy else []))


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = study.task_misfits(values)
    own = study.of_decode(values)
    problems += study.decode_misfits(
        values, _SET_BY_THE_COMMAND, "experiments.throughput sets it itself"
    )
    if values["controls"] is not None:
        problems += study.decode_misfits(
            values, ("num_draft_tokens", "verifier"), "it is in the controls file"
        )
    if own["drafter"] == "none":
        problems.append(
            "decode.drafter: got none, allowed is a drafter, which strict needs as well"
        )
    if own["max_new_tokens"] < 2:
        problems.append(
            f"decode.max_new_tokens: got {own['max_new_tokens']}, allowed is a whole number >= 2, "
            "as the first token comes from the prefill"
        )
    if own["verifier.rule"] in (STRICT, GREEDY):
        problems.append(
            f"decode.verifier.rule: got {own['verifier.rule']}, allowed is a rule other than "
            "those of the baselines"
        )
    if problems:
        return problems
    arms = run_arms(own["verifier.rule"], with_greedy=values["with_greedy"])
    return study.run_misfits(own | {"arms": arms})


SCHEMA = Schema(ThroughputConfig, _misfits)
default_config = SCHEMA.default_config
