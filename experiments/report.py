"""Writes a study as one HTML page that needs nothing else.

    python -m experiments.report STUDY.json --output report.html
    python -m experiments.report STUDY.json --output public.json --without-answers

The page shows ASD against strict speculative decoding: a summary in plain words, speed against
quality, every task, and single answers with their exceptions. `asd_jax.evaluation.report.study`
says what STUDY.json holds. `--without-answers` leaves out all questions and answers, which may be
others' to pass on; an output that ends in .json is the study itself, so that what is left of it can
be kept. An output that exists is left alone unless `--replace` is given.

Exit status: 0 written; 2 the study cannot be shown, or a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.report import StudyError, render_report
from asd_jax.evaluation.whole_files import write_text

_DONE, _UNUSABLE = 0, 2


def _parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("study", type=Path, metavar="STUDY.json")
    arguments.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE")
    arguments.add_argument(
        "--without-answers", action="store_true", help="leave out questions and answers"
    )
    arguments.add_argument("--replace", action="store_true", help="write over an output")
    return arguments


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StudyError(f"{path.name}: cannot be read as JSON: {error}") from error


def _without_answers(study: Any) -> Any:
    """Returns the study without the only part that holds texts of questions and answers."""
    if not isinstance(study, Mapping) or not isinstance(study.get("tasks"), Mapping):
        return study  # the page says what is wrong with it
    tasks = {
        name: {**task, "worst": []} if isinstance(task, Mapping) else task
        for name, task in study["tasks"].items()
    }
    return {**study, "tasks": tasks}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page that the command line asks for and returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.output.exists() and not arguments.replace:
            raise StudyError(
                f"--output: got {str(arguments.output)!r}, which exists; --replace writes over it"
            )
        study = _read(arguments.study)
        if arguments.without_answers:
            study = _without_answers(study)
        page = render_report(study)
        if arguments.output.suffix == ".json":
            page = json.dumps(study, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(arguments.output, page)
    except (StudyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _UNUSABLE
    print(f"written {arguments.output}")
    return _DONE


if __name__ == "__main__":
    sys.exit(main())
