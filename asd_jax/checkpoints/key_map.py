"""Checkpoint names to parameter paths, by rules that are data.

The rules belong to the models and the expected shapes to whoever built the parameters; this module
knows neither. It joins the two and reports everything that does not fit in one error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from asd_jax.checkpoints.source import CheckpointError, TensorSource, some

Path = TypeVar("Path", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class KeyRule:
    r"""Where the tensors of one name pattern go.

    Attributes:
      pattern: Regular expression that must match the whole checkpoint name, as in
        `r"model\.layers\.(\d+)\.self_attn\.(q|k|v)_proj\.weight"`.
      path: Parameter path with the groups of the pattern, as in `r"layers/\1/attention/\2"`.
      transform: Applied to the `TensorSource` first, so it decides the shape that is checked; for
        example `TensorSource.transpose`.
      dtype: What the tensor is cast to when read; as stored if None.
    """

    pattern: str
    path: str
    transform: Callable[[TensorSource], TensorSource] | None = None
    dtype: Any = None


def map_tensors(
    source_tensors: Mapping[str, TensorSource],
    rules: Sequence[KeyRule],
    expected: Mapping[Path, Any],
    ignored: Iterable[str] = (),
) -> dict[Path, TensorSource]:
    """Assigns every checkpoint tensor to the parameter that it fills.

    Every rule that matches a name applies, so a fused tensor may fill several parameters.

    Args:
      source_tensors: The checkpoint's tensors by name.
      rules: The name table.
      expected: Shape (or anything with a `shape`) of each parameter, by path: `"a/0/b"` or the
        tuple `("a", 0, "b")`.
      ignored: Patterns of whole checkpoint names that may be left unused, such as an old
        checkpoint's `rotary_emb.inv_freq` or the copy of a tied output projection.

    Returns:
      The tensor for each path of `expected`, under the very keys of `expected`. None is read.

    Raises:
      CheckpointError: Parameters without a tensor, tensors without a parameter, parameters claimed
        twice or tensors of the wrong shape; all are reported together, at most ten of each kind.
    """
    paths = {_spelled(path): path for path in expected}
    compiled = [(re.compile(rule.pattern), rule) for rule in rules]
    skip = [re.compile(pattern) for pattern in ignored]
    mapped: dict[str, TensorSource] = {}
    unused, claimed = [], []
    for name, tensor in source_tensors.items():
        targets = [
            (match.expand(rule.path), rule)
            for pattern, rule in compiled
            if (match := pattern.fullmatch(name))
        ]
        fitting = [(path, rule) for path, rule in targets if path in paths]
        if not fitting and not any(pattern.fullmatch(name) for pattern in skip):
            where = " or ".join(path for path, _ in targets)
            unused.append(f"{name} (for {where})" if targets else name)
        for path, rule in fitting:
            if path in mapped:
                claimed.append(f"{path} ({mapped[path].name} and {name})")
            mapped[path] = _apply(rule, tensor)
    missing = [path for path in paths if path not in mapped]
    misshapen = [
        f"{path} ({tensor.name}) got {tensor.shape}, expected {shape}"
        for path, tensor in mapped.items()
        if tensor.shape != (shape := _shape(expected[paths[path]]))
    ]
    _report(missing=missing, unused=unused, claimed=claimed, misshapen=misshapen)
    return {paths[path]: mapped[path] for path in paths}


def _spelled(path: Any) -> str:
    return path if isinstance(path, str) else "/".join(str(part) for part in path)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", value))


def _apply(rule: KeyRule, tensor: TensorSource) -> TensorSource:
    if rule.transform is not None:
        tensor = rule.transform(tensor)
    return tensor if rule.dtype is None else tensor.astype(rule.dtype)


def _report(
    *, missing: list[str], unused: list[str], claimed: list[str], misshapen: list[str]
) -> None:
    kinds = {
        "parameters without a tensor": missing,
        "tensors that no parameter takes": unused,
        "parameters with more than one tensor": claimed,
        "tensors of the wrong shape": misshapen,
    }
    problems = [f"{len(names)} {kind}: {some(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError("checkpoint and model do not fit:\n  " + "\n  ".join(problems))
