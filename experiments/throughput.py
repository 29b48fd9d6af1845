"""Measures the speed of ASD against strict decoding: the same prompts, the same number of tokens.

    python -m experiments.throughput --config=experiments/configs/throughput_smollm2.py

For each batch strict, candidate and strict run one right behind the other (the authors' B-C-B
order), and then decoding without a drafter; all of it is done `repeats` times. Stop ids are
ordinary tokens, so every role emits `decode.max_new_tokens` tokens a prompt. Programs are compiled
before the clock starts, which stops when the device has finished. Into `directory` go

    prompts.jsonl        what is asked: the first turn of each question
    measurements.jsonl   a row for each role of each batch and repeat, as soon as it is there (see
                         `asd_jax.evaluation.throughput.measurements`)
    throughput.json      figures with their intervals, verdicts and the receipt
    throughput.md        the same as tables

The gain is over whole requests, prefill included, as the authors' clock has everything in it; that
of rounds alone stands beside it. Where a gate fails (the baseline drifts by more than 3 percent,
roles emit other numbers of tokens, or the two strict roles other tokens) no gain is claimed. On a
machine that is not yours alone, `steady_percent` has a batch measured again where its two strict
runs differ by more, whatever the candidate did; the result says of how many, and what the first
measurements came to.

Killed at any point, the same command goes on with what is missing; a batch whose roles are not all
there is measured again as a whole. `--help` lists all fields.

Exit status: 0 done, whatever the gates say; 2 the configuration or a file cannot be used, or a
batch cannot be decoded; 130 interrupted (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app

from asd_jax.evaluation import interleaved
from asd_jax.evaluation.arms import GREEDY, STRICT, Arm
from asd_jax.evaluation.records import Writer
from asd_jax.evaluation.summary import write_summary
from asd_jax.evaluation.throughput import (
    ROLES,
    Measured,
    Steadied,
    Unit,
    first_figures,
    is_steady,
    make_document,
    measure_tasks,
    measurement_row,
    parse_measurement,
    to_markdown,
    whole_measurements,
)
from asd_jax.evaluation.whole_files import write_text
from asd_jax.load import LoadedTarget
from asd_jax.types import Drafter
from experiments import command_line, loading, processes, study
from experiments.background import in_background
from experiments.display import Display
from experiments.fields import ConfigError
from experiments.interrupts import uninterrupted
from experiments.throughput_config import SCHEMA, ThroughputConfig
from experiments.throughput_inputs import Study, prepare

# Whole measurements of each unit, earlier ones first.
Attempts = dict[Unit, list[dict[str, Measured]]]


def run(config: ThroughputConfig, name: str) -> int:
    """Runs a checked configuration and returns the exit status.

    Args:
      config: What to do.
      name: Of the configuration; the folder has a name of its own.

    Raises:
      ConfigError: A file or the data cannot be used, or a batch cannot be decoded.
      ControlsError: The controls are of another target or drafter.
      ExampleError: The questions cannot be read.
      OutputError: The measurements in the folder are of another run, or cannot be written.
    """
    del name
    prepared, display = prepare(config), Display()
    path = prepared.path("measurements.jsonl")
    writer = Writer(path, resume=True)
    is_complete = False
    try:
        writer.start(prepared.header)
        done = whole_measurements(map(parse_measurement, writer.resumed_rows), prepared.roles)
        _require_limit(prepared, done)
        units = list(prepared.units())
        num_done = sum(unit in done for unit in units)
        display.line("work", f"{num_done} of {len(units)} units of work are measured")
        if _pending(prepared, done):
            _measure(prepared, done, writer, display)
        is_complete = True
    finally:
        display.stop()
        writer.close(keep_empty=is_complete)
    _conclude(prepared, done, _receipt(path), display)
    return 0


def _require_limit(prepared: Study, done: Attempts) -> None:
    """Refuses to count batches that were measured again without saying why they were."""
    if prepared.config.steady_percent is None and any(len(found) > 1 for found in done.values()):
        raise ConfigError(
            "steady_percent: got None, allowed is a number, as batches in the folder were "
            "measured again"
        )


def _pending(prepared: Study, done: Attempts) -> list[Unit]:
    """Returns the units that were never measured, or else those to be measured again."""
    if new := [unit for unit in prepared.units() if unit not in done]:
        return new
    within, at_most = prepared.config.steady_percent, prepared.config.max_attempts
    if within is None:
        return []
    return [
        unit
        for unit in prepared.units()
        if len(done[unit]) < at_most and not is_steady(done[unit][-1], within)
    ]


def _measure(prepared: Study, done: Attempts, writer: Writer, display: Display) -> None:
    """Measures what is pending until nothing is, and adds it to `done`."""
    run = prepared.run
    loading.use_compilation_cache(run, display)
    with loading.told_as_config_error():
        loaded = loading.load(run, processes.mesh(run.mesh, run.batch_size), display)
        arms = _arms(prepared, loading.drafter_of(run, loaded, display))
    while pending := _pending(prepared, done):
        if pending[0] in done:
            display.line("again", f"{len(pending)} batches, as their two strict runs differ")
        _measure_units(prepared, loaded, arms, pending, done, writer, display)


def _measure_units(
    prepared: Study,
    loaded: LoadedTarget,
    arms: Mapping[str, Arm],
    pending: Sequence[Unit],
    done: Attempts,
    writer: Writer,
    display: Display,
) -> None:
    """Measures units once, and writes a row for each role at once."""
    # A machine is slow at first: memory is fetched, clocks rise.
    untimed = pending[: prepared.config.warmup_batches]
    units = [*untimed, *pending]
    events = interleaved.run(
        loaded.target,
        tuple(arms[role] for role in prepared.roles),
        prepared.plan(units),
        loaded.tokenizer,
        prepared.settings,
        rotates=False,
    )
    rows: list[Measured] = []
    progress = _Progress(display, prepared, len(pending) * len(prepared.roles))
    for event in in_background(events):
        match event:
            case interleaved.Compiled():
                display.compiled(event)
            case interleaved.Finished():
                unit, role = units[event.batch], event.arm
                if event.measurement is None:
                    failure = event.failures[0]
                    raise ConfigError(f"{failure.id} ({role}): {failure.message}")
                if event.batch < len(untimed):
                    continue
                row = measurement_row(
                    unit, role, _arm_name(prepared, role), event.answers, event.measurement
                )
                with uninterrupted():  # a row in the file is one that is counted
                    writer.write([row])
                    rows.append(parse_measurement(row))
                progress.show(rows[-1])
    for unit, attempts in whole_measurements(rows, prepared.roles).items():
        done.setdefault(unit, []).extend(attempts)


def _arms(prepared: Study, drafter: Drafter) -> dict[str, Arm]:
    """Returns the arm of each role, named for the role."""
    arms = {arm.name: arm for arm in loading.arms_of(prepared.run, drafter)}
    return {
        role: dataclasses.replace(arms[_arm_name(prepared, role)], name=role)
        for role in prepared.roles
    }


def _arm_name(prepared: Study, role: str) -> str:
    names = (STRICT, prepared.run.verifier.rule, STRICT, GREEDY)
    return dict(zip(ROLES, names, strict=True))[role]


class _Progress:
    """A line for each measurement."""

    def __init__(self, display: Display, prepared: Study, total: int) -> None:
        self._display, self._prepared, self._total = display, prepared, total
        self._done, self._begun = 0, time.monotonic()

    def show(self, row: Measured) -> None:
        self._done += 1
        pace = (time.monotonic() - self._begun) / self._done
        unit = row.unit
        self._display.line(
            f"[{self._done}/{self._total}]",
            f"{unit.task}, repeat {unit.repeat + 1} of {self._prepared.config.repeats}, batch "
            f"{unit.batch + 1} of {len(self._prepared.batches[unit.task])}, {row.role}: "
            f"{row.tokens} tokens, {row.tokens / row.seconds:.1f} tokens/s, "
            f"{pace * (self._total - self._done) / 60:.1f} min left",
        )


def _receipt(path: Path) -> Mapping[str, Any]:
    """Returns the first line of the measurements: how they were begun, whoever ended them."""
    with path.open(encoding="utf-8") as file:
        receipt: Mapping[str, Any] = json.loads(file.readline())["run"]
    return receipt


def _conclude(
    prepared: Study, done: Attempts, receipt: Mapping[str, Any], display: Display
) -> None:
    """Writes what the measurements come to: of each unit the last one counts."""
    document = make_document(
        *measure_tasks(_by_task(prepared, done, -1)),
        run=receipt,
        controls=prepared.controls,
        left_out=prepared.left_out,
        steadied=_steadied(prepared, done),
    )
    text = to_markdown(document)
    write_summary(prepared.path("throughput.json"), document)
    write_text(prepared.path("throughput.md"), text)
    print(f"\n{text}")
    display.line("written", f"{prepared.path('throughput.json')} and throughput.md")


def _by_task(
    prepared: Study, done: Attempts, attempt: int
) -> dict[str, dict[Unit, dict[str, Measured]]]:
    """Returns one measurement of each unit: 0 the first, -1 the last."""
    return {
        name: {unit: done[unit][attempt] for unit in prepared.units() if unit.task == name}
        for name in prepared.batches
    }


def _steadied(prepared: Study, done: Attempts) -> Steadied | None:
    within = prepared.config.steady_percent
    if within is None:
        return None
    last = _by_task(prepared, done, -1)
    return Steadied(
        within_percent=within,
        max_attempts=prepared.config.max_attempts,
        set_aside={
            name: sum(len(done[unit]) > 1 for unit in units) for name, units in last.items()
        },
        unsteady={
            name: sum(not is_steady(rows, within) for rows in units.values())
            for name, units in last.items()
        },
        first_attempts=first_figures(*measure_tasks(_by_task(prepared, done, 0))),
    )


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    return study.command(SCHEMA, run)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(SCHEMA))
