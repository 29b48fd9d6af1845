"""Finds the chat templates of a Hugging Face directory, wherever its exporter has put them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asd_jax.tokenizer.chat_template import check_template
from asd_jax.tokenizer.json_files import read_json, read_text

_FIELD = "chat_template"


def hf_templates(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chat templates by name; the usual one is "default".

    In rising order of precedence they are in `tokenizer_config.json`, `chat_template.json`,
    `additional_chat_templates/NAME.jinja` and `chat_template.jinja`.

    Args:
      directory: Where the files are.
      tokenizer_config: Content of `tokenizer_config.json`, or empty.

    Raises:
      ValueError: A field of another form, a file that is not UTF-8, or no valid template.
    """
    path = directory / "tokenizer_config.json"
    templates = _of_field(path, tokenizer_config.get(_FIELD))
    path = directory / "chat_template.json"
    templates |= _of_field(path, read_json(path).get(_FIELD))
    files = {p.stem: p for p in sorted(directory.glob("additional_chat_templates/*.jinja"))}
    path = directory / "chat_template.jinja"
    if path.is_file():
        files["default"] = path
    for name, path in files.items():
        templates[name] = read_text(path)
        check_template(templates[name], f"{path}")
    return templates


def _of_field(path: Path, declared: Any) -> dict[str, str]:
    """Returns the templates of one field: a text, or a list of objects with name and template."""
    if declared is None:
        return {}
    entries = declared
    if isinstance(declared, str):
        entries = [{"name": "default", "template": declared}]
    templates: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else [None]:
        name, text = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(
                f"{path}: {_FIELD} must be a string or a list of objects with name and template"
            )
        check_template(text, f"{path}: {_FIELD} {name!r}")
        templates[name] = text
    return templates
