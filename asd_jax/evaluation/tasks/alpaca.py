"""Alpaca: instructions of all kinds; there is no right answer.

Taori et al. 2023, https://huggingface.co/datasets/tatsu-lab/alpaca (CC BY-NC 4.0). The references
were written by text-davinci-003.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.overlap import describe
from asd_jax.evaluation.tasks.example import Example, only_answer
from asd_jax.evaluation.tasks.task import Task, bare_turns


def grade(example: Example, answers: Sequence[str]) -> Grade:
    """Describes the only answer; see `describe`."""
    return describe([only_answer(example, answers)], example.reference)


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with `instruction`, `input` and `output`.

    There is one split; the fifth of the rows whose id has the highest SHA-256 is for calibration.
    """
    del hub_split, index
    instruction, addition = row["instruction"], row["input"]
    digest = hashlib.sha256(f"{instruction}\0{addition}".encode()).hexdigest()
    own = f"alpaca/{digest[:12]}"
    is_calibration = hashlib.sha256(own.encode()).hexdigest() > "c9a7"
    return Example(
        id=own,
        task="alpaca",
        split="calibration" if is_calibration else "audit",
        turns=(f"{instruction}\n\nInput:\n{addition}" if addition else instruction,),
        reference=row["output"],
        meta={"instruction": instruction, "input": addition},
    )


TASK = Task(
    name="alpaca",
    is_graded=False,
    max_new_tokens=512,
    prompt=bare_turns,
    grade=grade,
    hub_id="tatsu-lab/alpaca",
    hub_splits={"calibration": "train", "audit": "train"},
    from_hub=from_hub,
)
