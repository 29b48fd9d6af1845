"""Weights as shapes: a target on a mesh, and the bytes of it on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from asd_jax.load import Layout
from asd_jax.models import MODELS
from asd_jax.models.transformer import TransformerConfig, as_target
from asd_jax.types import PyTree, Target


def read_target(hf_config: Mapping[str, Any]) -> TransformerConfig:
    """Reads a target's Hugging Face config.

    Args:
      hf_config: Fields of its `config.json`.

    Raises:
      ValueError: A model type or a field that is not implemented.
    """
    model_type = hf_config.get("model_type")
    family = MODELS.get(str(model_type))
    if family is None:
        raise ValueError(f"model_type: got {model_type!r}, allowed is one of {sorted(MODELS)}")
    return family.read_config(hf_config)


def abstract_target(layout: Layout) -> Target:
    """Returns the target whose weights are shapes with a sharding; nothing is allocated."""
    params: Any = layout.abstract_params()
    model = layout.module(params)
    return as_target(model, layout.partition)


def num_parameters(layout: Layout) -> int:
    """Returns the parameters of a target as its checkpoint has them, without any padding."""
    return sum(math.prod(shape) for shape in layout.shapes.values())


def bytes_per_device(tree: PyTree) -> int:
    """Returns the bytes of the leaves' shards on one device.

    Args:
      tree: Arrays or shapes with a sharding; a leaf without one lies whole on every device.
    """
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _leaf_bytes(leaf: Any) -> int:
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        key = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), leaf.dtype))
        return math.prod(shape) * math.prod(key.shape) * key.dtype.itemsize
    return math.prod(shape) * leaf.dtype.itemsize
