"""MMLU: questions with four choices from 57 subjects; the answer is a letter.

Hendrycks et al. 2021, arXiv 2009.03300. https://huggingface.co/datasets/cais/mmlu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.letter import grade_letter
from asd_jax.evaluation.tasks.example import Example, only_answer, required_reference
from asd_jax.evaluation.tasks.task import Task, split_of

_INSTRUCTION = "\nAnswer with the letter of the right choice only: A, B, C or D."
_LETTERS = "ABCD"


def prompt(example: Example) -> tuple[str, ...]:
    """Returns the question and its choices with the request for a letter."""
    return (*example.turns[:-1], example.turns[-1] + _INSTRUCTION)


def grade(example: Example, answers: Sequence[str]) -> Grade:
    """Compares the letter that the only answer settles on with the reference."""
    return grade_letter(only_answer(example, answers), required_reference(example))


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with `question`, `subject`, `choices` and `answer` (index from 0).

    `index` counts the rows of the configuration that was read, so ids agree between two readings of
    the same configuration only.
    """
    question, choices = row["question"].strip(), list(row["choices"])
    lines = (f"{letter}. {choice}" for letter, choice in zip(_LETTERS, choices, strict=True))
    return Example(
        id=f"mmlu/{hub_split}/{row['subject']}/{index}",
        task="mmlu",
        split=split_of(row, hub_split),
        turns=("\n".join((question, *lines)),),
        reference=_LETTERS[row["answer"]],
        meta={
            "subject": row["subject"],
            "choices": choices,
            "answer": row["answer"],
            "source_split": hub_split,
        },
    )


TASK = Task(
    name="mmlu",
    is_graded=True,
    max_new_tokens=64,
    prompt=prompt,
    grade=grade,
    hub_id="cais/mmlu/all",
    hub_splits={"calibration": "dev", "audit": "test"},
    from_hub=from_hub,
)
