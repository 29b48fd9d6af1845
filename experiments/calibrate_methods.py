"""The methods of `experiments.calibrate`: what they have answered, and what they choose from it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asd_jax.evaluation.audit import GradeCache, Pairs, grade_steps, paired_grades
from asd_jax.evaluation.audit.lines import read_lines
from asd_jax.evaluation.audit.measures import Measures, measure
from asd_jax.evaluation.calibration.barriers import BLOCK_CAP, VALUE_SCHEME, quartile
from asd_jax.evaluation.calibration.choice import Selection, fastest_certified, fastest_within
from asd_jax.evaluation.calibration.grid import Setting
from asd_jax.evaluation.calibration.points import (
    NOTES,
    UNITS,
    frontier_points,
    quartile_page,
    setting_page,
    setting_table,
)
from asd_jax.evaluation.calibration.trials import (
    STRICT,
    Candidate,
    Outcome,
    asked_row,
    candidates,
    make_outcome,
    pair_up,
    trial_rows,
)
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.tasks import TASKS, Example
from experiments import study
from experiments.calibrate_config import FRONTIER, Q25, CalibrateConfig
from experiments.fields import ConfigError

_BOOTSTRAP = Bootstrap(num_resamples=2000)  # for every setting of a grid


@dataclasses.dataclass(frozen=True)
class Found:
    """What a method has found.

    Attributes:
      candidate: The controls.
      num_draft_tokens: G of the run.
      header: The description of the run.
      chosen: How, for the controls file.
      page: The same in Markdown.
      frontier: Points for a report, or None.
    """

    candidate: Candidate
    num_draft_tokens: int
    header: Mapping[str, Any]
    chosen: Mapping[str, Any]
    page: str
    frontier: Mapping[str, Any] | None = None


@contextlib.contextmanager
def told(field: str) -> Iterator[None]:
    """What the arithmetic refuses is for the user to mend: a message that names the field."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from error


def by_quartile(
    config: CalibrateConfig, name: str, directory: Path, examples: Sequence[Example]
) -> Found:
    """Chooses controls by the authors' quartile.

    Args:
      config: What to do.
      name: The configuration's name.
      directory: Where prompts and answers are.
      examples: What is asked.

    Raises:
      ConfigError: Some questions were not answered, or strict decoding was never stopped.
    """
    prompts, answers = directory / "prompts.jsonl", directory / "answers.jsonl"
    decode = config.decode
    rows = (
        asked_row(example, number, max_new_tokens=decode.max_new_tokens, seed=decode.seed)
        for number, example in enumerate(examples)
    )
    study.write_prompts(prompts, rows)
    study.answer(decode, prompts, answers, arms=("strict",), name=name, trace=True)
    header, found_rows = _read(answers)
    with told("tasks"):
        found = quartile(found_rows)
    setting = Setting(gate=found.gate, block_cap=BLOCK_CAP, budget=found.budget)
    table = {**dataclasses.asdict(found), "unit": "logits per share of a block"}
    return Found(
        candidate=Candidate(VALUE_SCHEME, setting),
        num_draft_tokens=found.block_size,
        header=header,
        chosen={"method": Q25, "parameters": {}, "reason": "the lower quartile", "table": table},
        page=quartile_page(found),
    )


def by_grid(
    config: CalibrateConfig, name: str, directory: Path, examples: Sequence[Example]
) -> Found:
    """Tries a grid of settings and chooses among them by estimate or by certificate.

    Args:
      config: What to do.
      name: The configuration's name.
      directory: Where prompts and answers are.
      examples: What is asked.

    Raises:
      ConfigError: Some questions were not answered, or the answers allow no figure.
      AuditError: Answers or grades cannot be used.
    """
    settings = config.settings()
    tried = candidates(settings, config.value_schemes)
    outcomes: dict[Candidate, Outcome] = {}
    header: Mapping[str, Any] = {}
    sizes = set()
    with GradeCache(directory / "grades.jsonl") as cache:
        for scheme in dict.fromkeys(candidate.value_scheme for candidate in tried):
            header, rows = _try_all(config, name, directory, examples, scheme)
            sizes |= {len(row["accept_histogram"]) - 1 for row in rows}
            with told("answers"):
                paired = pair_up(rows, examples, len(settings), header)
            for number, (setting, tasks) in enumerate(zip(settings, paired, strict=True), 1):
                measured = {
                    task: (each, _graded(each, task, cache)) for task, each in tasks.items()
                }
                outcomes[Candidate(scheme, setting)] = make_outcome(measured)
                print(f"graded   {scheme}, setting {number} of {len(settings)}", flush=True)
    ordered = [outcomes[candidate] for candidate in tried]
    with told("tasks"):
        selection = _select(config, ordered)
        points = frontier_points(tried, ordered, selection.certified, bootstrap=_BOOTSTRAP)
    table = setting_table(tried, ordered, selection)
    chosen = {
        "method": config.method,
        "parameters": config.parameters(),
        "reason": selection.reason,
        "index": selection.index,
        "examples_needed": selection.needed,
        "graded_examples": int(ordered[0].losses.size),
        "table": table,
    }
    strict = Candidate(tried[0].value_scheme, STRICT)
    return Found(
        candidate=strict if selection.index is None else tried[selection.index],
        num_draft_tokens=max(sizes),
        header=header,
        chosen=chosen,
        page=setting_page(table),
        frontier={
            "points": points,
            "units": UNITS,
            "notes": NOTES,
            "chosen": 0 if selection.index is None else selection.index + 1,
        },
    )


def _try_all(
    config: CalibrateConfig, name: str, directory: Path, examples: Sequence[Example], scheme: str
) -> tuple[Mapping[str, Any], list[Any]]:
    """Has every setting answered under a value scheme; returns header and rows."""
    decode = config.decode
    prompts, answers = (directory / f"{kind}.{scheme}.jsonl" for kind in ("prompts", "answers"))
    rows = trial_rows(
        examples, config.settings(), max_new_tokens=decode.max_new_tokens, seed=decode.seed
    )
    study.write_prompts(prompts, rows)
    verifier = dataclasses.replace(decode.verifier, value_scheme=scheme)
    study.answer(decode, prompts, answers, arms=("asd",), name=name, verifier=verifier)
    return _read(answers)


def _graded(pairs: Pairs, task: str, cache: GradeCache) -> Measures:
    grades = paired_grades(pairs, grade_steps(pairs, TASKS[task], cache))
    return measure(pairs, grades, is_graded=TASKS[task].is_graded)


def _select(config: CalibrateConfig, outcomes: Sequence[Outcome]) -> Selection:
    if config.method == FRONTIER:
        return fastest_within(outcomes, config.epsilon)
    return fastest_certified(
        outcomes, config.epsilon, config.delta, test=config.test, correction=config.correction
    )


def _read(answers: Path) -> tuple[Mapping[str, Any], list[Any]]:
    """Returns the description of a run and its rows."""
    (_, first), *rows = read_lines(answers)
    return first["run"], [row for _, row in rows]
