"""What numbers a model's sizes and constants may be: those that the device's types hold."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_WHOLE = int(np.iinfo(np.int32).max)
MIN_POSITIVE = float(np.finfo(np.float32).tiny)
MAX_NUMBER = float(np.finfo(np.float32).max)
# Deeper than any decoder; every layer costs time when a model is laid out, before a weight is read.
MAX_LAYERS = 4096


def is_whole(value: Any, low: int = 1, high: int = MAX_WHOLE) -> bool:
    """Returns whether a value is a whole number in low..high; a bool is none."""
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_int and low <= value <= high


def is_number(value: Any, low: float = MIN_POSITIVE, high: float = MAX_NUMBER) -> bool:
    """Returns whether a value is a number in [low, high]; a bool or NaN is none."""
    is_real = isinstance(value, (int, float, np.integer, np.floating))
    return is_real and not isinstance(value, bool) and bool(low <= value <= high)


def shown(value: Any, limit: int = 200) -> str:
    """Returns how a value is written in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
