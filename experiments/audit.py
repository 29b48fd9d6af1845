"""Audits frozen controls: ASD against strict speculative decoding on questions kept for this.

    python -m experiments.audit --config=experiments/configs/audit_smollm2.py

Both arms answer the audit questions of each task to their natural end, with the controls of a
frozen controls file, and the answers are graded and compared. Refused before any work are controls
that are not frozen, were chosen for another target or drafter, or have seen a question. Into
`directory` go

    prompts.jsonl    what is asked, each with the task's own length limit, or the run's if lower
    answers.jsonl    rows of both arms with every exception (see `asd_jax.evaluation.records`);
                     `experiments.replay` checks their ledgers
    grades.jsonl     grade of each answer; remove it when a grader has changed
    ratings.jsonl    what a judge says of tasks without right answers, where there is a judge
    study.json       all figures with their intervals, and the receipt
    study.md         the same as tables
    report.html      the same as a page; with `throughput` and `frontier`, what these studies say

Killed at any point, the same command goes on. `--help` lists all fields.

Exit status: 0 done, whatever the figures are; 2 the configuration or a file cannot be used, or the
judge does not answer; 130 interrupted (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from absl import app

from asd_jax.evaluation import receipt
from asd_jax.evaluation.audit import (
    Comparison,
    GradeCache,
    GradeStep,
    Pairs,
    compare,
    grade_steps,
    make_study,
    paired_grades,
    read_pairs,
    to_markdown,
    write_study,
)
from asd_jax.evaluation.audit.cells import change
from asd_jax.evaluation.audit.other_studies import controls_entry
from asd_jax.evaluation.audit.ratings import (
    RatingCache,
    Ratings,
    RatingStep,
    compare_ratings,
    rating_steps,
)
from asd_jax.evaluation.audit.render_more import more_markdown
from asd_jax.evaluation.calibration.grid import prompt_row
from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.report import write_report
from asd_jax.evaluation.tasks import TASKS
from asd_jax.evaluation.whole_files import write_text
from experiments import command_line, study
from experiments.audit_config import SCHEMA, AuditConfig
from experiments.audit_inputs import Audit, prepare

_ARMS = ("strict", "asd")
_SECONDS_BETWEEN_LINES = 5.0
S = TypeVar("S", GradeStep, RatingStep)


def run(config: AuditConfig, name: str) -> int:
    """Runs a checked configuration and returns the exit status.

    Args:
      config: What to do.
      name: The configuration's name.

    Raises:
      ConfigError: A file cannot be used, or a question was not answered.
      ControlsError: The controls cannot be audited.
      AuditError: The answers cannot be compared, or the judge does not answer.
      OutputError: The folder holds the answers of another run.
    """
    audit = prepare(config)
    prompts, answers = audit.path("prompts.jsonl"), audit.path("answers.jsonl")
    study.write_prompts(prompts, _rows(audit))
    _tell_limits(audit)
    study.answer(audit.run, prompts, answers, arms=_ARMS, name=name, trace=True)
    pairs = {
        # The one file holds the answers to all tasks.
        task: read_pairs(answers, examples, allow_others=True)
        for task, examples in audit.examples.items()
    }
    comparisons = _compared(audit, pairs)
    run_of = dict(next(iter(pairs.values())).run)
    document = _document(audit, comparisons, run_of, _rated(audit, pairs))
    write_study(audit.path("study.json"), document)
    write_text(audit.path("study.md"), to_markdown(document) + more_markdown(document))
    write_report(document, audit.path("report.html"))
    _tell(document, config.directory)
    return 0


def _tell_limits(audit: Audit) -> None:
    """Prints where answers may be cut before the task's own limit."""
    for name in audit.examples:
        if (limit := audit.config.longest_answer(name)) < (own := TASKS[name].max_new_tokens):
            print(
                f"{name}: answers are cut at {limit} tokens a turn; the task's own limit is {own}",
                flush=True,
            )


def _rows(audit: Audit) -> Iterator[dict[str, Any]]:
    """Yields what is asked, in the order of the tasks and of their data."""
    for name, examples in audit.examples.items():
        longest = audit.config.longest_answer(name)
        for example in examples:
            yield {**prompt_row(example), "max_new_tokens": longest}


def _compared(audit: Audit, pairs: Mapping[str, Pairs]) -> dict[str, Comparison]:
    comparisons = {}
    with GradeCache(audit.path("grades.jsonl")) as cache:
        for name, found in pairs.items():
            task = TASKS[name]
            steps = _shown(grade_steps(found, task, cache), f"{name}: graded")
            grades = paired_grades(found, steps)
            comparisons[name] = compare(found, grades, task, audit.tokenizer.decode)
    return comparisons


def _rated(audit: Audit, pairs: Mapping[str, Pairs]) -> dict[str, Ratings]:
    """Has the judge rate the tasks without right answers; nothing without a judge."""
    if audit.judge is None:
        return {}
    ratings = {}
    with RatingCache(audit.path("ratings.jsonl")) as cache:
        for name, found in pairs.items():
            if not TASKS[name].is_graded:
                steps = rating_steps(found, TASKS[name], audit.judge, cache)
                ratings[name] = compare_ratings([*_shown(steps, f"{name}: rated")])
    return ratings


def _shown(steps: Iterator[S], what: str) -> Iterator[S]:
    """Passes steps on, with a line on stdout every few seconds and at the end."""
    begun = last = time.monotonic()
    for step in steps:
        now = time.monotonic()
        if step.done == step.total or now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            minutes = (now - begun) / step.done * (step.total - step.done) / 60
            left = f", {minutes:.1f} min left" if step.done < step.total else ""
            print(f"{what} {step.done} of {step.total} answers{left}", flush=True)
        yield step


def _document(
    audit: Audit,
    comparisons: Mapping[str, Comparison],
    run_of: Mapping[str, Any],
    ratings: Mapping[str, Ratings],
) -> dict[str, Any]:
    """Returns the JSON value of the study."""
    run = {
        **run_of,
        "command": receipt.command_line("experiments.audit", sys.argv[1:]),
        "compared_at_commit": receipt.git_commit(),
        # Tokens a turn, by task; the run's own limit is the largest.
        "longest_answers": {name: audit.config.longest_answer(name) for name in audit.examples},
    }
    document = make_study(comparisons, run, controls=controls_entry(audit.controls)).to_json()
    document = audit.with_other_studies(document)
    if ratings:
        document["judge"] = plain_json(ratings)
    return document


def _tell(document: Mapping[str, Any], directory: str) -> None:
    for name, task in document["tasks"].items():
        found = task["accuracy"]
        quality = "no right answers"
        if found is not None:
            strict, asd = (100 * found[arm]["estimate"] for arm in _ARMS)
            difference = change(found["difference"], scale=100)
            quality = f"right {strict:.1f} % strict, {asd:.1f} % ASD, points {difference}"
        per_forward = change(task["acceptance"]["change_percent"])
        print(f"{name}: {task['num']} questions, {quality}; tokens a forward, % {per_forward}")
    print(f"written study.json, study.md and report.html in {directory}", flush=True)


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    return study.command(SCHEMA, run)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(SCHEMA))
