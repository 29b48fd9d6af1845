"""What parameters a target has, and how one device or a mesh holds them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from asd_jax import sharding
from asd_jax.checkpoints.source import CheckpointError, TensorSource
from asd_jax.models.transformer import (
    PARAM_AXES,
    DeviceShare,
    Transformer,
    TransformerConfig,
    device_share,
)
from asd_jax.sharding import Partition


@dataclasses.dataclass(frozen=True)
class TargetLayout:
    """What parameters a model has and how a mesh holds them.

    Attributes:
      config: The model.
      dtype: Of its weights.
      graphdef: Of one device's share.
      shapes: Whole parameters by path, as a checkpoint has them.
      specs: Where the mesh divides them, in the same order.
      share: What a device holds.
      partition: Where it lies, None without a mesh.
      template: Abstract state of one device's share.
    """

    config: TransformerConfig
    dtype: Any
    graphdef: nnx.GraphDef
    shapes: dict[str, tuple[int, ...]]
    specs: tuple[PartitionSpec, ...]
    share: DeviceShare
    partition: Partition | None
    template: Any

    @classmethod
    def of(cls, config: TransformerConfig, dtype: Any, mesh: Mesh | None) -> TargetLayout:
        """Lays a model out on a mesh, or on the default device without one.

        Raises:
          ValueError: The mesh's model axis cannot divide it.
        """
        size = 1 if mesh is None else mesh.shape[sharding.MODEL]
        share = device_share(config, size, sharding.MODEL)

        def abstract(share: DeviceShare | None) -> Any:
            return nnx.eval_shape(
                lambda: Transformer(config, share=share, dtype=dtype, rngs=nnx.Rngs(0))
            )

        graphdef, template = nnx.split(abstract(share))
        shapes = {
            path: tuple(leaf.shape) for path, leaf in flat_params(nnx.state(abstract(None))).items()
        }
        specs = sharding.param_specs(list(shapes), PARAM_AXES)
        partition = None if mesh is None else Partition(mesh, specs)
        return cls(config, dtype, graphdef, shapes, specs, share, partition, template)

    @property
    def model_size(self) -> int:
        """Devices that divide the weights."""
        return 1 if self.partition is None else self.partition.mesh.shape[sharding.MODEL]

    @property
    def shardings(self) -> dict[str, NamedSharding] | None:
        """Where each parameter goes, or None for the default device."""
        if self.partition is None:
            return None
        mesh = self.partition.mesh
        return {
            path: NamedSharding(mesh, spec)
            for path, spec in zip(self.shapes, self.specs, strict=True)
        }

    def on_mesh(self, path: str, tensor: TensorSource) -> TensorSource:
        """Returns a tensor as the mesh holds it: vocabulary padded, key/value heads copied."""
        if re.fullmatch("embed_tokens|lm_head", path):
            return tensor.pad_rows(self.share.vocab_size * self.model_size)
        if re.search("/[kv]_proj/", path):
            return tensor.repeat_rows(self.config.head_dim, self.share.kv_copies)
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

    def state(self, params: Mapping[str, jax.Array]) -> Any:
        """Returns parameters in the form that the module takes."""
        flat = [
            (path, leaf.replace(params["/".join(map(str, path))]))
            for path, leaf in nnx.to_flat_state(self.template)
        ]
        return nnx.from_flat_state(flat)


def flat_params(params: Any) -> dict[str, Any]:
    """Returns the parameters of a module by path."""
    return {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(params)}


def _shape_only(path: str, shape: tuple[int, ...]) -> TensorSource:
    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        raise CheckpointError(f"{path}: has a shape only")

    return TensorSource(path, shape, np.dtype(np.float32), fetch)
