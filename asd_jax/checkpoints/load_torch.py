"""Opens torch files (`pytorch_model.bin`, `*.pt`) without torch, and without unpickling objects.

The format is that of `torch.save` since 1.6: a zip archive, never compressed, of a pickle that
describes the tensors and one member for each storage. Only the pickle is read here; tensors map
their parts of the file as in safetensors. Checks are stricter than torch's: members must fill the
archive without gap, overlap or second spelling of their place, so there is one way to read it.

Format: caffe2/serialize/inline_container.cc and torch/serialization.py, version 2.13; PKWARE's
APPNOTE.TXT 4.3 for local headers and data descriptors.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from asd_jax.checkpoints.source import (
    CheckpointError,
    TensorSource,
    read_stored,
    require_file,
    some,
)
from asd_jax.checkpoints.torch_globals import StoredTensor
from asd_jax.checkpoints.torch_pickle import read_pickle

# A tensor takes about 150 bytes of the pickle, and what a pickle builds up to 64 times its size.
_MAX_PICKLE = 1 << 22
# An expanded tensor repeats elements of its storage, so a small file could ask for any size.
_MAX_EXPANDED = 1 << 28
_MAX_SMALL = 64
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENCRYPTED, _HAS_DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
_WRAPPERS = ("state_dict", "model")
_RESAVE = "load it with torch and save it again, or convert it to safetensors"


@dataclasses.dataclass(frozen=True)
class _Member:
    """A member of the archive: where its bytes lie in the file."""

    start: int
    size: int
    crc: int


def read_torch_file(path: str | Path) -> dict[str, TensorSource]:
    """Opens a torch file that holds a dict of tensors; none of them is read.

    Args:
      path: Written by `torch.save` of torch 1.6 or later. The tensors may also lie one level
        deeper, under "state_dict" or "model"; what else a training checkpoint has is left out.

    Returns:
      The tensors by name, in the order of the file, in their stored dtypes (float8 and unsigned
      ones included). Parameters are tensors; views of one storage stay views of the same bytes.

    Raises:
      CheckpointError: The file is missing, truncated, corrupt, compressed, TorchScript, of the
        format before torch 1.6 or of a big-endian machine; its pickle asks for anything but
        tensors (the message names what); or it holds something else than tensors.
    """
    return read_torch_header(Path(path))[0]


def read_torch_header(path: Path) -> tuple[dict[str, TensorSource], int]:
    """Returns the tensors of a torch file, and the length of its beginning that describes them.

    Raises:
      CheckpointError: As `read_torch_file`.
    """
    members = _members(path)
    _check_side_members(path, members)
    pickled = members["data.pkl"]
    data = _read_member(path, "data.pkl", pickled, _MAX_PICKLE)
    table = _tensor_table(path, read_pickle(data, f"{path} (data.pkl)"))
    tensors = {name: _tensor(path, name, tensor, members) for name, tensor in table.items()}
    # Torch writes the pickle first. Elsewhere it would make a header of the tensors before it.
    return tensors, min(pickled.start + pickled.size, _MAX_PICKLE)


def _members(path: Path) -> dict[str, _Member]:
    """Returns the archive's members, by their name without the folder that all are in."""
    size = require_file(path, "torch file")
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
            if magic != b"PK\x03\x04":
                raise CheckpointError(f"{path}: {_not_a_zip(magic)}")
            # Its many kinds of error for corrupt archives are not documented.
            try:
                with zipfile.ZipFile(stream) as archive:
                    infos, end = archive.infolist(), archive.start_dir
            except Exception as error:
                raise CheckpointError(
                    f"{path}: truncated or corrupt: no zip directory at its end ({error})"
                ) from error
            _check_names(path, infos)
            infos = sorted(infos, key=lambda info: info.header_offset)
            starts = [info.header_offset for info in infos]
            if not infos or starts[0] != 0 or not end <= size:
                raise CheckpointError(f"{path}: corrupt: its first member is not at its beginning")
            members = {}
            for info, following in zip(infos, [*starts[1:], end], strict=True):
                member = _member(path, stream, info, following)
                members[info.orig_filename.partition("/")[2]] = member
            return members
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _not_a_zip(magic: bytes) -> str:
    if magic.startswith(b"\x80"):
        return f"a torch file of the format before torch 1.6, which is not read: {_RESAVE}"
    return f"not a torch file: it begins with {magic!r}, expected a zip archive"


def _check_names(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    names = [info.orig_filename for info in infos]
    if len(set(names)) != len(names):
        double = [a for a, b in itertools.pairwise(sorted(names)) if a == b]
        raise CheckpointError(f"{path}: corrupt: members named twice: {some(set(double))}")
    for name in names:
        parts = name.split("/")
        if len(parts) < 2 or {"", ".", ".."} & set(parts) or "\\" in name or not name.isprintable():
            raise CheckpointError(f"{path}: corrupt: a member may not be named {name!r:.200}")
    folders = {name.partition("/")[0] for name in names}
    if len(folders) > 1:
        raise CheckpointError(
            f"{path}: not a torch file: its members are in {len(folders)} folders, expected 1: "
            f"{some(folders)}"
        )
    inner = [name.partition("/")[2] for name in names]
    script = [name for name in inner if name == "constants.pkl" or name.startswith("code/")]
    if script:
        raise CheckpointError(
            f"{path}: refused: a TorchScript archive, that is a program (it has {some(script, 2)});"
            " expected a file of tensors: save its state_dict"
        )


def _member(path: Path, stream: Any, info: zipfile.ZipInfo, following: int) -> _Member:
    """Checks a member's local header and what is behind its data, up to the next member."""
    where = f"{path}: corrupt: member {info.orig_filename!r}"
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise CheckpointError(f"{path}: member {info.orig_filename!r} is compressed; {_RESAVE}")
    stream.seek(info.header_offset)
    header = stream.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise CheckpointError(f"{where} is not where the zip directory says")
    magic, _, flags, method, _, _, _, packed, unpacked, name_size, extra_size = (
        _LOCAL_HEADER.unpack(header)
    )
    name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    if magic != b"PK\x03\x04" or stream.read(name_size) != name:
        raise CheckpointError(f"{where} is not where the zip directory says")
    if method != zipfile.ZIP_STORED or (flags | info.flag_bits) & _ENCRYPTED:
        raise CheckpointError(f"{where} is compressed or encrypted; {_RESAVE}")
    start = info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    end = start + info.file_size
    # Sizes that come after the data are 0 before it; those of zip64 are in a field of their own.
    unset = {0, 0xFFFFFFFF} if flags & _HAS_DESCRIPTOR else {0xFFFFFFFF}
    if end > following or not {packed, unpacked} <= unset | {info.file_size}:
        raise CheckpointError(f"{where} has two different sizes, or overlaps the next")
    sizes = (info.CRC, info.file_size, info.file_size)
    allowed = [b""]
    if flags & _HAS_DESCRIPTOR:
        allowed = [b"PK\x07\x08" + struct.pack("<IQQ", *sizes)]
        if info.file_size <= 0xFFFFFFFF:
            allowed.append(b"PK\x07\x08" + struct.pack("<III", *sizes))
    stream.seek(end)
    if following - end > 24 or stream.read(following - end) not in allowed:
        raise CheckpointError(f"{where} does not end where the next begins")
    return _Member(start, info.file_size, info.CRC)


def _check_side_members(path: Path, members: dict[str, _Member]) -> None:
    if "data.pkl" not in members or "version" not in members:
        raise CheckpointError(
            f"{path}: not a torch file: a zip archive without data.pkl and version; "
            f"it has {some(members, 4)}"
        )
    version = _read_member(path, "version", members["version"], _MAX_SMALL).strip()
    if version not in [str(number).encode() for number in range(1, 11)]:
        raise CheckpointError(f"{path}: torch file of version {version!r}, allowed: 1 to 10")
    if "byteorder" in members:  # there since torch 2.1
        order = _read_member(path, "byteorder", members["byteorder"], _MAX_SMALL)
        if order != b"little":
            raise CheckpointError(
                f"{path}: its numbers are of byte order {order!r}, allowed: b'little'"
            )


def _read_member(path: Path, name: str, member: _Member, limit: int) -> bytes:
    if member.size > limit:
        raise CheckpointError(
            f"{path}: member {name} has {member.size} bytes, allowed: at most {limit}"
        )
    data = read_stored(
        path, member.start, (member.size,), np.dtype(np.uint8), (slice(0, member.size),)
    ).tobytes()
    if zlib.crc32(data) != member.crc:
        raise CheckpointError(
            f"{path}: corrupt: member {name} does not have the CRC-32 that is given (or the file "
            "was written with torch's option not to compute it)"
        )
    return data


def _tensor_table(path: Path, value: Any) -> dict[str, StoredTensor]:
    """Returns the dict of tensors, or that one level deeper when no tensor is beside it."""
    if type(value) is not dict:
        raise CheckpointError(f"{path}: holds a {_kind(value)}, expected a dict of tensors")
    if not any(isinstance(entry, StoredTensor) for entry in value.values()):
        inner = [name for name in _WRAPPERS if type(value.get(name)) is dict]
        if len(inner) == 1:
            value = value[inner[0]]
    wrong = [
        f"{name!r:.80} ({_kind(entry)})"
        for name, entry in value.items()
        if type(name) is not str or not isinstance(entry, StoredTensor)
    ]
    if wrong:
        raise CheckpointError(
            f"{path}: expected a dict of tensors by name, or that alone under "
            f"{' or '.join(_WRAPPERS)}; got entries {some(wrong)}"
        )
    return value


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, StoredTensor) else type(value).__name__


def _tensor(
    path: Path, name: str, tensor: StoredTensor, members: dict[str, _Member]
) -> TensorSource:
    storage, shape, dtype = tensor.storage, tensor.shape, tensor.dtype
    member = members.get(f"data/{storage.key}")
    if member is None or member.size != storage.num_bytes:
        has = "no such member" if member is None else f"a member of {member.size}"
        raise CheckpointError(
            f"{path}: corrupt: tensor {name!r} is in storage {storage.key!r} of "
            f"{storage.num_bytes} bytes, the file has {has}"
        )
    # Zeros are left out: numpy refuses an empty array of huge sizes too.
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize > max(
        storage.num_bytes, _MAX_EXPANDED
    ):
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {list(shape)} repeats the {storage.num_bytes} bytes "
            f"of its storage, allowed: up to {_MAX_EXPANDED} bytes"
        )
    start = member.start + (0 if 0 in shape else tensor.offset * dtype.itemsize)

    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        # numpy takes booleans at their byte, torch by whether that is 0.
        if dtype == np.bool_:
            return _read_view(path, start, tensor, np.dtype(np.uint8), index) != 0
        return _read_view(path, start, tensor, dtype, index)

    return TensorSource(name, shape, dtype, fetch, path, start)


def _read_view(
    path: Path, start: int, tensor: StoredTensor, dtype: np.dtype, index: tuple[slice, ...]
) -> np.ndarray:
    """Returns a part of a tensor whatever its strides; in the file's order if it is dense there."""
    sizes = [part.stop - part.start for part in index]
    if 0 in sizes:
        return np.empty(sizes, dtype)
    axes = sorted(range(len(sizes)), key=lambda axis: -tensor.strides[axis])
    shape = tuple(tensor.shape[axis] for axis in axes)
    dense = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    if all(
        tensor.strides[axis] == step or tensor.shape[axis] == 1
        for axis, step in zip(axes, dense, strict=True)
    ):
        values = read_stored(path, start, shape, dtype, tuple(index[axis] for axis in axes))
        return np.asarray(
            values.transpose(sorted(range(len(axes)), key=axes.__getitem__)), order="C"
        )
    first = sum(part.start * step for part, step in zip(index, tensor.strides, strict=True))
    count = 1 + sum((size - 1) * step for size, step in zip(sizes, tensor.strides, strict=True))
    span = read_stored(path, start, (first + count,), dtype, (slice(first, first + count),))
    strides = [step * dtype.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(span, sizes, strides).copy()
