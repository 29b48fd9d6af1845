"""Finds the program in an answer, and runs it against its tests."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.sandbox import Limits, run_confined
from asd_jax.evaluation.grading.thinking import answer_part

# A fence that is never closed is that of an answer cut off by the length limit.
_FENCE = re.compile(
    r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON = frozenset({"", "py", "python", "python3"})
_FIRST_LINE_OF_CODE = re.compile(r"^(?:from \w|import \w|def \w|class \w|async def |@\w)", re.M)
_COMMENTS_AND_CONSTANTS = re.compile(r"(?:[ \t]*(?:#[^\n]*|\w+[ \t]*=[^\n]*)?\n)*")


def code_of(answer: str, name: str | None = None) -> str:
    """Returns the Python code of an answer.

    Of fenced blocks the last one that defines `name` counts, as an answer may improve on its first
    attempt and may end in an example of use; else the first block. Without a fence the whole text
    counts, less the prose before its first line of code. No code is compiled here: whatever is
    wrong with it shows in the sandbox.

    Args:
      answer: What the model wrote.
      name: The function or class asked for, or None if any will do.
    """
    answer = answer_part(answer)
    blocks = [
        textwrap.dedent(body) if _defines(textwrap.dedent(body), name) else body
        for language, body in _FENCE.findall(answer)
        if language.lower() in _PYTHON
    ]
    if blocks:
        defining = [block for block in blocks if _defines(block, name)]
        return defining[-1] if defining else blocks[0]
    match = _FIRST_LINE_OF_CODE.search(answer)
    if match is None or _COMMENTS_AND_CONSTANTS.fullmatch(answer[: match.start()]):
        return answer
    return answer[match.start() :]


def complete(stub: str, code: str, name: str) -> str | None:
    """Returns code that defines a function, given the function or only its body.

    Args:
      stub: Signature and docstring, and whatever they need.
      code: As from `code_of`.
      name: The function's.

    Returns:
      `code`, or `stub` with `code` as the body, or None if there is no code.
    """
    if _defines(code, name):
        return code
    if not code.strip():
        return None
    body = code if code.lstrip("\n")[0].isspace() else textwrap.indent(code, "    ")
    return f"{stub.rstrip()}\n{body}"


def grade_program(sources: Sequence[tuple[str, str]], code: str, limits: Limits | None) -> Grade:
    """Runs sources in the sandbox; right if they ran to their end.

    Args:
      sources: As for `run_confined`.
      code: The part of them that the model wrote, for `Grade.extracted`.
      limits: As for `run_confined`.
    """
    run = run_confined(sources, limits)
    return Grade(run.is_passed, code, run.detail)


def _defines(code: str, name: str | None) -> bool:
    if name is None:
        return False
    escaped = re.escape(name)
    pattern = rf"^(?:(?:async\s+)?def\s+{escaped}\b|class\s+{escaped}\b|{escaped}\s*(?::[^=\n]*)?=)"
    return re.search(pattern, code, re.MULTILINE) is not None
