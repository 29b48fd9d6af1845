"""MATH-500: competition problems; the answer is a formula in a box.

Hendrycks et al. 2021, arXiv 2103.03874; the 500 problems of Lightman et al. 2023, arXiv 2305.20050.
https://huggingface.co/datasets/HuggingFaceH4/MATH-500
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.latex import FormulaComparer, grade_formula
from asd_jax.evaluation.tasks.example import Example, only_answer, required_reference
from asd_jax.evaluation.tasks.task import Task, boxed_turns, split_of


def grade(
    example: Example, answers: Sequence[str], *, comparer: FormulaComparer | None = None
) -> Grade:
    """Compares the last box with the reference, by meaning.

    Args:
      example: The question.
      answers: The model's only answer.
      comparer: As for `grade_formula`.
    """
    return grade_formula(only_answer(example, answers), required_reference(example), comparer)


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with `problem`, `solution`, `answer`, `subject`, `level`, `unique_id`."""
    del index  # the rows have ids
    return Example(
        id=f"math500/{row['unique_id']}",
        task="math500",
        split=split_of(row, hub_split),
        turns=(row["problem"],),
        reference=row["answer"],
        meta={
            "subject": row["subject"],
            "level": row["level"],
            "unique_id": row["unique_id"],
            "source_split": hub_split,
            "solution": row["solution"],
        },
    )


TASK = Task(
    name="math500",
    is_graded=True,
    max_new_tokens=1024,
    prompt=boxed_turns,
    grade=grade,
    hub_id="HuggingFaceH4/MATH-500",
    hub_splits={"audit": "test"},
    from_hub=from_hub,
)
