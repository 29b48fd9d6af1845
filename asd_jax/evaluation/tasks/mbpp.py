"""MBPP: short Python programs from a sentence and three tests, which the answer has to pass.

Austin et al. 2021, arXiv 2108.07732. https://huggingface.co/datasets/google-research-datasets/mbpp
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from typing import Any

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.program import code_of, grade_program
from asd_jax.evaluation.grading.sandbox import Limits
from asd_jax.evaluation.tasks.example import Example, only_answer, required_meta
from asd_jax.evaluation.tasks.task import Task, bare_turns, split_of

# A bare name that is called, no method: "assert", "set(" and "math.isclose(" are passed over.
_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_NOT_ASKED_FOR = frozenset(dir(builtins)) | {"assert", "not", "and", "or", "in"}


def grade(example: Example, answers: Sequence[str], *, limits: Limits | None = None) -> Grade:
    """Runs the answer, then the tests.

    Args:
      example: The problem; `meta` has `test_list` and `test_setup_code`.
      answers: The model's only answer.
      limits: As for `run_confined`.
    """
    tests = required_meta(example, "test_list", list)
    code = code_of(only_answer(example, answers), _name_in(tests))
    if not code.strip():
        return Grade(False, None, "no code")
    setup = example.meta.get("test_setup_code") or ""
    sources = [("answer", code), ("setup", setup), ("tests", "\n".join(tests))]
    return grade_program(sources, code, limits)


def from_hub(row: Mapping[str, Any], hub_split: str, index: int) -> Example:
    """Converts a row of the configuration `full` or `sanitized`, CR LF made LF.

    `full` has `text` and `test_setup_code`, `sanitized` has `prompt` and `test_imports`; both have
    `task_id`, `code` and `test_list`. Their tests can call for different signatures.
    """
    del index  # the rows have ids
    text = row["text"] if "text" in row else row["prompt"]
    setup = row["test_setup_code"] if "text" in row else "\n".join(row["test_imports"])
    tests = [_with_newlines(test) for test in row["test_list"]]
    return Example(
        id=f"mbpp/{row['task_id']}",
        task="mbpp",
        split=split_of(row, hub_split),
        turns=(f"{text}\nYour code should pass these tests:\n\n" + "\n".join(tests),),
        reference=_with_newlines(row["code"]),
        meta={
            "task_id": row["task_id"],
            "source_split": hub_split,
            "text": text,
            "test_list": tests,
            "test_setup_code": _with_newlines(setup),
            "challenge_test_list": list(row.get("challenge_test_list") or ()),
            "sanitized": None,
        },
    )


def _with_newlines(code: str) -> str:
    return code.replace("\r\n", "\n")


def _name_in(tests: Sequence[str]) -> str | None:
    """Returns the first name called in the tests that Python does not have itself."""
    for test in tests:
        for match in _CALL.finditer(test):
            if match[1] not in _NOT_ASKED_FOR:
                return match[1]
    return None


TASK = Task(
    name="mbpp",
    is_graded=True,
    max_new_tokens=512,
    prompt=bare_turns,
    grade=grade,
    hub_id="google-research-datasets/mbpp/full",
    hub_splits={"calibration": "train", "audit": "test"},
    from_hub=from_hub,
)
