"""What a run shows: a live table with progress on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from asd_jax.evaluation.interleaved import Compiled, Finished, Started
from asd_jax.evaluation.plan import Failure
from asd_jax.tokenizer import Tokenizer

_PLAIN_WIDTH = 110
_EXCEPTION, _REUSED = "bold red", "green"


class Display:
    """Shows a run; never touches what is written.

    Attributes:
      load_seconds: Time that loading took.
      compile_seconds: Time that warm-up calls took: tracing and compiling above all.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        """Shows nothing but problems if `is_quiet`."""
        # A pipe that cannot show "≠" should get a "?", not end the run.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        self._console = Console(highlight=False, quiet=is_quiet)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH
        self._cache_hits: list[str] = []
        jax.monitoring.register_event_listener(self._on_event)
        self.load_seconds = 0.0
        self.compile_seconds = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=1)
        self._live: Live | None = None
        self._total = self._done = self._num_arms = 0
        self._has_table = False
        self._begun = time.monotonic()
        self._shown: dict[str, dict[str, tuple[int, ...]]] = {}

    def _on_event(self, event: str, **details: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self._cache_hits.append(event)

    # Before decoding

    def line(self, label: str, text: str) -> None:
        """Shows one fact about the run."""
        self._console.print(Text(f"{label:<8} {text}"), soft_wrap=True)

    def problem(self, message: str) -> None:
        """Shows something that is wrong, on stderr."""
        if self._console.quiet:
            return
        print(f"error: {message}", file=sys.stderr)

    def failure(self, failure: Failure) -> None:
        """Shows a request that has no answer, on stderr."""
        where = f" ({failure.arm})" if failure.arm else ""
        self.problem(f"request {failure.id}{where}, line {failure.line}: {failure.message}")

    def loading(self, done: int, total: int) -> None:
        """Shows how far the weights are."""
        if self._console.is_terminal and not self._console.quiet:
            end = "\r" if done < total else "\r\x1b[K"
            self._console.file.write(f"loading  {done}/{total} tensors{end}")
            self._console.file.flush()

    def loaded(self, text: str, seconds: float) -> None:
        """Shows the target that was loaded."""
        self.load_seconds = seconds
        self.line("target", f"{text}, loaded in {seconds:.1f} s")

    # While decoding

    def begin(self, total: int, num_arms: int) -> None:
        """Begins with `total` pairs of batch and arm to do."""
        self._total, self._num_arms, self._begun = total, num_arms, time.monotonic()
        self._progress.reset(self._task, total=total)
        if self._console.is_terminal:
            self._live = Live(
                self._progress, console=self._console, refresh_per_second=4, transient=True
            )
            self._live.start()

    def started(self, event: Started) -> None:
        """Shows what is being decoded."""
        self._progress.update(self._task, description=f"{event.arm} {_names(event.requests)}")

    def compiled(self, event: Compiled) -> None:
        """Shows a program that is now ready."""
        self.compile_seconds += event.seconds
        is_cached, self._cache_hits[:] = bool(self._cache_hits), []
        how = ", most of it from the cache" if is_cached else ""
        self.line("compiled", f"{event.program}, in {event.seconds:.1f} s{how}")

    def finished(
        self,
        event: Finished,
        rows: Sequence[Mapping[str, Any]],
        summary: Mapping[str, Any],
        tokenizer: Tokenizer | None,
    ) -> None:
        """Shows one more batch under one arm: its speed, its answers, and the table so far.

        Args:
          event: What was finished.
          rows: Its new output rows.
          summary: Of all rows so far.
          tokenizer: For showing the answers, or None for not showing them.
        """
        self._done += 1
        self._progress.advance(self._task)
        if self._live is None and rows:
            self._print_speed(event, rows)
        if tokenizer is not None:
            self._print_answers(rows, tokenizer)
        if self._live is not None:
            self._live.update(Group(_table(summary, self._console.width), self._progress))
        elif self._is_first_table(summary):
            self._print_table(summary, "so far")
            self._console.print()

    def _print_speed(self, event: Finished, rows: Sequence[Mapping[str, Any]]) -> None:
        tokens = sum(row["completion_tokens"] for row in rows)
        rounds = sum(row["ledger"]["rounds"] for row in rows)
        more = f" +{len(rows) - 1}" if len(rows) > 1 else ""
        text = f"{event.arm:<7} {rows[0]['id']}{more}: {tokens} tokens, {rounds} rounds"
        measured = event.measurement
        if measured is not None and measured.rounds_seconds:
            text += f", {measured.round_tokens / measured.rounds_seconds:.1f} tokens/s"
        self.line(f"[{self._done}/{self._total}]", f"{text}, {self._time_left()} left")

    def _is_first_table(self, summary: Mapping[str, Any]) -> bool:
        """Whether every arm has been timed for the first time, and more is to come."""
        if self._has_table or self._done == self._total:
            return False
        timed = sum(1 for arm in summary["arms"].values() if arm["timed_batches"])
        self._has_table = timed == self._num_arms
        return self._has_table

    def _time_left(self) -> str:
        spent = time.monotonic() - self._begun - self.compile_seconds
        left = max(spent / self._done * (self._total - self._done), 0)
        return f"{int(left) // 60}:{int(left) % 60:02d}"

    def _print_answers(self, rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> None:
        """Shows answers in full, with the exceptions marked."""
        for row in rows:
            ledger, ids = row["ledger"], tuple(row["token_ids"])
            self._console.print(
                Text.assemble(
                    (f"{row['id']}  {row['arm']}", "bold"),
                    f"  {row['completion_tokens']} tokens in {ledger['rounds']} rounds, "
                    f"{row['finish_reason']}",
                    _spending(ledger) if ledger["budget"] else "",
                ),
                soft_wrap=True,
            )
            shown = self._shown.setdefault(row["id"], {})
            same = [arm for arm, other in shown.items() if other == ids]
            shown[row["arm"]] = ids
            if same and not row["exceptions"]:
                self._console.print(Text(f"(same tokens as {same[0]})", style="dim"))
            else:
                self._console.print(annotated(row, tokenizer), soft_wrap=True)
            self._console.print()

    # At the end

    def stop(self) -> None:
        """Takes the live region away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, summary: Mapping[str, Any]) -> None:
        """Shows the final table."""
        self.stop()
        if summary["arms"]:
            self._print_table(summary, "")

    def _print_table(self, summary: Mapping[str, Any], title: str) -> None:
        self._console.print()
        if title:
            self._console.print(Text(f"{title}:"))
        self._console.print(_table(summary, self._console.width))
        self._console.print(Text(_caption(summary)))

    def written(self, output: Path, summary_file: Path, summary: Mapping[str, Any]) -> None:
        """Shows where everything is and what it cost."""
        self._console.print()
        self.line("rows", str(output))
        self.line("summary", str(summary_file))
        if (drafter := summary["drafter"]) is not None:
            self.line(
                "drafter",
                f"{drafter['name']}: {1000 * drafter['seconds']:.2f} ms a proposal of "
                f"{drafter['num_draft_tokens']} tokens for {drafter['batch']} requests, "
                f"{drafter['num_params'] / 1e6:,.1f} M parameters of its own",
            )
        memory = summary["peak_memory_bytes"] / 2**30
        self.line(
            "cost",
            f"load {self.load_seconds:.1f} s, compilation {self.compile_seconds:.1f} s, "
            f"peak memory {memory:.2f} GiB",
        )

    def interrupted(self, num_rows: int, output: Path) -> None:
        """Says how to go on."""
        print(
            f"interrupted: {num_rows} answers are in {output}\n"
            f"go on with --config.output={output} --config.resume=True"
            if num_rows
            else "interrupted: nothing was decoded yet",
            file=sys.stderr,
        )


def _names(requests: Sequence[Any]) -> str:
    more = f" +{len(requests) - 1}" if len(requests) > 1 else ""
    return f"{requests[0].prompt.id}{more}"


def _table(summary: Mapping[str, Any], width: int) -> Table:
    """Returns the arms side by side; 80 columns are enough."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, int(width >= 90)))
    arms, ratios = summary["arms"], summary["ratios"]
    first = next(iter(arms), "")
    table.add_column("arm", no_wrap=True)
    for title in (
        "answers",
        "tokens",
        "rounds",
        "tokens\n/round",
        "tokens\n/s",
        f"speed vs\n{first}",
        "exceptions",
        "regret",
        "same as\ngreedy",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for name, arm in arms.items():
        ratio = ratios.get(f"{name}/{first}", {}).get("tokens_per_second")
        same = arm["same_as_greedy"]
        table.add_row(
            name,
            str(arm["requests"]),
            f"{arm['tokens']:,}",
            f"{arm['rounds']:,}",
            f"{arm['acceptance_length']:.2f}",
            _or_dash(arm["tokens_per_second"], ".1f"),
            _or_dash(ratio, ".2f", "x"),
            f"{arm['exceptions_per_request']:.1f}",
            f"{arm['regret_per_request']:.2f}",
            f"{same['same']}/{same['of']}" if same else "-",
        )
    return table


def _spending(ledger: Mapping[str, Any]) -> str:
    number = ledger["exceptions"]
    return (
        f"; {number} exception{'' if number == 1 else 's'}, regret {ledger['spent']:.2f} of "
        f"{float(ledger['budget']):g}"
    )


def _or_dash(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _caption(summary: Mapping[str, Any]) -> str:
    batches = max((r["batches"] for r in summary["ratios"].values()), default=0)
    text = (
        "tokens/round: tokens per target forward, the target's own token included.\n"
        "exceptions and regret (logits) are those of an answer, on average."
    )
    if batches:
        many = f"{batches} batches" if batches > 1 else "one batch"
        text += f"\nspeed: ratio of the arms' median tokens/s over {many}, interleaved"
        text += "." if batches > 4 else "; too few to rely on."
    return text


def annotated(row: Mapping[str, Any], tokenizer: Tokenizer) -> Text:
    """Returns an answer with each exception as `[draft≠target regret]`, in place of the draft.

    The draft tokens that were kept behind an exception have a colour of their own.

    Args:
      row: An output row with `exceptions`.
      tokenizer: The target's.
    """
    exceptions = {entry["position"]: entry for entry in row["exceptions"]}
    text, position, reused = Text(), 0, 0
    for turn in row.get("turns", [row]):
        if position:
            text.append("\n--\n", style="dim")
        decoder = tokenizer.stream_decoder()
        for token in turn["token_ids"]:
            piece = decoder.push(token)
            entry = exceptions.get(position)
            if entry is not None:
                reused = entry["reused"]
                text.append(piece[: len(piece) - len(piece.lstrip(" "))])
                text.append(_mark(entry), style=_EXCEPTION)
            else:
                text.append(piece, style=_REUSED if reused > 0 else "")
                reused -= 1
            position += 1
        text.append(decoder.flush())
    return text


def _mark(entry: Mapping[str, Any]) -> str:
    draft, target = entry["draft"], entry["target"]
    if draft.startswith(" ") and target.startswith(" "):
        draft, target = draft[1:], target[1:]
    draft, target = (part.replace(" ", "␣").replace("\n", "⏎") or "∅" for part in (draft, target))
    return f"[{draft}≠{target} {entry['regret']:.2f}]"
