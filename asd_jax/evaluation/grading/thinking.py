"""Separates what a model thinks aloud from what it answers."""

from __future__ import annotations

_END = "</think>"  # of Qwen3, DeepSeek-R1 and those that follow them


def answer_part(text: str) -> str:
    """Returns what comes after the last end of thinking; all of a text that has none.

    Letters and code that a model only considers are no answers. A text cut off while thinking is
    returned as it is, as it cannot be told from one without thinking where the template, not the
    model, writes the opening mark.
    """
    return text.rpartition(_END)[2]
