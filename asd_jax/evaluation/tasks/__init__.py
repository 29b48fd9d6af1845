"""The seven task sets: what is sent to the model, and what makes an answer right.

    for example in read_examples(sample_path("gsm8k"), "gsm8k"):
        turns = TASKS["gsm8k"].prompt(example)
        ...
        grade = TASKS["gsm8k"].grade(example, answers)

`read_examples` reads JSON lines, `read_hub` the public data sets. The samples that come with the
package are a handful of questions a task, written for it, that try out the way from question to
grade; an accuracy over them says nothing about a model.
"""

from __future__ import annotations

from pathlib import Path

from asd_jax.evaluation.tasks import alpaca, gsm8k, humaneval, math500, mbpp, mmlu, mt_bench
from asd_jax.evaluation.tasks.example import (
    SPLITS,
    Example,
    ExampleError,
    parse_example,
    read_examples,
)
from asd_jax.evaluation.tasks.hub import read_hub
from asd_jax.evaluation.tasks.task import Task

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK
    for module in (gsm8k, math500, humaneval, mbpp, mmlu, mt_bench, alpaca)
}

__all__ = [
    "SPLITS",
    "TASKS",
    "Example",
    "ExampleError",
    "Task",
    "parse_example",
    "read_examples",
    "read_hub",
    "sample_path",
]


def sample_path(task: str) -> Path:
    """Returns the file with the sample questions of a task.

    Raises:
      ValueError: There is no such task.
    """
    if task not in TASKS:
        raise ValueError(f"task: got {task!r}, allowed are {', '.join(TASKS)}")
    return Path(__file__).with_name("samples") / f"{task}.jsonl"
