"""Reads and compares the numbers of word problems.

The rules are those of the ASD authors' test cases (tests/data/asd_vectors.json, `answers`): the
last number in a box counts, an answer without one is wrong, and fractions and words are no numbers.
"""

from __future__ import annotations

import re

from asd_jax.evaluation.grading.boxed import boxed
from asd_jax.evaluation.grading.grade import Grade

_NUMBER = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)")
# Ends on a digit, so that the full stop of a sentence is left out.
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.])[+-]?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?!\w)")
_MARKER = re.compile(r"####[ \t]*([^\n]*)")


def normalize_number(text: str) -> str | None:
    r"""Returns a number in its only spelling, or None if the text is no plain number.

    Dollar signs, thousands separators (a comma, also as `{,}`, and LaTeX's thin space) and outer
    spaces are dropped, leading and trailing zeros too, and minus zero is zero:
    `\$1,020.500` is `1020.5`.
    """
    plain = re.sub(r"\\?\$|\{,\}|,|\\[,!]", "", text).strip()
    match = _NUMBER.fullmatch(plain)
    if match is None:
        return None
    sign, digits = match.groups()
    whole, _, fraction = digits.partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return f"-{number}" if sign == "-" and number != "0" else number


def reference_number(text: str) -> str | None:
    """Returns the last number after the marker `####` of a GSM8K solution, or None."""
    numbers = [normalize_number(match[1]) for match in _MARKER.finditer(text)]
    return next((number for number in reversed(numbers) if number is not None), None)


def boxed_number(text: str) -> str | None:
    r"""Returns the last \boxed{} that holds a plain number, normalised, or None."""
    numbers = [normalize_number(content) for content in boxed(text)]
    return next((number for number in reversed(numbers) if number is not None), None)


def last_number(text: str) -> str | None:
    """Returns the last number anywhere in a text, normalised, or None."""
    found = _NUMBER_IN_TEXT.findall(text)
    return normalize_number(found[-1]) if found else None


def grade_number(answer: str, reference: str, *, is_box_needed: bool = True) -> Grade:
    """Compares the number of an answer with the right one.

    Args:
      answer: What the model wrote.
      reference: The right number.
      is_box_needed: Whether an answer without a number in a box is wrong, as in the authors'
        evaluation. If not, the last number of the text stands in for it.

    Raises:
      ValueError: The reference is no number.
    """
    right = normalize_number(reference)
    if right is None:
        raise ValueError(f"reference: got {reference!r}, allowed is a plain number")
    number = boxed_number(answer)
    if number is None and not is_box_needed:
        number = last_number(answer)
    if number is None:
        return Grade(False, None, "no number in a box" if is_box_needed else "no number")
    return Grade(number == right, number, f"{number} against {right}")
