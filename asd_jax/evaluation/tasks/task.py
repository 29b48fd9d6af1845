"""What a task set is to the rest of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.tasks.example import Example

BOX_INSTRUCTION = (
    "\nPlease reason step by step, and put your final answer within \\boxed{}."  # DeepSpec@afdfa7c
)


class Task(NamedTuple):
    """A task set as a few pure functions.

    Attributes:
      name: As in `Example.task`.
      is_graded: Whether an answer is right or wrong; if not, `Grade.is_right` is always None.
      max_new_tokens: Longest answer to a turn that is asked for by default, in tokens.
      prompt: Returns the user turns as they are sent to the model.
      grade: Returns the `Grade` of the answers, one text for each turn. Raises `ExampleError` if
        the example lacks what grading needs, and ValueError for another number of answers.
      hub_id: Its public data set: `owner/name`, or `owner/name/config`.
      hub_splits: The data set's own name of the split that holds the questions of each of ours,
        "calibration" and "audit"; one that is missing has none there. Both may be the same.
      from_hub: Returns a row of that data set, given the row, the hub's name of its split and its
        number in it, as an `Example`. Raises KeyError if a column is missing.
    """

    name: str
    is_graded: bool
    max_new_tokens: int
    prompt: Callable[[Example], tuple[str, ...]]
    grade: Callable[[Example, Sequence[str]], Grade]
    hub_id: str
    hub_splits: Mapping[str, str]
    from_hub: Callable[[Mapping[str, Any], str, int], Example]


def bare_turns(example: Example) -> tuple[str, ...]:
    """Returns the turns as they are in the data."""
    return example.turns


def boxed_turns(example: Example) -> tuple[str, ...]:
    """Returns the turns, the last with the request to reason and to box the final answer."""
    return (*example.turns[:-1], example.turns[-1] + BOX_INSTRUCTION)


def split_of(row: Mapping[str, Any], hub_split: str) -> str:
    """Returns the split of a hub row: its own if it has one, else audit for the hub's `test`.

    All that is no test set (train, dev, validation) is for calibration.
    """
    own = row.get("split")
    if own in ("calibration", "audit"):
        return str(own)
    return "audit" if hub_split == "test" else "calibration"
