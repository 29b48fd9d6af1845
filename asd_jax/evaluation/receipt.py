"""What was run, so that a row can be traced back: configuration, versions, device, digests."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import jax

from asd_jax.evaluation.machine import cpu_model, num_cores
from asd_jax.evaluation.plain_json import infinity_as_text

_PACKAGES = ("asd_jax", "jax", "jaxlib", "flax", "numpy")
# Changing these leaves the rows that are there already valid.
_FREE_FIELDS = frozenset(
    {
        "arms",
        "compilation_cache",
        "drafter",
        "limit",
        "mesh",
        "output",
        "processes",
        "prompts",
        "resume",
        "target",
    }
)


def run_header(
    config: Mapping[str, Any],
    *,
    target: str,
    drafter: str | None,
    prompts: str,
    num_prompts: int,
) -> dict[str, Any]:
    """Returns the description of a run, made of plain JSON types.

    Paths are cut down to their last part: a receipt is for publishing, and the digests identify
    the files.

    Args:
      config: The run's configuration, possibly nested.
      target: Digest of the target's files.
      drafter: Digest of the drafter's files, or None if it has none.
      prompts: Digest of the prompts.
      num_prompts: How many prompts there are, before any limit.
    """
    plain = _without_folders(infinity_as_text(config))
    devices = jax.devices()
    return {
        "format": 1,
        "config": plain,
        "target": {"name": plain.get("target"), "digest": target},
        "drafter": {"name": plain.get("drafter"), "digest": drafter},
        "prompts": {
            "name": plain.get("prompts"),
            "digest": prompts,
            "count": num_prompts,
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "device": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
            "cpu": cpu_model(),
            "cores": num_cores(),
        },
        "commit": git_commit(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns in words the fields in which two headers would give other rows.

    Compared are the digests of target, drafter and prompts, the drafter's name, and every field of
    the configuration that reaches the decoding. Versions and devices are not: they may change the
    last bit of a logit, but nobody could go on after an update.
    """
    pairs = [
        (f"{part} {key}", _get(old, part, key), _get(new, part, key))
        for part, key in (
            ("target", "digest"),
            ("drafter", "name"),
            ("drafter", "digest"),
            ("prompts", "digest"),
        )
    ]
    old_fields, new_fields = (_flat(header.get("config", {})) for header in (old, new))
    for name in sorted({*old_fields, *new_fields}):
        if name.split(".")[0] not in _FREE_FIELDS:
            pairs.append((name, old_fields.get(name), new_fields.get(name)))
    return [f"{name}: {a!r} in the file, {b!r} now" for name, a, b in pairs if a != b]


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Returns the command line of a program, absolute paths cut down to their last part.

    Args:
      module: The program, as `python -m` has it.
      arguments: Behind it. A path may be one of them or stand behind the = of one.
    """
    words = ["python", "-m", module]
    for argument in arguments:
        flag, sign, value = argument.partition("=")
        words.append(f"{flag}={_last_part(value)}" if sign else _last_part(argument))
    return " ".join(words)


def git_commit() -> str | None:
    """Returns the commit of this source tree, with "-dirty" if files were changed since.

    None outside of git, also where the package merely lies inside somebody else's repository.
    """
    root = Path(__file__).resolve().parents[2]
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root:
        return None
    return _git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=root, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None  # a source tree that was not installed
    return versions


def _without_folders(value: Any) -> Any:
    """Returns a JSON value, absolute paths in it as their last part."""
    if isinstance(value, dict):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return _last_part(value) if isinstance(value, str) else value


def _last_part(text: str) -> str:
    """Returns the last part of an absolute path, any other text as it is."""
    is_absolute = PurePath(text).is_absolute() or text.startswith("~")
    return PurePath(text).name if is_absolute else text


def _get(header: Mapping[str, Any], part: str, key: str) -> Any:
    section = header.get(part)
    return section.get(key) if isinstance(section, Mapping) else None


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
