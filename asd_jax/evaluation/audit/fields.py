"""Reads the fields of a JSON object, and says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class AuditError(ValueError):
    """What cannot be audited; the message names where, what was got and what is allowed."""


class Fields:
    """The fields of a JSON object, each checked when it is read.

    Every method raises AuditError if the field is missing or of another kind.
    """

    def __init__(self, value: Any, prefix: str = "") -> None:
        """Takes a JSON value.

        Args:
          value: The value, which must be an object.
          prefix: Where it stands in the row, put before the names of its fields.

        Raises:
          AuditError: It is no object.
        """
        if not isinstance(value, Mapping):
            raise refusal(prefix.rstrip(".") or "row", value, "an object")
        self._value = value
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def text(self, name: str) -> str:
        """Returns a text."""
        return str(self._get(name, lambda value: isinstance(value, str), "a text"))

    def filled(self, name: str) -> str:
        """Returns a text that is not empty."""
        return str(
            self._get(
                name,
                lambda value: isinstance(value, str) and bool(value.strip()),
                "a text that is not empty",
            )
        )

    def integer(self, name: str) -> int:
        """Returns a whole number."""
        return int(self._get(name, _is_integer, "a whole number"))

    def count(self, name: str) -> int:
        """Returns a whole number that is not negative."""
        return int(self._get(name, _is_count, "a whole number, 0 or more"))

    def counts(self, name: str) -> tuple[int, ...]:
        """Returns a list of whole numbers that are not negative."""
        return tuple(
            self._get(
                name,
                lambda value: isinstance(value, list) and all(map(_is_count, value)),
                "a list of whole numbers, 0 or more",
            )
        )

    def amount(self, name: str) -> float:
        """Returns a finite number that is not negative."""
        return float(self._get(name, _is_amount, "a finite number, 0 or more"))

    def limit(self, name: str) -> float:
        """Returns a number that is not negative; infinity is written as "inf"."""
        return float(
            self._get(
                name,
                lambda value: value == "inf" or _is_amount(value),
                "a number, 0 or more, or 'inf'",
            )
        )

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """Returns a text out of a few."""
        return str(self._get(name, lambda value: value in choices, f"one of {', '.join(choices)}"))

    def object(self, name: str) -> Fields:
        """Returns the fields of an object."""
        return Fields(self._get(name), f"{self._prefix}{name}.")

    def objects(self, name: str) -> Iterator[Fields]:
        """Yields the fields of each object of a list."""
        items = self._get(name, lambda value: isinstance(value, list), "a list of objects")
        for number, item in enumerate(items):
            yield Fields(item, f"{self._prefix}{name}[{number}].")

    def _get(
        self,
        name: str,
        is_allowed: Callable[[Any], bool] = lambda value: True,
        allowed: str = "an object",
    ) -> Any:
        if name not in self._value:
            raise AuditError(f"{self._prefix}{name}: is missing, allowed is {allowed}")
        value = self._value[name]
        if not is_allowed(value):
            raise refusal(self._prefix + name, value, allowed)
        return value


def refusal(field: str, value: Any, allowed: str) -> AuditError:
    """Returns the error that names a field, what was got and what is allowed."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return AuditError(f"{field}: got {shown}, allowed is {allowed}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_amount(value: Any) -> bool:
    is_number = _is_integer(value) or isinstance(value, float)
    return is_number and math.isfinite(value) and value >= 0
