"""Tokenizers of 256 bytes, two merges and three special tokens, in both formats."""

import json
import types
from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def tokenizer_json(tokens, merges, special, **changes):
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, **flags} for i in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
        **changes,
    }


def byte_alphabet():
    """GPT-2's printable spelling of the 256 bytes (`bytes_to_unicode`)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) if byte in kept else chr(256 + moved.index(byte)) for byte in range(256)]


TINY_TOKENS = [*byte_alphabet(), "Ġt", "Ġth", "<s>", "</s>", "<|end|>"]
TINY_MERGES = ["Ġ t", "Ġt h"]
BOS, EOS, EOT = 258, 259, 260
# Of `tokenizer_config.json`: two more tokens that are not special, as older exports list them.
THINK = {
    "added_tokens_decoder": {
        str(261 + i): {"content": text, "special": False, "normalized": False}
        for i, text in enumerate(("<think>", "</think>"))
    }
}


def gguf_source(pre="gpt-2", *, model="gpt2", config=None, **fields):
    metadata = {
        "model": model,
        "pre": pre,
        "tokens": TINY_TOKENS,
        "merges": TINY_MERGES,
        "token_type": [CONTROL if i >= BOS else NORMAL for i in range(len(TINY_TOKENS))],
        **fields,
    }
    return types.SimpleNamespace(
        path=Path("tiny.gguf"),
        config=config or {},
        generation_config={},
        tokenizer={f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None},
    )


def hf_dir(path, *, tokenizer_config=None, bos=False, **files):
    path.mkdir(exist_ok=True)
    special = [BOS, EOS, EOT]
    content = tokenizer_json(TINY_TOKENS, TINY_MERGES, special)
    if bos:
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        }
    (path / "tokenizer.json").write_text(json.dumps(content))
    if tokenizer_config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path
