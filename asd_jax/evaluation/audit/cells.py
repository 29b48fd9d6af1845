"""Numbers with their intervals as cells of Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NONE = "n/a"


def interval(found: Mapping[str, Any] | None, digits: int = 2, *, scale: float = 1) -> str:
    """Returns an estimate and its interval, given as JSON.

    Args:
      found: The JSON value of an `Interval`, or None.
      digits: Behind the point.
      scale: What the numbers are multiplied by.
    """
    if found is None or found["estimate"] is None:
        return NONE
    numbers = [found[name] for name in ("estimate", "low", "high")]
    shown = [NONE if n is None else f"{scale * n:.{digits}f}" for n in numbers]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def change(found: Mapping[str, Any] | None, digits: int = 2, *, scale: float = 1) -> str:
    """Returns a difference with its sign, and whether no difference at all is in its interval."""
    if found is None or found["estimate"] is None:
        return NONE
    numbers = [found[name] for name in ("estimate", "low", "high")]
    shown = [NONE if n is None else f"{scale * n:+.{digits}f}" for n in numbers]
    low, high = numbers[1:]
    note = ", holds 0" if low is not None and high is not None and low <= 0 <= high else ""
    return f"{shown[0]} [{shown[1]}, {shown[2]}]{note}"


def listed(numbers: Sequence[float] | None, form: str, *, scale: float = 1) -> str:
    """Returns numbers side by side."""
    return NONE if numbers is None else " ".join(form.format(scale * n) for n in numbers)


def table(heads: str, rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table; the heads stand between bars."""
    columns = heads.split("|")
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)
