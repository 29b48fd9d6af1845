"""What a plan shows: bytes on each device, exchanges of a round, and the chips that it fits."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asd_jax.footprint import Chip, Footprint
from asd_jax.footprint.collectives import Collective
from asd_jax.footprint.report import NOT_INCLUDED

_PLAIN_WIDTH = 110


class PlanTable:
    """Shows a plan."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH
        self._begun = time.perf_counter()

    def line(self, label: str, text: str) -> None:
        """Shows one fact."""
        self._console.print(Text(f"{label:<9} {text}"), soft_wrap=True)

    def progress(self, text: str) -> None:
        """Shows what comes next."""
        self.line(f"[{time.perf_counter() - self._begun:5.1f} s]", text)

    def show(
        self,
        name: str,
        footprint: Footprint,
        chips: Sequence[Chip],
        headroom: float,
        seconds: float,
        peak_of_planning: int,
    ) -> None:
        """Shows the whole plan.

        Args:
          name: The configuration's.
          footprint: What it came to.
          chips: That it may have to fit.
          headroom: Part of their memory to leave free.
          seconds: Time that it took.
          peak_of_planning: Most memory that this process had, bytes.
        """
        work = footprint.workload
        self._console.print()
        self.line("plan", name)
        self.line(
            "mesh",
            f"data {footprint.data} x model {footprint.model}, {footprint.dtype}; batch "
            f"{work.batch_size}, prompts of {work.prompt_length} + {work.max_new_tokens} tokens, "
            f"G = {work.num_draft_tokens}, {footprint.num_slots} cache slots a request",
        )
        self.line(
            "models",
            f"target {footprint.target_parameters / 1e9:.2f} B parameters, drafter "
            f"{footprint.drafter_parameters / 1e9:.2f} B; tapped hidden states "
            f"{', '.join(map(str, footprint.feature_layers)) or 'none'}",
        )
        self._console.print(_memory_table(footprint))
        if footprint.greedy_exchanges is not None and footprint.sampled_exchanges is not None:
            self._console.print(
                _exchange_table(footprint.greedy_exchanges, footprint.sampled_exchanges)
            )
        self._console.print(_chip_table(footprint, chips, headroom))
        for missing in NOT_INCLUDED:
            self.line("not in it", missing)
        self.line(
            "cost", f"{seconds:.1f} s, peak memory of planning {peak_of_planning / 1e9:.2f} GB"
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:,.3f}"


def _memory_table(footprint: Footprint) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("on each device", no_wrap=True)
    table.add_column("GB (10^9)", justify="right", no_wrap=True)
    table.add_column("how it is known")
    exact = "exact, from shapes"
    rows = [
        ("target weights", footprint.target_weights, exact),
        ("drafter weights", footprint.drafter_weights, exact),
        ("target cache", footprint.target_cache, exact),
        ("drafter cache and state", footprint.drafter_state, exact),
        ("requests and results", footprint.requests_and_results, exact),
    ]
    for label, count, how in rows:
        table.add_row(label, _gb(count), how)
    bound = "compiled in float32"
    if footprint.dtype != "float32":
        bound += f": an upper bound for {footprint.dtype}"
    if footprint.prefill is not None and footprint.rounds is not None:
        table.add_row("temporaries, prefill", _gb(footprint.prefill.temporaries), bound)
        table.add_row("temporaries, a round", _gb(footprint.rounds.temporaries), bound)
        table.add_row("  of them logits", _gb(footprint.logits), exact)
        table.add_row("peak", _gb(footprint.peak), "all but the smaller of the temporaries")
    else:
        table.add_row("logits of a round", _gb(footprint.logits), exact)
        table.add_row("peak, at least", _gb(footprint.peak), "not compiled: no other temporaries")
    return table


def _exchange_table(greedy: Sequence[Collective], sampled: Sequence[Collective]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("exchanged in a round", no_wrap=True)
    for title in ("type", "numbers", "devices", "times", "bytes a device"):
        table.add_column(title, justify="right", no_wrap=True)
    both = [each for each in greedy if each in sampled]
    for each in both:
        _add_exchange(table, each, "")
    for each in greedy:
        if each not in both:
            _add_exchange(table, each, ", all greedy")
    for each in sampled:
        if each not in both:
            _add_exchange(table, each, ", some sampled")
    if not greedy and not sampled:
        table.add_row("nothing", "", "", "", "", "0")
    return table


def _add_exchange(table: Table, each: Collective, when: str) -> None:
    table.add_row(
        each.kind + when,
        each.dtype,
        f"{each.elements:,}",
        str(each.group_size),
        str(each.times),
        f"{each.bytes:,}",
    )


def _chip_table(footprint: Footprint, chips: Sequence[Chip], headroom: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("chip", no_wrap=True)
    for title in ("GB (10^9)", f"less {headroom:.0%}", "peak of it"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fits" if footprint.is_compiled else "fits, without temporaries")
    for chip in chips:
        table.add_row(
            chip.name,
            _gb(chip.memory),
            _gb(int(chip.memory * (1 - headroom))),
            f"{footprint.peak / chip.memory:.0%}",
            "yes" if footprint.fits(chip, headroom) else "no",
        )
    return table
