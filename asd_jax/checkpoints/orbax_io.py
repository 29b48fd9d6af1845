"""Saves and restores parameters with Orbax, which is used nowhere else.

A saved directory holds Orbax's own files in `params/`, and `manifest.json`: the caller's metadata,
the name, shape and type of every array, and size and SHA-256 of every file. The directory gets its
name last, so whatever is there under that name was written to the end. Orbax by itself checks its
index but not the numbers, hence the checksums.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from asd_jax.checkpoints.source import CheckpointError, require_file, some

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_PARAMS = "params"


def save_params(path: str | Path, params: Any, *, metadata: dict[str, Any]) -> None:
    """Saves a pytree of arrays in a new directory.

    A save that is killed leaves at most a hidden `.NAME.partial` beside `path`, which the next save
    to `path` replaces. With several processes every one must call this, on a shared file system.

    Args:
      path: The directory to create; its parents are created too.
      params: A pytree of arrays, sharded or not.
      metadata: What `read_metadata` returns; JSON values with string keys.

    Raises:
      CheckpointError: `path` exists; nothing is changed then.
      ValueError: `metadata` is not JSON, or `params` has no arrays, leaves that are not arrays, or
        two leaves of one name.
    """
    path = Path(path).absolute()
    arrays = _by_name(params)
    described = {name: _describe(leaf) for name, leaf in arrays.items()}
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata: got {metadata!r}, allowed are JSON values: {error}") from error
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path}: exists already and is not overwritten")
    _barrier("checked")
    staging = path.with_name(f".{path.name}.partial")
    leads = jax.process_index() == 0
    try:
        if leads:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        _barrier("staged")
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(staging / _PARAMS, arrays)
        if leads:
            body = {"metadata": metadata, "params": described, "files": _file_sums(staging)}
            _write_manifest(staging / _MANIFEST, body)
            staging.rename(path)
    finally:
        if leads:
            shutil.rmtree(staging, ignore_errors=True)
    _barrier("renamed")


def restore_params(path: str | Path, abstract_params: Any) -> Any:
    """Restores what `save_params` saved.

    Args:
      path: The directory.
      abstract_params: A pytree of `jax.ShapeDtypeStruct` with the saved names and shapes. A leaf
        with a sharding is restored straight into it, one without onto the default device. A dtype
        other than the saved one is cast to.

    Returns:
      The pytree with arrays in place of the leaves.

    Raises:
      CheckpointError: `path` is no such directory, or incomplete or corrupt, or its arrays have
        other names or shapes; all that differ are named together.
      ValueError: Leaves of `abstract_params` without shape and dtype, none, or two of one name.
    """
    path = Path(path).absolute()
    manifest = _read_manifest(path)
    wanted = _by_name(abstract_params)
    _require_same(path, manifest["params"], wanted)
    _check_files(path, manifest["files"])
    abstract = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        if getattr(leaf, "sharding", None) is not None
        else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for name, leaf in wanted.items()
    }
    arguments = ocp.args.PyTreeRestore(
        item=abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract)
    )
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore(path / _PARAMS, args=arguments)
    except Exception as error:  # Orbax and TensorStore promise no types
        raise CheckpointError(f"{path}: cannot be restored: {error}") from error
    leaves = [
        restored[name] if isinstance(restored[name], jax.Array) else jax.device_put(restored[name])
        for name in wanted
    ]
    return jax.tree.unflatten(jax.tree.structure(abstract_params), leaves)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Returns the metadata given to `save_params`, without reading any array.

    Raises:
      CheckpointError: `path` is no such directory, or its manifest is corrupt.
    """
    return _read_manifest(Path(path).absolute())["metadata"]


def _by_name(tree: Any) -> dict[str, Any]:
    """Returns the leaves by path, so that the layout on disk is that of no container type."""
    named: dict[str, Any] = {}
    for key, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(key, simple=True, separator="/")
        if name in named:
            raise ValueError(f"params: two leaves are named {name!r}")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ValueError(f"params: leaf {name!r} is {leaf!r}, allowed are arrays")
        named[name] = leaf
    if not named:
        raise ValueError("params: has no arrays")
    return named


def _describe(leaf: Any) -> dict[str, Any]:
    return {"shape": list(leaf.shape), "dtype": np.dtype(leaf.dtype).name}


def _require_same(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    kinds = {
        "arrays that are not in the checkpoint": wanted.keys() - saved.keys(),
        "arrays that are only in the checkpoint": saved.keys() - wanted.keys(),
        "arrays of another shape": {
            f"{name} (saved {tuple(saved[name]['shape'])}, expected {tuple(wanted[name].shape)})"
            for name in saved.keys() & wanted.keys()
            if tuple(saved[name]["shape"]) != tuple(wanted[name].shape)
        },
    }
    problems = [f"{len(names)} {kind}: {some(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError(
            f"{path}: checkpoint and parameters do not fit:\n  " + "\n  ".join(problems)
        )


def _file_sums(directory: Path) -> dict[str, Any]:
    return {
        file.relative_to(directory).as_posix(): {"bytes": file.stat().st_size, "sha256": _sum(file)}
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_files(path: Path, files: Mapping[str, Any]) -> None:
    problems = []
    for name, saved in files.items():
        try:
            size = (path / name).stat().st_size
            if size != saved["bytes"]:
                problems.append(f"{name} has {size} bytes, was saved with {saved['bytes']}")
            elif _sum(path / name) != saved["sha256"]:
                problems.append(f"{name} has other contents than were saved")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    if problems:
        raise CheckpointError(f"{path}: corrupt: {some(problems)}")


def _write_manifest(file: Path, body: dict[str, Any]) -> None:
    content = {"format": FORMAT_VERSION, **body}
    file.write_text(json.dumps({**content, "sha256": _content_sum(content)}, indent=1))


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such directory, expected saved parameters")
    file = path / _MANIFEST
    require_file(file, "manifest of saved parameters")
    try:
        content = json.loads(file.read_bytes())
        version, checksum = content["format"], content.pop("sha256")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: not a manifest of saved parameters: {type(error).__name__}: {error}"
        ) from error
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{file}: format: got {version!r}, allowed is {FORMAT_VERSION}")
    if checksum != _content_sum(content):
        raise CheckpointError(f"{file}: corrupt: it does not have the checksum that it names")
    return content


def _content_sum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _barrier(stage: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"asd_jax save_params {stage}")
