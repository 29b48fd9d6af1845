"""Tensors on disk to arrays on devices, holding little more of them in host memory than a slice.

A slice is read and cast in small pieces into one buffer, and that buffer is what is handed to JAX.
It is aligned so that the CPU backend takes it over as the array's memory instead of copying it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np

from asd_jax.checkpoints.source import CheckpointError, TensorSource, some

# Stored types that are numbers as they stand. Eight-bit floats are not: they need their scales.
_FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
_PIECE_BYTES = 1 << 24
# What XLA's CPU client asks of memory that it does not copy.
_ALIGNMENT = 64


def place_tensors(
    tensors: Mapping[str, TensorSource],
    dtype: Any,
    *,
    shardings: Mapping[str, jax.sharding.Sharding] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, jax.Array]:
    """Reads tensors one after the other, in the order of their files, onto devices.

    Every process reads only the slices of its own devices, and a slice that several of them hold
    only once. Host memory in use is one slice (with shardings: one tensor's slices of this process)
    and a piece of 16 MiB beyond the arrays themselves.

    Args:
      tensors: Tensors by the name of the parameter that they fill. Stored as float64, float32,
        float16 or bfloat16, or quantised in a GGUF.
      dtype: Type of the arrays.
      shardings: Where each array goes, under the keys of `tensors`. Default: all on the default
        device, uncommitted.
      on_progress: Called after every tensor with (tensors placed, tensors in all).

    Returns:
      The arrays, in the order of `tensors`.

    Raises:
      CheckpointError: A tensor of integers, booleans or eight-bit floats (all are named together,
        before any is read); a file is gone or shorter than when it was opened.
      ValueError: `shardings` has other keys than `tensors`, or does not divide a tensor.
    """
    dtype = np.dtype(dtype)
    _require_floats(tensors)
    if shardings is not None:
        _require_shardings(tensors, shardings)
    placed: dict[str, jax.Array] = {}
    for name in sorted(tensors, key=lambda name: _place_on_disk(tensors[name])):
        sharding = None if shardings is None else shardings[name]
        placed[name] = _place(tensors[name], dtype, sharding)
        if on_progress is not None:
            on_progress(len(placed), len(tensors))
    return {name: placed[name] for name in tensors}


def _require_floats(tensors: Mapping[str, TensorSource]) -> None:
    wrong = {
        f"{tensor.name} ({tensor.dtype}, {tensor.file or 'in memory'})"
        for tensor in tensors.values()
        if tensor.dtype not in _FLOATS
    }
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} tensors are not stored as numbers that can be cast: {some(wrong)}; "
            f"allowed: {', '.join(np.dtype(kind).name for kind in _FLOATS)}"
        )


def _require_shardings(
    tensors: Mapping[str, TensorSource], shardings: Mapping[str, jax.sharding.Sharding]
) -> None:
    if tensors.keys() != shardings.keys():
        raise ValueError(
            "shardings: got other names than tensors; "
            f"only in tensors: {some(tensors.keys() - shardings.keys()) or 'none'}; "
            f"only in shardings: {some(shardings.keys() - tensors.keys()) or 'none'}"
        )
    for name, tensor in tensors.items():
        try:
            shardings[name].shard_shape(tensor.shape)
        except ValueError as error:
            raise ValueError(f"shardings[{name!r}]: {error}") from error


def _place_on_disk(tensor: TensorSource) -> tuple[str, int]:
    return str(tensor.file or ""), tensor.offset


def _place(
    tensor: TensorSource, dtype: np.dtype, sharding: jax.sharding.Sharding | None
) -> jax.Array:
    if sharding is None:
        whole = tuple(slice(0, size) for size in tensor.shape)
        return jax.device_put(_read_as(tensor, dtype, whole)).block_until_ready()
    slices: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def read(index: tuple[slice, ...] | None) -> np.ndarray:
        spans = tuple(
            part.indices(size)[:2] for part, size in zip(index or (), tensor.shape, strict=True)
        )
        if spans not in slices:
            slices[spans] = _read_as(tensor, dtype, tuple(slice(*span) for span in spans))
        return slices[spans]

    array = jax.make_array_from_callback(tensor.shape, sharding, read, dtype=dtype)
    # The buffers must outlive their transfer, and no two tensors' buffers should wait for one.
    return array.block_until_ready()


def _read_as(tensor: TensorSource, dtype: np.dtype, index: tuple[slice, ...]) -> np.ndarray:
    """Returns `tensor[index]` in an aligned buffer, cast piece by piece."""
    out = _aligned([part.stop - part.start for part in index], dtype)
    if not index:
        out[...] = tensor.read()
        return out
    rows, *rest = index
    row_bytes = math.prod(out.shape[1:]) * tensor.dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row_bytes))
    for first in range(rows.start, rows.stop, step):
        last = min(first + step, rows.stop)
        piece = tensor.read_slice((slice(first, last), *rest))
        # Values beyond the range of `dtype` become infinite, as in a cast on the device.
        with np.errstate(over="ignore"):
            out[first - rows.start : last - rows.start] = piece
    return out


def _aligned(shape: list[int], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
