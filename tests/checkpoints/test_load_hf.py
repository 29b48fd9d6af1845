"""Safetensors written by the reference library, read back; and bad directories."""

import json
import os
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from asd_jax.checkpoints import source as source_module
from asd_jax.checkpoints.load_hf import open_hf
from asd_jax.checkpoints.source import CheckpointError

CONFIG = {"model_type": "llama", "hidden_size": 8, "rope_theta": 5e5}


def arrays():
    rng = np.random.default_rng(0)
    return {
        "model.embed_tokens.weight": rng.normal(size=(10, 8)).astype(np.float32),
        "model.norm.weight": rng.normal(size=(8,)).astype(np.float16),
        "counts": np.arange(6, dtype=np.int64).reshape(2, 3),
        "flag": np.array([True, False]),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


def model_dir(path, *, config=CONFIG, weights=True):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if weights:
        save_file(arrays(), path / "model.safetensors", metadata={"format": "pt"})
    return path


def sharded_dir(path, **index):
    """Three shards, each with one of the tensors; `index` overrides the weight map."""
    model_dir(path, weights=False)
    weight_map = {}
    for number, (name, array) in enumerate(list(arrays().items())[:3], start=1):
        shard = f"model-0000{number}-of-00003.safetensors"
        save_file({name: array}, path / shard)
        weight_map[name] = shard
    content = {"metadata": {"total_size": 0}, "weight_map": {**weight_map, **index}}
    (path / "model.safetensors.index.json").write_text(json.dumps(content))
    return path


def write_raw(path, entries, body=b"", length=None):
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + body)


def test_tensors_equal_what_was_saved(tmp_path):
    source = open_hf(model_dir(tmp_path / "m"))
    assert source.config == CONFIG and source.generation_config == {}
    assert source.tensors.keys() == arrays().keys()
    for name, array in arrays().items():
        tensor = source.tensors[name]
        assert (tensor.name, tensor.shape, tensor.dtype) == (name, array.shape, array.dtype)
        got = tensor.read()
        assert isinstance(got, np.ndarray) and got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_shards_are_one_checkpoint(tmp_path):
    source = open_hf(sharded_dir(tmp_path / "m"))
    for name, array in list(arrays().items())[:3]:
        np.testing.assert_array_equal(source.tensors[name].read(), array)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_types_that_numpy_lacks_are_read_as_ml_dtypes(tmp_path, dtype):
    path = model_dir(tmp_path / "m", weights=False)
    values = np.linspace(-3, 3, 12).astype(dtype).reshape(3, 4)
    save_file({"w": values}, path / "model.safetensors")
    tensor = open_hf(path).tensors["w"]
    assert tensor.dtype == tensor.read().dtype == dtype
    np.testing.assert_array_equal(tensor.read().astype(np.float32), values.astype(np.float32))
    cast = tensor.astype(np.float32)
    assert cast.dtype == cast.read().dtype == np.float32


def test_reads_are_copies_of_what_was_asked_for_and_no_more(tmp_path):
    tensor = open_hf(model_dir(tmp_path / "m")).tensors["model.embed_tokens.weight"]
    whole = tensor.read()
    part = tensor.read_slice((slice(2, 5), slice(1, 7, 2)))
    np.testing.assert_array_equal(part, whole[2:5, 1:7:2])
    assert all(array.flags.owndata and array.flags.c_contiguous for array in (whole, part))
    np.testing.assert_array_equal(tensor.transpose().read_slice((slice(0, 3),)), whole.T[:3])
    with pytest.raises(CheckpointError, match=r"embed_tokens.*at most one slice per axis"):
        tensor.read_slice((0, slice(None)))


def test_a_tensor_at_an_odd_offset_is_read_too(tmp_path):
    path = model_dir(tmp_path / "m", weights=False)
    entries = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    write_raw(path / "model.safetensors", entries, b"\x07" + np.float32([1, 2]).tobytes())
    np.testing.assert_array_equal(open_hf(path).tensors["b"].read(), [1, 2])


def test_generation_config_and_both_spellings_of_rope(tmp_path):
    path = model_dir(tmp_path / "m", config={"rope_parameters": {"rope_theta": 1e6}})
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    source = open_hf(path)
    assert source.generation_config == {"eos_token_id": [1, 2]}
    assert (source.config["rope_theta"], source.config["rope_scaling"]) == (1e6, None)
    scaled = {"rope_type": "llama3", "factor": 8.0}
    model_dir(path, config={"rope_parameters": {**scaled, "rope_theta": 1e6}})
    assert open_hf(path).config["rope_scaling"] == scaled
    nested = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    assert open_hf(model_dir(path, config=nested)).config == nested


@pytest.mark.parametrize("missing", ["", "config.json", "model.safetensors"])
def test_what_is_missing_is_named(tmp_path, missing):
    path = model_dir(tmp_path / "m")
    if missing:
        (path / missing).unlink()
    else:
        path = tmp_path / "gone"
    with pytest.raises(CheckpointError, match=missing or "gone: no such directory"):
        open_hf(path)


def test_pytorch_weights_are_named_as_the_reason(tmp_path):
    path = model_dir(tmp_path / "m", weights=False)
    (path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin must be converted"):
        open_hf(path)


def test_all_missing_shards_are_named_at_once(tmp_path):
    path = sharded_dir(tmp_path / "m")
    for number in (1, 3):
        (path / f"model-0000{number}-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="2 of 3 shards") as caught:
        open_hf(path)
    assert "model-00001-of-00003" in str(caught.value)
    assert "model-00003-of-00003" in str(caught.value)


def test_an_index_that_disagrees_with_its_shards(tmp_path):
    path = sharded_dir(tmp_path / "m", ghost="model-00001-of-00003.safetensors")
    save_file(
        {"model.norm.weight": np.zeros(8, np.float32), "counts": arrays()["counts"]},
        path / "model-00003-of-00003.safetensors",
    )
    with pytest.raises(CheckpointError) as caught:
        open_hf(path)
    message = str(caught.value)
    assert "in more than one shard: model.norm.weight (model-00002" in message
    assert "index.json names: ghost (model-00001-of-00003.safetensors)" in message


def test_a_tensor_that_the_index_leaves_out_is_named(tmp_path):
    path = sharded_dir(tmp_path / "m")
    extra = {"counts": arrays()["counts"], "stray": np.zeros(2, np.float32)}
    save_file(extra, path / "model-00003-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"in a shard but not in .*: stray \(model-00003"):
        open_hf(path)


def test_a_truncated_shard_is_named(tmp_path):
    path = sharded_dir(tmp_path / "m")
    shard = path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-00002.*: truncated: .*model\.norm\.weight"):
        open_hf(path)


def test_a_file_that_changes_after_opening_is_an_error_and_no_crash(tmp_path):
    path = model_dir(tmp_path / "m")
    tensors = open_hf(path).tensors
    file = path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    last = max(tensors.values(), key=lambda tensor: tensor.offset)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated since it was opened"):
        last.read()
    file.write_bytes(b"")
    for name in ("model.embed_tokens.weight", "scalar"):
        with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated since"):
            tensors[name].read()
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        last.read()


def mappings(path):
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps is Linux's")
def test_no_file_stays_mapped_or_open(tmp_path):
    path = model_dir(tmp_path / "m")
    mapped = np.memmap(path / "model.safetensors", np.uint8, "r")
    assert mappings(path) == 1  # so that a mapping would be seen
    del mapped
    source = open_hf(path)
    values = [tensor.read() for tensor in source.tensors.values()]
    assert len(values) == len(arrays()) and mappings(path) == 0
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if str(path) in link]


def test_blocks_of_a_read_join_without_a_seam(tmp_path, monkeypatch):
    tensor = open_hf(model_dir(tmp_path / "m")).tensors["model.embed_tokens.weight"]
    monkeypatch.setattr(source_module, "_MAPPED_BYTES", 3 * 8 * 4)
    np.testing.assert_array_equal(tensor.read(), arrays()["model.embed_tokens.weight"])
    part = tensor.read_slice((slice(1, 9), slice(2, 5)))
    np.testing.assert_array_equal(part, arrays()["model.embed_tokens.weight"][1:9, 2:5])
    monkeypatch.setattr(source_module, "_MAPPED_BYTES", 1)
    np.testing.assert_array_equal(tensor.read(), arrays()["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        [],
        {},
        {"a": 3},
        {"a": "../other.safetensors"},
        {"a": ""},
        {"a": 256 * "x"},
        {"a": "\ud800" * 86},
    ],
)
def test_a_weight_map_of_the_wrong_form(tmp_path, weight_map):
    path = model_dir(tmp_path / "m", weights=False)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"index\.json: weight_map must map"):
        open_hf(path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "invalid JSON"),
        (b"\xff", "invalid JSON"),
        (b"[1]", "expected a JSON object, got"),
        (b"[" * 100_000, "invalid JSON: nested too deeply"),
        (b'{"a":' * 100_000, "invalid JSON: nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "invalid JSON: "),
    ],
    ids=["open", "bytes", "list", "lists", "objects", "digits"],
)
def test_invalid_json_is_named(tmp_path, name, content, message):
    path = model_dir(tmp_path / "m")
    (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: {message}"):
        open_hf(path)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("entries", "body", "message"),
    [
        (b"not json", b"", "corrupt safetensors header"),
        (b"[]", b"", "not a JSON object"),
        (b'{"a": 1, "a": 1}', b"", "named twice: a"),
        ({"a": {"dtype": "F32"}}, b"", "tensor 'a' is"),
        ({"a": 3}, b"", "tensor 'a' is 3"),
        ({"a": entry(shape=(-2,))}, bytes(8), "tensor 'a' is"),
        ({"a": entry(dtype="I4")}, bytes(8), "'a' has dtype 'I4'.*allowed: BOOL.*BF16"),
        ({"a": entry(offsets=(0, 4))}, bytes(4), "'a' of F32 .2. is given 4 bytes, needs 8"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "'b' overlaps"),
        ({"a": entry(offsets=(4, 12))}, bytes(12), "'a' leaves a gap"),
        ({"a": entry()}, bytes(7), "truncated: .* 8 bytes of tensors, the file has 7; not .*: a"),
        ({"a": entry()}, bytes(9), "1 bytes behind the last tensor"),
    ],
)
def test_corrupt_headers_name_file_and_tensor(tmp_path, entries, body, message):
    path = model_dir(tmp_path / "m", weights=False)
    write_raw(path / "model.safetensors", entries, body)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: .*{message}"):
        open_hf(path)


def test_headers_of_the_wrong_length(tmp_path):
    path = model_dir(tmp_path / "m", weights=False)
    for length, message in ((5000, "truncated: the header needs 5008"), (1 << 60, "not a safe")):
        write_raw(path / "model.safetensors", b"{}", length=length)
        with pytest.raises(CheckpointError, match=message):
            open_hf(path)
    for content, message in ((b"", "the file is empty"), (b"1234567", "truncated: 7 bytes")):
        (path / "model.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"model\.safetensors: {message}"):
            open_hf(path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = model_dir(tmp_path / "m")
    content = (path / "model.safetensors").read_bytes()
    for length in range(1, len(content), 3):
        (path / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated"):
            open_hf(path)


@settings(max_examples=200)
@given(data=st.data())
def test_no_corruption_of_the_header_raises_anything_else(tmp_path_factory, data):
    path = model_dir(tmp_path_factory.getbasetemp() / "fuzz")
    content = bytearray((path / "model.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 420))] = data.draw(st.integers(0, 255))
    (path / "model.safetensors").write_bytes(content)
    try:
        for tensor in open_hf(path).tensors.values():
            tensor.read()
    except CheckpointError as error:
        assert "model.safetensors" in str(error)


def test_the_digest_covers_weights_config_and_tokenizer(tmp_path):
    path = model_dir(tmp_path / "m")
    digest = open_hf(path).digest()
    assert open_hf(model_dir(tmp_path / "copy")).digest() == digest
    (path / "tokenizer.json").write_text("{}")
    with_tokenizer = open_hf(path).digest()
    assert with_tokenizer != digest
    model_dir(path, config={**CONFIG, "hidden_size": 9})
    assert open_hf(path).digest() != with_tokenizer
    (path / "tokenizer.json").unlink()
    model_dir(path)
    changed = {**arrays(), "flag": np.array([False, False])}
    save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
    assert open_hf(path).digest() != digest
