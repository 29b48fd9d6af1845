"""Builds the tokenizer of a Hugging Face directory, around its `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from asd_jax.tokenizer.codec import SPECIAL_NAMES, Tokenizer
from asd_jax.tokenizer.declared_ids import declared_ids, united
from asd_jax.tokenizer.hf_templates import hf_templates
from asd_jax.tokenizer.json_files import read_json

_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def from_hf(directory: str | Path) -> Tokenizer:
    """Builds the tokenizer of a Hugging Face directory.

    Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`, the chat templates (see
    `hf_templates`), `generation_config.json` and `config.json`. Whether raw text begins with BOS is
    for the post-processor in `tokenizer.json` to say; as in transformers 5, `add_bos_token` in
    `tokenizer_config.json` is for slow tokenizers only.

    Raises:
      ValueError: No or a corrupt `tokenizer.json`, invalid JSON or template, or a special token or
        id that the vocabulary lacks; the message names the file and the field.
    """
    directory = Path(directory)
    path = directory / "tokenizer_config.json"
    config = read_json(path)  # first: where it is damaged, that is what must be mended
    backend = _read_backend(directory / "tokenizer.json")
    _add_declared_tokens(backend, config.get("added_tokens_decoder"), path)
    special = _special_tokens(config, path)
    named = {
        name: _id_of(backend, special[f"{name}_token"], f"{path}: {name}_token")
        for name in ("bos", "eos", "eot")
        if f"{name}_token" in special
    }
    declared = _declared_in_configs(directory, backend)
    bos_id = named.get("bos")
    if "bos_token" not in config:
        bos_id = next(iter(declared["bos_token_id"]), None)
    stops = [named[name] for name in ("eos", "eot") if name in named]
    return Tokenizer(
        backend=backend,
        bos_id=bos_id,
        stop_ids=united([stops, declared["eos_token_id"]]),
        adds_bos=bos_id is not None and backend.encode("a").ids[:1] == [bos_id],
        chat_templates=hf_templates(directory, config),
        special_tokens=special,
    )


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        convertible = any(path.parent.glob("*.model"))
        hint = "; tokenizer.model must be converted first" if convertible else ""
        raise ValueError(f"{path}: no such file, so there is no tokenizer{hint}")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path}: corrupt tokenizer: {error}") from error
    # Files saved after training may carry these, and would cut prompts without a word.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_declared_tokens(backend: tokenizers.Tokenizer, declared: Any, path: Path) -> None:
    """Adds the tokens that older exports list in `tokenizer_config.json` alone."""
    field = f"{path}: added_tokens_decoder"
    entries = {} if declared is None else declared
    if not isinstance(entries, dict) or not all(
        index.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)
        for index, entry in entries.items()
    ):
        raise ValueError(f"{field}: must be an object of id -> object with content")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    # The library numbers new tokens in the order in which they come.
    for index, entry in sorted(
        ((int(index), entry) for index, entry in entries.items()), key=lambda item: item[0]
    ):
        content = entry["content"]
        if content not in known:
            flags = {name: bool(entry[name]) for name in _ADDED_FLAGS if name in entry}
            backend.add_tokens([tokenizers.AddedToken(content, **flags)])
        if (actual := backend.token_to_id(content)) != index:
            raise ValueError(
                f"{field}: got id {index} for {content!r}, which tokenizer.json makes {actual}"
            )


def _special_tokens(config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Returns the declared special tokens; each is a text, or an object with content."""
    special: dict[str, str] = {}
    for name in (f"{name}_token" for name in (*SPECIAL_NAMES, "eot")):
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if token is None:
            continue
        if not isinstance(text, str):
            raise ValueError(
                f"{path}: {name}: got {token!r}, allowed is a text, an object with content, or null"
            )
        special[name] = text
    return special


def _id_of(backend: tokenizers.Tokenizer, text: str, field: str) -> int:
    index = backend.token_to_id(text)
    if index is None:
        raise ValueError(f"{field}: got {text!r}, which tokenizer.json has no token for")
    return index


def _declared_in_configs(
    directory: Path, backend: tokenizers.Tokenizer
) -> dict[str, tuple[int, ...]]:
    """Returns what `generation_config.json` and `config.json` together say of two fields."""
    paths = [directory / name for name in ("generation_config.json", "config.json")]
    files = {path: read_json(path) for path in paths}
    num_ids = files[paths[1]].get("vocab_size")
    if not isinstance(
        num_ids, int
    ):  # no model beside the tokenizer, or a config for others to check
        num_ids = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return {
        name: united(
            declared_ids(content.get(name), field=f"{path}: {name}", num_ids=num_ids)
            for path, content in files.items()
        )
        for name in ("bos_token_id", "eos_token_id")
    }
