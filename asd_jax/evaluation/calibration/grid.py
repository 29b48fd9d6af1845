"""Settings to try, and the prompt rows that try them all in one batch.

Controls belong to requests, so a setting is a copy of the prompt with its own numbers: settings
share every forward, and not one of them compiles anything.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asd_jax.evaluation.tasks import TASKS, Example

_MARK = "#"


@dataclasses.dataclass(frozen=True, order=True)
class Setting:
    """Controls to try. Ordered from strict to loose: gate first, then cap, then budget.

    The order is fixed before any answer is seen, as fixed-sequence testing needs it.

    Attributes:
      gate: Logits a token of suffix value.
      block_cap: Exceptions a block.
      budget: Logits a request.
      draft_length: Most tokens proposed a round; None: as many as the drafter gives.
    """

    gate: float
    block_cap: int
    budget: float
    draft_length: int | None = None

    def overrides(self) -> dict[str, float | int]:
        """Returns the fields of a prompt row that ask for this setting."""
        fields: dict[str, float | int] = {
            "budget": self.budget,
            "gate": self.gate,
            "block_cap": self.block_cap,
        }
        if self.draft_length is not None:
            fields["draft_length"] = self.draft_length
        return fields


def grid(
    budgets: Iterable[float],
    gates: Iterable[float],
    block_caps: Iterable[int],
    draft_lengths: Iterable[int | None] = (None,),
) -> tuple[Setting, ...]:
    """Returns all combinations, strict ones first and each once.

    Raises:
      ValueError: There is none, or a number is none of the verifier's.
    """
    gates, block_caps, budgets = list(gates), list(block_caps), list(budgets)
    for name, values in (("gates", gates), ("block_caps", block_caps), ("budgets", budgets)):
        if not values or not all(value > 0 for value in values):
            raise ValueError(f"{name}: got {values}, allowed is one or more numbers > 0")
    draft_lengths = list(draft_lengths)
    if not draft_lengths or not all(length is None or length >= 1 for length in draft_lengths):
        raise ValueError(f"draft_lengths: got {draft_lengths}, allowed are whole numbers >= 1")
    settings = {
        Setting(gate, block_cap, budget, length)
        for gate, block_cap, budget, length in itertools.product(
            gates, block_caps, budgets, draft_lengths
        )
    }
    return tuple(
        sorted(settings, key=lambda s: (s.gate, s.block_cap, s.budget, s.draft_length or 0))
    )


def prompt_row(example: Example) -> dict[str, Any]:
    """Returns the prompt row of an example, as its task asks it."""
    task = TASKS[example.task]
    return {"id": example.id, "turns": list(task.prompt(example)), "task": example.task}


def grid_rows(examples: Sequence[Example], settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
    """Yields a prompt row for every example under every setting, an example's own together."""
    for example in examples:
        for number, setting in enumerate(settings):
            row = prompt_row(example)
            yield {**row, "id": grid_id(example.id, number), **setting.overrides()}


def grid_id(example_id: str, setting: int) -> str:
    """Returns the id of an example under a setting."""
    return f"{example_id}{_MARK}{setting}"


def split_id(row_id: str) -> tuple[str, int]:
    """Returns the example and the setting of a grid row's id.

    Raises:
      ValueError: It is none.
    """
    example_id, mark, number = row_id.rpartition(_MARK)
    if not mark or not number.isdecimal():
        raise ValueError(f"id: got {row_id!r}, allowed is EXAMPLE{_MARK}NUMBER")
    return example_id, int(number)


def require_split(examples: Iterable[Example], split: str) -> None:
    """Refuses examples of another split.

    Raises:
      ValueError: With the first that is.
    """
    for example in examples:
        if example.split != split:
            raise ValueError(
                f"id {example.id!r}: split: got {example.split!r}, allowed is {split!r}"
            )


def by_setting(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """Returns grid rows by setting and example.

    Raises:
      ValueError: An id is no grid row's.
    """
    table: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        example_id, number = split_id(row["id"])
        table.setdefault(number, {})[example_id] = row
    return table
