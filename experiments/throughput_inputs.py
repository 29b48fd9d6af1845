"""What a throughput study works on, read and checked before any weight is."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.evaluation.audit.other_studies import controls_entry
from asd_jax.evaluation.controls_file import ControlsError, FrozenControls, read_controls
from asd_jax.evaluation.plain_json import infinity_as_text
from asd_jax.evaluation.plan import Plan, Request, Settings, make_plan
from asd_jax.evaluation.prompts import Prompt, PromptFile, read_prompts
from asd_jax.evaluation.receipt import command_line, run_header
from asd_jax.evaluation.tasks import TASKS
from asd_jax.evaluation.throughput import ROLES, Unit
from asd_jax.load import check_drafter, read_target_config
from asd_jax.tokenizer import from_checkpoint
from asd_jax.tokenizer.digest import tokenizer_digest
from experiments import config as runs
from experiments import loading, processes, study
from experiments.config import RunConfig
from experiments.fields import ConfigError
from experiments.throughput_config import ThroughputConfig, run_arms

_MIN_UNITS = 2  # no interval comes from one
_PROMPTS = "prompts.jsonl"


@dataclasses.dataclass(frozen=True)
class Study:
    """A study with everything checked that can be before the work.

    Attributes:
      config: As given.
      run: How to decode, the controls in it.
      settings: The same for the decode loop.
      roles: Of every unit, in the order of running.
      batches: Of each task.
      max_new_tokens: Tokens of every answer.
      left_out: By task, the prompts that cannot have so many, and why.
      header: What is run, for the first line of the measurements.
      controls: What the candidate is decoded with, made of plain JSON types.
    """

    config: ThroughputConfig
    run: RunConfig
    settings: Settings
    roles: tuple[str, ...]
    batches: Mapping[str, tuple[tuple[Request, ...], ...]]
    max_new_tokens: int
    left_out: Mapping[str, Mapping[str, str]]
    header: Mapping[str, Any]
    controls: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """Returns where a file of the study is."""
        return Path(self.config.directory) / name

    def units(self) -> Iterator[Unit]:
        """Yields all that is to be measured, in the order of running.

        A repeat goes through all tasks before the next begins: what slows the machine down for
        minutes then falls on one repeat of several tasks and not on all repeats of one.
        """
        for repeat in range(self.config.repeats):
            for task, batches in self.batches.items():
                for batch in range(len(batches)):
                    yield Unit(task, repeat, batch)

    def plan(self, units: Sequence[Unit]) -> Plan:
        """Returns the plan of decoding some units, one batch each."""
        batches = tuple(self.batches[unit.task][unit.batch] for unit in units)
        return Plan(batches, (), self.max_new_tokens)


def prepare(config: ThroughputConfig) -> Study:
    """Reads and checks all that a study needs, and writes its prompts.

    Args:
      config: Checked by its schema.

    Raises:
      ConfigError: A file or the data cannot be used, or the folder is another study's.
      ControlsError: The controls are no such file, or of another target or drafter.
      ExampleError: The questions cannot be read.
      OSError: A file cannot be read or written.
    """
    controls = None if config.controls is None else read_controls(config.controls)
    run = _run(config, controls)
    rows = list(_rows(config))
    processes.start(run.processes)
    processes.mesh(run.mesh, run.batch_size)  # refuses devices that are not there
    try:
        source = open_checkpoint(resolve(run.target))
        target_config, tokenizer = read_target_config(source), from_checkpoint(source)
        digest = check_drafter(run.drafter, target=source, **loading.drafter_options(run))
    except (ValueError, OSError, ImportError) as error:
        raise ConfigError(str(error)) from error
    runs.check_context(run, target_config.max_position)
    target = source.digest()
    if controls is not None:
        try:
            controls.require_same(
                target=target,
                drafter=digest or run.drafter,
                tokenizer=tokenizer_digest(tokenizer),
            )
        except ControlsError as error:
            raise ControlsError(f"{config.controls}: {error}") from error
    path = Path(config.directory) / _PROMPTS
    study.write_prompts(path, rows)
    prompts, settings = read_prompts(path), loading.settings_of(run)
    sizes = dict(vocab_size=target_config.vocab_size, context_length=target_config.max_position)
    batches, left_out = {}, {}
    for name in config.tasks.names:
        own = [record for record in prompts.records if record.extra["task"] == name]
        batches[name], left_out[name] = _planned(own, tokenizer, settings, sizes)
        _require_enough(config, name, batches[name], left_out[name])
    return Study(
        config=config,
        run=run,
        settings=settings,
        roles=ROLES if config.with_greedy else ROLES[:-1],
        batches=batches,
        max_new_tokens=run.max_new_tokens,
        left_out={name: found for name, found in left_out.items() if found},
        header=_header(config, run, prompts, target=target, drafter=digest),
        controls=_controls_entry(run, controls),
    )


def _run(config: ThroughputConfig, controls: FrozenControls | None) -> RunConfig:
    """Returns the run with the controls and what the study demands."""
    run, verifier = config.decode, config.decode.verifier
    if controls is not None:
        verifier = dataclasses.replace(
            verifier,
            budget=float(controls.budget),
            gate=float(controls.gate),
            block_cap=controls.block_cap,
            value_scheme=controls.value_scheme,
            protect_stop_ids=controls.protect_stop_ids,
        )
        run = dataclasses.replace(run, num_draft_tokens=controls.num_draft_tokens)
    arms = run_arms(verifier.rule, with_greedy=config.with_greedy)
    return dataclasses.replace(run, verifier=verifier, arms=arms, ignore_eos=True)


def _rows(config: ThroughputConfig) -> Iterator[dict[str, Any]]:
    """Yields the prompts: the first turn of each question, in the order of the data."""
    seen: dict[str, str] = {}
    for name in config.tasks.names:
        for example in study.read_task(config.tasks, name, config.split):
            if example.id in seen:
                raise ConfigError(
                    f"tasks.data: got id {example.id!r} in {name} and in {seen[example.id]}, "
                    "allowed is once"
                )
            seen[example.id] = name
            yield {"id": example.id, "task": name, "turns": [TASKS[name].prompt(example)[0]]}


def _planned(
    prompts: Sequence[Prompt], tokenizer: Any, settings: Settings, sizes: Mapping[str, int]
) -> tuple[tuple[tuple[Request, ...], ...], dict[str, str]]:
    """Returns the batches of a task, and the prompts that have no room for a whole answer."""
    plan = make_plan(prompts, tokenizer, settings, **sizes)
    left_out = {failure.id: failure.message for failure in plan.failures}
    context, wanted = sizes["context_length"], settings.max_new_tokens
    for batch in plan.batches:
        for request in batch:
            if len(request.first_ids) + wanted > context:
                left_out[request.prompt.id] = (
                    f"got {len(request.first_ids)} tokens, which leave no room for {wanted} more "
                    f"in the target's context of {context}"
                )
    kept = [prompt for prompt in prompts if prompt.id not in left_out]
    batches = make_plan(kept, tokenizer, settings, **sizes).batches if kept else ()
    return batches, left_out


def _require_enough(
    config: ThroughputConfig, name: str, batches: Sequence[Any], left_out: Mapping[str, str]
) -> None:
    if not batches:
        number, why = next(iter(left_out.items()))
        raise ConfigError(f"tasks: no prompt of {name} can be decoded, such as {number}: {why}")
    if len(batches) * config.repeats < _MIN_UNITS:
        raise ConfigError(
            f"repeats: got {config.repeats}, allowed is 2 or more, as {name} is a single batch and "
            "no interval comes from one measurement"
        )


def _header(
    config: ThroughputConfig,
    run: RunConfig,
    prompts: PromptFile,
    *,
    target: str,
    drafter: str | None,
) -> dict[str, Any]:
    """Returns the description of the run, with all in it that timings depend on.

    Measurements go on only with the same device, mesh and JAX: those of others are no comparison.
    """
    own = {name: getattr(config, name) for name in ("split", "repeats", "with_greedy")}
    own |= {"prompts": _PROMPTS, "tasks": dataclasses.asdict(config.tasks)}
    header = run_header(
        dataclasses.asdict(run) | own,
        target=target,
        drafter=drafter,
        prompts=prompts.digest,
        num_prompts=len(prompts.records),
    )
    timed_with = {
        **{name: header["device"][name] for name in ("platform", "kind", "count")},
        "mesh": f"{run.mesh.data} x {run.mesh.model}",
        "jax": header["versions"]["jax"],
        "jaxlib": header["versions"]["jaxlib"],
    }
    fields = header["config"] | {"timed_with": timed_with}
    # Where the questions are is told and not compared: the prompts' digest says what they are.
    tasks = fields.pop("tasks")
    command = command_line("experiments.throughput", sys.argv[1:])
    return {**header, "config": fields, "tasks": tasks, "command": command}


def _controls_entry(run: RunConfig, controls: FrozenControls | None) -> dict[str, Any]:
    if controls is not None:
        return {"rule": run.verifier.rule, **controls_entry(controls)}
    values = dataclasses.asdict(run.verifier) | {"num_draft_tokens": run.num_draft_tokens}
    return {**infinity_as_text(values), "status": None, "fingerprint": None}
