"""What a field of a study may be: checks that name the field which is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# Beyond this nothing measured here is plausible, and the arithmetic of axes would overflow.
_LARGEST = 1e15

Check = Callable[[Any, str, list[str]], Any]
"""Returns a field's value as the page uses it, given the value, the field's name and the list to
which it adds the names of fields that the page does not know."""


class StudyError(ValueError):
    """A study that cannot be shown; the message names the field."""


class Interval(NamedTuple):
    """An estimate with its interval.

    Attributes:
      estimate: The figure.
      low: Lower end.
      high: Upper end.
      confidence: Of the interval, between 0 and 1.
    """

    estimate: float
    low: float
    high: float
    confidence: float

    @property
    def holds_zero(self) -> bool:
        """Whether no change is among the values that the interval allows."""
        return self.low <= 0 <= self.high

    def times(self, factor: float) -> Interval:
        """Returns the interval in another unit, such as points for a share."""
        return Interval(
            self.estimate * factor, self.low * factor, self.high * factor, self.confidence
        )


def wrong(where: str, allowed: str, value: Any) -> StudyError:
    """Returns the error of a field that is not what it may be."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return StudyError(f"{where}: expected {allowed}, got {shown}")


def number(low: float = -_LARGEST, high: float = _LARGEST) -> Check:
    """A finite number in [low, high]."""
    allowed = "a finite number"
    if (low, high) != (-_LARGEST, _LARGEST):
        allowed += f" >= {low:g}" if high == _LARGEST else f" from {low:g} to {high:g}"

    def check(value: Any, where: str, extra: list[str]) -> float:
        del extra
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and low <= value <= high):  # NaN fails both
            raise wrong(where, allowed, value)
        return float(value)

    return check


def count(value: Any, where: str, extra: list[str]) -> int:
    """A whole number >= 0."""
    del extra
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise wrong(where, "a whole number >= 0", value)
    return value


def flag(value: Any, where: str, extra: list[str]) -> bool:
    """True or false."""
    del extra
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def text(value: Any, where: str, extra: list[str]) -> str:
    """A string."""
    del extra
    if not isinstance(value, str):
        raise wrong(where, "a string", value)
    return value


def as_text(value: Any, where: str, extra: list[str]) -> str:
    """Anything that JSON can hold, written out; a string stays as it is."""
    plain = free(value, where, extra)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def free(value: Any, where: str, extra: list[str]) -> Any:
    """Anything that JSON can hold; numbers are finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(where, "a finite number", value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): free(v, f"{where}.{k}", extra) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [free(item, f"{where}[{i}]", extra) for i, item in enumerate(value)]
    raise wrong(where, "a value that JSON can hold", value)


def free_mapping(value: Any, where: str, extra: list[str]) -> dict[str, Any]:
    """Any names with any values."""
    if not isinstance(value, Mapping):
        raise wrong(where, "an object", value)
    return dict(free(value, where, extra))


def optional(check: Check) -> Check:
    """What `check` allows, or null."""
    return lambda value, where, extra: None if value is None else check(value, where, extra)


def listing(check: Check, length: int | None = None) -> Check:
    """A list of what `check` allows, of any length or of one."""
    allowed = "a list" if length is None else f"a list of {length}"

    def check_list(value: Any, where: str, extra: list[str]) -> list[Any]:
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
        if not is_list or (length is not None and len(value) != length):
            raise wrong(where, allowed, value)
        return [check(item, f"{where}[{i}]", extra) for i, item in enumerate(value)]

    return check_list


def named(check: Check) -> Check:
    """An object of any names, each with what `check` allows."""

    def check_named(value: Any, where: str, extra: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(where, "an object", value)
        return {str(k): check(v, f"{where}.{k}", extra) for k, v in value.items()}

    return check_named


def record(required: Mapping[str, Check], maybe: Mapping[str, Check] | None = None) -> Check:
    """An object of known fields; those in `maybe` may be missing or null and are then None."""
    maybe = maybe or {}

    def check_record(value: Any, where: str, extra: list[str]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(where or "the study", "an object", value)
        prefix = f"{where}." if where else ""
        missing = [name for name in required if value.get(name) is None]
        if missing:
            raise StudyError(f"{prefix}{missing[0]}: is missing")
        extra += [f"{prefix}{name}" for name in value if name not in {**required, **maybe}]
        read = {name: check(value[name], prefix + name, extra) for name, check in required.items()}
        undefined = [name for name in required if read[name] is None]
        if undefined:
            raise StudyError(f"{prefix}{undefined[0]}: has null where a number is needed")
        for name, check in maybe.items():
            read[name] = optional(check)(value.get(name), prefix + name, extra)
        return read

    return check_record


def interval(low: float = -_LARGEST, high: float = _LARGEST) -> Check:
    """An object of estimate, low, high and confidence, with all values in [low, high].

    One of which a number is null, as an undefined figure is written, is read as None.
    """
    end = number(low, high)
    fields = record(
        {"estimate": end, "low": end, "high": end, "confidence": number(0, 1)},
        {"method": free, "num_units": free},
    )

    def check_interval(value: Any, where: str, extra: list[str]) -> Interval | None:
        if isinstance(value, Mapping) and {*Interval._fields} <= value.keys():
            if any(value[name] is None for name in Interval._fields):
                return None
        known = fields(value, where, extra)
        read = Interval(*(known[name] for name in Interval._fields))
        if read.low > read.high:
            raise wrong(f"{where}.low", f"at most high, which is {read.high:g}", read.low)
        return read

    return check_interval


def amount(low: float = -_LARGEST, high: float = _LARGEST) -> Check:
    """A number in [low, high], with an interval or without."""
    alone, spread = number(low, high), interval(low, high)

    def check_amount(value: Any, where: str, extra: list[str]) -> Any:
        check = spread if isinstance(value, Mapping) else alone
        return check(value, where, extra)

    return check_amount
