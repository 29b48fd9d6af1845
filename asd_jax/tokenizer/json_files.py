"""Reads the small text files beside a checkpoint, with errors that name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or an empty one if there is no such file.

    Raises:
      ValueError: Not JSON, or JSON of another kind.
    """
    if not path.is_file():
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:  # of syntax, or a number of thousands of digits
        raise ValueError(f"{path}: invalid JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: invalid JSON: nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    """Returns the text of a file.

    Raises:
      ValueError: It is not UTF-8, or cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
