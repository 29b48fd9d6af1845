"""Writes a trained drafter in the layout in which its family is released."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from asd_jax.training.blueprint import Blueprint

_WEIGHTS = {"medusa": "medusa_lm_head.safetensors"}


def weights_name(blueprint: Blueprint) -> str:
    """Returns the name of a family's weights file."""
    return _WEIGHTS.get(blueprint.family.name, "model.safetensors")


def export(
    directory: str | Path,
    blueprint: Blueprint,
    params: Mapping[str, jax.Array],
    *,
    dtype: Any,
    card: str,
) -> None:
    """Writes config, weights and model card, whole or not at all.

    Args:
      directory: A new directory, or one that an earlier export of the same kind made.
      blueprint: What it is.
      params: Weights by parameter path.
      dtype: Stored type, numpy's or ml_dtypes'.
      card: Text of its README.md.

    Raises:
      ValueError: A weight is missing or of another shape.
      OSError: It cannot be written.
    """
    directory = Path(directory)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in blueprint.shapes.items():
        value = params.get(blueprint.path(name))
        if value is None or value.shape != shape:
            got = None if value is None else value.shape
            raise ValueError(f"weights of {name}: got {got}, expected {shape}")
        tensors[name] = np.asarray(value).astype(dtype)
    config, weights = partial / "config.json", partial / weights_name(blueprint)
    config.write_text(json.dumps(blueprint.released, indent=1) + "\n")
    safetensors.numpy.save_file(tensors | blueprint.tables, weights)
    # safetensors leaves the file to its writer alone; who may read the config may read the weights.
    weights.chmod(config.stat().st_mode)
    (partial / "README.md").write_text(card)
    # The old export goes only when the new one is complete.
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.replace(directory, old)
    os.replace(partial, directory)
    shutil.rmtree(old, ignore_errors=True)


def read_export(directory: str | Path, blueprint: Blueprint, dtype: Any) -> dict[str, jax.Array]:
    """Returns the weights of an earlier export, by parameter path, to train them further.

    Args:
      directory: An export of the same sizes. The number of draft tokens may differ where no tensor
        depends on it.
      blueprint: What is to be trained.
      dtype: Of the weights returned.

    Raises:
      ValueError: A tensor is missing, of another shape, or its vocabulary is another.
      OSError: It cannot be read.
    """
    path = Path(directory) / weights_name(blueprint)
    try:
        tensors = safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from error
    for name, table in blueprint.tables.items():
        if name not in tensors or not np.array_equal(tensors[name], table):
            raise ValueError(f"{path}: {name}: is not the vocabulary that is to be trained")
    params = {}
    for name, shape in blueprint.shapes.items():
        value = tensors.get(name)
        if value is None or value.shape != shape:
            got = None if value is None else value.shape
            raise ValueError(f"{path}: {name}: got {got}, expected {shape}")
        params[blueprint.path(name)] = jnp.asarray(value).astype(dtype)
    return params
