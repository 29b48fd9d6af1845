"""What the studies have in common: the questions that they ask, and the run that answers them.

A study (`experiments.calibrate`, `throughput`, `audit`, `frontier`) is a folder. It writes its
prompt rows there and has `experiments.decode` answer them, which goes on where it was killed; all
else is arithmetic over the rows.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from asd_jax.checkpoints.source import CheckpointError
from asd_jax.evaluation.audit import AuditError
from asd_jax.evaluation.controls_file import ControlsError
from asd_jax.evaluation.prompts import PromptError
from asd_jax.evaluation.records import OutputError
from asd_jax.evaluation.tasks import (
    TASKS,
    Example,
    ExampleError,
    read_examples,
    read_hub,
    sample_path,
)
from asd_jax.evaluation.whole_files import write_text
from experiments import command_line, decode, fields
from experiments.config import SCHEMA, RunConfig
from experiments.fields import ConfigError, Schema

SAMPLES, HUB = "samples", "hub"
C = TypeVar("C")
_INTERRUPTED = 130
# What is wrong with the user's files and fields, in words that are meant for the user.
_TOLD = (
    AuditError, CheckpointError, ConfigError, ControlsError, ExampleError, OutputError, PromptError,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TaskFields:
    """The questions of a study."""

    names: tuple[str, ...] = fields.names(tuple(TASKS), f"task sets, of {', '.join(TASKS)}")
    data: str = fields.text(
        SAMPLES, "folder with NAME.jsonl of each task, samples (the package's own few) or hub"
    )
    limit: int = fields.whole(0, 0, "questions of each task, 0 = all")


def task_misfits(values: Mapping[str, Any], group: str = "tasks") -> list[str]:
    """Returns what is wrong with the task names of a configuration."""
    names = values[f"{group}.names"]
    if names and len(set(names)) == len(names) and set(names) <= set(TASKS):
        return []
    return [
        f"{group}.names: got {', '.join(names) or 'none'}, allowed is one or more of "
        f"{', '.join(TASKS)}, each once"
    ]


def decode_misfits(
    values: Mapping[str, Any],
    names: Iterable[str],
    setter: str,
    *,
    show: Callable[[Any], str] = repr,
) -> list[str]:
    """Returns what to tell about fields of `decode` that are not the user's to set, but were.

    Args:
      values: Of all fields of the study, by dotted name.
      names: Of the fields, without "decode."; a group stands for all fields in it.
      setter: Says who sets them, for the message.
      show: How what was got is written.
    """
    problems = []
    for name in names:
        for own, got in of_decode(values).items():
            if not f"{own}.".startswith(f"{name}."):
                continue
            default = operator.attrgetter(own)(RunConfig())
            if got != default:
                shown = ",".join(default) if isinstance(default, tuple) else default
                problems.append(
                    f"decode.{own}: got {show(got)}, allowed is {shown}, as it is: {setter}"
                )
    return problems


def of_decode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of group `decode` by their own dotted names.

    Args:
      values: Of all fields of the study, by dotted name.
    """
    prefix = "decode."
    return {n.removeprefix(prefix): value for n, value in values.items() if n.startswith(prefix)}


def run_misfits(fields_of_run: Mapping[str, Any]) -> list[str]:
    """Returns what `experiments.decode` would tell about the fields of `decode`.

    Args:
      fields_of_run: Nested, or by dotted name without "decode.".
    """
    try:
        SCHEMA.read(fields_of_run)
    except ConfigError as error:
        return [f"decode.{line}" for line in str(error).splitlines()]
    return []


def check_run(run: RunConfig) -> None:
    """Refuses a `decode` that cannot be run, before anything is written.

    Raises:
      ConfigError: With a line for each field that is wrong.
    """
    if problems := run_misfits(dataclasses.asdict(run)):
        raise ConfigError("\n".join(problems))


def read_task(tasks: TaskFields, name: str, split: str) -> tuple[Example, ...]:
    """Returns the questions of a task that a study asks, in the order of the data.

    Args:
      tasks: Where they are and how many are wanted.
      name: The task.
      split: "calibration" or "audit"; the package's samples are too few to have both, and serve as
        either.

    Raises:
      ExampleError: They cannot be read.
      ConfigError: There is none of that split.
    """
    if tasks.data == HUB:
        splits = TASKS[name].hub_splits
        if split not in splits:
            raise ConfigError(
                f"tasks.data: got {HUB}, where {name} has no {split} questions, allowed is a "
                "folder that holds them"
            )
        examples = read_hub(TASKS[name], split=splits[split])
    elif tasks.data == SAMPLES:
        examples = read_examples(sample_path(name), name)
    else:
        examples = read_examples(Path(tasks.data) / f"{name}.jsonl", name)
    if tasks.data != SAMPLES:
        examples = tuple(example for example in examples if example.split == split)
    if not examples:
        raise ConfigError(f"tasks.data: got {tasks.data}, where {name} has no row of split {split}")
    return examples[: tasks.limit or None]


def write_prompts(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the prompt rows of a study, or finds the very same there.

    Raises:
      ConfigError: There are others: the folder is another study's.
    """
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"directory: {path} holds other questions; go on with the configuration that "
                "wrote them, or take another folder"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def answer(
    run: RunConfig, prompts: Path, output: Path, *, arms: Sequence[str], name: str, **more: Any
) -> None:
    """Has `experiments.decode` answer prompts, from where it was if it was killed.

    Args:
      run: How to decode.
      prompts: From `write_prompts`.
      output: Where the rows go.
      arms: As in `experiments.decode`.
      name: Of the configuration.
      more: Other fields of `run` to replace.

    Raises:
      ConfigError: Some questions were not answered: a study of the rest would be of other ones.
      OutputError: The output is of another run.
    """
    config = dataclasses.replace(
        run, prompts=str(prompts), output=str(output), resume=output.exists(), arms=tuple(arms),
        limit=0, **more,
    )  # fmt: skip
    config = SCHEMA.read(dataclasses.asdict(config))
    if decode.run(config, name) != 0:
        raise ConfigError(f"{output}: some questions were not answered, see above")


def command(schema: Schema[C], run: Callable[[C, str], int]) -> int:
    """Runs what the command line of a study says and returns the exit status.

    Args:
      schema: Of the configuration.
      run: Does the work, given the configuration and its name, and returns the status.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(*command_line.checked_config(schema))
    except (*_TOLD, OSError) as error:
        command_line.complain(str(error))
        return command_line.UNUSABLE
    except KeyboardInterrupt:
        print("interrupted: start the same command again to go on", file=sys.stderr)
        sys.stdout.flush()
        # A program may still be running on the device; Python would wait for its thread.
        os._exit(_INTERRUPTED)
