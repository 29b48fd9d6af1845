"""Reads the header of a GGUF file: its metadata, and where each tensor lies.

Not done by `gguf.GGUFReader`: that one takes seconds for a vocabulary of fifty thousand tokens,
reads past the end of a truncated file without noticing, and loops for ever on a corrupt array
length. Block layouts do come from the `gguf` package, the reference implementation.

Format: ggml-org/ggml docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import ml_dtypes
import numpy as np

from asd_jax.checkpoints.source import CheckpointError, some

# Types stored as they are, by the dtype of their elements; all others come in quantised blocks.
PLAIN_TYPES = {
    gguf.GGMLQuantizationType.F32: np.dtype(np.float32),
    gguf.GGMLQuantizationType.F16: np.dtype(np.float16),
    gguf.GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
_QUANTISED = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
_TYPES = {
    int(member): member
    for member in gguf.GGMLQuantizationType
    if member in PLAIN_TYPES or member.name in _QUANTISED
}
_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
            10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


class TensorInfo(NamedTuple):
    """Where a tensor lies in the file, and in which form.

    Attributes:
      shape: In numpy's order: GGUF stores the fastest axis first.
      type: A `gguf.GGMLQuantizationType`.
      start: Its first byte, counted from the beginning of the file.
      row_bytes: Bytes of the last axis.
    """

    shape: tuple[int, ...]
    type: Any
    start: int
    row_bytes: int


class Header(NamedTuple):
    """What stands before the tensors of a GGUF.

    Attributes:
      metadata: Values by key; arrays are lists.
      tensors: Tensors by their name in the file, all of them wholly within it.
      size: Bytes of the header, without the padding after it.
    """

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size: int


def read_header(path: Path, data: np.ndarray) -> Header:
    """Reads and checks the header of a GGUF (ggml-org/ggml docs/gguf.md).

    Args:
      path: The file, for messages and its size.
      data: uint8 `[bytes]`, the file's contents.

    Raises:
      CheckpointError: Not a GGUF, another version than 2 and 3, a truncated or corrupt header, a
        name that appears twice, a tensor of an unsupported type or beyond the end of the file.
      ValueError, TypeError, ArithmeticError: Values that make no sense, such as bytes that are not
        UTF-8; the message does not name the file.
    """
    cursor = _Cursor(path, data)
    magic = bytes(cursor.take(4))
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    version = cursor.u32()
    if version not in (2, 3):
        hint = " (a big-endian file?)" if version and version % 65536 == 0 else ""
        raise CheckpointError(f"{path}: GGUF version {version}{hint}, supported are 2 and 3")
    tensor_count, metadata_count = cursor.u64(), cursor.u64()
    metadata = _read_metadata(cursor, metadata_count)
    tensors = _read_tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    _check_extent(path, tensors)
    return Header(metadata, tensors, cursor.at)


class _Cursor:
    """Reads little-endian values one after the other and never past the end of the file."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.at = path, 0
        self._data = data.data

    def take(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise CheckpointError(
                f"{self.path}: truncated or corrupt GGUF header: {count} bytes expected at byte "
                f"{self.at} of {len(self._data)}"
            )
        self.at += count
        return self._data[self.at - count : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> str:
        return str(self.take(self.u64()), "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            raw = self.take(np.dtype(_SCALARS[kind]).itemsize)
            return np.frombuffer(raw, _SCALARS[kind])[0].item()
        if kind != _ARRAY:
            raise CheckpointError(
                f"{self.path}: corrupt GGUF header: value type {kind} at {self.at}"
            )
        kind, count = self.u32(), self.u64()
        if kind in _SCALARS:
            raw = self.take(count * np.dtype(_SCALARS[kind]).itemsize)
            return np.frombuffer(raw, _SCALARS[kind]).tolist()
        if kind != _STRING:
            raise CheckpointError(f"{self.path}: corrupt GGUF header: array of type {kind}")
        return [self.string() for _ in range(count)]


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in metadata:
            raise CheckpointError(
                f"{cursor.path}: corrupt GGUF header: metadata key {key!r} appears twice"
            )
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _read_tensors(cursor: _Cursor, count: int, alignment: Any) -> dict[str, TensorInfo]:
    path = cursor.path
    declared = []
    for _ in range(count):
        name, num_dims = cursor.string(), cursor.u32()
        if num_dims > _MAX_DIMS:
            raise CheckpointError(
                f"{path}: corrupt GGUF header: tensor {name!r} of {num_dims} axes"
            )
        dims = [cursor.u64() for _ in range(num_dims)]
        declared.append((name, tuple(reversed(dims)), cursor.u32(), cursor.u64()))
    if not isinstance(alignment, int) or alignment <= 0:
        raise CheckpointError(f"{path}: corrupt GGUF header: general.alignment is {alignment!r}")
    start = cursor.at + -cursor.at % alignment
    infos: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in declared:
        if name in infos:
            raise CheckpointError(f"{path}: corrupt GGUF header: tensor {name!r} appears twice")
        infos[name] = _tensor_info(path, name, shape, kind, start + offset)
    return infos


def _tensor_info(
    path: Path, name: str, shape: tuple[int, ...], kind: int, start: int
) -> TensorInfo:
    member = _TYPES.get(kind)
    if member is None:
        names = {int(known): known.name for known in gguf.GGMLQuantizationType}
        raise CheckpointError(
            f"{path}: tensor {name!r} has type {names.get(kind, kind)}, which is not supported; "
            f"allowed: {', '.join(known.name for known in _TYPES.values())}"
        )
    block, block_bytes = gguf.GGML_QUANT_SIZES[member]
    columns = shape[-1] if shape else 1
    if 0 in shape or columns % block:
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {shape} cannot be of type {member.name}: rows are "
            f"made of blocks of {block} elements"
        )
    return TensorInfo(shape, member, start, columns // block * block_bytes)


def _check_extent(path: Path, infos: Mapping[str, TensorInfo]) -> None:
    size = path.stat().st_size
    ends = {k: t.start + math.prod(t.shape[:-1]) * t.row_bytes for k, t in infos.items()}
    cut = [name for name, end in ends.items() if end > size]
    if cut:
        raise CheckpointError(
            f"{path}: truncated: the header describes {max(ends.values())} bytes, the file has "
            f"{size}; not complete: {some(cut)}"
        )
