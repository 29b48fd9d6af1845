"""Whether the graders know the right answers of real task sets, and what a grade costs.

    python -m benchmarks.graders --data ../shared/data --output benchmarks/results/graders.json

Every row is graded two or three times: with its own reference, which should be right; with the
reference of another row that has another answer, and, where a program is asked for, with functions
that return None, which should be wrong. Rows for which that does not hold are listed by id; a data
set's own solution can fail its own tests. Without `--data` the samples of the package are graded.
"""

from __future__ import annotations

import collections
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.tasks import TASKS, Example, read_examples, sample_path
from benchmarks import timing

_FUNCTION = re.compile(r"^def (\w+)", re.MULTILINE)


def known_answer(example: Example) -> str:
    """Returns what a model that knows the reference would write."""
    match example.task:
        case "gsm8k" | "math500":
            return f"Thinking step by step.\nThe answer is $\\boxed{{{example.reference}}}$."
        case "humaneval":
            return f"```python\n{example.meta['prompt']}{example.reference}```"
        case "mbpp":
            return f"Here:\n```python\n{example.reference}\n```\nThat is all."
        case _:
            return f"The answer is ({example.reference})."


def returns_none(example: Example) -> str | None:
    """Returns a program with the functions of the right one that return None; None: no program."""
    if example.task not in ("humaneval", "mbpp"):
        return None
    names = [example.meta.get("entry_point"), *_FUNCTION.findall(example.reference or "")]
    code = "\n".join(f"def {name}(*args, **kwargs):\n    return None" for name in names if name)
    return f"```python\n{code}\n```"


def answers(examples: Sequence[Example]) -> Iterator[tuple[str, Example, str, bool]]:
    """Yields kind of answer, question, answer, and whether it should be right."""
    for number, example in enumerate(examples):
        yield "reference", example, known_answer(example), True
        for other in (*examples[number + 1 :], *examples[:number]):
            if other.reference != example.reference:
                yield "another's reference", example, known_answer(other), False
                break
        nothing = returns_none(example)
        if nothing is not None:
            yield "returns None", example, nothing, False


def measure(task: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Grades all answers of a task; counts by kind, ids graded otherwise, seconds a grade."""
    counts: dict[str, dict[str, int]] = collections.defaultdict(lambda: {"graded": 0, "right": 0})
    unlike: list[dict[str, str]] = []
    seconds = []
    for kind, example, answer, should_be_right in answers(examples):
        start = time.perf_counter()
        grade = TASKS[task].grade(example, [answer])
        seconds.append(time.perf_counter() - start)
        counts[kind]["graded"] += 1
        counts[kind]["right"] += bool(grade.is_right)
        if grade.is_right is not should_be_right:
            unlike.append({"id": example.id, "kind": kind, "detail": grade.detail})
        if sys.stderr.isatty():
            print(f"\r{task}: {example.id}".ljust(60), end="", file=sys.stderr, flush=True)
    return {
        "kinds": dict(counts),
        "unlike_expected": unlike,
        "seconds_a_grade": round(statistics.median(seconds), 4),
    }


def main() -> None:
    """Grades and prints a line for each task and kind of answer."""
    arguments = timing.parser(__doc__)
    arguments.add_argument("--data", help="folder of task sets; default: the package's samples")
    arguments.add_argument("--tasks", default="", help="which, with commas; default: all graded")
    given = arguments.parse_args()
    names = [name for name in given.tasks.split(",") if name]
    found = {}
    for name in names or [name for name, task in TASKS.items() if task.is_graded]:
        path = sample_path(name) if given.data is None else Path(given.data) / f"{name}.jsonl"
        found[name] = measure(name, read_examples(path, name))
        for kind, count in found[name]["kinds"].items():
            print(f"{name:10s} {kind:20s} {count['right']:5d} of {count['graded']:5d} right")
        for row in found[name]["unlike_expected"]:
            print(f"  not as expected: {row['id']}, {row['kind']}: {row['detail'][:100]}")
    timing.write_json(given.output, {"receipt": timing.receipt(), "tasks": found})


if __name__ == "__main__":
    main()
