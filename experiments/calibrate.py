"""Chooses the controls of ASD on the calibration split.

    python -m experiments.calibrate --config=experiments/configs/calibrate_smollm2.py
    python -m experiments.calibrate --config=experiments/configs/calibrate_smollm2.py \\
        --config.method=risk --config.directory=outputs/risk --config.tasks.data=FOLDER

Methods:

    q25        the authors': budget and gate are the lower quartile of what strict decoding
               stumbles over, the cap is 1 (`asd_jax.evaluation.calibration.barriers`)
    frontier   a grid of settings on the same questions, of which the fastest that loses at most
               epsilon on them is taken: a discovery, to be confirmed on other questions
    risk       the same grid; taken is the fastest whose loss is certified to be at most epsilon
               with probability 1 - delta, or strict decoding if none is

Writes into the directory

    prompts*.jsonl, answers*.jsonl   what was asked and answered, of every value scheme
    grades.jsonl                     grades of the answers (frontier and risk)
    controls.json                    the controls, see `asd_jax.evaluation.controls_file`
    frontier.json                    points for a report (frontier and risk)
    calibration.md                   what the choice was made from

Killed at any point it goes on when it is started again. `experiments.freeze` freezes a candidate.
`--help` lists all fields.

Exit status: 0 done, also where no setting is certified; 2 the configuration or a file cannot be
used; 130 interrupted.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app

from asd_jax import tokenizer as tokenizers
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.evaluation import receipt
from asd_jax.evaluation.calibration.grid import require_split
from asd_jax.evaluation.controls_file import FrozenControls, read_controls, write_controls
from asd_jax.evaluation.tasks import Example
from asd_jax.evaluation.whole_files import write_text
from asd_jax.tokenizer.digest import tokenizer_digest
from experiments import command_line, study
from experiments.calibrate_config import FRONTIER, Q25, RISK, SCHEMA, CalibrateConfig
from experiments.calibrate_methods import Found, by_grid, by_quartile, told
from experiments.fields import ConfigError

_SPLIT = "calibration"
_FEWEST = 2  # no interval comes from one question
_STATUS = {Q25: "candidate", FRONTIER: "discovery", RISK: "candidate"}


def run(config: CalibrateConfig, name: str) -> int:
    """Runs a checked configuration and returns the exit status.

    Args:
      config: What to do.
      name: The configuration's name.

    Raises:
      ConfigError: A field does not fit the data, or the directory is another calibration's.
      ExampleError: The questions cannot be read.
      AuditError: Answers or grades cannot be used.
      CheckpointError: The target cannot be opened.
    """
    study.check_run(config.decode)
    directory = Path(config.directory)
    examples = _questions(config)
    _check_directory(config, directory, examples)
    found = (by_quartile if config.method == Q25 else by_grid)(config, name, directory, examples)
    controls = _controls(config, examples, found)
    page = _page(controls, found.page)
    if found.frontier is not None:
        text = json.dumps({**found.frontier, "run": controls.run}, ensure_ascii=False, indent=1)
        write_text(directory / "frontier.json", text + "\n")
    write_text(directory / "calibration.md", page)
    write_controls(directory / "controls.json", controls)
    print(f"\n{page}\nwritten: {directory / 'controls.json'}", flush=True)
    return 0


def _questions(config: CalibrateConfig) -> tuple[Example, ...]:
    examples: list[Example] = []
    for task in config.tasks.names:
        found = study.read_task(config.tasks, task, _SPLIT)
        if len(found) < _FEWEST:
            raise ConfigError(
                f"tasks: got {len(found)} question of {task}, allowed are {_FEWEST} or more"
            )
        examples += found
    if config.tasks.data != study.SAMPLES:
        with told("tasks.data"):
            require_split(examples, _SPLIT)
    counts = collections.Counter(example.id for example in examples)
    for own, count in counts.items():
        if count > 1:
            raise ConfigError(f"tasks.data: got id {own!r} {count} times, allowed is once")
    return tuple(examples)


def _check_directory(config: CalibrateConfig, directory: Path, examples: Sequence[Example]) -> None:
    """Refuses to choose again, in another way, where a choice lies already.

    A method or an epsilon that was taken after the outcome was seen certifies nothing.
    """
    path = directory / "controls.json"
    if not path.exists():
        return
    there = read_controls(path)
    got = {"method": config.method, **config.parameters()}
    has = {"method": there.chosen.get("method"), **there.chosen.get("parameters", {})}
    if got != has or there.calibration_ids != tuple(example.id for example in examples):
        raise ConfigError(
            f"directory: {path} was chosen by {_listed(has)} on {len(there.calibration_ids)} "
            f"questions, now it is {_listed(got)} on {len(examples)}; take another folder"
        )


def _controls(config: CalibrateConfig, examples: Sequence[Example], found: Found) -> FrozenControls:
    setting, header = found.candidate.setting, found.header
    drafter = header["drafter"]
    fields = dataclasses.asdict(config)
    del fields["decode"], fields["directory"]
    return FrozenControls(
        budget=setting.budget,
        gate=setting.gate,
        block_cap=setting.block_cap,
        value_scheme=found.candidate.value_scheme,
        num_draft_tokens=min(
            setting.draft_length or found.num_draft_tokens, found.num_draft_tokens
        ),
        protect_stop_ids=config.decode.verifier.protect_stop_ids,
        status=_STATUS[config.method],
        target=header["target"]["digest"],
        drafter=drafter["digest"] or drafter["name"],
        calibration_ids=tuple(example.id for example in examples),
        chosen=found.chosen,
        run={
            "command": receipt.command_line("experiments.calibrate", sys.argv[1:]),
            "calibration": {**fields, "tasks": {**fields["tasks"], "data": _data_name(config)}},
            "tokenizer": {"digest": _tokenizer_digest(config.decode.target)},
            "commit_of_choice": receipt.git_commit(),
            **header,
        },
    )


def _data_name(config: CalibrateConfig) -> str:
    return Path(config.tasks.data).name


def _tokenizer_digest(target: str) -> str:
    return tokenizer_digest(tokenizers.from_checkpoint(open_checkpoint(resolve(target))))


def _page(controls: FrozenControls, found: str) -> str:
    chosen = controls.chosen
    needed = chosen.get("examples_needed")
    is_sample = controls.run["calibration"]["tasks"]["data"] == study.SAMPLES
    source = "the package's own, which are no data set" if is_sample else "calibration split"
    lines = [
        f"# Controls by {_listed({'method': chosen['method'], **chosen['parameters']})}",
        "",
        f"budget {controls.budget:g} logits, gate {controls.gate:g} logits a token, block cap "
        f"{controls.block_cap}, value scheme {controls.value_scheme}, "
        f"{controls.num_draft_tokens} draft tokens: {controls.status}",
        "",
        f"Reason: {chosen['reason']}.",
        f"Questions: {len(controls.calibration_ids)}, {source}.",
    ]
    if "graded_examples" in chosen:
        lines.append(f"Graded questions: {chosen['graded_examples']}.")
    if needed is not None:
        lines.append(
            f"Graded questions with which a setting that changes no answer is certified: {needed}; "
            "one that loses now and then needs more."
        )
    return "\n".join(lines) + f"\n\n{found}"


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    return study.command(SCHEMA, run)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(SCHEMA))
