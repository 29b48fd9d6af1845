"""Checks of the static options of rules, on the host."""

from __future__ import annotations

import math

import numpy as np


def number(
    name: str, value: float, low: float, high: float = math.inf, *, is_open: bool = False
) -> float:
    """Returns an option as a float.

    Args:
      name: Of the option, for the message.
      value: What the user gave.
      low: Least value allowed.
      high: Largest value allowed.
      is_open: Whether `low` and `high` themselves are not allowed.

    Raises:
      ValueError: No number, NaN, or out of range.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    is_inside = is_number and (low < value < high if is_open else low <= value <= high)
    if not is_inside:
        bounds = f"({low}, {high})" if is_open else f"[{low}, {high}]"
        raise ValueError(f"{name}: got {value!r}, allowed is a number in {bounds}")
    return float(value)


def whole(name: str, value: int, low: int) -> int:
    """Returns an option as an int.

    Args:
      name: Of the option, for the message.
      value: What the user gave.
      low: Least value allowed.

    Raises:
      ValueError: No whole number, or below `low`.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < low:
        raise ValueError(f"{name}: got {value!r}, allowed is a whole number >= {low}")
    return int(value)
