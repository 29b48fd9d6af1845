"""Reads a task set from the Hugging Face hub."""

from __future__ import annotations

from asd_jax.evaluation import prompts
from asd_jax.evaluation.tasks.example import Example, ExampleError, parse_example
from asd_jax.evaluation.tasks.task import Task


def read_hub(
    task: Task, hub_id: str | None = None, split: str | None = None
) -> tuple[Example, ...]:
    """Reads a split of a task's data set, or of another one with the same columns.

    Args:
      task: One of `TASKS`.
      hub_id: `owner/name` or `owner/name/config`; the task's own if None.
      split: The hub's name of the split; that of the task's audit questions if None.

    Returns:
      At least one example, in the hub's order; `Example.split` as the task's `from_hub` says.

    Raises:
      ExampleError: The package `datasets` is missing (`pip install 'asd_jax[hub]'`), the hub does
        not give out the data set, or a row lacks what the task needs.
    """
    hub_id, split = hub_id or task.hub_id, split or task.hub_splits["audit"]
    owner, _, rest = hub_id.partition("/")
    name, _, config = rest.partition("/")
    if not owner or not name or "/" in config:
        raise ExampleError(f"hub_id: got {hub_id!r}, allowed is owner/name or owner/name/config")
    try:
        rows = prompts._hub_rows(hub_id, f"{owner}/{name}", config or None, split, None)
    except prompts.PromptError as error:
        raise ExampleError(str(error)) from error
    examples = []
    for index, row in enumerate(rows):
        try:
            example = task.from_hub(row, split, index)
            # Through the same checks as a file: a hub row can be empty too.
            examples.append(parse_example(vars(example), task.name))
        except KeyError as error:
            raise ExampleError(
                f"{hub_id}, split {split}, row {index}: column {error.args[0]!r} is missing, "
                f"there are {', '.join(row)}"
            ) from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ExampleError(f"{hub_id}, split {split}, row {index}: {error}") from error
    if not examples:
        raise ExampleError(f"{hub_id}, split {split}: has no rows")
    return tuple(examples)
