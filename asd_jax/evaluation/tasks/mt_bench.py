"""MT-Bench: open questions of two turns, eight categories; there is no right answer.

Zheng et al. 2023, arXiv 2306.05685; a score needs `grading.judge`.
https://huggingface.co/datasets/HuggingFaceH4/mt_bench_prompts
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.overlap import describe
from asd_jax.evaluation.tasks.example import Example
from asd_jax.evaluation.tasks.task import Task, bare_turns

_FIRST_ID, _IDS_A_CATEGORY, _CALIBRATION_A_CATEGORY = 81, 10, 3


def grade(example: Example, answers: Sequence[str]) -> Grade:
    """Describes the answers, one for each turn; see `describe`."""
    if len(answers) != len(example.turns):
        allowed = len(example.turns)
        raise ValueError(f"{example.id}: answers: got {len(answers)}, allowed are {allowed}")
    return describe(answers, example.reference)


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with `prompt_id`, `prompt` (the turns), `category` and `reference`.

    FastChat's names of the same columns, `question_id` and `turns`, will do as well. There is one
    split; of the ten questions of a category three, told by the SHA-256 of their ids, are for
    calibration.
    """
    del hub_split, index
    number = int(row["prompt_id"] if "prompt_id" in row else row["question_id"])
    references = list(row.get("reference") or ())
    return Example(
        id=f"mt_bench/{number}",
        task="mt_bench",
        split="calibration" if _is_calibration(number) else "audit",
        turns=tuple(row["prompt"] if "prompt" in row else row["turns"]),
        reference=references[0] if references else None,
        meta={
            "question_id": number,
            "category": row["category"],
            "reference_turns": references or None,
            "question_file_reference": None,
        },
    )


def _is_calibration(number: int) -> bool:
    first = number - (number - _FIRST_ID) % _IDS_A_CATEGORY
    category = range(first, first + _IDS_A_CATEGORY)
    ranked = sorted(category, key=lambda n: hashlib.sha256(f"mt_bench/{n}".encode()).hexdigest())
    return number in ranked[:_CALIBRATION_A_CATEGORY]


TASK = Task(
    name="mt_bench",
    is_graded=False,
    max_new_tokens=1024,
    prompt=bare_turns,
    grade=grade,
    hub_id="HuggingFaceH4/mt_bench_prompts",
    hub_splits={"calibration": "train", "audit": "train"},
    from_hub=from_hub,
)
