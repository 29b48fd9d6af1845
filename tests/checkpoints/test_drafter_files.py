"""Drafters opened in every form that they are released in, and directories that hold none."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asd_jax.checkpoints.drafter_files import open_drafter
from asd_jax.checkpoints.load_hf import open_hf
from asd_jax.checkpoints.source import CheckpointError
from tests.checkpoints.torch_archives import storage, table, tensor, write

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CONFIG = {"architectures": ["LlamaForCausalLMEagle3"], "rope_parameters": {"rope_theta": 7.0}}
FORMS = [
    "model.safetensors",
    "model.safetensors.index.json",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "medusa_lm_head.pt",
]


def values(form):
    return np.full(4, FORMS.index(form), np.float32)


def save(path, array):
    if path.suffix == ".safetensors":
        save_file({"w": array}, path)
    else:
        write(path, table({"w": tensor(storage())}), [array.tobytes()])


def put(directory, form):
    """Writes weights in a form; their values tell the forms apart."""
    if form.endswith(".index.json"):
        shard = form.removesuffix(".index.json").replace(".", "-00001-of-00001.")
        (directory / form).write_text(json.dumps({"weight_map": {"w": shard}}))
        form, directory = form, directory / shard
        save(directory, values(form))
    else:
        save(directory / form, values(form))


@pytest.fixture
def drafter(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def first(path):
    return open_drafter(path).tensors["w"].read()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_opened_with_its_config(drafter, form):
    put(drafter, form)
    source = open_drafter(drafter)
    assert source.path == drafter and source.config == {**CONFIG, "rope_theta": 7.0} | {
        "rope_scaling": None
    }
    np.testing.assert_array_equal(source.tensors["w"].read(), values(form))
    assert source.tensors.keys() == {"w"}


def test_the_first_form_that_is_there_is_taken(drafter):
    for form in reversed(FORMS):
        put(drafter, form)
        np.testing.assert_array_equal(first(drafter), values(form))


@pytest.mark.parametrize(
    "name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "other.bin", "other.safetensors"]
)
def test_one_file_is_opened_though_others_are_preferred(drafter, name):
    put(drafter, "model.safetensors")
    save(drafter / name, np.full(4, 9, np.float32))
    source = open_drafter(str(drafter / name))
    assert source.path == drafter and source.config["rope_theta"] == 7.0
    np.testing.assert_array_equal(source.tensors["w"].read(), np.full(4, 9))


@pytest.mark.parametrize("form", FORMS)
def test_the_digest_covers_config_index_and_weights(drafter, form):
    put(drafter, form)
    before = open_drafter(drafter).digest()
    assert open_drafter(drafter).digest() == before
    seen = {before}
    for change in (lambda: values(form) + 1, lambda: values(form)):
        shard = next(p for p in drafter.iterdir() if p.suffix in (".safetensors", ".bin", ".pt"))
        save(shard, change())
        seen.add(open_drafter(drafter).digest())
    (drafter / "config.json").write_text(json.dumps({**CONFIG, "other": 1}))
    seen.add(open_drafter(drafter).digest())
    if form.endswith(".index.json"):
        (drafter / form).write_text((drafter / form).read_text() + " ")
        seen.add(open_drafter(drafter).digest())
        assert len(seen) == 4
    else:
        assert len(seen) == 3


def test_two_shards_are_one_drafter_and_must_agree_with_their_index(drafter):
    names = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    for key, name in names.items():
        write(drafter / name, table({key: tensor(storage())}))
    index = drafter / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert open_drafter(drafter).tensors.keys() == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {**names, "c": "pytorch_model-2.bin"}}))
    with pytest.raises(CheckpointError, match=r"the shard that pytorch_model\.bin\.index\.json"):
        open_drafter(drafter)
    (drafter / "pytorch_model-2.bin").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards named in pytorch_model\.bin\.index"):
        open_drafter(drafter)
    index.write_text(json.dumps({"weight_map": {"a": "../pytorch_model-1.bin"}}))
    with pytest.raises(CheckpointError, match="weight_map must map tensor names to file names in"):
        open_drafter(drafter)


def test_without_weights_all_names_are_given(drafter):
    with pytest.raises(CheckpointError) as error:
        open_drafter(drafter)
    for form in FORMS:
        assert form in str(error.value)
    assert str(drafter) in str(error.value) and "has: config.json" in str(error.value)


def test_the_config_is_required(drafter):
    put(drafter, "medusa_lm_head.pt")
    (drafter / "config.json").unlink()
    for path in (drafter, drafter / "medusa_lm_head.pt"):
        with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
            open_drafter(path)


def test_other_paths_are_refused(drafter):
    with pytest.raises(CheckpointError, match="gone: no such file or directory"):
        open_drafter(drafter / "gone")
    with pytest.raises(CheckpointError, match=r"by its name, allowed: \.safetensors, \.bin, \.pt"):
        open_drafter(drafter / "config.json")


def test_a_bad_torch_file_is_named_with_what_it_asks_for(drafter):
    write(drafter / "pytorch_model.bin", b"cos\nsystem\n(" + b"X\x01\0\0\0xtR")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*the file asks for os\.system"):
        open_drafter(drafter)


def test_the_medusa_release_is_the_same_in_both_forms(tmp_path):
    release = GOLDEN / "medusa_llama_5heads" / "drafter"
    assert open_drafter(release).files[-1].path.name == "medusa_lm_head.safetensors"
    for name in ("config.json", "medusa_lm_head.pt"):
        shutil.copy(release / name, tmp_path / name)
    source = open_drafter(tmp_path)
    assert source.config["medusa_num_heads"] == 2
    want = load_file(release / "medusa_lm_head.safetensors")
    assert source.tensors.keys() == want.keys() == open_drafter(release).tensors.keys()
    for key, array in want.items():
        np.testing.assert_array_equal(source.tensors[key].read(), array)


def test_a_drafter_in_safetensors_is_opened_as_a_target_is():
    release = GOLDEN / "dspark_qwen3_vanilla" / "drafter"
    assert open_drafter(release).digest() == open_hf(release).digest()
    assert open_drafter(release).tensors.keys() == open_hf(release).tensors.keys()
