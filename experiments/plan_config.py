"""Configurations of plans: what fields there are, what each may be, and how they are checked.

A plan describes its target and drafter by the fields of their `config.json`, so that no file is
needed. As for `experiments.config`, a file in `experiments/configs/` defines `get_config()`, which
starts from `default_config()`, and any field can be set on the command line.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict

from asd_jax.footprint import CHIPS, DRAFTERS, Workload
from asd_jax.footprint.report import DEFAULT_HEADROOM
from experiments.config import ConfigError

ALL_CHIPS = "all"
_INT32 = 2**31 - 1
_MOST_DEVICES = 1024


class _Field(NamedTuple):
    default: Any
    kind: type
    is_allowed: Callable[[Any], bool]
    allowed: str
    about: str


def _whole(default: int, low: int, high: int, about: str) -> _Field:
    allowed = f"a whole number >= {low}" if high == _INT32 else f"a whole number {low}..{high}"
    return _Field(default, int, lambda value: low <= value <= high, allowed, about)


def _choice(default: str, names: tuple[str, ...], about: str) -> _Field:
    return _Field(default, str, lambda value: value in names, f"one of {', '.join(names)}", about)


def _flag(default: bool, about: str) -> _Field:
    return _Field(default, bool, lambda value: True, "True or False", about)


FIELDS: dict[str, _Field] = {
    "drafter.family": _choice("ngram", DRAFTERS, "kind of drafter"),
    "mesh.data": _whole(1, 1, _MOST_DEVICES, "devices that divide the requests"),
    "mesh.model": _whole(1, 1, _MOST_DEVICES, "devices that divide the weights"),
    "num_draft_tokens": _whole(7, 1, _INT32, "draft tokens a round"),
    "batch_size": _whole(8, 1, 65536, "requests decoded together, on the whole mesh"),
    "prompt_length": _whole(1024, 1, _INT32, "tokens of a padded prompt"),
    "max_new_tokens": _whole(1024, 1, _INT32, "tokens an answer"),
    "prefill_chunk": _whole(256, 1, _INT32, "prompt tokens of a request in one forward"),
    "dtype": _choice("bfloat16", ("bfloat16", "float32"), "type of weights and caches"),
    "chip": _choice(ALL_CHIPS, (*CHIPS, ALL_CHIPS), "accelerator it has to fit"),
    "headroom": _Field(
        DEFAULT_HEADROOM, float, lambda value: 0 <= value < 1, "a number >= 0 and < 1",
        "part of a chip's memory to leave free",
    ),
    "compile": _flag(True, "compile the loop, for temporaries and exchanges"),
    "output": _Field(
        None, str, lambda value: bool(value.strip()), "a text that is not empty, or None",
        "JSON file, which must not exist yet",
    ),
}  # fmt: skip
# Fields of a config.json each; what they may be is the model's affair.
_FREE = {"target": "the target's config.json", "drafter.config": "the drafter's config.json"}


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """A checked plan.

    Attributes:
      target: The target's `config.json`.
      drafter: The drafter's `config.json`.
      values: By dotted name, as `FIELDS` has them.
    """

    target: dict[str, Any]
    drafter: dict[str, Any]
    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Returns a field by its dotted name."""
        return self.values[name]

    @property
    def workload(self) -> Workload:
        """What is decoded."""
        names = [field.name for field in dataclasses.fields(Workload)]
        return Workload(**{name: self.values[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields by dotted name, for JSON."""
        return {**self.values, "target": self.target, "drafter.config": self.drafter}


def default_config() -> ml_collections.ConfigDict:
    """Returns all fields with their defaults, for `get_config` to start from."""
    config = ml_collections.ConfigDict({"target": {}, "drafter": {"config": {}}, "mesh": {}})
    for name, field in FIELDS.items():
        *path, last = name.split(".")
        node = config
        for part in path:
            node = node[part]
        node[last] = config_dict.placeholder(field.kind) if field.default is None else field.default
    return config


def unknown_field(name: str) -> str | None:
    """Returns what to tell about a field that does not exist, or None if it may.

    Args:
      name: Dotted, without the leading "config.".
    """
    known = [*FIELDS, *_FREE]
    if name in known or any(name.startswith(f"{free}.") for free in _FREE):
        return None
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{name}: no such field; {hint}"


def describe(name: str) -> str:
    """Returns what a field may be."""
    return FIELDS[name].allowed if name in FIELDS else "a field of a config.json"


def from_config_dict(config: Mapping[str, Any]) -> PlanConfig:
    """Checks a configuration and freezes it.

    Args:
      config: A `ConfigDict` or plain nested dict; missing fields take their defaults.

    Raises:
      ConfigError: With a line for each unknown field, wrong type or impossible value.
    """
    plain = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else dict(config)
    drafter = dict(plain.get("drafter") or {})
    free = {"target": plain.pop("target", None), "drafter.config": drafter.pop("config", {})}
    flat = _flatten({**plain, "drafter": drafter})
    problems = [told for name in flat if (told := unknown_field(name)) is not None]
    problems += [
        f"{name}: got {value!r}, allowed are the fields of {about}"
        for (name, value), about in zip(free.items(), _FREE.values(), strict=True)
        if not isinstance(value, dict)
    ]
    values: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = values[name] = flat.get(name, field.default)
        if field.kind is float and type(value) is int:
            value = values[name] = float(value)
        is_none = value is None and field.default is None
        # bool is an int to Python, but not here.
        if not is_none and (type(value) is not field.kind or not field.is_allowed(value)):
            problems.append(f"{name}: got {value!r}, allowed is {field.allowed}")
    if not problems and values["mesh.data"] * values["mesh.model"] > _MOST_DEVICES:
        problems.append(
            f"mesh: got {values['mesh.data']} x {values['mesh.model']} devices, allowed is a "
            f"product <= {_MOST_DEVICES}"
        )
    if problems:
        raise ConfigError("\n".join(problems))
    return PlanConfig(free["target"], free["drafter.config"], values)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
