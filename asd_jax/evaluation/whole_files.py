"""Files that are there whole or not at all, whenever their writer is killed."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all; one that exists is replaced.

    A kill leaves at most a `NAME.partial` beside it, which the next writing takes over.

    Args:
      path: The file. Its folder must exist.
      text: What it is to hold; encoded as UTF-8, with line breaks as they are.

    Raises:
      OSError: It cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)
