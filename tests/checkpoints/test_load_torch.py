"""Torch files read without torch: real ones, every kind of view, and damaged ones."""

import dataclasses
import struct
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from asd_jax.checkpoints.load_torch import read_torch_file, read_torch_header
from asd_jax.checkpoints.source import CheckpointError
from tests.checkpoints.torch_archives import (
    DICT,
    call,
    name,
    number,
    row,
    storage,
    table,
    tensor,
    text,
    write,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
EAGLE = GOLDEN / "eagle3_llama_original" / "drafter" / "pytorch_model.bin"
MEDUSA = GOLDEN / "medusa_llama_5heads" / "drafter" / "medusa_lm_head.pt"

STORED = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


def assert_same(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tobytes() == want.tobytes()


def refused(path, match):
    with pytest.raises(CheckpointError, match=match) as error:
        read_torch_file(path)
    assert str(path) in str(error.value)


def test_the_medusa_release_equals_its_safetensors():
    want = load_file(MEDUSA.with_suffix(".safetensors"))
    got = read_torch_file(MEDUSA)
    assert got.keys() == want.keys()
    for key, tensor_source in got.items():
        assert (tensor_source.name, tensor_source.file) == (key, MEDUSA)
        assert_same(tensor_source.read(), want[key])


def test_the_eagle_release_maps_the_draft_vocabulary():
    tensors = read_torch_file(EAGLE)
    d2t, t2d = tensors["d2t"].read(), tensors["t2d"].read()
    assert (d2t.dtype, t2d.dtype) == (np.int64, np.bool_)
    golden = np.load(EAGLE.parents[1] / "golden.npz")
    ids = golden["target_ids_of_draft_vocab"]
    np.testing.assert_array_equal(d2t + np.arange(len(d2t)), ids)
    np.testing.assert_array_equal(np.flatnonzero(t2d), ids)
    features, fused = golden["run0_context_taps"], golden["run0_context_fused"]
    np.testing.assert_allclose(features @ tensors["fc.weight"].read().T, fused, atol=1e-5)


def test_torch_is_not_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert read_torch_file(EAGLE)["fc.weight"].read().shape == (48, 144)


def test_the_header_ends_behind_the_pickle_and_before_the_tensors():
    tensors, size = read_torch_header(EAGLE)
    assert b"_rebuild_tensor_v2" in EAGLE.read_bytes()[:size]
    assert size < min(source.offset for source in tensors.values())


@pytest.mark.parametrize("kind", STORED)
def test_storage_types(tmp_path, kind):
    dtype = np.dtype(STORED[kind])
    values = np.array([0, 1, 0, 1, 1, 0], dtype)
    program = table({"w": tensor(storage(kind, count=6), (2, 3), (3, 1))})
    source = read_torch_file(write(tmp_path / "m.bin", program, [values.tobytes()]))["w"]
    assert_same(source.read(), values.reshape(2, 3))
    assert_same(source.read_slice((slice(1, 2), slice(0, 2))), values.reshape(2, 3)[1:, :2])


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16", "uint32", "uint64"]
)
def test_types_of_untyped_storages(tmp_path, kind):
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or getattr(np, kind))
    values = np.array([1, 2, 0.5, 4]).astype(dtype)
    stored = storage("UntypedStorage", count=values.nbytes, module="torch.storage")
    program = table({"w": tensor(stored, version="v3", rest=[name("torch", kind)])})
    path = write(tmp_path / "m.bin", program, [values.tobytes()])
    assert_same(read_torch_file(path)["w"].read(), values)


def test_a_boolean_is_true_where_its_byte_is_not_zero(tmp_path):
    program = table({"w": tensor(storage("BoolStorage"))})
    path = write(tmp_path / "m.bin", program, [bytes([0, 1, 2, 255])])
    assert_same(read_torch_file(path)["w"].read(), np.array([False, True, True, True]))


VALUES = np.arange(24, dtype=np.float32)


@dataclasses.dataclass
class View:
    shape: tuple
    strides: tuple
    offset: int = 0

    def values(self):
        strides = [step * 4 for step in self.strides]
        return np.lib.stride_tricks.as_strided(VALUES[self.offset :], self.shape, strides)


VIEWS = {
    "contiguous": View((4, 6), (6, 1)),
    "rows": View((2, 6), (6, 1), 12),
    "transposed": View((6, 4), (1, 6)),
    "permuted": View((4, 2, 3), (1, 12, 4)),
    "columns": View((4, 2), (6, 1), 3),
    "every other": View((4, 3), (6, 2), 1),
    "expanded": View((5, 6), (0, 1), 6),
    "windows": View((10, 4), (2, 1)),
    "diagonal": View((4,), (7,)),
    "one row of odd stride": View((1, 6), (999, 1), 6),
    "a column at the end": View((4, 1), (6, 1), 5),
    "scalar": View((), (), 23),
    "empty": View((0, 6), (6, 1)),
    "empty far out": View((3, 0), (1, 1), 500),
}


def write_views(path, views):
    stored = storage(count=24)
    entries = {
        key: tensor(stored, view.shape, view.strides, view.offset) for key, view in views.items()
    }
    return write(path, table(entries), [VALUES.tobytes()])


def test_views_share_a_storage_and_keep_their_values(tmp_path):
    tensors = read_torch_file(write_views(tmp_path / "m.bin", VIEWS))
    for key, view in VIEWS.items():
        got = tensors[key].read()
        assert_same(got, view.values())
        assert got.flags.c_contiguous and got.flags.writeable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_slices_of_any_view(tmp_path, data):
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    strides = tuple(data.draw(st.integers(0, 3)) for _ in shape)
    last = sum(max(n - 1, 0) * step for n, step in zip(shape, strides, strict=True))
    view = View(shape, strides, data.draw(st.integers(0, 23 - last)))
    index = tuple(
        data.draw(st.builds(slice, st.integers(0, n), st.integers(0, n), st.sampled_from([1, 2])))
        for n in shape
    )
    source = read_torch_file(write_views(tmp_path / "m.bin", {"w": view}))["w"]
    assert_same(source.read(), view.values())
    assert_same(source.read_slice(index), view.values()[index])


def test_parameters_are_tensors_and_a_modules_metadata_is_left_out(tmp_path):
    parameter = call(name("torch._utils", "_rebuild_parameter"), tensor(storage()), b"\x88", DICT)
    metadata = table(
        {"_metadata": DICT + row(text(""), table({"version": number(1)}))[1:-1] + b"s"}
    )
    program = DICT + b"(" + text("w") + parameter + b"u" + metadata + b"b"
    tensors = read_torch_file(write(tmp_path / "m.bin", program))
    assert list(tensors) == ["w"] and tensors["w"].shape == (4,)


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_tensors_one_level_deeper(tmp_path, wrapper):
    inner = table({"w": tensor(storage())})
    training = table({"epoch": number(3), "optimizer": b"}" + number(0) + b"]s", wrapper: inner})
    assert list(read_torch_file(write(tmp_path / "m.bin", training))) == ["w"]


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (tensor(storage()), "holds a tensor, expected a dict"),
        (b"]", "holds a list, expected a dict"),
        (table({"a": tensor(storage()), "n": number(3)}), r"entries 'n' \(int\)"),
        (table({"weights": table({"w": tensor(storage())})}), r"entries 'weights' \(dict\)"),
        (table({"model": b"}", "state_dict": b"}"}), r"'model' \(dict\), 'state_dict' \(dict\)"),
        (table({"model": table({"a": table({})})}), r"'a' \(dict\)"),
        (b"}" + number(7) + tensor(storage()) + b"s", r"7 \(tensor\)"),
    ],
)
def test_what_is_no_dict_of_tensors_is_refused(tmp_path, program, match):
    refused(write(tmp_path / "m.bin", program), match)


@pytest.mark.parametrize("size", [12, 20])
def test_a_storage_of_another_size_is_refused(tmp_path, size):
    path = write(tmp_path / "m.bin", table({"w": tensor(storage())}), [b"\0" * size])
    refused(path, f"'w' is in storage '0' of 16 bytes, the file has a member of {size}")


def test_a_missing_storage_is_refused(tmp_path):
    refused(write(tmp_path / "m.bin", table({"w": tensor(storage(key="5"))})), "no such member")


@pytest.mark.parametrize("shape", [(1 << 40, 1), (1 << 20, 1 << 20), (1 << 62, 0)])
def test_a_small_storage_repeated_into_a_huge_tensor_is_refused(tmp_path, shape):
    program = table({"w": tensor(storage(), shape, (0, 0))})
    refused(write(tmp_path / "m.bin", program), "repeats the 16 bytes of its storage")


PROGRAM = table({"w": tensor(storage())})


def test_names_may_be_of_any_script(tmp_path):
    path = write(tmp_path / "m.bin", table({"вес": tensor(storage())}), folder="модель")
    assert list(read_torch_file(path)) == ["вес"]


def test_a_compressed_archive_is_refused(tmp_path):
    path = write(tmp_path / "m.bin", PROGRAM, kind=zipfile.ZIP_DEFLATED)
    refused(path, "data.pkl' is compressed; load it with torch and save it again")


@pytest.mark.parametrize("script", ["constants.pkl", "code/__torch__.py"])
def test_torchscript_is_refused(tmp_path, script):
    path = write(tmp_path / "m.bin", PROGRAM, side={script: b"x"})
    refused(path, "TorchScript archive.*save its state_dict")


@pytest.mark.parametrize("order", [b"big", b"", b"middle"])
def test_another_byte_order_is_refused(tmp_path, order):
    refused(write(tmp_path / "m.bin", PROGRAM, side={"byteorder": order}), "byte order")


@pytest.mark.parametrize("version", [b"0", b"11", b"x", b"", b"3" * 100])
def test_another_version_is_refused(tmp_path, version):
    refused(write(tmp_path / "m.bin", PROGRAM, side={"version": version}), "version.*allowed")


def test_byte_order_is_optional(tmp_path):
    assert "w" in read_torch_file(write(tmp_path / "m.bin", PROGRAM, side={"byteorder": None}))


@pytest.mark.parametrize("lacking", ["version", "data.pkl"])
def test_other_zip_archives_are_refused(tmp_path, lacking):
    path = write(tmp_path / "m.bin", PROGRAM, side={lacking: None})
    refused(path, "a zip archive without data.pkl and version")


@pytest.mark.parametrize(
    "member", ["../x", "/x", "a/../../x", "a//x", "./x", "a\\x", "x/", "a\nb", ".."]
)
def test_names_that_lead_out_of_the_archive_are_refused(tmp_path, member):
    path = write(tmp_path / "m.bin", PROGRAM, side={member: b"x"})
    refused(path, "a member may not be named")


@pytest.mark.parametrize("folder", ["..", "", "/tmp"])
def test_folders_outside_are_refused(tmp_path, folder):
    refused(write(tmp_path / "m.bin", PROGRAM, folder=folder), "may not be named")


def test_two_folders_are_refused(tmp_path):
    path = write(tmp_path / "m.bin", PROGRAM)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"x")
    refused(path, "in 2 folders, expected 1: archive, other")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_named_twice_are_refused(tmp_path):
    path = write(tmp_path / "m.bin", PROGRAM)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data.pkl", b"x")
    refused(path, "members named twice: archive/data.pkl")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "format before torch 1.6.*save it again"),
        (b"\x80\x04N.", "format before torch 1.6"),
        (b"version https://git-lfs", "not a torch file: it begins with b'vers'"),
        (b"PK\x03\x04" + b"\0" * 100, "truncated or corrupt"),
        (b"PK", "not a torch file"),
    ],
)
def test_other_files_are_refused(tmp_path, content, match):
    (tmp_path / "m.bin").write_bytes(content)
    refused(tmp_path / "m.bin", match)


def test_missing_files_and_directories_are_named(tmp_path):
    refused(tmp_path / "gone.bin", "no such file, expected a torch file")
    refused(tmp_path, "is a directory")


def locals_of(data):
    """Where the local headers begin."""
    with zipfile.ZipFile(data) as archive:
        return {info.filename: info.header_offset for info in archive.infolist()}


@pytest.mark.parametrize(
    ("field", "form", "value", "match"),
    [
        (0, "<I", 0, "not where the zip directory says"),
        (6, "<H", 1, "encrypted"),
        (6, "<H", 8, "does not end where the next begins"),
        (8, "<H", 8, "is compressed"),
        (18, "<I", 5, "two different sizes"),
        (22, "<I", 5, "two different sizes"),
        (26, "<H", 3, "not where the zip directory says"),
        (28, "<H", 4, "two different sizes, or overlaps"),
        (30, "<B", 120, "not where the zip directory says"),
    ],
)
def test_local_headers_must_agree_with_the_directory(tmp_path, field, form, value, match):
    path = write(tmp_path / "m.bin", PROGRAM)
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, locals_of(path)["archive/data/0"] + field, value)
    path.write_bytes(data)
    refused(path, f"archive/data/0' .*{match}")


def test_bytes_before_the_archive_and_between_members_are_refused(tmp_path):
    path = write(tmp_path / "m.bin", PROGRAM)
    data = path.read_bytes()
    path.write_bytes(b"PK\x03\x04" + data)
    refused(path, "first member is not at its beginning")
    with zipfile.ZipFile(tmp_path / "n.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
        archive.fp.write(b"gap")
        archive.start_dir += 3
    refused(tmp_path / "n.bin", "does not end where the next begins")


def test_a_pickle_whose_checksum_is_wrong_is_refused(tmp_path):
    path = write(tmp_path / "m.bin", PROGRAM)
    path.write_bytes(path.read_bytes().replace(b"FloatStorage", b"FlyatStorage", 1))
    refused(path, "member data.pkl does not have the CRC-32")


def test_a_file_that_shrinks_while_open_is_refused(tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(MEDUSA.read_bytes())
    source = read_torch_file(path)["4.1.weight"]
    path.write_bytes(path.read_bytes()[: source.offset + 8])
    with pytest.raises(CheckpointError, match="truncated since it was opened"):
        source.read()


REAL = [EAGLE.read_bytes(), MEDUSA.read_bytes()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 1), share=st.floats(0, 1, exclude_max=True))
def test_a_cut_file_is_never_read(tmp_path, which, share):
    path = tmp_path / "m.bin"
    path.write_bytes(REAL[which][: int(share * len(REAL[which]))])
    with pytest.raises(CheckpointError):
        read_torch_file(path)


def payload(source):
    start = source.offset
    return range(start, start + source.read().nbytes)


TENSORS = [read_torch_file(path) for path in (EAGLE, MEDUSA)]
# What describes the tensors, a tenth of the files; half of the flips go there.
DESCRIPTIONS = [
    sorted(set(range(len(real))).difference(*map(payload, tensors.values())))
    for real, tensors in zip(REAL, TENSORS, strict=True)
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=250)
@given(data=st.data())
def test_a_flipped_byte_is_noticed_or_changes_no_other_value(tmp_path, data):
    """Weights have no checksum that is read, so a flip within one is that weight's new value."""
    which = data.draw(st.integers(0, 1))
    real, want = REAL[which], TENSORS[which]
    at = data.draw(st.sampled_from(DESCRIPTIONS[which]) | st.integers(0, len(real) - 1))
    damaged = bytearray(real)
    damaged[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "m.bin"
    path.write_bytes(damaged)
    try:
        got = read_torch_file(path)
    except CheckpointError:
        return
    assert list(got) == list(want)
    for key, source in got.items():
        there = payload(want[key])
        if at not in there:
            assert_same(source.read(), want[key].read())
        elif source.dtype == np.bool_:
            assert_same(source.read(), np.frombuffer(damaged[there.start : there.stop], "u1") != 0)
        else:
            assert source.read().tobytes() == damaged[there.start : there.stop]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=250)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 1200), st.integers(0, 3), st.binary(max_size=3)),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_pickle_with_a_right_checksum_is_read_or_refused(tmp_path, edits):
    with zipfile.ZipFile(MEDUSA) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    program = bytearray(members["medusa_lm_head/data.pkl"])
    for at, count, new in edits:
        program[at : at + count] = new
    members["medusa_lm_head/data.pkl"] = bytes(program)
    path = tmp_path / "m.bin"
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in members.items():
            archive.writestr(key, value)
    try:
        tensors = read_torch_file(path)
    except CheckpointError:
        return
    for source in tensors.values():
        values = source.read()
        assert (values.shape, values.dtype) == (source.shape, source.dtype)


@pytest.mark.parity
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_files_of_torch_equal_their_tensors(tmp_path, protocol):
    import torch

    torch.manual_seed(0)
    kinds = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu"
    kinds += " int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool"
    base = torch.arange(120.0).reshape(4, 5, 6)
    linear = torch.nn.Linear(3, 2)
    want = {kind: (base[0, :2] % 7).to(getattr(torch, kind)) for kind in kinds.split()}
    want |= {
        "transposed": base.permute(2, 0, 1),
        "part": base[1:, ::2, 1:5:3],
        "expanded": base[0, 0].expand(3, 6),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 3),
        "empty part": base[2:2],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(base[1].T),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "large": torch.randn(300, 1000),
        **linear.state_dict(),
    }
    path = tmp_path / "m.bin"
    torch.save(want, path, pickle_protocol=protocol)
    got = read_torch_file(path)
    assert list(got) == list(want)
    for key, value in want.items():
        exact = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        assert got[key].shape == tuple(value.shape)
        assert got[key].dtype.name == str(value.dtype).removeprefix("torch.")
        assert got[key].read().tobytes() == exact.tobytes(), key
        assert got[key].read().shape == tuple(value.shape)


@pytest.mark.parity
def test_a_modules_state_dict_and_what_torch_cannot_say_in_strides(tmp_path):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    path = tmp_path / "m.bin"
    torch.save(module.state_dict(), path)
    got = read_torch_file(path)
    for key, value in module.state_dict().items():
        np.testing.assert_array_equal(got[key].read(), value.numpy())
    torch.save({"w": torch.ones(2).neg()}, path)
    assert read_torch_file(path)["w"].read().tolist() == [-1, -1]
    torch.save({"w": torch.complex(torch.ones(2), torch.ones(2)).conj().imag}, path)
    refused(path, "stored negated or conjugated")
    torch.save({"w": torch.ones(2).to_sparse()}, path)
    refused(path, r"asks for torch\._utils\._rebuild_sparse_tensor")
    torch.save({"w": torch.ones(2, dtype=torch.complex64)}, path)
    refused(path, r"asks for torch\.ComplexFloatStorage")
    torch.save({"w": torch.ones(2, device="meta")}, path)
    refused(path, "_rebuild_meta_tensor_no_storage|no such member")
    torch.save(module, path)
    refused(path, r"asks for torch\.nn\.modules")
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refused(path, "format before torch 1.6")
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    refused(path, "TorchScript")
