"""Writes a study as one HTML page that needs nothing else.

    python -m experiments.report STUDY.json --output report.html

The page shows ASD against strict speculative decoding: a summary in plain words, speed against
quality, every task, and single answers with their exceptions. `asd_jax.evaluation.report.study`
says what STUDY.json holds. An output that exists is left alone unless `--replace` is given.

Exit status: 0 written; 2 the study cannot be shown, or a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.report import StudyError, write_report

_DONE, _UNUSABLE = 0, 2


def _parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("study", type=Path, metavar="STUDY.json")
    arguments.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE")
    arguments.add_argument("--replace", action="store_true", help="write over an output")
    return arguments


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise StudyError(f"{path.name}: cannot be read as JSON: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page that the command line asks for and returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.output.exists() and not arguments.replace:
            raise StudyError(
                f"--output: got {str(arguments.output)!r}, which exists; --replace writes over it"
            )
        study = _read(arguments.study)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_report(study, arguments.output)
    except (StudyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _UNUSABLE
    print(f"written {arguments.output}")
    return _DONE


if __name__ == "__main__":
    sys.exit(main())
