r"""Finds what an answer puts in \boxed{}."""

from __future__ import annotations

import re

_OPENING = re.compile(r"\\f?box(?:ed)?\s*\{")


def boxed(text: str) -> list[str]:
    r"""Returns the contents of every complete \boxed{}, \fbox{} and \box{}, in order.

    Braces are counted, escaped ones not; a box that is never closed (an answer cut off by the
    length limit) is left out, and so is a box inside another.
    """
    contents = []
    position = 0
    while match := _OPENING.search(text, position):
        end = _closing(text, match.end())
        if end is None:
            position = match.end()
            continue
        contents.append(text[match.end() : end])
        position = end + 1
    return contents


def _closing(text: str, start: int) -> int | None:
    """Returns the index of the brace that closes the one before `start`, or None."""
    depth = 1
    index = start
    while index < len(text):
        if text[index] == "\\":
            index += 1  # whatever is escaped, also a brace
        elif text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return None
