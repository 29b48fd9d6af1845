"""From files to a target: what goes with the weights, and what must never come out of them."""

from __future__ import annotations

import json
import re
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from asd_jax import (
    Controls,
    DecodeConfig,
    asd,
    decode,
    load_target,
    make_mesh,
    make_requests,
    ngram,
    no_drafter,
    sampling_params,
    save_target,
)
from asd_jax.checkpoints.source import CheckpointError
from asd_jax.models.parameters import flat_params
from tests import tiny

CONFIG = DecodeConfig(num_draft_tokens=3, max_new_tokens=12, max_len=40)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny.write_checkpoint(tmp_path_factory.mktemp("model"))


def assert_same_params(one, other):
    one, other = flat_params(one.target.params), flat_params(other.target.params)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[path], err_msg=path)
        assert leaf.sharding == other[path].sharding, path


@pytest.mark.parametrize("sizes", [None, (2, 4), (1, 8)])
def test_saved_weights_come_back_where_the_mesh_wants_them(checkpoint, tmp_path, sizes):
    mesh = sizes and make_mesh(data=sizes[0], model=sizes[1])
    loaded = load_target(str(checkpoint), mesh=mesh)
    save_target(loaded, tmp_path / "saved")
    restored = load_target(str(checkpoint), mesh=mesh, params_from=tmp_path / "saved")
    assert_same_params(loaded, restored)


def test_saved_weights_of_another_checkpoint_or_mesh_are_refused(checkpoint, tmp_path):
    save_target(load_target(str(checkpoint)), tmp_path / "saved")
    other = tiny.write_checkpoint(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match="weights of another checkpoint"):
        load_target(str(other), params_from=tmp_path / "saved")
    with pytest.raises(CheckpointError, match="lm_head"):  # padded from 61 to 64 rows
        load_target(
            str(checkpoint), mesh=make_mesh(data=2, model=4), params_from=tmp_path / "saved"
        )
    with pytest.raises(CheckpointError, match="nothing"):
        load_target(str(checkpoint), params_from=tmp_path / "nothing")


@pytest.mark.parametrize("saved", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_saved_weights_are_the_checkpoints_or_refused(checkpoint, tmp_path, saved, wanted):
    save_target(load_target(str(checkpoint), dtype=saved), tmp_path / "saved")
    if saved not in (wanted, "float32"):
        with pytest.raises(
            CheckpointError, match=f"with dtype {saved}, asked for is dtype {wanted}; allowed is"
        ):
            load_target(str(checkpoint), dtype=wanted, params_from=tmp_path / "saved")
        return
    restored = load_target(str(checkpoint), dtype=wanted, params_from=tmp_path / "saved")
    assert_same_params(load_target(str(checkpoint), dtype=wanted), restored)


def test_a_path_of_saved_weights_that_no_path_can_have_is_named(checkpoint):
    with pytest.raises(CheckpointError, match="xxx"):
        load_target(str(checkpoint), params_from="x" * 5000)


@pytest.mark.parametrize(
    "dtype",
    ["complex64", "int8", "float64", "float8_e4m3fn", "bf16", "banana", "", ">f4", "f4,f4"]
    + [float, int, np.float64, 3, [], {}, object()],
)
def test_types_that_no_weights_have_are_refused(checkpoint, dtype):
    words = f"dtype: got {dtype!r}, allowed is one of float32, bfloat16, float16"
    with pytest.raises(ValueError, match=re.escape(words)):
        load_target(str(checkpoint), dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.bfloat16, jnp.dtype("bfloat16"), "f2", "<f4"])
def test_a_type_may_be_given_in_every_form(checkpoint, dtype):
    params = flat_params(load_target(str(checkpoint), dtype=dtype).target.params)
    assert {leaf.dtype for leaf in params.values()} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(num_hidden_layers=10**9), "num_hidden_layers: got 1000000000, allowed"),
        (dict(num_hidden_layers=10**5), "num_hidden_layers: got 100000, allowed"),
        (dict(num_hidden_layers=4096), "num_hidden_layers: got 4096, allowed is 2, the layers"),
        (dict(num_hidden_layers=3), "num_hidden_layers: got 3, allowed is 2, the layers"),
        (dict(num_hidden_layers=1), "num_hidden_layers: got 1, allowed is 2, the layers"),
        (
            dict(vocab_size=2**31 - 1),
            r"vocab_size x hidden_size: got \(2147483647, 32\), allowed is \(61, 32\), the shape "
            r"of model\.embed_tokens\.weight",
        ),
        (dict(hidden_size=2**31 - 1), r"hidden_size: got \(61, 2147483647\), allowed is \(61, 32"),
        (dict(num_attention_heads=2**30), r"head_dim\) x hidden_size: got .*, allowed is \(64, 32"),
        (dict(head_dim=16), r"head_dim\) x hidden_size: got \(128, 32\), allowed is \(64, 32\)"),
        (
            dict(num_key_value_heads=4),
            r"num_key_value_heads .* got \(32, 32\), allowed is \(16, 32",
        ),
        (dict(intermediate_size=2**31 - 1), r"intermediate_size .* got .*, allowed is \(48, 32\)"),
    ],
)
def test_sizes_of_other_tensors_are_refused_before_a_layer_is_built(tmp_path, change, words):
    folder = tiny.write_checkpoint(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({**tiny.HF_CONFIG, **change}))
    start = time.process_time()
    with pytest.raises(ValueError, match=words):
        load_target(str(folder))
    assert time.process_time() - start < 1


def test_a_checkpoint_without_layers_says_what_it_has(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "model")
    safetensors.numpy.save_file({"w": np.ones(2)}, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match="no tensors of layers, needed are 2 layers; it has w"
    ):
        load_target(str(folder))


def test_progress_counts_to_the_number_of_tensors(checkpoint):
    seen = []
    load_target(str(checkpoint), on_progress=lambda done, total: seen.append((done, total)))
    total = len(safetensors.numpy.load_file(checkpoint / "model.safetensors"))
    assert seen == [(n, total) for n in range(1, total + 1)]


def test_stored_type_may_be_any_float(checkpoint, tmp_path):
    exact = load_target(str(checkpoint))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        folder = tmp_path / np.dtype(dtype).name
        folder.mkdir()
        (folder / "config.json").write_text((checkpoint / "config.json").read_text())
        tensors = safetensors.numpy.load_file(checkpoint / "model.safetensors")
        cast = {name: value.astype(dtype) for name, value in tensors.items()}
        safetensors.numpy.save_file(cast, folder / "model.safetensors")
        got = flat_params(load_target(str(folder), dtype="float32").target.params)
        for path, leaf in flat_params(exact.target.params).items():
            assert got[path].dtype == np.float32
            np.testing.assert_array_equal(got[path], np.asarray(leaf).astype(dtype), path)
        assert load_target(str(folder), dtype="bfloat16").target.params["norm"]["weight"].get_value(
        ).dtype == ml_dtypes.bfloat16  # fmt: skip


def with_word_tokenizer(folder, num_ids):
    vocab = {f"w{i}": i for i in range(num_ids)}
    model = tokenizers.models.WordLevel(vocab, unk_token="w0")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    # Padding rows that would always win: their logit is large whatever the hidden state.
    head = tensors["lm_head.weight"].copy()
    head[num_ids:] = 100 * np.sign(head[num_ids:])
    tensors["lm_head.weight"] = head
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("sizes", [None, (2, 4)])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_ids_without_a_token_are_never_emitted(tmp_path, sizes, temperature):
    folder = with_word_tokenizer(tiny.write_checkpoint(tmp_path / "model"), 50)
    mesh = sizes and make_mesh(data=sizes[0], model=sizes[1])
    loaded = load_target(str(folder), mesh=mesh)
    assert loaded.target.vocab_size == 50 and loaded.config.vocab_size == 61
    # Prompts may hold such ids, and prompt lookup then proposes them; no control lets them pass.
    prompts = [[55, 3, 55, 3], [7, 60, 8, 7, 60], [1, 2], [49, 49, 49]]
    requests = make_requests(
        prompts,
        controls=Controls(np.inf, np.inf, 3),
        max_new_tokens=12,
        sampling_params=sampling_params(4, temperature=temperature, seed=[1, 2, 3, 4]),
    )
    for drafter, config in (
        (ngram(3), CONFIG),
        (no_drafter(), DecodeConfig(num_draft_tokens=0, max_new_tokens=12, max_len=40)),
    ):
        result = decode(loaded.target, drafter, asd(), requests, config)
        assert np.asarray(result.num_emitted).tolist() == [12] * 4
        assert np.asarray(result.tokens).max() < 50
    with pytest.raises(ValueError, match="allowed is 0..49"):
        make_requests(prompts, max_new_tokens=4, vocab_size=loaded.target.vocab_size)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "model")
    vocab = {f"w{i}": i for i in range(70)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    with pytest.raises(ValueError, match="70 ids, but the model's vocab_size is 61"):
        load_target(str(folder))


def test_unknown_model_types_name_what_there_is(tmp_path):
    folder = tiny.write_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(CheckpointError, match="model_type: got 'mamba', allowed is one of.*qwen3"):
        load_target(str(folder))


def test_feature_layers_must_be_in_the_model(checkpoint):
    with pytest.raises(ValueError, match=r"feature_layers: got \[3\], allowed is 0..2"):
        load_target(str(checkpoint), feature_layers=(0, 3))


@pytest.mark.parametrize("layers", [(1.5,), (True,), ("1",), "1", 1, None])
def test_feature_layers_must_be_whole_numbers(checkpoint, layers):
    with pytest.raises(ValueError, match="feature_layers: got .*, allowed is"):
        load_target(str(checkpoint), feature_layers=layers)


def test_weights_on_a_mesh_are_never_whole_on_one_device(checkpoint):
    params = load_target(str(checkpoint), mesh=make_mesh(data=1, model=8)).target.params
    per_device = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(load_target(str(checkpoint)).target.params))
    assert per_device < whole / 4
