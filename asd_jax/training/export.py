"""Writes a trained drafter in the layout in which its family is released."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from asd_jax.training.blueprint import Blueprint

_WEIGHTS = {"medusa": "medusa_lm_head.safetensors"}


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
    weights = _WEIGHTS.get(blueprint.family.name, "model.safetensors")
    safetensors.numpy.save_file(tensors | blueprint.tables, partial / weights)
    (partial / "config.json").write_text(json.dumps(blueprint.released, indent=1) + "\n")
    (partial / "README.md").write_text(card)
    # The old export goes only when the new one is complete.
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        os.replace(directory, old)
    os.replace(partial, directory)
    shutil.rmtree(old, ignore_errors=True)
