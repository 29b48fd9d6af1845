"""Builds the tokenizer that the metadata of a GGUF describes.

A GGUF names the pipeline only by a keyword (`tokenizer.ggml.pre`), so it is rebuilt here; an
unknown keyword is an error, since a wrong split gives ids the model was not trained on and text
that is merely worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from asd_jax.tokenizer.chat_template import check_template
from asd_jax.tokenizer.codec import SPECIAL_NAMES, Tokenizer
from asd_jax.tokenizer.declared_ids import declared_ids, united

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


class TokenizerSource(Protocol):
    """The parts of an `asd_jax.checkpoints.source.CheckpointSource` that are used here."""

    @property
    def path(self) -> Path:
        """The file or directory, for messages."""

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration, in Hugging Face spelling."""

    @property
    def generation_config(self) -> dict[str, Any]:
        """`generation_config.json`, or empty."""

    @property
    def tokenizer(self) -> dict[str, Any]:
        """The `tokenizer.*` metadata of a GGUF, or `{"directory": path}`."""


def from_gguf(source: TokenizerSource) -> Tokenizer:
    """Builds the tokenizer that a GGUF describes: byte-level BPE ("gpt2") or SentencePiece BPE.

    Args:
      source: An opened GGUF; its `tokenizer` is the file's `tokenizer.*` metadata.

    Raises:
      ValueError: No tokenizer in the file, an unknown model or pre-tokenizer, or inconsistent
        vocabulary, merges, scores or types.
    """
    path, prefix = source.path, "tokenizer.ggml."
    fields = {k[len(prefix) :]: v for k, v in source.tokenizer.items() if k.startswith(prefix)}
    tokens, kind = fields.get("tokens"), fields.get("model")
    if not tokens or kind is None:
        raise ValueError(f"{path}: the GGUF has no tokenizer ({prefix}model and {prefix}tokens)")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{path}: tokenizer {kind!r} is not supported; allowed: gpt2, llama")
    ids = _special_ids(path, fields)
    backend = _build_backend(path, _without_padding(path, fields, ids))
    stops = [index for name in ("eos", "eot", "eom") if (index := ids[name]) is not None]
    default_bos = kind == "llama" or _PRE_TOKENIZERS.get(fields.get("pre", "")) == "llama3"
    return Tokenizer(
        backend=backend,
        bos_id=ids["bos"],
        stop_ids=united([stops, *_declared_stops(source, len(tokens))]),
        adds_bos=bool(fields.get("add_bos_token", default_bos)),
        chat_templates=_gguf_templates(path, source.tokenizer),
        special_tokens={
            f"{name}_token": tokens[index]
            for name in SPECIAL_NAMES
            if (index := ids[name]) is not None
        },
    )


# tokenizer.ggml.pre -> family; the groups are those of llama.cpp's llama-vocab.cpp.
_PRE_TOKENIZERS = {
    "default": "default",
    "gpt-2": "gpt2",
    "mpt": "gpt2",
    "olmo": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "llama3": "llama3",
    "llama-v3": "llama3",
    "llama-bpe": "llama3",
    "falcon3": "llama3",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
}
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt2": (_GPT2,),
    "llama3": (_MODERN % r"\p{N}{1,3}",),
    "qwen2": (_MODERN % r"\p{N}",),
}


def _without_padding(
    path: Path, fields: Mapping[str, Any], ids: Mapping[str, int | None]
) -> dict[str, Any]:
    """Returns the fields without the entries of padding rows behind the last token.

    Exporters name those rows too, "[PAD151669]" and so on, as unused tokens.
    """
    tokens = fields["tokens"]
    types = fields.get("token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ValueError(f"{path}: {len(tokens)} tokens but {len(types)} token types")
    scores = fields.get("scores", ())
    if fields["model"] == "llama" and len(scores) != len(tokens):
        raise ValueError(f"{path}: {len(tokens)} tokens but {len(scores)} scores")
    used = [index for index, kind in enumerate(types) if kind != _UNUSED]
    used += [index for index in ids.values() if index is not None]
    count = max(used, default=-1) + 1
    cut = {"tokens": tokens[:count], "token_type": types[:count], "scores": scores[:count]}
    return {**fields, **cut}


def _build_backend(path: Path, fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, types = fields["tokens"], fields["token_type"]
    try:
        backend = _byte_level(fields) if fields["model"] == "gpt2" else _sentencepiece(fields)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path}: cannot build the tokenizer: {error}") from error
    for members, special in (((_CONTROL, _UNKNOWN), True), ((_USER_DEFINED,), False)):
        backend.add_tokens(
            [
                tokenizers.AddedToken(token, normalized=False, special=special)
                for token, member in zip(tokens, types, strict=True)
                if member in members
            ]
        )
    return backend


def _special_ids(path: Path, fields: Mapping[str, Any]) -> dict[str, int | None]:
    tokens = fields["tokens"]
    ids = {name: fields.get(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    ids |= {"unk": fields.get("unknown_token_id"), "pad": fields.get("padding_token_id")}
    allowed = range(len(tokens))
    wrong = {name: i for name, i in ids.items() if i is not None and i not in allowed}
    if wrong:
        raise ValueError(f"{path}: special ids {wrong} are outside the {len(tokens)} tokens")
    return ids


def _declared_stops(source: TokenizerSource, num_tokens: int) -> list[tuple[int, ...]]:
    """Returns what the model's configs add to the metadata of the tokenizer."""
    configs = {"generation config": source.generation_config, "config": source.config}
    num_ids = max(num_tokens, source.config.get("vocab_size", 0))
    return [
        declared_ids(
            config.get("eos_token_id"),
            field=f"{source.path}: {name}: eos_token_id",
            num_ids=num_ids,
        )
        for name, config in configs.items()
    ]


def _byte_level(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    pre = fields.get("pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ValueError(f"unknown pre-tokenizer {pre!r} (tokenizer.ggml.pre); known: {known}")
    family = _PRE_TOKENIZERS[pre]
    if "merges" not in fields:
        raise ValueError("tokenizer.ggml.merges is missing")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in fields["merges"])]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(fields["tokens"])},
            merges=merges,
            # Llama 3 takes a whole word that is in the vocabulary, whatever the merges say.
            ignore_merges=family == "llama3",
        )
    )
    if family == "qwen2":
        backend.normalizer = normalizers.NFC()
    if family == "digits":
        # SmolLM2's tokenizer.json, word for word.
        steps: list[Any] = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    else:
        steps = [pre_tokenizers.Split(tokenizers.Regex(r), "isolated") for r in _SPLITS[family]]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, types, scores = fields["tokens"], fields["token_type"], fields["scores"]
    unknown = fields.get("unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges_from_scores(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.get("add_space_prefix", True)
    spaces = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _merges_from_scores(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Returns merges in the order SentencePiece applies them: the best-scored result first."""
    normal = {token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL}
    ranked = sorted(range(len(tokens)), key=lambda index: -scores[index])
    return [
        (token[:cut], token[cut:])
        for token in (tokens[index] for index in ranked)
        if token in normal
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]


def _gguf_templates(path: Path, metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    fields = {k: v for k, v in metadata.items() if k == key or k.startswith(f"{key}.")}
    for field, template in fields.items():
        check_template(template, f"{path}: {field}")
    return {field[len(key) + 1 :] or "default": text for field, text in fields.items()}
