"""Fields of configurations: what each may be, how a file of them is read, what is told of mistakes.

A configuration is a frozen dataclass whose fields are made by the functions below; a field may be
a group, that is another such dataclass. `Schema` turns it into a `ConfigDict` for the command line
and back, and says everything that is wrong at once.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import ml_collections
from ml_collections import config_dict

_INT32 = 2**31 - 1
C = TypeVar("C")


class ConfigError(ValueError):
    """A configuration that cannot be run; one line for every field that is wrong."""


def setting(
    default: Any, is_allowed: Callable[[Any], bool], allowed: str, *, kind: type, about: str
) -> Any:
    """A field with its check; `kind` is its type, None aside where None is the default."""
    return dataclasses.field(
        default=default,
        metadata={"is_allowed": is_allowed, "allowed": allowed, "kind": kind, "about": about},
    )


def whole(default: int, low: int, about: str, *, high: int = _INT32) -> Any:
    """A whole number in [low, high]."""
    allowed = f"a whole number >= {low}" if high == _INT32 else f"a whole number {low}..{high}"
    return setting(default, lambda value: low <= value <= high, allowed, kind=int, about=about)


def optional_whole(low: int, about: str) -> Any:
    """A whole number >= low, or None, which is the default."""
    allowed = f"a whole number >= {low}, or None"
    return setting(None, lambda value: value >= low, allowed, kind=int, about=about)


def number(
    default: float | None, is_allowed: Callable[[float], bool], allowed: str, about: str
) -> Any:
    """A number; whole ones may be written without a point."""
    return setting(default, is_allowed, allowed, kind=float, about=about)


def numbers(default: str, kind: type, allowed: str, about: str, *, word: str | None = None) -> Any:
    """Several numbers above 0 as one text, separated by commas; see `read_numbers`.

    Args:
      default: The text.
      kind: float or int.
      allowed: What each may be.
      about: What they are.
      word: A text that may stand in place of a number.
    """

    def is_allowed(value: str) -> bool:
        try:
            return bool(read_numbers(value, kind, word=word))
        except ValueError:
            return False

    return setting(default, is_allowed, f"{allowed}, separated by commas", kind=str, about=about)


def read_numbers(text: str, kind: type, *, word: str | None = None) -> list[Any]:
    """Returns the numbers of a text, None for the word.

    Args:
      text: Numbers above 0, separated by commas.
      kind: float, where inf is one as well, or int, below 2^31.
      word: May stand in place of a number.

    Raises:
      ValueError: Some part is neither.
    """
    found: list[Any] = []
    for part in map(str.strip, text.split(",")):
        if part == word:
            found.append(None)
            continue
        if kind is int and not (part.isascii() and part.isdecimal()):
            raise ValueError(f"got {part!r}, allowed are digits")
        value = kind(part)
        if not value > 0 or (kind is int and value > _INT32):
            raise ValueError(f"got {part!r}, allowed is a number > 0")
        found.append(value)
    return found


def choice(default: str, names: tuple[str, ...], about: str) -> Any:
    """One of some names."""
    allowed = f"one of {', '.join(names)}"
    return setting(default, lambda value: value in names, allowed, kind=str, about=about)


def text(default: str | None, about: str) -> Any:
    """A text that is not empty."""
    allowed = "a text that is not empty" + (", or None" if default is None else "")
    return setting(default, lambda value: bool(value.strip()), allowed, kind=str, about=about)


def flag(default: bool | None, about: str) -> Any:
    """True or False."""
    allowed = "True or False" + (" (None where not set)" if default is None else "")
    return setting(default, lambda value: True, allowed, kind=bool, about=about)


def names(default: tuple[str, ...], about: str) -> Any:
    """A list of names, which may be given as one text with commas."""
    return setting(default, lambda value: True, "a list of names", kind=tuple, about=about)


def free(about: str) -> Any:
    """A dictionary of any fields, such as somebody else's configuration."""
    return dataclasses.field(
        default_factory=dict,
        metadata={
            "is_allowed": lambda value: True,
            "allowed": "a dictionary",
            "kind": dict,
            "about": about,
        },
    )


def group(cls: type) -> Any:
    """A group of fields."""
    return dataclasses.field(default_factory=cls)


class Schema(Generic[C]):
    """The fields of a configuration, those in groups by their dotted names."""

    def __init__(
        self, root: type[C], misfits: Callable[[Mapping[str, Any]], list[str]] = lambda values: []
    ) -> None:
        """Reads the fields of a dataclass.

        Args:
          root: The configuration.
          misfits: Says what is wrong with checked fields taken together, by dotted name.
        """
        self._root = root
        self._misfits = misfits
        self._groups: dict[str, type] = {}
        self._fields: dict[str, dataclasses.Field] = {}
        self._collect(root, "")

    def _collect(self, cls: type, prefix: str) -> None:
        groups = []
        for field in dataclasses.fields(cls):
            if field.metadata:
                self._fields[prefix + field.name] = field
            else:
                groups.append(field)
        for field in groups:
            inner: Any = field.default_factory
            self._groups[prefix + field.name] = inner
            self._collect(inner, f"{prefix}{field.name}.")

    def default_config(self) -> ml_collections.ConfigDict:
        """Returns all fields with their defaults, for `get_config` to start from."""
        config = ml_collections.ConfigDict()
        for name in self._groups:  # a group comes before those inside it
            *path, last = name.split(".")
            _inside(config, path)[last] = ml_collections.ConfigDict()
        for name, field in self._fields.items():
            *path, last = name.split(".")
            node = _inside(config, path)
            default = _default(field)
            is_open = default is None
            node[last] = config_dict.placeholder(field.metadata["kind"]) if is_open else default
        return config

    def table(self) -> list[tuple[str, str, str]]:
        """Returns (name, default, what it is and may be) of every field, for the help text."""
        rows = []
        for name, field in self._fields.items():
            default = _default(field)
            shown = ",".join(default) if isinstance(default, tuple) else str(default)
            about = f"{field.metadata['about']} ({field.metadata['allowed']})"
            rows.append((name, shown, about))
        return rows

    def unknown_field(self, name: str) -> str | None:
        """Returns what to tell about a field that does not exist, or None if it does.

        Args:
          name: Dotted, without the leading "config.".
        """
        known = [*self._fields, *self._groups]
        is_inside_free = any(name.startswith(f"{field}.") for field in self._free())
        if name in known or is_inside_free:
            return None
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        return f"{name}: no such field; {hint}"

    def describe(self, name: str) -> str:
        """Returns what a field may be, for messages about values that cannot even be parsed."""
        field = self._fields.get(name)
        return "a configuration" if field is None else field.metadata["allowed"]

    def read(self, config: Mapping[str, Any]) -> C:
        """Checks a configuration and freezes it. Nothing is loaded or opened.

        Args:
          config: A `ConfigDict` or plain nested dict; missing fields take their defaults.

        Raises:
          ConfigError: With a line for each unknown field, wrong type or impossible value.
        """
        flat = self._flatten(config)
        problems = [told for name in flat if (told := self.unknown_field(name)) is not None]
        values: dict[str, Any] = {}
        for name, field in self._fields.items():
            try:
                values[name] = _checked(name, flat.get(name, _default(field)), field)
            except ConfigError as error:
                problems.append(str(error))
        problems = problems or self._misfits(values)
        if problems:
            raise ConfigError("\n".join(problems))
        return self._build(self._root, "", values)

    def _build(self, cls: type, prefix: str, values: Mapping[str, Any]) -> Any:
        parts: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name = prefix + field.name
            parts[field.name] = (
                values[name]
                if field.metadata
                else self._build(self._groups[name], f"{name}.", values)
            )
        return cls(**parts)

    def _free(self) -> list[str]:
        return [name for name, field in self._fields.items() if field.metadata["kind"] is dict]

    def _flatten(self, config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in config.items():
            full = prefix + name
            is_mapping = isinstance(value, (Mapping, ml_collections.ConfigDict))
            if is_mapping and full in self._free():
                is_own = isinstance(value, ml_collections.ConfigDict)
                flat[full] = value.to_dict() if is_own else dict(value)
            elif is_mapping:
                flat |= self._flatten(value, f"{full}.")
            else:
                flat[full] = value
        return flat


def _inside(config: ml_collections.ConfigDict, path: list[str]) -> ml_collections.ConfigDict:
    """Returns the group at a path."""
    for part in path:
        config = config[part]
    return config


def _default(field: dataclasses.Field) -> Any:
    factory: Any = field.default_factory
    return factory() if field.default is dataclasses.MISSING else field.default


def _checked(name: str, value: Any, field: dataclasses.Field) -> Any:
    """Returns the value in its field's type, or raises a ConfigError."""
    kind, allowed = field.metadata["kind"], field.metadata["allowed"]
    if kind is tuple:
        return _names(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if value == "None" and field.default is None:
        value = None  # so a command line unsets a text that a configuration has set
    is_none = value is None and field.default is None
    # bool is an int to Python, but not here.
    if not is_none and (type(value) is not kind or not field.metadata["is_allowed"](value)):
        raise ConfigError(f"{name}: got {value!r}, allowed is {allowed}")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{name}: got {value!r}, allowed is a list of names")
    pieces = (piece.strip() for part in parts for piece in part.split(","))
    return tuple(piece for piece in pieces if piece)
