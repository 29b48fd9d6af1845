"""Device meshes: where parameters, caches and requests lie, and how a program runs on all devices.

A mesh has two axes. Requests are divided along `data`; heads, feed-forward features and vocabulary
along `model`. The decode loop runs under `jax.shard_map` as the program of one device: rows never
depend on each other, so along `data` nothing is exchanged but single bits (goes any row on, does
any sample, has any a draft), and along `model` exactly the sums that the layers write out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA, MODEL = "data", "model"

# Logical axes of arrays -> mesh axes. All that is sharded is sharded by this table.
RULES: dict[str | None, str | None] = {
    "batch": DATA,
    "heads": MODEL,
    "kv_heads": MODEL,
    "mlp": MODEL,
    "vocab": MODEL,
    "embed": None,
    None: None,
}

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Partition:
    """Where the weights of a target or a drafter lie; hashable, so it is a static jit argument.

    Attributes:
      mesh: With the axes `data` and `model`.
      param_specs: One for each leaf of `params`, in order; none at all: everything is on every
        device.
    """

    mesh: Mesh
    param_specs: tuple[PartitionSpec, ...] = ()

    @property
    def data_axis(self) -> str | None:
        """Name of the axis that divides requests, or None where it has one device."""
        return DATA if self.mesh.shape[DATA] > 1 else None

    @property
    def model_axis(self) -> str | None:
        """Name of the axis that divides weights, or None where it has one device."""
        return MODEL if self.mesh.shape[MODEL] > 1 else None


def make_mesh(
    *, data: int = 1, model: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Returns a mesh of `data * model` devices.

    Neighbours along `model` exchange activations in every layer, so it is the inner axis.

    Args:
      data: Devices that divide the requests, >= 1; -1 for all that `model` leaves.
      model: Devices that divide the weights, >= 1.
      devices: Default: all devices of all processes.

    Raises:
      ValueError: A size below 1, or sizes that do not give the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    for name, size, low in (("data", data, -1), ("model", model, 1)):
        is_whole = isinstance(size, int) and not isinstance(size, bool)
        if not is_whole or size < low or size == 0:
            also = " (or -1 for data)" if low < 0 else ""
            raise ValueError(f"mesh {name}: got {size!r}, allowed is a whole number >= 1{also}")
    found = len(devices) // model if data == -1 else data
    if found * model != len(devices):
        raise ValueError(
            f"mesh data x model: got {data} x {model} for {len(devices)} devices, allowed is "
            + (
                f"a model that divides {len(devices)}"
                if data == -1
                else f"a product of {len(devices)}"
            )
        )
    # Auto axis types: the program of a device is written out, nothing is left to propagation.
    return jax.make_mesh(
        (found, model), (DATA, MODEL), (jax.sharding.AxisType.Auto,) * 2, devices=devices
    )


def spec(*axes: str | None) -> PartitionSpec:
    """Returns the PartitionSpec of an array with these logical axes.

    Raises:
      ValueError: An axis that `RULES` does not have.
    """
    unknown = [axis for axis in axes if axis not in RULES]
    if unknown:
        raise ValueError(f"logical axis: got {unknown}, allowed is one of {list(RULES)}")
    return PartitionSpec(*(RULES[axis] for axis in axes))


BATCH = spec("batch")


def shard_params(params: PyTree, partition: Partition) -> PyTree:
    """Places parameters that a single host holds whole.

    Args:
      params: Arrays as the mesh holds them (vocabulary padded, key/value heads copied).
      partition: Where they go.

    Returns:
      The same pytree of sharded arrays.
    """
    leaves, treedef = jax.tree.flatten(params)
    specs = partition.param_specs or (PartitionSpec(),) * len(leaves)
    placed = [
        _place(leaf, NamedSharding(partition.mesh, where))
        for leaf, where in zip(leaves, specs, strict=True)
    ]
    return jax.tree.unflatten(treedef, placed)


def params_specs_tree(tree: PyTree, partition: Partition | None) -> PyTree:
    """Returns specs in the structure of a target or a drafter, whose only leaves are weights."""
    leaves, treedef = jax.tree.flatten(tree)
    specs = partition.param_specs if partition is not None else ()
    return jax.tree.unflatten(treedef, specs or (PartitionSpec(),) * len(leaves))


def state_specs(state: PyTree) -> PyTree:
    """Returns the specs of a decode state, or of any part of it.

    Every leaf has the batch in front and is divided along it. A node with `logical_axes()`, such
    as a cache, says more.

    Args:
      state: Arrays or their shapes.
    """

    def is_described(node: Any) -> bool:
        return hasattr(node, "logical_axes")

    def node_specs(node: Any) -> PyTree:
        if is_described(node):
            axes = node.logical_axes()
            return jax.tree.map(lambda names: spec(*names), axes, is_leaf=_is_axis_names)
        return BATCH

    return jax.tree.map(node_specs, state, is_leaf=is_described)


def _is_axis_names(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(n, str) or n is None for n in node)


def shard_state(state: PyTree, mesh: Mesh) -> PyTree:
    """Divides requests, or any state of the decode loop, along the mesh by `state_specs`.

    On several processes each hands over only the rows of its own devices, though all must call
    this with arrays of the whole batch's shape.

    Args:
      state: Arrays with a leading [B].
      mesh: The mesh.

    Raises:
      ValueError: The batch is not a multiple of the mesh's data axis.
    """
    size = mesh.shape[DATA]
    batches = {leaf.shape[0] for leaf in jax.tree.leaves(state)}
    if any(batch % size for batch in batches):
        raise ValueError(
            f"batch: got {', '.join(map(str, sorted(batches)))}, allowed is a multiple of {size}, "
            "the size of the mesh's data axis"
        )
    specs = state_specs(state)
    return jax.tree.map(lambda leaf, where: _place(leaf, NamedSharding(mesh, where)), state, specs)


def from_process_rows(state: PyTree, mesh: Mesh) -> PyTree:
    """Joins the requests of all processes into one batch.

    Args:
      state: This process's own rows, leaves [B / number of processes, ...]. Processes must agree
        on all other sizes.
      mesh: Its data axis must not share a row of devices between processes.

    Returns:
      Global arrays; rows are in the order of the mesh's data axis.
    """

    def join(leaf: jax.Array, where: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(mesh, where)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return _map_key_data(lambda data: join(data, where), leaf)
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))

    return jax.tree.map(join, state, state_specs(state))


def is_any(mask: jax.Array, data_axis: str | None) -> jax.Array:
    """Returns whether any row of the whole batch is true, bool [].

    All devices branch alike on it: inside a branch, and inside the loop, they exchange numbers.

    Args:
      mask: This device's rows, bool [B].
      data_axis: Mesh axis that divides the batch, if any.
    """
    found = jnp.any(mask)
    return found if data_axis is None else jax.lax.pmax(found.astype(jnp.int32), data_axis) > 0


def to_host(tree: PyTree) -> PyTree:
    """Returns numpy arrays of the whole batch, on every process; PRNG keys as their words."""
    tree = jax.tree.map(_without_key, tree)
    leaves = jax.tree.leaves(tree)
    if all(leaf.is_fully_addressable for leaf in leaves if isinstance(leaf, jax.Array)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def from_each_process(payload: bytes) -> list[bytes]:
    """Returns, on every process, what each of them passed in, in their order."""
    if jax.process_count() == 1:
        return [payload]
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(len(payload))))
    padded = np.zeros((max(int(sizes.max()), 1),), np.uint8)
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded)).astype(np.uint8)
    return [row[:size].tobytes() for row, size in zip(rows, sizes.tolist(), strict=True)]


def from_process_zero(payload: bytes) -> bytes:
    """Returns the bytes that process 0 passed in, on every process."""
    if jax.process_count() == 1:
        return payload
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(payload))))
    data = np.zeros((size,), np.uint8)
    if jax.process_index() == 0:
        data = np.frombuffer(payload, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(data)).astype(np.uint8).tobytes()


def _place(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    if isinstance(leaf, jax.core.Tracer):
        return leaf  # the program around this one decides
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _map_key_data(lambda data: _place(data, sharding), leaf)
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise ValueError(f"an array lies as {leaf.sharding}, which no single process can move")
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _without_key(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _map_key_data(function: Any, keys: jax.Array) -> jax.Array:
    """Applies `function` to the words behind PRNG keys, which numpy cannot hold."""
    return jax.random.wrap_key_data(
        function(jax.random.key_data(keys)), impl=jax.random.key_impl(keys)
    )
