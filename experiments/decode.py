"""Decodes prompts with plain, strictly speculative and approximate speculative decoding.

    python -m experiments.decode --config=experiments/configs/smollm2_ngram.py
    python -m experiments.decode --config=experiments/configs/smollm2_ngram.py \\
        --config.limit=3 --config.trace=True --config.verifier.budget=4

Reads a prompt file (one JSON object a line, see `asd_jax.evaluation.prompts`) and writes

    outputs/<config>-<time>.jsonl          a row for each prompt and arm, as soon as it is there
                                           (see `asd_jax.evaluation.records`); or --config.output
    outputs/<config>-<time>.summary.json   tokens/s, acceptance and regret of each arm, and ratios

An output file that exists is never overwritten. After a crash or Ctrl-C go on with
`--config.output=FILE --config.resume=True`. `--config.mesh.data=4 --config.mesh.model=2` divides
requests and weights over devices; for several processes see `experiments.processes`. Compiled
programs are kept in the user's cache folder (`--config.compilation_cache=off` or a folder).
`--help` lists all fields.

Exit status: 0 done; 1 some lines or requests were bad, all others are written; 2 the configuration
or a file cannot be used; 3 another process was lost (JAX may also abort the program); 130
interrupted (Ctrl-C or SIGTERM). Finished rows are written whatever happens.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import jax
from absl import app

from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.evaluation import interleaved
from asd_jax.evaluation.drafter_cost import DrafterCost
from asd_jax.evaluation.plan import make_plan
from asd_jax.evaluation.prompts import PromptError, PromptFile, read_prompts
from asd_jax.evaluation.receipt import run_header
from asd_jax.evaluation.records import OutputError, Writer, row
from asd_jax.evaluation.summary import Tally, summary_path, write_summary
from asd_jax.load import (
    LoadedTarget,
    check_drafter,
    read_target_config,
)
from asd_jax.types import Drafter
from experiments import command_line, loading, processes
from experiments import config as configs
from experiments.background import in_background
from experiments.config import RunConfig
from experiments.display import Display
from experiments.fields import ConfigError
from experiments.interrupts import uninterrupted
from experiments.memory import peak_bytes

_DONE, _SOME_BAD, _UNUSABLE, _FAILED, _INTERRUPTED = 0, 1, command_line.UNUSABLE, 3, 130


@dataclasses.dataclass
class _Run:
    """What a run has gathered so far; enough to end well at any moment."""

    config: RunConfig
    display: Display
    tally: Tally
    prompts: PromptFile
    writer: Writer | processes.Follower
    failures: list[Any] = dataclasses.field(default_factory=list)
    has_rows: bool = False

    def finish(self, status: str) -> None:
        """Shows the table and writes the summary."""
        self.display.end(self.tally.summary())
        if not self.has_rows or not processes.is_first():
            return
        summary = {
            "output": self.writer.path.name,
            "status": status,
            "resumed": bool(self.writer.resumed_rows),
            "failures": [dataclasses.asdict(failure) for failure in self.failures],
            "bad_lines": [dataclasses.asdict(problem) for problem in self.prompts.problems],
            "load_seconds": self.display.load_seconds,
            "compile_seconds": self.display.compile_seconds,
            "peak_memory_bytes": peak_bytes(),
            **self.tally.summary(),
        }
        path = summary_path(self.writer.path)
        write_summary(path, summary)
        self.display.written(self.writer.path, path, summary)


def run(config: RunConfig, name: str) -> int:
    """Runs a checked configuration and returns the exit status.

    Args:
      config: What to do.
      name: The configuration's name, for the default output.

    Raises:
      ConfigError: The target or the drafter cannot be loaded, or a size does not fit them.
      PromptError: The prompt file cannot be used.
      OutputError: The output file cannot be used.
    """
    processes.start(config.processes)
    mesh = processes.mesh(config.mesh, config.batch_size)
    display = Display(is_quiet=not processes.is_first())
    prompts = processes.together(lambda: read_prompts(config.prompts))
    for problem in prompts.problems:
        display.problem(f"{config.prompts}: line {problem.line}: {problem.message}")
    selected = prompts.records[: config.limit or None]
    display.line("prompts", f"{config.prompts}: {len(selected)} of {len(prompts.records)} requests")
    # The output comes before the weights: a run that cannot be written should not load for minutes.
    default = f"outputs/{name}-{processes.decided_by_first(_utc_time)}.jsonl"
    output = Path(config.output or default)
    writer = processes.open_output(output, resume=config.resume)
    current = _Run(config, display, Tally(config.arms), prompts, writer)
    is_complete = False
    try:
        with loading.told_as_config_error():
            header = processes.together(lambda: _identify(current))
            processes.require_same(_comparable(header))
            _start(current, header)
        display.line("output", str(output))
        wanted = {(prompt.id, arm) for prompt in selected for arm in config.arms}
        if not wanted <= writer.done:
            loading.use_compilation_cache(config, display)
            with loading.told_as_config_error():
                loaded = loading.load(config, mesh, display)
                drafter = loading.drafter_of(config, loaded, display)
            _decode(current, selected, drafter, loaded)
        else:
            display.line("", "nothing to do: all answers are there")
        is_complete = True
        has_failed = bool(current.failures or prompts.problems)
        current.finish("complete")
        return _SOME_BAD if has_failed else _DONE
    except KeyboardInterrupt:
        current.finish("interrupted")
        display.interrupted(len(writer.done), writer.path)
        raise
    except jax.errors.JaxRuntimeError as error:
        reason = (str(error).splitlines() or ["unknown error of the backend"])[0]
        display.problem(f"the run has stopped: another process or its devices failed: {reason}")
        current.finish("failed")
        return _FAILED
    finally:
        display.stop()
        writer.close(keep_empty=is_complete)


def _identify(current: _Run) -> dict[str, Any]:
    """Identifies target and drafter, checks sizes against them and describes the run."""
    config = current.config
    source = open_checkpoint(resolve(config.target))
    drafter = check_drafter(config.drafter, target=source, **loading.drafter_options(config))
    configs.check_context(config, read_target_config(source).max_position)
    return run_header(
        dataclasses.asdict(config),
        target=source.digest(),
        drafter=drafter,
        prompts=current.prompts.digest,
        num_prompts=len(current.prompts.records),
    )


def _comparable(header: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts of a header in which all processes must agree."""
    config = {name: value for name, value in header["config"].items() if name != "processes"}
    return {**config, **{part: header[part] for part in ("target", "drafter", "prompts")}}


def _start(current: _Run, header: dict[str, Any]) -> None:
    """Begins or takes up the output."""
    processes.start_output(current.writer, header)
    for resumed in current.writer.resumed_rows:
        current.tally.add_row(resumed)
        current.has_rows = True


def _decode(
    current: _Run, selected: tuple[Any, ...], drafter: Drafter, loaded: LoadedTarget
) -> None:
    """Decodes what is not in the output yet and writes each answer at once."""
    config, display, writer = current.config, current.display, current.writer
    arms, settings = loading.arms_of(config, drafter), loading.settings_of(config)
    target, tokenizer = loaded.target, loaded.tokenizer
    plan = make_plan(
        selected,
        tokenizer,
        settings,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
    )
    for failure in plan.failures:
        current.failures.append(failure)
        display.failure(failure)

    def is_done(request_id: str, arm: str) -> bool:
        return (request_id, arm) in writer.done

    display.begin(sum(1 for _ in interleaved.pending(plan, arms, is_done)), len(arms))
    events = interleaved.run(target, arms, plan, tokenizer, settings, is_done=is_done)
    for event in in_background(events):
        match event:
            case interleaved.Started():
                display.started(event)
            case interleaved.Compiled():
                display.compiled(event)
            case DrafterCost():
                current.tally.add_drafter_cost(event)
            case interleaved.Finished():
                rows = [row(a, tokenizer, with_exceptions=config.trace) for a in event.answers]
                with uninterrupted():  # the summary counts what the file holds
                    writer.write(rows)
                    for entry in rows:
                        current.tally.add_row(entry)
                        current.has_rows = True
                if event.measurement is not None:
                    current.tally.add_measurement(event.measurement)
                for failure in event.failures:
                    current.failures.append(failure)
                    display.failure(failure)
                display.finished(
                    event, rows, current.tally.summary(), tokenizer if config.trace else None
                )


def _utc_time() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    # A SIGTERM from a scheduler ends a run as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = run(*command_line.checked_config(configs.SCHEMA))
    except (ConfigError, PromptError, OutputError, OSError) as error:
        command_line.complain(str(error))
        status = _UNUSABLE
    except KeyboardInterrupt:
        # A program may still be running on the device; Python would wait for its thread.
        _leave(_INTERRUPTED)
    if status in (_UNUSABLE, _FAILED) and processes.are_several():
        _leave(status)  # JAX would wait for the other processes
    return status


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parser(configs.SCHEMA))
