"""Opens GGUF files: metadata becomes a Hugging Face config, tensors get Hugging Face names.

Block layouts and the dequantisation arithmetic come from the `gguf` package, the reference
implementation of both. The header is read by `gguf_header`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from asd_jax.checkpoints.gguf_header import PLAIN_TYPES, TensorInfo, read_header
from asd_jax.checkpoints.source import (
    CheckpointError,
    CheckpointSource,
    SourceFile,
    TensorSource,
    read_stored,
    require_file,
    some,
)

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_ROPE_FREQS = "rope_freqs.weight"
_YARN_FIELDS = {
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
# About 256 KiB of float32 at a time: the temporaries of the dequantisation stay in cache.
_DEQUANTISE_ELEMENTS = 1 << 16

_TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: str | Path) -> CheckpointSource:
    """Opens a GGUF file without reading its tensors.

    Plain tensors (F32, F16, BF16) keep their dtype; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and the K-quants
    Q2_K to Q6_K become float32. For architecture llama the row order of q and k, which llama.cpp
    permutes for its interleaved RoPE (`LlamaModel.permute` in convert_hf_to_gguf.py), is put back.

    Args:
      path: The file. Architectures: llama, qwen2, qwen3.

    Returns:
      The opened checkpoint; its tensors have their Hugging Face names and `[out, in]` shapes.

    Raises:
      CheckpointError: The file is missing, empty, truncated, corrupt or not a GGUF; its
        architecture, a quantisation or a RoPE variant is not supported.
    """
    path = Path(path)
    try:
        metadata, infos, header_bytes = read_header(path, _mapped(path))
        config = _config(_Metadata(path, metadata), infos)
        config["rope_scaling"] = _rope_scaling(_Metadata(path, metadata), infos, config)
        sources = [
            _tensor_source(path, name, info, config)
            for name, info in infos.items()
            if name != _ROPE_FREQS
        ]
    except CheckpointError:
        raise
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CheckpointError(f"{path}: corrupt GGUF header: {error}") from error
    return CheckpointSource(
        path=path,
        config=config,
        tensors={source.name: source for source in sources},
        tokenizer={k: v for k, v in metadata.items() if k.startswith("tokenizer.")},
        files=(SourceFile(path, header_bytes),),
    )


def _mapped(path: Path) -> np.ndarray:
    require_file(path, "GGUF file")
    try:
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _hf_name(name: str) -> str:
    match = re.fullmatch(r"(blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[3] not in _TENSOR_NAMES:
        return name
    layer = f"model.layers.{match[2]}." if match[1] else ""
    return f"{layer}{_TENSOR_NAMES[match[3]]}.{match[4]}"


def _tensor_source(
    path: Path, name: str, info: TensorInfo, config: Mapping[str, Any]
) -> TensorSource:
    order = _row_order(path, name, info, config)
    stored = PLAIN_TYPES.get(info.type)

    def fetch(index: tuple[slice, ...]) -> np.ndarray:
        if order is None or not info.shape:
            return fetch_in_order(index, ...)
        # Rows are permuted within a head, so their span is little more than the rows asked for.
        rows = order[index[0]]
        first = int(rows.min()) if rows.size else 0
        span = slice(first, int(rows.max()) + 1 if rows.size else 0)
        return fetch_in_order((span, *index[1:]), rows - first)

    def fetch_in_order(index: tuple[slice, ...], picked: Any) -> np.ndarray:
        if stored is not None:
            return read_stored(path, info.start, info.shape, stored, index)[picked]
        *rows, columns = index
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
        first, last = columns.start // block, -(-columns.stop // block)
        raw = read_stored(
            path,
            info.start,
            (*info.shape[:-1], info.row_bytes),
            np.dtype(np.uint8),
            (*rows, slice(first * block_bytes, last * block_bytes)),
        )
        values = _dequantise(raw[picked] if rows else raw, info.type)
        values = values[..., columns.start - first * block : columns.stop - first * block]
        return values if rows else values[picked]

    dtype = np.dtype(np.float32) if stored is None else stored
    return TensorSource(_hf_name(name), info.shape, dtype, fetch, path, info.start)


def _row_order(
    path: Path, name: str, info: TensorInfo, config: Mapping[str, Any]
) -> np.ndarray | None:
    """Returns for each Hugging Face row of a llama q or k projection its row in the file.

    The converter writes every head's rows as `reshape(2, D/2).T`: its row `2j + i` was `i*D/2 + j`.
    """
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if config["model_type"] != "llama" or match is None:
        return None
    heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
    if not info.shape or info.shape[0] != heads * config["head_dim"] or config["head_dim"] % 2:
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {info.shape} does not hold {heads} heads of even "
            f"width {config['head_dim']}"
        )
    return np.arange(info.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _dequantise(raw: np.ndarray, kind: Any) -> np.ndarray:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    flat = np.ascontiguousarray(raw).reshape(-1)
    out = np.empty(flat.size // block_bytes * block, np.float32)
    step = _DEQUANTISE_ELEMENTS // block
    for first in range(0, out.size // block, step):
        # Handed over as one long row: the package works in groups of 16 rows, too few for speed.
        part = flat[None, first * block_bytes : (first + step) * block_bytes]
        out[first * block : (first + step) * block] = gguf.quants.dequantize(part, kind)[0]
    return out.reshape(*raw.shape[:-1], raw.shape[-1] // block_bytes * block)


class _Metadata:
    """The metadata of one architecture, with errors that name the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]):
        self.path, self.values = path, values
        self.arch: str = values.get("general.architecture", "")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(f"{self.arch}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(
                f"{self.path}: metadata {self.arch}.{key} is {value!r}, expected a number"
            )
        return float(value)

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(f"{self.arch}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise CheckpointError(
                f"{self.path}: metadata {self.arch}.{key} is {value!r}, expected a positive integer"
            )
        return value


def _config(metadata: _Metadata, infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    _require_supported(metadata, infos)
    arch, heads = metadata.arch, metadata.size("attention.head_count")
    hidden = metadata.size("embedding_length")
    head_dim = metadata.size("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.size(key, head_dim) != head_dim:
            raise CheckpointError(
                f"{metadata.path}: {arch}.{key} is {metadata.size(key)}; supported is only the "
                f"head width, here {head_dim}"
            )
    config = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_hidden_layers": metadata.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.size("context_length"),
        "vocab_size": infos["token_embd.weight"].shape[0],
        # llama.cpp leaves the output projection out when it is the embedding.
        "tie_word_embeddings": "output.weight" not in infos,
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{name}_token_id"] = metadata.values.get(f"tokenizer.ggml.{key}_token_id")
    # Hugging Face's qwen2 has no such field: it always has biases, but none on the output
    # projection, which `attention_bias` would include.
    if arch != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in infos
    return config


def _require_supported(metadata: _Metadata, infos: Mapping[str, TensorInfo]) -> None:
    path, values, arch = metadata.path, metadata.values, metadata.arch
    if arch not in ARCHITECTURES:
        raise CheckpointError(
            f"{path}: architecture {arch!r} is not supported; allowed: {', '.join(ARCHITECTURES)}"
        )
    if values.get("split.count", 1) > 1:
        raise CheckpointError(
            f"{path}: one of {values['split.count']} parts of a split GGUF; merge them first with "
            "llama-gguf-split --merge"
        )
    if values.get(f"{arch}.expert_count", 0):
        raise CheckpointError(f"{path}: mixture-of-experts GGUF files are not supported")
    embedding, hidden = infos.get("token_embd.weight"), metadata.size("embedding_length")
    if embedding is None:
        raise CheckpointError(
            f"{path}: has no tensor token_embd.weight, so it holds no whole model"
        )
    if embedding.shape[1:] != (hidden,):
        raise CheckpointError(
            f"{path}: token_embd.weight of shape {embedding.shape} does not fit "
            f"{arch}.embedding_length {hidden}"
        )


def _rope_scaling(
    metadata: _Metadata,
    infos: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Returns Hugging Face's `rope_scaling`, None where positions are not scaled."""
    prefix = f"{metadata.arch}.rope.scaling."
    fields = {k[len(prefix) :]: v for k, v in metadata.values.items() if k.startswith(prefix)}
    fields.pop("finetuned", None)
    original = fields.pop("original_context_length", None)
    factor = float(fields.pop("factor", 0.0)) or metadata.number("rope.scale_linear", 1.0)
    kind = fields.pop("type", "none" if factor == 1.0 else "linear")
    if _ROPE_FREQS in infos and kind == "none":
        factors = _tensor_source(metadata.path, _ROPE_FREQS, infos[_ROPE_FREQS], config).read()
        return _llama3_scaling(metadata.path, factors, config, original)
    if kind == "none":
        return None
    unknown = set(fields) - set(_YARN_FIELDS if kind == "yarn" else ())
    if kind not in ("linear", "yarn") or unknown or _ROPE_FREQS in infos:
        extra = {*unknown, _ROPE_FREQS} if _ROPE_FREQS in infos else unknown
        raise CheckpointError(
            f"{metadata.path}: RoPE scaling {kind!r}"
            + (f" with {some(extra)}" if extra else "")
            + " is not supported; allowed: linear, yarn, or the Llama 3 factors in "
            + f"{_ROPE_FREQS} alone"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        scaling |= {_YARN_FIELDS[key]: float(value) for key, value in fields.items()}
        if "attention_factor" in scaling:
            # llama.cpp multiplies YaRN's own factor by this one, Hugging Face replaces it.
            scaling["attention_factor"] *= 0.1 * math.log(factor) + 1.0
    return scaling


def _llama3_scaling(
    path: Path, factors: np.ndarray, config: Mapping[str, Any], original: int | None
) -> dict[str, Any]:
    """Recovers Llama 3's parameters from the frequency divisors that the converter computed.

    The file holds only the result (`generate_extra_tensors` in convert_hf_to_gguf.py). Every
    published model has low_freq_factor 1, high_freq_factor 4 and 8192 original positions; the
    largest divisor is the factor. What does not reproduce the tensor is refused, not approximated.
    """
    factor = float(np.max(factors))
    fits = factors.shape == (config["head_dim"] // 2,)
    for positions in (8192, original or 8192) if fits else ():
        with np.errstate(all="ignore"):  # a corrupt file may hold zeros and NaN
            exponents = np.arange(factors.size) / factors.size
            wavelength = 2 * math.pi * config["rope_theta"] ** exponents
            smooth = np.clip((positions / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
            expected = 1.0 / ((1.0 - smooth) / factor + smooth)
        if np.allclose(factors, expected, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": positions,
            }
    raise CheckpointError(
        f"{path}: {_ROPE_FREQS} does not follow the Llama 3 rule (low_freq_factor 1, "
        "high_freq_factor 4, 8192 original positions); no other RoPE factors are supported"
    )
