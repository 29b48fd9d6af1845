"""Tensors reach their devices with the right values, and no byte is read twice or for nothing."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import save_file

from asd_jax.checkpoints import placement
from asd_jax.checkpoints.load_hf import open_hf
from asd_jax.checkpoints.placement import place_tensors
from asd_jax.checkpoints.source import CheckpointError, TensorSource

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


def memory(values, name="w"):
    return TensorSource(name, values.shape, values.dtype, lambda index: values[(*index, ...)])


def checkpoint(path):
    """Three shards of a few MB, opened."""
    rng = np.random.default_rng(0)
    shapes = {"embed": (1024, 512), "up": (768, 512), "down": (512, 768), "norm": (512,)}
    arrays = {k: rng.normal(size=s).astype(ml_dtypes.bfloat16) for k, s in shapes.items()}
    shards = {
        "b.safetensors": ["norm", "embed"],
        "a.safetensors": ["up"],
        "c.safetensors": ["down"],
    }
    for shard, names in shards.items():
        save_file({name: arrays[name] for name in names}, path / shard)
    weight_map = {name: shard for shard, names in shards.items() for name in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "config.json").write_text("{}")
    return arrays, {name: open_hf(path).tensors[name] for name in shapes}


def spied(tensors):
    """The same tensors, with a list of (name, elements) that every fetch adds to."""
    reads = []

    def spy(name, tensor):
        def fetch(index):
            values = tensor.fetch(index)
            reads.append((name, values.size))
            return values

        return dataclasses.replace(tensor, fetch=fetch)

    return {name: spy(name, tensor) for name, tensor in tensors.items()}, reads


def mesh():
    return jax.make_mesh((2, 4), ("data", "model"))


def shardings():
    specs = {"embed": P("model"), "up": P("model", "data"), "down": P(None, "model"), "norm": P()}
    return {name: NamedSharding(mesh(), spec) for name, spec in specs.items()}


def test_without_shardings_arrays_lie_on_the_default_device(tmp_path):
    arrays, tensors = checkpoint(tmp_path)
    with jax.default_device(jax.devices()[3]):
        placed = place_tensors(tensors, jnp.float32)
    assert list(placed) == list(tensors)
    for name, array in placed.items():
        assert array.dtype == jnp.float32 and array.devices() == {jax.devices()[3]}
        assert not array.committed
        np.testing.assert_array_equal(array, arrays[name].astype(np.float32))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_sharded_arrays_hold_their_slices(tmp_path, dtype):
    arrays, tensors = checkpoint(tmp_path)
    placed = place_tensors(tensors, dtype, shardings=shardings())
    for name, array in placed.items():
        assert array.sharding == shardings()[name] and array.dtype == dtype
        np.testing.assert_array_equal(np.asarray(array), arrays[name].astype(dtype))
    assert placed["up"].addressable_shards[0].data.shape == (192, 256)


def test_each_slice_is_read_once_and_replicas_share_it(tmp_path):
    _, tensors = checkpoint(tmp_path)
    tensors, reads = spied(tensors)
    place_tensors(tensors, jnp.bfloat16, shardings=shardings())
    sizes = {name: [size for read, size in reads if read == name] for name in tensors}
    assert sizes == {
        "embed": [1024 * 512 // 4] * 4,
        "up": [768 * 512 // 8] * 8,
        "down": [512 * 768 // 4] * 4,
        "norm": [512],
    }


def test_padded_and_replicated_rows_are_placed_across_the_mesh(tmp_path):
    arrays, tensors = checkpoint(tmp_path)
    tensors, reads = spied({"up": tensors["up"].repeat_rows(384, 2), "embed": tensors["embed"]})
    tensors["embed"] = tensors["embed"].pad_rows(1028)
    rows = NamedSharding(mesh(), P("model"))
    placed = place_tensors(tensors, jnp.bfloat16, shardings={"up": rows, "embed": rows})
    want = np.repeat(arrays["up"].reshape(2, 384, 512), 2, axis=0).reshape(-1, 512)
    np.testing.assert_array_equal(placed["up"], want)
    want = np.pad(arrays["embed"], [(0, 4), (0, 0)])
    np.testing.assert_array_equal(placed["embed"], want)
    assert [size for name, size in reads if name == "up"] == [384 * 512] * 4
    assert sum(size for name, size in reads if name == "embed") == 1024 * 512


def test_shards_are_read_one_after_the_other_and_progress_is_counted(tmp_path):
    _, tensors = checkpoint(tmp_path)
    order, progress = [], []

    def note(name, tensor):
        def fetch(index):
            if not order or order[-1] != name:
                order.append(name)
            return tensor.fetch(index)

        return dataclasses.replace(tensor, fetch=fetch)

    spies = {name: note(name, tensor) for name, tensor in tensors.items()}
    placed = place_tensors(spies, jnp.bfloat16, on_progress=lambda *args: progress.append(args))
    assert list(placed) == ["embed", "up", "down", "norm"]
    by_file = [(tensors[name].file, tensors[name].offset) for name in order]
    assert by_file == sorted(by_file) and [file.name for file, _ in by_file] == [
        "a.safetensors", "b.safetensors", "b.safetensors", "c.safetensors"
    ]  # fmt: skip
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_every_float_is_cast_as_numpy_does(stored, dtype):
    values = np.random.default_rng(0).normal(size=(5, 7)).astype(stored)
    placed = place_tensors({"w": memory(values)}, dtype)["w"]
    assert placed.dtype == dtype
    np.testing.assert_array_equal(np.asarray(placed), values.astype(dtype))


def test_pieces_join_without_a_seam(monkeypatch):
    monkeypatch.setattr(placement, "_PIECE_BYTES", 3 * 7 * 4)
    values = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    tensors, reads = spied({"w": memory(values)})
    np.testing.assert_array_equal(place_tensors(tensors, jnp.float32)["w"], values)
    assert [size for _, size in reads] == [21] * 6 + [14]


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
@pytest.mark.parametrize("sharded", [False, True])
def test_scalars_and_empty_tensors(shape, sharded):
    where = {"w": NamedSharding(mesh(), P())} if sharded else None
    placed = place_tensors({"w": memory(np.ones(shape, np.float32))}, jnp.float32, shardings=where)
    np.testing.assert_array_equal(placed["w"], np.ones(shape, np.float32))


def test_host_memory_is_handed_over_and_not_copied(monkeypatch):
    buffers, aligned = [], placement._aligned

    def note(shape, dtype):
        buffers.append(aligned(shape, dtype))
        return buffers[-1]

    monkeypatch.setattr(placement, "_aligned", note)
    values = np.ones((256, 256), np.float32)
    placed = place_tensors({"w": memory(values)}, jnp.bfloat16)["w"]
    where = {"w": NamedSharding(mesh(), P())}
    shared = place_tensors({"w": memory(values)}, jnp.bfloat16, shardings=where)["w"]
    alone, replicated = (buffer.ctypes.data for buffer in buffers)
    assert placed.unsafe_buffer_pointer() == alone
    pointers = {shard.data.unsafe_buffer_pointer() for shard in shared.addressable_shards}
    assert pointers == {replicated}, "8 replicas, one buffer"


def test_tensors_that_are_no_numbers_are_named_together_before_any_is_read(tmp_path):
    def fail(index):
        raise AssertionError("read")

    kinds = {"w": np.float32, "ids": np.int32, "on": np.bool_, "q": ml_dtypes.float8_e4m3fn}
    tensors = {
        name: TensorSource(name, (2,), np.dtype(kind), fail, tmp_path / "m.safetensors")
        for name, kind in kinds.items()
    }
    with pytest.raises(CheckpointError) as caught:
        place_tensors(tensors, jnp.float32)
    message = str(caught.value)
    for name, kind in list(kinds.items())[1:]:
        assert f"{name} ({np.dtype(kind)}, {tmp_path / 'm.safetensors'})" in message
    assert "3 tensors" in message and "allowed: float64, float32, float16, bfloat16" in message


def test_shardings_that_do_not_fit_are_named_before_any_is_read():
    def fail(index):
        raise AssertionError("read")

    tensors = {name: TensorSource(name, (6, 4), np.dtype(np.float32), fail) for name in "ab"}
    rows = NamedSharding(mesh(), P("model"))
    with pytest.raises(ValueError, match=r"only in tensors: b; only in shardings: c"):
        place_tensors(tensors, jnp.float32, shardings={"a": rows, "c": rows})
    with pytest.raises(ValueError, match=r"shardings\['a'\]: .*6"):
        place_tensors(tensors, jnp.float32, shardings={"a": rows, "b": rows})


def test_a_file_that_vanishes_while_placing_is_named(tmp_path):
    _, tensors = checkpoint(tmp_path)

    def remove(done, total):
        (tmp_path / "c.safetensors").unlink(missing_ok=True)

    with pytest.raises(CheckpointError, match=r"c\.safetensors: cannot be read"):
        place_tensors(tensors, jnp.bfloat16, on_progress=remove)
