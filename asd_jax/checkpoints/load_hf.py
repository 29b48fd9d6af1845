"""Opens Hugging Face model directories: `config.json` and safetensors, in one file or in shards.

Headers are read and tensors fetched here: `safetensors.safe_open` has no bfloat16 in its numpy
framework (checked with 0.8.0), and keeps the whole file mapped.

Format: huggingface/safetensors README, "Format".
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from asd_jax.checkpoints.source import (
    CheckpointError,
    CheckpointSource,
    SourceFile,
    TensorSource,
    read_stored,
    require_file,
    some,
)

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SIDE_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
)
# The safetensors library refuses longer headers too; a random file would ask for exabytes.
_MAX_HEADER = 100_000_000
_MAX_NAME = 255  # bytes, of file systems

_DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "U16": np.uint16,
        "I16": np.int16,
        "U32": np.uint32,
        "I32": np.int32,
        "U64": np.uint64,
        "I64": np.int64,
        "F16": np.float16,
        "F32": np.float32,
        "F64": np.float64,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    }.items()
}


def open_hf(directory: str | Path) -> CheckpointSource:
    """Opens a model directory without reading its tensors.

    Tensors keep their stored dtype. No file stays open or mapped: every read maps what it copies.
    The newer `rope_parameters` of a config is also given in the older spelling, `rope_theta` and
    `rope_scaling`, so that model code needs to know one.

    Args:
      directory: Holds `config.json` and either `model.safetensors` or
        `model.safetensors.index.json` with its shards; `generation_config.json` is optional.

    Returns:
      The opened checkpoint.

    Raises:
      CheckpointError: The directory or a file in it is missing (all missing shards are named
        together), truncated or corrupt, a JSON file is invalid, or shards and index disagree.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory, expected a Hugging Face model")
    config = read_config(directory)
    files, index = _shards(directory)
    return open_files(directory, config, files, read_safetensors, _INDEX if index else None)


def open_files(
    directory: Path,
    config: dict[str, Any],
    files: Sequence[Path],
    read_header: Callable[[Path], tuple[dict[str, TensorSource], int]],
    index_name: str | None = None,
) -> CheckpointSource:
    """Opens weights of any format as the checkpoint in a directory.

    Args:
      directory: Where its JSON files are.
      config: What `read_config` returned.
      files: The files of weights.
      read_header: Returns the tensors of one of them, and the length of its header in bytes.
      index_name: The index in the directory that the files must agree with, if there is one.

    Raises:
      CheckpointError: A file is truncated or corrupt, or files and index disagree.
    """
    generation = directory / "generation_config.json"
    side = [directory / "config.json", *(directory / name for name in _SIDE_FILES)]
    side += [directory / index_name] if index_name else []
    side += sorted(directory.glob("*.jinja"))
    headers = {path: read_header(path) for path in files}
    index = _read_index(directory / index_name) if index_name else {}
    tensors = _merge({path: tensors for path, (tensors, _) in headers.items()}, index, index_name)
    return CheckpointSource(
        path=directory,
        config=config,
        tensors=tensors,
        generation_config=read_json(generation) if generation.exists() else {},
        tokenizer={"directory": directory},
        files=(
            *(SourceFile(path, path.stat().st_size) for path in side if path.is_file()),
            *(SourceFile(path, size) for path, (_, size) in headers.items()),
        ),
    )


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the `config.json` of a directory, its RoPE in the older spelling as well.

    Raises:
      CheckpointError: As `read_json`.
    """
    return _with_classic_rope(read_json(directory / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
      CheckpointError: The file is missing, empty, not JSON, or not an object.
    """
    require_file(path, "JSON file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: invalid JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{path}: invalid JSON: nested too deeply") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _with_classic_rope(config: dict[str, Any]) -> dict[str, Any]:
    parameters = config.get("rope_parameters")
    # Models with a set per layer type nest them one deeper and keep their own spelling.
    if not isinstance(parameters, dict) or any(isinstance(v, dict) for v in parameters.values()):
        return config
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    classic: dict[str, Any] = {}
    if "rope_theta" in parameters:
        classic["rope_theta"] = parameters["rope_theta"]
    classic["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    return {**classic, **config}


def shard_names(
    directory: Path, single: str = _SINGLE, index_name: str | None = _INDEX
) -> list[str]:
    """Returns the files of weights that belong in a directory: those of its index if it has one.

    Args:
      directory: Where they belong.
      single: The name of weights in one file.
      index_name: That of the index of several; None for weights that are always in one file.

    Raises:
      CheckpointError: The index is not JSON, or names no files.
    """
    if index_name is None or not (directory / index_name).exists():
        return [single]
    return sorted(set(_read_index(directory / index_name).values()))


def _read_index(path: Path) -> dict[str, str]:
    index = read_json(path).get("weight_map")
    if (
        not isinstance(index, dict)
        or not index
        or not all(_is_file_name(name) for name in index.values())
    ):
        raise CheckpointError(
            f"{path}: weight_map must map tensor names to file names in the directory"
        )
    return index


def _is_file_name(name: Any) -> bool:
    is_plain = isinstance(name, str) and bool(name) and Path(name).name == name
    return is_plain and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME


def _shards(directory: Path) -> tuple[list[Path], bool]:
    """Returns the safetensors files, and whether they are those of an index."""
    found = find_weights(directory, _SINGLE, _INDEX)
    if found is None:
        legacy = sorted(path.name for path in directory.glob("pytorch_model*.bin"))
        hint = f"; {some(legacy)} must be converted to safetensors first" if legacy else ""
        raise CheckpointError(f"{directory}: has neither {_SINGLE} nor {_INDEX}{hint}")
    return found


def find_weights(
    directory: Path, single: str, index_name: str | None
) -> tuple[list[Path], bool] | None:
    """Returns the files of weights in a directory, and whether an index names them.

    Args:
      directory: Where they are.
      single: The name of weights in one file, which is preferred.
      index_name: That of the index of several, if that is a form they come in.

    Returns:
      None if there is neither.

    Raises:
      CheckpointError: A file that the index names is missing; all of them are named.
    """
    if (directory / single).exists():
        return [directory / single], False
    if index_name is None or not (directory / index_name).exists():
        return None
    shards = [directory / name for name in shard_names(directory, single, index_name)]
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{directory}: {len(missing)} of {len(shards)} shards named in {index_name} are "
            f"missing: {some(missing)}"
        )
    return shards, True


def _merge(
    shards: Mapping[Path, Mapping[str, TensorSource]],
    index: Mapping[str, str],
    index_name: str | None,
) -> dict[str, TensorSource]:
    owners = defaultdict(list)
    for path, tensors in shards.items():
        for name in tensors:
            owners[name].append(path.name)
    double = [f"{name} ({', '.join(files)})" for name, files in owners.items() if len(files) > 1]
    lacking = [f"{name} ({file})" for name, file in index.items() if file not in owners[name]]
    extra = [f"{name} ({owners[name][0]})" for name in owners if index and name not in index]
    problems = [f"in more than one shard: {some(double)}"] if double else []
    problems += [f"not in the shard that {index_name} names: {some(lacking)}"] if lacking else []
    problems += [f"in a shard but not in {index_name}: {some(extra)}"] if extra else []
    if problems:
        raise CheckpointError(f"{next(iter(shards)).parent}: tensors {'; '.join(problems)}")
    return {name: tensor for tensors in shards.values() for name, tensor in tensors.items()}


def read_safetensors(path: Path) -> tuple[dict[str, TensorSource], int]:
    """Returns the tensors of one safetensors file and the length of its header in bytes.

    Raises:
      CheckpointError: The file is missing, truncated or corrupt, or has tensors of a type that
        numpy and ml_dtypes lack.
    """
    size = require_file(path, "safetensors file")
    if size < 8:
        raise CheckpointError(f"{path}: truncated: {size} bytes are too few for a safetensors file")
    length = int.from_bytes(_read_bytes(path, 0, 8), "little")
    if length > _MAX_HEADER:
        raise CheckpointError(f"{path}: not a safetensors file: its header would be {length} bytes")
    if 8 + length > size:
        raise CheckpointError(
            f"{path}: truncated: the header needs {8 + length} bytes, the file has {size}"
        )
    try:
        header = json.loads(_read_bytes(path, 8, length), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: corrupt safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: corrupt safetensors header: not a JSON object")
    header.pop("__metadata__", None)
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    body = 8 + length
    _check_spans(path, spans, size - body)
    return {
        name: _tensor(path, name, shape, dtype, body + begin)
        for name, (shape, dtype, begin, _) in spans.items()
    }, body


def _read_bytes(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            return stream.read(count)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"named twice: {some({n for n in names if names.count(n) > 1})}")
    return table


_Span = tuple[tuple[int, ...], np.dtype, int, int]  # shape, dtype, first byte, last byte + 1


def _span(path: Path, name: str, entry: Any) -> _Span:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        bad = not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        kind, shape, begin, end, bad = None, (), 0, 0, True
    if bad:
        raise CheckpointError(f"{path}: corrupt safetensors header: tensor {name!r} is {entry!r}")
    if kind not in _DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {kind!r}, which is not supported; allowed: "
            f"{', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[kind]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{path}: corrupt safetensors header: tensor {name!r} of {kind} {list(shape)} is given "
            f"{end - begin} bytes, needs {math.prod(shape) * dtype.itemsize}"
        )
    return shape, dtype, begin, end


def _check_spans(path: Path, spans: Mapping[str, _Span], size: int) -> None:
    """Raises unless the tensors fill the file without gap or overlap, as the format demands."""
    at = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise CheckpointError(f"{path}: corrupt safetensors header: tensor {name!r} {what}")
        at = end
    if at > size:
        cut = [name for name, span in spans.items() if span[3] > size]
        raise CheckpointError(
            f"{path}: truncated: the header describes {at} bytes of tensors, the file has {size}; "
            f"not complete: {some(cut)}"
        )
    if at < size:
        raise CheckpointError(
            f"{path}: corrupt: {size - at} bytes behind the last tensor belong to none"
        )


def _tensor(
    path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype, start: int
) -> TensorSource:
    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        return read_stored(path, start, shape, dtype, index)

    return TensorSource(name, shape, dtype, fetch, path, start)
