"""Configurations of audits: what fields there are, and what they may be together."""

from __future__ import annotations

import dataclasses
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.tasks import TASKS
from experiments import fields, study
from experiments.config import RunConfig
from experiments.fields import Schema

# What the command sets itself; the fields of groups are all meant.
_SET_BY_THE_AUDIT = (
    "ignore_eos", "prompts", "output", "limit", "trace", "arms", "resume", "processes",
)  # fmt: skip
_SET_BY_THE_CONTROLS = ("num_draft_tokens", "verifier")


@dataclasses.dataclass(frozen=True)
class JudgeFields:
    """A model that rates answers where none is right; see `asd_jax.evaluation.grading.judge`."""

    url: str | None = fields.text(
        None, "where an OpenAI-compatible API begins, http://HOST:PORT/v1; None: nothing is rated"
    )
    model: str | None = fields.text(None, "name of the model there")
    key_variable: str | None = fields.text(
        None, "environment variable that holds the key of the API; None: it needs none"
    )
    timeout_seconds: float = fields.number(
        120.0, lambda x: 0 < x < math.inf, "a finite number > 0", "longest wait for a reply"
    )


@dataclasses.dataclass(frozen=True)
class AuditConfig:
    """One run of `experiments.audit`."""

    controls: str | None = fields.text(None, "frozen controls file, which must be given")
    directory: str = fields.text("outputs/audit", "folder of the study")
    throughput: str | None = fields.text(
        None, "throughput.json of experiments.throughput with the same controls"
    )
    frontier: str | None = fields.text(
        None, "frontier.json of experiments.frontier with the same target and drafter"
    )
    limits: dict[str, Any] = fields.free(
        "longest answers of single tasks, tokens a turn; of the others decode.max_new_tokens"
    )
    tasks: study.TaskFields = fields.group(study.TaskFields)
    decode: RunConfig = fields.group(RunConfig)
    judge: JudgeFields = fields.group(JudgeFields)

    def longest_answer(self, task: str) -> int:
        """Returns how many tokens an answer to a turn may have: the task's own limit at most."""
        limit = self.limits.get(task, self.decode.max_new_tokens)
        return min(TASKS[task].max_new_tokens, self.decode.max_new_tokens, limit)


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = study.task_misfits(values)
    if values["controls"] is None:
        problems.append("controls: got None, allowed is the path of a controls file")
    problems += _limit_misfits(values) + _judge_misfits(values)
    own = study.of_decode(values)
    changed = study.decode_misfits(
        values, _SET_BY_THE_AUDIT, "experiments.audit sets it itself"
    ) + study.decode_misfits(values, _SET_BY_THE_CONTROLS, "it is in the controls file")
    if changed:
        return problems + changed
    return problems + study.run_misfits(own)


def _limit_misfits(values: Mapping[str, Any]) -> list[str]:
    limits, tasks = values["limits"], values["tasks.names"]
    problems = [
        f"limits: got {name!r}, allowed are the tasks asked: {', '.join(tasks)}"
        for name in limits
        if name not in tasks
    ]
    return problems + [
        f"limits.{name}: got {limit!r}, allowed is a whole number >= 1"
        for name, limit in limits.items()
        if type(limit) is not int or limit < 1
    ]


def _judge_misfits(values: Mapping[str, Any]) -> list[str]:
    url, model = values["judge.url"], values["judge.model"]
    if (url is None) != (model is None):
        return [f"judge.url and judge.model: got {url} and {model}, allowed are both or neither"]
    if url is not None and urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        return [f"judge.url: got {url!r}, allowed is an http or https address"]
    return []


SCHEMA = Schema(AuditConfig, _misfits)
default_config = SCHEMA.default_config
