"""What a checkpoint looks like once opened, whatever its file format.

An opened checkpoint holds no weights: each tensor is a `TensorSource`, that is a shape, a dtype and
a way to fetch the whole or a slice. So a loader can place every shard on its device without holding
two copies of the model, and can check all names and shapes before reading a single weight.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SAMPLE_BLOCKS = 64
_SAMPLE_BYTES = 16384


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class TensorSource:
    """One tensor of a checkpoint, still on disk.

    Attributes:
      name: The tensor's name in the checkpoint, for messages.
      shape: Its shape.
      dtype: numpy or ml_dtypes dtype of what `read` returns: the stored one, or float32 when the
        stored form is quantised.
      fetch: Takes one `slice` per axis and returns that part, reading no more than it needs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fetch: Callable[[tuple[slice, ...]], np.ndarray]

    def read(self) -> np.ndarray:
        """Returns the whole tensor. It may be a read-only view of the file."""
        return self.fetch((slice(None),) * len(self.shape))

    def read_slice(self, index: tuple[slice, ...]) -> np.ndarray:
        """Returns `tensor[index]`, reading from disk only the rows that it covers.

        Args:
          index: Slices, at most one an axis; axes left out are taken whole. This is the form that
            `jax.make_array_from_callback` passes.

        Raises:
          CheckpointError: More slices than axes, or an entry that is not a slice.
        """
        if len(index) > len(self.shape) or not all(isinstance(part, slice) for part in index):
            raise CheckpointError(
                f"tensor {self.name!r} of shape {self.shape} cannot be read at {index!r}: "
                "expected at most one slice per axis"
            )
        return self.fetch(tuple(index) + (slice(None),) * (len(self.shape) - len(index)))

    def astype(self, dtype: Any) -> TensorSource:
        """Returns the same tensor, cast to `dtype` when read."""
        dtype = np.dtype(dtype)
        return dataclasses.replace(
            self, dtype=dtype, fetch=lambda index: self.fetch(index).astype(dtype, copy=False)
        )

    def transpose(self) -> TensorSource:
        """Returns the tensor with its axes reversed, still lazy: slices are reversed with them."""
        return dataclasses.replace(
            self, shape=self.shape[::-1], fetch=lambda index: self.fetch(index[::-1]).T
        )


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file behind a checkpoint and how much of its beginning is header (or all of it)."""

    path: Path
    header_bytes: int


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """An opened checkpoint in Hugging Face spelling.

    Attributes:
      path: The GGUF file, or the directory with `config.json`.
      config: The model's configuration, spelled as in a Hugging Face `config.json`: `model_type`,
        `hidden_size`, `num_hidden_layers`, `num_key_value_heads`, `rope_theta`, ...
      tensors: Every tensor under its Hugging Face name (`model.layers.0.mlp.up_proj.weight`,
        shape `[out, in]`). A tensor without such a name keeps the one it has in the file.
      generation_config: `generation_config.json`, or empty.
      tokenizer: Raw material for `asd_jax.tokenizer.from_checkpoint`: the `tokenizer.*` metadata of
        a GGUF, or `{"directory": path}`.
      files: What `digest` reads.
    """

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorSource]
    generation_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: tuple[SourceFile, ...] = ()

    def digest(self) -> str:
        """Returns a SHA-256 that tells checkpoints apart in a receipt, in well under a second.

        It covers the config, every file's size, every header in full (tensor names, shapes, types
        and offsets; for GGUF all metadata with the vocabulary and the chat template; for a
        directory its JSON and template files whole), and 64 blocks of 16 KiB spread evenly over
        each file's tensor bytes, the last bytes always among them. File names and times do not
        matter, so a copy has the same digest. Being a sample it is no proof of integrity: a
        change of a few weights in a large file can go unseen.

        Raises:
          CheckpointError: A file is gone or cannot be read any more.
        """
        digest = hashlib.sha256(b"asd_jax checkpoint 1\n")
        for value in (self.config, self.generation_config):
            digest.update(json.dumps(value, sort_keys=True, default=str).encode() + b"\n")
        for file in self.files:
            try:
                _update_from_file(digest, file)
            except OSError as error:
                raise CheckpointError(f"{file.path}: cannot be read: {error}") from error
        return digest.hexdigest()


def _update_from_file(digest: Any, file: SourceFile) -> None:
    size = file.path.stat().st_size
    header = min(file.header_bytes, size)
    # Sizes go in first, so that bytes cannot move from one file to the next unseen.
    digest.update(f"{size} {header}\n".encode())
    with file.path.open("rb") as stream:
        digest.update(stream.read(header))
        last = max(header, size - _SAMPLE_BYTES)
        for offset in sorted({int(x) for x in np.linspace(header, last, _SAMPLE_BLOCKS)}):
            stream.seek(offset)
            digest.update(stream.read(_SAMPLE_BYTES))


def require_file(path: Path, kind: str) -> int:
    """Returns the size in bytes of the file at `path`.

    Raises:
      CheckpointError: It is missing, a directory, or empty; the message says a `kind` was expected.
    """
    if path.is_dir():
        raise CheckpointError(f"{path}: is a directory, expected a {kind}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, expected a {kind}")
    size = path.stat().st_size
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty, expected a {kind}")
    return size


def some(names: Any, limit: int = 10) -> str:
    """Joins names for a message, the first `limit` in full and the rest as a count."""
    names = sorted(str(name) for name in names)
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... and {len(names) - limit} more"
