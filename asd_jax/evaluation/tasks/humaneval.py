"""HumanEval: Python functions from their docstrings; the answer has to pass the tests.

Chen et al. 2021, arXiv 2107.03374. https://huggingface.co/datasets/openai/openai_humaneval
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.program import code_of, complete, grade_program
from asd_jax.evaluation.grading.sandbox import Limits
from asd_jax.evaluation.tasks.example import Example, only_answer, required_meta
from asd_jax.evaluation.tasks.task import Task, bare_turns

_REQUEST = "Write a solution to the following problem and make sure that it passes the tests:"


def grade(example: Example, answers: Sequence[str], *, limits: Limits | None = None) -> Grade:
    """Runs the answer's function, or the stub with the answer as its body, against `check`.

    The stub is run before: it has imports and helper functions that an answer may rely on.

    Args:
      example: The problem; `meta` has `prompt` (the stub), `test` and `entry_point`.
      answers: The model's only answer.
      limits: As for `run_confined`.
    """
    stub, test, name = (
        required_meta(example, field, str) for field in ("prompt", "test", "entry_point")
    )
    code = complete(stub, code_of(only_answer(example, answers), name), name)
    if code is None:
        return Grade(False, None, "no code")
    # The stub's own function would stand in for one that the answer deletes again.
    forget = f"globals().pop({name!r}, None)"
    sources = [("stub", f"{stub}\n"), ("stub", forget), ("answer", code)]
    sources += [("tests", test), ("check", f"check({name})")]
    return grade_program(sources, code, limits)


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row with `task_id`, `prompt`, `canonical_solution`, `test`, `entry_point`.

    The hub has one split. A quarter of the problems, told by the SHA-256 of their id, is for
    calibration, the rest for audit.
    """
    del hub_split, index
    own = f"humaneval/{row['task_id'].rpartition('/')[2]}"
    is_calibration = hashlib.sha256(own.encode()).hexdigest() < "44"
    return Example(
        id=own,
        task="humaneval",
        split="calibration" if is_calibration else "audit",
        turns=(f"{_REQUEST}\n```python\n{row['prompt']}\n```",),
        reference=row["canonical_solution"],
        meta={name: row[name] for name in ("task_id", "prompt", "test", "entry_point")},
    )


TASK = Task(
    name="humaneval",
    is_graded=True,
    max_new_tokens=512,
    prompt=bare_turns,
    grade=grade,
    hub_id="openai/openai_humaneval",
    hub_splits={"calibration": "test", "audit": "test"},
    from_hub=from_hub,
)
