"""Decodes prompts with plain, strictly speculative and approximate speculative decoding.

    python -m experiments.decode --config=experiments/configs/smollm2_ngram.py
    python -m experiments.decode --config=experiments/configs/smollm2_ngram.py \\
        --config.limit=3 --config.trace=True --config.verifier.budget=4

Reads a prompt file (one JSON object a line, see `asd_jax.evaluation.prompts`) and writes

    outputs/<config>-<time>.jsonl          a row for each prompt and arm, as soon as it is there
                                           (see `asd_jax.evaluation.records`); or --config.output
    outputs/<config>-<time>.summary.json   tokens/s, acceptance and regret of each arm, and ratios

An output file that exists is never overwritten. After a crash or Ctrl-C go on with
`--config.output=FILE --config.resume=True`. Compiled programs are kept in the user's cache folder
(`--config.compilation_cache=off` or a folder). `--help` lists all fields.

Exit status: 0 done; 1 some lines or requests were bad, all others are written; 2 the configuration
or a file cannot be used; 130 interrupted (Ctrl-C or SIGTERM), finished rows are written.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from asd_jax.acceptance import RULES
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.evaluation import interleaved
from asd_jax.evaluation.arms import Arm, make_arms
from asd_jax.evaluation.plan import Settings, make_plan
from asd_jax.evaluation.prompts import PromptError, PromptFile, read_prompts
from asd_jax.evaluation.receipt import run_header
from asd_jax.evaluation.records import OutputError, Writer, row
from asd_jax.evaluation.summary import Tally, summary_path, write_summary
from asd_jax.load import LoadedTarget, load_drafter, load_target
from asd_jax.types import Controls, Drafter
from experiments import config as configs
from experiments.config import ConfigError, RunConfig
from experiments.display import Display

_CONFIG = config_flags.DEFINE_config_file("config", None, "A file in experiments/configs/.")
_DONE, _SOME_BAD, _UNUSABLE, _INTERRUPTED = 0, 1, 2, 130


@dataclasses.dataclass
class _Run:
    """What a run has gathered so far; enough to end well at any moment."""

    config: RunConfig
    display: Display
    tally: Tally
    prompts: PromptFile
    writer: Writer
    failures: list[Any] = dataclasses.field(default_factory=list)
    has_rows: bool = False

    def finish(self, status: str) -> None:
        """Shows the table and writes the summary."""
        self.display.end(self.tally.summary())
        if not self.has_rows:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        summary = {
            "output": self.writer.path.name,
            "status": status,
            "resumed": bool(self.writer.resumed_rows),
            "failures": [dataclasses.asdict(failure) for failure in self.failures],
            "bad_lines": [dataclasses.asdict(problem) for problem in self.prompts.problems],
            "load_seconds": self.display.load_seconds,
            "compile_seconds": self.display.compile_seconds,
            "peak_memory_bytes": usage * (1 if sys.platform == "darwin" else 1024),
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
      ConfigError: A size does not fit the target.
      PromptError: The prompt file cannot be used.
      OutputError: The output file cannot be used.
      CheckpointError: The target cannot be loaded.
    """
    display = Display()
    prompts = read_prompts(config.prompts)
    for problem in prompts.problems:
        display.problem(f"{config.prompts}: line {problem.line}: {problem.message}")
    selected = prompts.records[: config.limit or None]
    display.line("prompts", f"{config.prompts}: {len(selected)} of {len(prompts.records)}")
    # The output comes before the weights: a run that cannot be written should not load for minutes.
    output = Path(config.output or f"outputs/{name}-{_utc_time()}.jsonl")
    writer = Writer(output, resume=config.resume)
    current = _Run(config, display, Tally(config.arms), prompts, writer)
    is_complete = False
    try:
        drafter = load_drafter(config.drafter, num_draft_tokens=config.num_draft_tokens)
        _start(current)
        display.line("output", str(output))
        wanted = {(prompt.id, arm) for prompt in selected for arm in config.arms}
        if not wanted <= writer.done:
            _use_compilation_cache(config, display)
            loaded = _load(config, display)
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
    finally:
        display.stop()
        writer.close(keep_empty=is_complete)


def _start(current: _Run) -> None:
    """Identifies the target, checks sizes against it and begins or takes up the output."""
    config = current.config
    source = open_checkpoint(resolve(config.target))
    configs.check_context(config, int(source.config.get("max_position_embeddings") or 2048))
    header = run_header(
        dataclasses.asdict(config),
        target=source.digest(),
        drafter=None,
        prompts=current.prompts.digest,
        num_prompts=len(current.prompts.records),
    )
    current.writer.start(header)
    for resumed in current.writer.resumed_rows:
        current.tally.add_row(resumed)
        current.has_rows = True


def _load(config: RunConfig, display: Display) -> LoadedTarget:
    start = time.perf_counter()
    loaded = load_target(
        config.target,
        dtype=None if config.dtype == "auto" else config.dtype,
        on_progress=display.loading,
    )
    jax.block_until_ready(loaded.target.params)
    leaves = jax.tree.leaves(loaded.target.params)
    size = sum(leaf.size for leaf in leaves) / 1e6
    device = jax.devices()[0].device_kind
    if jax.device_count() > 1:
        device = f"{jax.device_count()} x {device}"
    display.loaded(
        f"{config.target}: {size:,.1f} M parameters, {leaves[0].dtype}, on {device}",
        time.perf_counter() - start,
    )
    return loaded


def _decode(
    current: _Run, selected: tuple[Any, ...], drafter: Drafter, loaded: LoadedTarget
) -> None:
    """Decodes what is not in the output yet and writes each answer at once."""
    config, display, writer = current.config, current.display, current.writer
    arms, settings = _arms(config, drafter), _settings(config)
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
    for event in _in_background(events):
        match event:
            case interleaved.Started():
                display.started(event)
            case interleaved.Compiled():
                display.compiled(event)
            case interleaved.Finished():
                rows = [row(a, tokenizer, with_exceptions=config.trace) for a in event.answers]
                writer.write(rows)
                for entry in rows:
                    current.tally.add_row(entry)
                    current.has_rows = True
                if event.measurement is not None:
                    current.tally.add_measurement(event.measurement)
                for failure in event.failures:
                    current.failures.append(failure)
                    display.failure(failure)
                display.finished(event, rows, current.tally.summary())
                if config.trace:
                    display.answers(rows, tokenizer)


def _arms(config: RunConfig, drafter: Drafter) -> tuple[Arm, ...]:
    verifier = config.verifier
    make_rule = RULES[verifier.rule]
    rule = make_rule(verifier.value_scheme) if verifier.rule == "asd" else make_rule()
    return make_arms(
        config.arms, drafter=drafter, rule=rule, num_draft_tokens=config.num_draft_tokens
    )


def _settings(config: RunConfig) -> Settings:
    verifier = config.verifier
    return Settings(
        controls=Controls(verifier.budget, verifier.gate, verifier.block_cap),
        max_new_tokens=config.max_new_tokens,
        batch_size=config.batch_size,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed,
        ignore_eos=config.ignore_eos,
        protect_stop_ids=verifier.protect_stop_ids,
        trace=config.trace,
    )


def _in_background(events: Iterator[Any]) -> Iterator[Any]:
    """Yields from `events`, which are computed in another thread.

    Python acts on Ctrl-C between two bytecodes, and a compiled loop can take minutes: here the main
    thread only waits for a queue. The other thread goes on only when an event has been dealt with,
    so that nothing else runs while it times a program.
    """
    outbox: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    go_on = threading.Semaphore(0)
    end = object()

    def work() -> None:
        try:
            for event in events:
                outbox.put((event, None))
                go_on.acquire()
            outbox.put((end, None))
        except BaseException as error:  # handed to the main thread
            outbox.put((end, error))

    threading.Thread(target=work, daemon=True).start()
    while True:
        event, error = outbox.get()
        if error is not None:
            raise error
        if event is end:
            return
        yield event
        go_on.release()


def _use_compilation_cache(config: RunConfig, display: Display) -> None:
    choice = config.compilation_cache
    if choice == "off":
        return
    if choice == "auto":
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        choice = str(Path(home) / "asd_jax" / "xla")
    folder = Path(choice).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        display.problem(f"compilation_cache: {folder}: {error.strerror}; going on without it")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _utc_time() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def _parse(argv: list[str]) -> list[str]:
    """Parses the command line, with messages in the words of the configuration."""
    if any(argument in ("-h", "-help", "--help", "--helpfull") for argument in argv[1:]):
        print(__doc__)
        for name, default, about in configs.field_table():
            print(f"  --config.{name}={default}\n      {about}")
        sys.exit(_DONE)
    for argument in argv[1:]:
        if argument.lstrip("-").startswith("config."):
            name = argument.lstrip("-").split("=")[0].removeprefix("config.")
            if (told := configs.unknown_field(name)) is not None:
                raise ConfigError(told)
    try:
        rest = flags.FLAGS(argv)
        if flags.FLAGS.config is None:
            raise ConfigError("--config=FILE is missing, such as experiments/configs/NAME.py")
    except flags.IllegalFlagValueError as error:
        # "flag --config.NAME=VALUE: reason", or the plain name of another flag
        flag, _, reason = str(error).partition(": ")
        name, _, value = flag.removeprefix("flag --config.").partition("=")
        if flag.startswith("flag --config."):
            reason = f"{name}: got {value!r}, allowed is {configs.describe(name)}"
        raise ConfigError(reason or flag) from error
    except flags.Error as error:
        raise ConfigError(str(error)) from error
    if len(rest) > 1:
        raise ConfigError(f"got {rest[1]!r}, allowed are only flags such as --config.FIELD=value")
    return rest


def _parse_or_exit(argv: list[str]) -> list[str]:
    try:
        return _parse(argv)
    except ConfigError as error:
        _complain(str(error))
    except Exception as error:  # a configuration is a program and may raise anything
        _complain(f"the configuration cannot be loaded: {error}")
    sys.exit(_UNUSABLE)


def _complain(message: str) -> None:
    for line in message.splitlines():
        print(f"error: {line}", file=sys.stderr)


def main(argv: list[str]) -> int:
    """Runs what the command line says and returns the exit status."""
    del argv
    if not any("verbosity" in argument for argument in sys.argv):
        logging.set_verbosity(logging.WARNING)  # absl would list the backends that JAX lacks
    # A SIGTERM from a scheduler ends a run as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        config = configs.from_config_dict(flags.FLAGS.config)
        name = Path(flags.FLAGS["config"].config_filename).stem
        return run(config, name)
    except (ConfigError, PromptError, OutputError, CheckpointError, ImportError) as error:
        _complain(str(error))
        return _UNUSABLE
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.flush()
        # A program may still be running on the device; Python would wait for its thread.
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    app.run(main, flags_parser=_parse_or_exit)
