"""GSM8K: word problems of grade-school mathematics; the answer is a number in a box.

Cobbe et al. 2021, arXiv 2110.14168. https://huggingface.co/datasets/openai/gsm8k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.numeric import grade_number, reference_number
from asd_jax.evaluation.tasks.example import Example, only_answer, required_reference
from asd_jax.evaluation.tasks.task import Task, boxed_turns, split_of


def grade(example: Example, answers: Sequence[str], *, is_box_needed: bool = True) -> Grade:
    """Compares the last number in a box with the reference.

    Args:
      example: The question.
      answers: The model's only answer.
      is_box_needed: As for `grade_number`; False is a leniency of this library, off by default.
    """
    return grade_number(
        only_answer(example, answers), required_reference(example), is_box_needed=is_box_needed
    )


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with the columns `question` and `answer` (worked, with a `####` line)."""
    return Example(
        id=f"gsm8k/{hub_split}/{index}",
        task="gsm8k",
        split=split_of(row, hub_split),
        turns=(row["question"],),
        reference=reference_number(row["answer"]),
        meta={"source_split": hub_split, "solution": row["answer"]},
    )


TASK = Task(
    name="gsm8k",
    is_graded=True,
    max_new_tokens=512,
    prompt=boxed_turns,
    grade=grade,
    hub_id="openai/gsm8k/main",
    hub_splits={"calibration": "train", "audit": "test"},
    from_hub=from_hub,
)
