"""What a checkpoint looks like once opened, whatever its file format.

An opened checkpoint holds no weights: each tensor is a `TensorSource`, that is a shape, a dtype and
a way to fetch the whole or a slice. So a loader can place every shard on its device without holding
two copies of the model, and can check all names and shapes before reading a single weight.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_SAMPLE_BLOCKS = 64
_SAMPLE_BYTES = 16384
# As much of a file as is mapped at a time: pages that were touched count as memory in use.
_MAPPED_BYTES = 1 << 24


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
      fetch: Takes one slice per axis, with `0 <= start <= stop <= size` and no step, and returns
        that part, reading no more than it needs.
      file: The file that holds it, if any; with `offset` it gives the order in which to read.
      offset: Its first byte in `file`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fetch: Callable[[tuple[slice, ...]], np.ndarray]
    file: Path | None = None
    offset: int = 0

    def read(self) -> np.ndarray:
        """Returns the whole tensor.

        Raises:
          CheckpointError: The file is gone or shorter than when it was opened.
        """
        return self.fetch(tuple(slice(0, size) for size in self.shape))

    def read_slice(self, index: tuple[slice, ...]) -> np.ndarray:
        """Returns `tensor[index]`, reading from disk only the span that each slice covers.

        Args:
          index: Slices, at most one an axis; axes left out are taken whole. This is the form that
            `jax.make_array_from_callback` passes.

        Raises:
          CheckpointError: More slices than axes, or an entry that is not a slice; the file is gone
            or shorter than when it was opened.
        """
        if len(index) > len(self.shape) or not all(isinstance(part, slice) for part in index):
            raise CheckpointError(
                f"tensor {self.name!r} of shape {self.shape} cannot be read at {index!r}: "
                "expected at most one slice per axis"
            )
        whole = tuple(index) + (slice(None),) * (len(self.shape) - len(index))
        taken = [range(*part.indices(size)) for part, size in zip(whole, self.shape, strict=True)]
        values = self.fetch(tuple(_span(places) for places in taken))
        if all(places.step == 1 for places in taken):
            return values
        steps = tuple(slice(None, None, places.step) for places in taken)
        return np.ascontiguousarray(values[steps])

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

    def pad_rows(self, num_rows: int) -> TensorSource:
        """Returns the tensor with zeros appended until its first axis has `num_rows` entries.

        Raises:
          ValueError: The tensor is a scalar or already longer.
        """
        if not self.shape or num_rows < self.shape[0]:
            raise ValueError(
                f"num_rows: got {num_rows}, tensor {self.name!r} of shape {self.shape} can be "
                "padded only on its first axis and to no less than its size"
            )
        size = self.shape[0]

        def fetch(index: tuple[slice, ...]) -> np.ndarray:
            rows, *rest = index
            if rows.stop <= size:
                return self.fetch(index)
            padded = np.zeros([part.stop - part.start for part in index], self.dtype)
            if rows.start < size:
                padded[: size - rows.start] = self.fetch((slice(rows.start, size), *rest))
            return padded

        return dataclasses.replace(self, shape=(num_rows, *self.shape[1:]), fetch=fetch)

    def repeat_rows(self, block: int, times: int) -> TensorSource:
        """Returns the tensor with each block of rows repeated `times` times in a row.

        Block i of the result, rows `i * block` to `(i + 1) * block`, is block `i // times` of this
        tensor. With `block` the width of a head this replicates key and value heads.

        Raises:
          ValueError: The tensor is a scalar, `block` does not divide its first axis, or `block` or
            `times` is not positive.
        """
        if not self.shape or block < 1 or times < 1 or self.shape[0] % block:
            raise ValueError(
                f"block, times: got {block}, {times}, tensor {self.name!r} of shape {self.shape} "
                "needs positive ones, with a block that divides its first axis"
            )

        def fetch(index: tuple[slice, ...]) -> np.ndarray:
            rows = np.arange(index[0].start, index[0].stop)
            rows = rows // (block * times) * block + rows % block
            first = int(rows.min()) if rows.size else 0
            last = int(rows.max()) + 1 if rows.size else 0
            values = self.fetch((slice(first, last), *index[1:]))
            return values[rows - first]

        return dataclasses.replace(
            self, shape=(self.shape[0] * times, *self.shape[1:]), fetch=fetch
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


def _span(places: range) -> slice:
    if not places:
        return slice(0, 0)
    return slice(min(places[0], places[-1]), max(places[0], places[-1]) + 1)


def read_stored(
    path: Path, start: int, shape: tuple[int, ...], dtype: np.dtype, index: tuple[slice, ...]
) -> np.ndarray:
    """Returns a part of an array that lies in a file, copied into memory of its own.

    Args:
      path: The file.
      start: The first byte of the array in it.
      shape: The array's shape; its elements lie in C order.
      dtype: Their type, little endian.
      index: As for `TensorSource.fetch`.

    Raises:
      CheckpointError: The file is gone, cannot be read, or ends before the array does.
    """
    if not shape:
        return read_stored(path, start, (1,), dtype, (slice(0, 1),)).reshape(())
    rows, *rest = index
    out = np.empty([part.stop - part.start for part in index], dtype)
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    step = max(1, _MAPPED_BYTES // max(1, row_bytes))
    end = start + shape[0] * row_bytes
    for first in range(rows.start, rows.stop, step) if out.size else ():
        count = min(step, rows.stop - first)
        data = _map_bytes(path, start + first * row_bytes, count * row_bytes, end)
        part = data.view(dtype).reshape(count, *shape[1:])[(slice(None), *rest)]
        out[first - rows.start : first - rows.start + count] = part
        del data, part  # unmapped here, before the next block
    return out


def _map_bytes(path: Path, start: int, count: int, end: int) -> np.ndarray:
    """Maps a part of a file that must reach to `end`: past its end a read would be a SIGBUS."""
    try:
        size = path.stat().st_size
        if size >= end:
            return np.memmap(path, np.uint8, "r", start, (count,)).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    raise CheckpointError(
        f"{path}: truncated since it was opened: a tensor ends at byte {end}, the file has {size}"
    )


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
