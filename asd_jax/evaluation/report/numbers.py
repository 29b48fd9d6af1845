"""Numbers as the page writes them."""

from __future__ import annotations

from typing import Any

from asd_jax.evaluation.report.fields import Interval

NOT_MEASURED = "not measured"
_DASH = "–"


def plain(value: float | None, digits: int = 1) -> str:
    """Returns a number with so many decimals and a real minus sign, or a dash for none."""
    if value is None:
        return _DASH
    written = f"{value:,.{digits}f}"
    if not any(digit in written for digit in "123456789"):
        written = written.removeprefix("-")  # -0.0
    return written.replace("-", "\u2212").replace(",", "\u202f")


def signed(value: float | None, digits: int = 1) -> str:
    """Returns a number like `plain`, with a plus sign when it is above 0."""
    written = plain(value, digits)
    is_above = value is not None and value > 0 and any(d in written for d in "123456789")
    return f"+{written}" if is_above else written


def percent(share: float | None, digits: int = 1) -> str:
    """Returns a share in percent, without the sign."""
    return plain(None if share is None else 100 * share, digits)


def spread(interval: Interval, digits: int = 1, *, is_change: bool = False) -> str:
    """Returns an estimate and its interval for a cell: 36.3 [30.1, 42.0]."""
    write = signed if is_change else plain
    low, high = write(interval.low, digits), write(interval.high, digits)
    return f"{write(interval.estimate, digits)} [{low}, {high}]"


def maybe_spread(
    interval: Interval | None, digits: int = 1, *, factor: float = 1, is_change: bool = False
) -> str:
    """Returns `spread` in another unit, or a dash for none."""
    if interval is None:
        return _DASH
    return spread(interval.times(factor), digits, is_change=is_change)


def amount(value: Interval | float | None, digits: int = 1, *, factor: float = 1) -> str:
    """Returns a number, and its interval if it has one, or a dash for none."""
    if isinstance(value, Interval):
        return spread(value.times(factor), digits)
    return plain(None if value is None else factor * value, digits)


def in_words(interval: Interval, unit: str, digits: int = 1, *, is_change: bool = True) -> str:
    """Returns an estimate and its interval for a sentence."""
    write = signed if is_change else plain
    level = f"{100 * interval.confidence:g}"
    low, high = write(interval.low, digits), write(interval.high, digits)
    estimate = write(interval.estimate, digits)
    return f"{estimate} {unit} ({level} % interval {low} to {high})"


def p_value(value: float | None) -> str:
    """Returns a p-value; very small ones as a bound."""
    if value is None:
        return _DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def listed(names: list[str]) -> str:
    """Returns names as a sentence lists them: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def options(values: dict[str, Any] | None) -> str:
    """Returns options as words: budget 8, gate 0.25."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in (values or {}).items())
