"""Draws speed against quality: ASD under both value schemes, rival rules, and two anchors.

    python -m experiments.frontier --config=experiments/configs/frontier_smollm2.py

Asks all settings the same questions of task sets with the same drafter and writes, in `directory`,

    frontier.json      a point for each setting (speed: tokens a target forward against strict
                       decoding, percent; quality: accuracy against it, points; each with its
                       interval), the two value schemes at the same controls, what was left out and
                       why; `points` and `units` are what the page of `experiments.report` takes as
                       `frontier` and `frontier_units`
    frontier.md        the same as tables
    *.jsonl            the questions (prompts, grid), the answers (anchors, asd_SCHEME,
                       rivals/RULE) and the grades; nothing is answered or graded twice

Controls are per request, so all settings of ASD under a value scheme are one run; a setting of a
rival is a run of its own. `--config.rules=mars,fly` takes some of the rivals. Questions of split
audit are asked with `--config.split=audit` only, and every point says so. Killed or interrupted,
it goes on with the same command. `--help` lists all fields.

Exit status: 0 done; 2 the configuration or a file cannot be used; 130 interrupted (Ctrl-C or
SIGTERM).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app

from asd_jax.evaluation import receipt
from asd_jax.evaluation.audit.grades import GradeCache, grade_steps, paired_grades
from asd_jax.evaluation.audit.measures import Measures, measure
from asd_jax.evaluation.calibration.grid import Setting
from asd_jax.evaluation.calibration.trials import asked_row, setting_rows
from asd_jax.evaluation.frontier import (
    Answers,
    Point,
    Rival,
    compare_schemes,
    document,
    join,
    make_point,
    read_answers,
    read_grid_answers,
    reason_left_out,
    to_markdown,
)
from asd_jax.evaluation.tasks import TASKS, Example
from asd_jax.evaluation.whole_files import write_text
from asd_jax.load import has_distribution
from experiments import command_line, study
from experiments.fields import ConfigError
from experiments.frontier_config import SCHEMA, FrontierConfig

STRICT, GREEDY, ASD = "strict", "greedy", "asd"
Questions = Mapping[str, Sequence[Example]]


def run(config: FrontierConfig, name: str) -> int:
    """Draws a frontier and returns the exit status.

    Args:
      config: What to draw.
      name: The configuration's name.

    Raises:
      ConfigError: Something cannot be used.
      AuditError: The files in the folder do not belong together.
      ExampleError: The questions cannot be read.
      OutputError: The folder holds another run's answers.
    """
    study.check_run(config.decode)
    questions = _read_questions(config)
    drawn, left_out = _choose_rivals(config)
    for rival, reason in left_out:
        print(f"left out  {rival.name}: {reason}", flush=True)
    _answer_all(config, name, questions, drawn)
    folder = Path(config.directory)
    anchors = folder / "anchors.jsonl"
    strict = read_answers(anchors, STRICT)
    points: list[Point] = []
    by_scheme: dict[str, dict[Setting, Mapping[str, Measures]]] = {}
    with GradeCache(folder / "grades.jsonl") as grades:
        for rule, options, answers in _settings(config, drawn, strict):
            measures = _measure(questions, strict, answers, grades)
            points.append(_point(config, rule, options, measures))
            print(_line(points[-1]), flush=True)
            if rule == ASD:
                setting = Setting(options["gate"], options["block_cap"], options["budget"])
                by_scheme.setdefault(options["value_scheme"], {})[setting] = measures
    schemes = None
    if len(by_scheme) > 1:
        schemes = compare_schemes(by_scheme["remaining"], by_scheme["realised"], config.resampling)
        print(schemes.verdict)
    found = document(points, schemes, left_out, _receipt(config, strict), split=config.split)
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    for path, content in (
        (folder / "frontier.json", text),
        (folder / "frontier.md", to_markdown(found)),
    ):
        write_text(path, content)
        print(f"written {path}")
    return 0


def _read_questions(config: FrontierConfig) -> Questions:
    questions = {
        name: study.read_task(config.tasks, name, config.split) for name in config.tasks.names
    }
    for name, examples in questions.items():
        if len(examples) < 2:
            raise ConfigError(
                f"tasks.limit: got {len(examples)} question of {name}, allowed are 2 or more of "
                "each task, as no interval comes from one"
            )
    return questions


def _choose_rivals(
    config: FrontierConfig,
) -> tuple[tuple[Rival, ...], tuple[tuple[Rival, str], ...]]:
    """Returns the settings to draw, and those that cannot be with the reasons."""
    drawn, left_out = [], []
    for rival in config.rival_settings:
        reason = reason_left_out(
            rival,
            has_distribution=has_distribution(config.decode.drafter),
            temperature=config.decode.temperature,
            num_draft_tokens=config.decode.num_draft_tokens or 0,
        )
        if reason is None:
            drawn.append(rival)
        else:
            left_out.append((rival, reason))
    return tuple(drawn), tuple(left_out)


def _answer_all(
    config: FrontierConfig, name: str, questions: Questions, rivals: Sequence[Rival]
) -> None:
    """Has every setting answer, from where it was if it was killed."""
    folder = Path(config.directory)
    examples = [example for group in questions.values() for example in group]
    plain, tried = folder / "prompts.jsonl", folder / "grid.jsonl"
    asked = {"max_new_tokens": config.decode.max_new_tokens, "seed": config.decode.seed}
    study.write_prompts(plain, (asked_row(e, i, **asked) for i, e in enumerate(examples)))
    study.write_prompts(tried, setting_rows(examples, config.grid, **asked))

    def answer(prompts: Path, output: Path, arms: Sequence[str], **verifier: Any) -> None:
        changed = dataclasses.replace(config.decode.verifier, **verifier)
        study.answer(config.decode, prompts, output, arms=arms, name=name, verifier=changed)

    # Strict decoding is ASD's program without a budget: a baseline that differs in nothing else.
    answer(plain, folder / "anchors.jsonl", (STRICT, GREEDY), rule=ASD)
    for scheme in config.asd.value_schemes:
        answer(tried, _asd_output(folder, scheme), (ASD,), rule=ASD, value_scheme=scheme)
    for rival in rivals:
        output = _rival_output(folder, rival)
        answer(plain, output, (rival.rule,), rule=rival.rule, options=dict(rival.options))


def _settings(
    config: FrontierConfig, rivals: Sequence[Rival], strict: Answers
) -> Iterator[tuple[str, dict[str, Any], Answers]]:
    """Yields rule, options and answers of every point."""
    folder = Path(config.directory)
    yield STRICT, {}, strict
    yield "autoregressive", {}, read_answers(folder / "anchors.jsonl", GREEDY)
    for scheme in config.asd.value_schemes:
        path = _asd_output(folder, scheme)
        tables = read_grid_answers(path, ASD, len(config.grid))
        for setting, answers in zip(config.grid, tables, strict=True):
            yield ASD, {"value_scheme": scheme, **setting.overrides()}, answers
    for rival in rivals:
        yield rival.rule, rival.all_options, read_answers(_rival_output(folder, rival), rival.rule)


def _asd_output(folder: Path, scheme: str) -> Path:
    return folder / f"asd_{scheme}.jsonl"


def _rival_output(folder: Path, rival: Rival) -> Path:
    return folder / "rivals" / f"{rival.name}.jsonl"


def _measure(
    questions: Questions, strict: Answers, candidate: Answers, grades: GradeCache
) -> dict[str, Measures]:
    measures = {}
    for name, examples in questions.items():
        pairs = join(examples, strict, candidate)
        found = paired_grades(pairs, grade_steps(pairs, TASKS[name], grades))
        measures[name] = measure(pairs, found, is_graded=TASKS[name].is_graded)
    return measures


def _point(
    config: FrontierConfig, rule: str, options: dict[str, Any], measures: Mapping[str, Measures]
) -> Point:
    if config.split == "audit":
        options = {**options, "split": "audit"}
    return make_point(rule, options, measures, config.resampling, split=config.split)


def _receipt(config: FrontierConfig, strict: Answers) -> dict[str, Any]:
    """Returns the receipt of the first run with the frontier's own configuration in it."""
    header = receipt.run_header(
        dataclasses.asdict(config), target="", drafter=None, prompts="", num_prompts=0
    )
    command = receipt.command_line("experiments.frontier", sys.argv[1:])
    return {**strict.run, "config": header["config"], "command": command}


def _line(point: Point) -> str:
    options = ", ".join(f"{name} {value}" for name, value in point.options.items())
    return (
        f"{point.rule} {options}: speed {point.speed.estimate:+.1f} % [{point.speed.low:+.1f}, "
        f"{point.speed.high:+.1f}], quality {point.quality.estimate:+.1f} points "
        f"[{point.quality.low:+.1f}, {point.quality.high:+.1f}]"
    )


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    return study.command(SCHEMA, run)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(SCHEMA))
