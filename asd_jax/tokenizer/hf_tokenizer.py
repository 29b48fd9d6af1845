"""Builds the tokenizer of a Hugging Face directory, around its `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from asd_jax.tokenizer.codec import SPECIAL_NAMES, Tokenizer, ascending_ids


def from_hf(directory: str | Path) -> Tokenizer:
    """Builds the tokenizer of a Hugging Face directory.

    Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`, `chat_template.jinja`,
    `additional_chat_templates/*.jinja`, `generation_config.json` and `config.json`.

    Raises:
      ValueError: No or a corrupt `tokenizer.json`, invalid JSON, or an end token that the
        vocabulary lacks.
    """
    directory = Path(directory)
    path = directory / "tokenizer.json"
    backend = _read_backend(path)
    config = _read_json(directory / "tokenizer_config.json")
    configs = [_read_json(directory / f"{name}.json") for name in ("generation_config", "config")]
    special = {
        f"{name}_token": text
        for name in (*SPECIAL_NAMES, "eot")
        if (text := _content(config.get(f"{name}_token"))) is not None
    }
    stop_ids = [entry.get("eos_token_id") for entry in configs]
    for name in ("eos_token", "eot_token"):
        if name in special:
            stop_ids.append(backend.token_to_id(special[name]))
            if stop_ids[-1] is None:
                raise ValueError(f"{path}: has no token {special[name]!r}, declared as {name}")
    if "bos_token" in config:
        bos_id = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    else:
        bos_ids = ascending_ids([entry.get("bos_token_id") for entry in configs])
        bos_id = bos_ids[0] if bos_ids else None
    return Tokenizer(
        backend=backend,
        bos_id=bos_id,
        stop_ids=ascending_ids(stop_ids),
        adds_bos=bos_id is not None and backend.encode("a").ids[:1] == [bos_id],
        chat_templates=_hf_templates(directory, config.get("chat_template")),
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


def _hf_templates(directory: Path, declared: Any) -> dict[str, str]:
    if declared is None:
        declared = {}
    elif isinstance(declared, str):
        declared = {"default": declared}
    elif isinstance(declared, list):  # [{"name": ..., "template": ...}, ...]
        declared = {e.get("name"): e.get("template") for e in declared if isinstance(e, dict)}
    templates: dict[Any, Any] = dict(declared) if isinstance(declared, dict) else {"": None}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ValueError(
            f"{directory / 'tokenizer_config.json'}: chat_template must be a string or a list of "
            "objects with name and template"
        )
    for path in sorted(directory.glob("additional_chat_templates/*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    path = directory / "chat_template.jinja"
    if path.is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
