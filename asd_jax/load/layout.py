"""What parameters a model has, and how one device or a mesh holds them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from asd_jax import sharding
from asd_jax.checkpoints.source import CheckpointError, TensorSource
from asd_jax.models.parameters import flat_params
from asd_jax.models.transformer import (
    PARAM_AXES,
    DeviceShare,
    Transformer,
    TransformerConfig,
    device_share,
)
from asd_jax.sharding import Partition

# Path (regex) -> logical axes, as `asd_jax.models.transformer.PARAM_AXES`.
ParamAxes = Sequence[tuple[str, tuple[str | None, ...]]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What parameters a model has and how a mesh holds them.

    Attributes:
      dtype: Of its weights.
      graphdef: Of one device's share.
      shapes: Whole parameters by path, as a checkpoint has them.
      axes: Logical axes by path.
      whole: The share of a device that holds everything.
      share: What a device holds.
      partition: Where it lies, None without a mesh.
      template: Abstract state of one device's share.
    """

    dtype: Any
    graphdef: nnx.GraphDef
    shapes: dict[str, tuple[int, ...]]
    axes: dict[str, tuple[str | None, ...]]
    whole: DeviceShare
    share: DeviceShare
    partition: Partition | None
    template: Any

    @classmethod
    def of(
        cls,
        build: Callable[[DeviceShare], nnx.Module],
        divide: Callable[[int, str | None], DeviceShare],
        axes: ParamAxes,
        dtype: Any,
        mesh: Mesh | None,
    ) -> Layout:
        """Lays a model out on a mesh, or on the default device without one.

        Args:
          build: Makes the module for a share; only its shapes are taken.
          divide: What one of so many devices of a mesh axis holds.
          axes: Logical axes of every parameter.
          dtype: Of the weights.
          mesh: The mesh, or None.

        Raises:
          ValueError: The mesh's model axis cannot divide it.
        """
        size = 1 if mesh is None else mesh.shape[sharding.MODEL]
        whole, share = divide(1, None), divide(size, sharding.MODEL)
        graphdef, template = nnx.split(nnx.eval_shape(lambda: build(share)))
        full = nnx.state(nnx.eval_shape(lambda: build(whole)))
        shapes = {path: tuple(leaf.shape) for path, leaf in flat_params(full).items()}
        logical = {path: _axes_of(path, axes) for path in shapes}
        specs = tuple(sharding.spec(*names) for names in logical.values())
        partition = None if mesh is None else Partition(mesh, specs)
        return cls(dtype, graphdef, shapes, logical, whole, share, partition, template)

    @property
    def model_size(self) -> int:
        """Devices that divide the weights."""
        return 1 if self.partition is None else self.partition.mesh.shape[sharding.MODEL]

    @property
    def shardings(self) -> dict[str, NamedSharding] | None:
        """Where each parameter goes, or None for the default device."""
        if self.partition is None:
            return None
        mesh, specs = self.partition.mesh, self.partition.param_specs
        return {
            path: NamedSharding(mesh, spec) for path, spec in zip(self.shapes, specs, strict=True)
        }

    def on_mesh(self, path: str, tensor: TensorSource) -> TensorSource:
        """Returns a tensor as the mesh holds it: vocabulary padded, key/value heads copied."""
        first = self.axes[path][0]
        if first == "vocab":
            return tensor.pad_rows(-(-tensor.shape[0] // self.model_size) * self.model_size)
        if first == "kv_heads":
            head_dim = tensor.shape[0] // self.whole.num_kv_heads
            return tensor.repeat_rows(head_dim, self.share.kv_copies)
        return tensor

    def abstract_params(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns every parameter as the mesh holds it: shape, type and sharding."""
        shardings = self.shardings or {}
        return {
            path: jax.ShapeDtypeStruct(
                self.on_mesh(path, _shape_only(path, shape)).shape,
                self.dtype,
                sharding=shardings.get(path),
            )
            for path, shape in self.shapes.items()
        }

    def module(self, params: Mapping[str, Any]) -> Any:
        """Returns the module of one device's share with these parameters in it."""
        flat = [
            (path, leaf.replace(params["/".join(map(str, path))]))
            for path, leaf in nnx.to_flat_state(self.template)
        ]
        return nnx.merge(self.graphdef, nnx.from_flat_state(flat))


def target_layout(config: TransformerConfig, dtype: Any, mesh: Mesh | None) -> Layout:
    """Lays a dense decoder out on a mesh, or on the default device without one.

    Raises:
      ValueError: The mesh's model axis cannot divide it.
    """
    return Layout.of(
        lambda share: Transformer(config, share=share, dtype=dtype, rngs=nnx.Rngs(0)),
        lambda size, axis: device_share(config, size, axis),
        PARAM_AXES,
        dtype,
        mesh,
    )


def _axes_of(path: str, axes: ParamAxes) -> tuple[str | None, ...]:
    for pattern, names in axes:
        if re.fullmatch(pattern, path):
            return names
    raise ValueError(f"parameter {path}: has no logical axes")


def _shape_only(path: str, shape: tuple[int, ...]) -> TensorSource:
    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        raise CheckpointError(f"{path}: has a shape only")

    return TensorSource(path, shape, np.dtype(np.float32), fetch)
