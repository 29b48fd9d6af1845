"""What an audit works on, read and checked before the work.

Weights take minutes to load and answers hours to decode, so all that can be refused is refused
here: nothing is written, and of the target and its drafter only what identifies them is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.evaluation.audit.other_studies import (
    Frontier,
    Speed,
    frontier_of,
    require_same_run,
    require_tasks,
    speed_of,
)
from asd_jax.evaluation.controls_file import ControlsError, FrozenControls, read_controls
from asd_jax.evaluation.grading.judge import Judge
from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.report import StudyError
from asd_jax.evaluation.report.study import read_study
from asd_jax.evaluation.tasks import TASKS, Example
from asd_jax.load import check_drafter
from asd_jax.tokenizer import Tokenizer, from_checkpoint
from asd_jax.tokenizer.digest import tokenizer_digest
from experiments import loading, study
from experiments.audit_config import AuditConfig
from experiments.config import RunConfig
from experiments.fields import ConfigError

_MIN_EXAMPLES = 2  # no interval comes from one


@dataclasses.dataclass(frozen=True)
class Audit:
    """What is audited, with everything checked that can be before the work.

    Attributes:
      config: As given.
      run: How to decode, the controls in it.
      controls: Frozen.
      examples: What is asked, by task.
      tokenizer: The target's.
      speed: Of another study, or None.
      frontier: Of another study, or None.
      judge: Rates tasks without right answers, or None.
    """

    config: AuditConfig
    run: RunConfig
    controls: FrozenControls
    examples: Mapping[str, tuple[Example, ...]]
    tokenizer: Tokenizer
    speed: Speed | None
    frontier: Frontier | None
    judge: Judge | None

    def path(self, name: str) -> Path:
        """Returns where a file of the study is."""
        return Path(self.config.directory) / name

    def with_other_studies(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the JSON value of a study with what other studies have measured in it."""
        whole = dict(document)
        if self.speed is not None:
            whole["throughput"] = plain_json(self.speed.tasks)
            whole["mean"] = whole["mean"] | {"gain_percent": plain_json(self.speed.gain_percent)}
        if self.frontier is not None:
            whole["frontier"] = plain_json(self.frontier.points)
            whole["frontier_units"] = plain_json(self.frontier.units)
        return whole


def prepare(config: AuditConfig) -> Audit:
    """Reads and checks all that an audit needs, no weight among it.

    Args:
      config: Checked by its schema.

    Raises:
      ConfigError: A file or the data cannot be used.
      ControlsError: The controls cannot be audited, or not on these questions.
      AuditError: Another study is not of this target, drafter or these controls.
      ExampleError: The questions cannot be read.
      OSError: A file cannot be read.
    """
    assert config.controls is not None  # the schema has seen to it
    try:
        controls = read_controls(config.controls)
    except OSError as error:
        raise ConfigError(_unreadable("controls", config.controls, error)) from error
    run = _with_controls(config.decode, controls)
    examples = _examples(config)
    try:
        source = open_checkpoint(resolve(run.target))
        digest = check_drafter(run.drafter, target=source, **loading.drafter_options(run))
        tokenizer = from_checkpoint(source)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    target, drafter = source.digest(), digest or run.drafter
    digests = {"target": target, "drafter": drafter}
    identity = {**digests, "tokenizer": tokenizer_digest(tokenizer)}
    _require_auditable(config, controls, identity, examples)
    speed, frontier = None, None
    if config.throughput is not None:
        result = _result("throughput", config.throughput)
        require_same_run(result, config.throughput, **digests)
        speed = speed_of(result, config.throughput, controls)
        require_tasks(speed.tasks, config.throughput, examples)
    if config.frontier is not None:
        result = _result("frontier", config.frontier)
        require_same_run(result, config.frontier, **digests)
        frontier = frontier_of(result, config.frontier, controls)
    judge = _judge(config)
    audit = Audit(config, run, controls, examples, tokenizer, speed, frontier, judge)
    _require_shown(audit)
    return audit


def _with_controls(run: RunConfig, controls: FrozenControls) -> RunConfig:
    verifier = dataclasses.replace(
        run.verifier,
        budget=controls.budget,
        gate=controls.gate,
        block_cap=controls.block_cap,
        value_scheme=controls.value_scheme,
        protect_stop_ids=controls.protect_stop_ids,
    )
    return dataclasses.replace(run, verifier=verifier, num_draft_tokens=controls.num_draft_tokens)


def _examples(config: AuditConfig) -> dict[str, tuple[Example, ...]]:
    """Returns the questions, refusing those that could not be graded or told apart later."""
    examples = {name: study.read_task(config.tasks, name, "audit") for name in config.tasks.names}
    seen: dict[str, str] = {}
    for name, found in examples.items():
        if len(found) < _MIN_EXAMPLES:
            raise ConfigError(
                f"tasks: got {len(found)} audit question of {name}, allowed are {_MIN_EXAMPLES} or "
                "more, as no interval comes from one"
            )
        for example in found:
            if example.id in seen:
                raise ConfigError(
                    f"tasks.data: got id {example.id!r} in {name} and in {seen[example.id]}, "
                    "allowed is once"
                )
            seen[example.id] = name
            try:
                TASKS[name].grade(example, ("",) * len(example.turns))
            except ValueError as error:
                raise ConfigError(f"tasks.data: {name} cannot be graded: {error}") from error
    return examples


def _require_auditable(
    config: AuditConfig,
    controls: FrozenControls,
    identity: Mapping[str, str],
    examples: Mapping[str, tuple[Example, ...]],
) -> None:
    ids = [example.id for found in examples.values() for example in found]
    try:
        controls.require_auditable(**identity, audit_ids=ids)
    except ControlsError as error:
        message = f"{config.controls}: {error}"
        if config.tasks.data == study.SAMPLES and set(controls.calibration_ids) & set(ids):
            message += (
                "\ntasks.data: got samples, which are too few to have both splits; allowed is real "
                "data, a folder or hub"
            )
        raise ControlsError(message) from error


def _result(field: str, path: str) -> Mapping[str, Any]:
    """Returns the JSON object in the file of another study."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(_unreadable(field, path, error)) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{field}: {path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{field}: {path} holds a {type(found).__name__}, allowed is an object")
    return found


def _unreadable(field: str, path: str, error: OSError) -> str:
    return f"{field}: {path} cannot be read: {error.strerror or error}"


def _judge(config: AuditConfig) -> Judge | None:
    fields = config.judge
    if fields.url is None or fields.model is None:
        return None
    key = None
    if fields.key_variable is not None:
        key = os.environ.get(fields.key_variable)
        if not key:
            raise ConfigError(
                f"judge.key_variable: got {fields.key_variable}, allowed is a variable that is set"
            )
    return Judge(fields.url, fields.model, key, fields.timeout_seconds)


def _require_shown(audit: Audit) -> None:
    """Refuses what other studies say and the report could not show, hours before the report."""
    empty: dict[str, Any] = {"run": {}, "tasks": {name: {} for name in audit.examples}, "mean": {}}
    try:
        read_study(audit.with_other_studies(empty))
    except StudyError as error:
        raise ConfigError(f"throughput or frontier: {error}") from error
