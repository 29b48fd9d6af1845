"""Saved parameters come back, in other shardings too; whatever is not whole is refused by name."""

import json
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from asd_jax.checkpoints.orbax_io import read_metadata, restore_params, save_params
from asd_jax.checkpoints.source import CheckpointError

METADATA = {"digest": "abc", "config": {"layers": 2, "theta": 1e6}, "tied": None}


def params():
    rng = np.random.default_rng(0)
    return {
        "layers": [
            {"w": jnp.asarray(rng.normal(size=(16, 24)), jnp.bfloat16)},
            {"w": jnp.asarray(rng.normal(size=(16, 24)), jnp.bfloat16)},
        ],
        "norm": jnp.asarray(rng.normal(size=(24,)), jnp.float32),
        "step": jnp.asarray(7, jnp.int32),
        "host": rng.normal(size=(3, 1)).astype(np.float32),
    }


def abstract(tree=None, sharding=None):
    tree = params() if tree is None else tree
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def assert_equal(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(a, jax.Array) and a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_what_was_saved_comes_back(tmp_path):
    save_params(tmp_path / "new" / "ck", params(), metadata=METADATA)
    assert_equal(restore_params(str(tmp_path / "new" / "ck"), abstract()), params())
    assert read_metadata(tmp_path / "new" / "ck") == METADATA
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ck"]


def test_a_relative_path_and_a_moved_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_params("ck", params(), metadata={})
    (tmp_path / "ck").rename(tmp_path / "moved")
    assert_equal(restore_params("moved", abstract()), params())


def test_shardings_may_differ_between_save_and_restore(tmp_path):
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    tree = {"w": params()["layers"][0]["w"], "norm": params()["norm"]}
    saved = {
        "w": jax.device_put(tree["w"], NamedSharding(mesh, P("a", "b"))),
        "norm": jax.device_put(tree["norm"], NamedSharding(mesh, P())),
    }
    save_params(tmp_path / "ck", saved, metadata={})
    wanted = {
        "w": jax.ShapeDtypeStruct((16, 24), jnp.bfloat16, sharding=NamedSharding(mesh, P("b"))),
        "norm": jax.ShapeDtypeStruct((24,), jnp.float32, sharding=NamedSharding(mesh, P("a"))),
    }
    restored = restore_params(tmp_path / "ck", wanted)
    assert_equal(restored, tree)
    assert all(restored[name].sharding == wanted[name].sharding for name in wanted)
    assert restored["w"].addressable_shards[0].data.shape == (8, 24)


def test_a_module_state_is_saved_and_merged_again(tmp_path):
    graphdef, state = nnx.split(nnx.Linear(3, 5, rngs=nnx.Rngs(0)))
    save_params(tmp_path / "ck", state, metadata={})
    names = json.loads((tmp_path / "ck" / "manifest.json").read_text())["params"]
    assert {name.split("/")[0] for name in names} == {"kernel", "bias"}
    shapes = nnx.eval_shape(lambda: nnx.Linear(3, 5, rngs=nnx.Rngs(0)))
    restored = restore_params(tmp_path / "ck", nnx.split(shapes)[1])
    assert_equal(restored, state)
    assert nnx.merge(graphdef, restored)(jnp.ones((1, 3))).shape == (1, 5)


def test_the_dtype_asked_for_is_cast_to(tmp_path):
    save_params(tmp_path / "ck", {"w": jnp.asarray([1.5, 2.0], jnp.bfloat16)}, metadata={})
    for sharding in (None, jax.sharding.SingleDeviceSharding(jax.devices()[1])):
        wanted = {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)}
        assert_equal(restore_params(tmp_path / "ck", wanted), {"w": np.float32([1.5, 2.0])})


def test_an_existing_path_is_left_alone(tmp_path):
    save_params(tmp_path / "ck", {"w": jnp.ones(2)}, metadata={"run": 1})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("ck", "file", "empty", "link"):
        with pytest.raises(CheckpointError, match=f"{name}: exists already"):
            save_params(tmp_path / name, params(), metadata={})
    assert read_metadata(tmp_path / "ck") == {"run": 1}
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("tree", "metadata", "message"),
    [
        ({}, {}, "params: has no arrays"),
        ({"w": "text"}, {}, "params: leaf 'w' is 'text'"),
        ({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}}, {}, "two leaves are named 'a/b'"),
        ({"w": jnp.ones(1)}, {"shape": jnp.float32}, "metadata: .*allowed are JSON values"),
        ({"w": jnp.ones(1)}, {"loss": float("nan")}, "metadata: .*allowed are JSON values"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path, tree, metadata, message):
    with pytest.raises(ValueError, match=message):
        save_params(tmp_path / "ck", tree, metadata=metadata)
    assert not list(tmp_path.iterdir())


def test_other_names_and_shapes_are_named_together(tmp_path):
    save_params(tmp_path / "ck", params(), metadata={})
    wanted = abstract()
    wanted["layers"][1]["w"] = jax.ShapeDtypeStruct((16, 25), jnp.bfloat16)
    wanted["extra"] = {"bias": wanted.pop("norm")}
    with pytest.raises(CheckpointError) as caught:
        restore_params(tmp_path / "ck", wanted)
    message = str(caught.value)
    assert f"{tmp_path / 'ck'}: checkpoint and parameters do not fit" in message
    assert "1 arrays that are not in the checkpoint: extra/bias" in message
    assert "1 arrays that are only in the checkpoint: norm" in message
    assert "layers/1/w (saved (16, 24), expected (16, 25))" in message


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, message in (("gone", "no such dir"), ("file", "no such dir"), ("empty", "no such f")):
        for read in (lambda path: restore_params(path, abstract()), read_metadata):
            with pytest.raises(CheckpointError, match=rf"{name}.*: {message}"):
                read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a manifest"),
        (b"[]", "not a manifest"),
        (b'"x"', "not a manifest"),
        (b'{"sha256": ""}', "not a manifest"),
        (b"\xff\xfe", "not a manifest"),
        (b"[" * 100000, "not a manifest"),
        (b'{"format": 2, "sha256": ""}', "format: got 2, allowed is 1"),
        (b'{"format": 1, "sha256": ""}', "corrupt"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, content, message):
    save_params(tmp_path / "ck", {"w": jnp.ones(2)}, metadata={})
    (tmp_path / "ck" / "manifest.json").write_bytes(content)
    for read in (lambda path: restore_params(path, {"w": jnp.ones(2)}), read_metadata):
        with pytest.raises(CheckpointError, match=rf"manifest\.json: {message}"):
            read(tmp_path / "ck")


def test_a_change_of_the_metadata_is_found(tmp_path):
    save_params(tmp_path / "ck", {"w": jnp.ones(2)}, metadata={"digest": "abc"})
    file = tmp_path / "ck" / "manifest.json"
    file.write_text(file.read_text().replace("abc", "abd"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: corrupt"):
        read_metadata(tmp_path / "ck")


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_damage_to_any_file_is_found_and_the_file_named(tmp_path, damage):
    save_params(tmp_path / "ck", params(), metadata={})
    files = sorted(path for path in (tmp_path / "ck" / "params").rglob("*") if path.is_file())
    assert len(files) > 5
    for file in files:
        content = file.read_bytes()
        if damage == "remove":
            file.unlink()
        else:
            changed = bytearray(content)
            changed[len(content) // 2] ^= 1
            file.write_bytes(changed if damage == "flip" else content[:-1])
        name = file.relative_to(tmp_path / "ck").as_posix()
        with pytest.raises(CheckpointError, match=f"ck: corrupt: {name}"):
            restore_params(tmp_path / "ck", abstract())
        file.write_bytes(content)
    assert_equal(restore_params(tmp_path / "ck", abstract()), params())


def test_a_failure_inside_orbax_is_our_error(tmp_path, monkeypatch):
    save_params(tmp_path / "ck", params(), metadata={})

    def fail(*args, **kwargs):
        raise RuntimeError("no such chunk")

    monkeypatch.setattr(ocp.PyTreeCheckpointer, "restore", fail)
    with pytest.raises(CheckpointError, match="ck: cannot be restored: no such chunk"):
        restore_params(tmp_path / "ck", abstract())


KILLED = """
import os, sys
from pathlib import Path
import jax.numpy as jnp
from asd_jax.checkpoints import orbax_io

point, path = sys.argv[1:]
die = lambda *args, **kwargs: os._exit(9)
if point == "orbax":
    Path.rename = os.rename = os.replace = die
elif point == "manifest":
    orbax_io._write_manifest = die
elif point == "half a manifest":
    orbax_io._write_manifest = lambda file, body: (file.write_text("{"), die())
else:
    Path.rename = lambda self, target: die() if "partial" in self.name else os.rename(self, target)
orbax_io.save_params(path, {"w": jnp.ones(1000)}, metadata={})
"""


@pytest.mark.parametrize("point", ["orbax", "manifest", "half a manifest", "rename"])
def test_a_killed_save_is_not_taken_for_a_checkpoint(tmp_path, point):
    path = tmp_path / "ck"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), point, str(path)]
    assert subprocess.run(command, timeout=120).returncode == 9
    assert (tmp_path / ".ck.partial").exists(), "killed before it began"
    with pytest.raises(CheckpointError, match="ck: no such directory"):
        restore_params(path, {"w": jnp.ones(1000)})
    if point != "rename":  # there the partial one is whole but for its name
        with pytest.raises(CheckpointError, match="manifest"):
            restore_params(tmp_path / ".ck.partial", {"w": jnp.ones(1000)})
    save_params(path, {"w": jnp.zeros(1000)}, metadata={})
    assert_equal(restore_params(path, {"w": jnp.ones(1000)}), {"w": np.zeros(1000, np.float32)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["ck"]
