"""Reads the letter that an answer to a multiple-choice question settles on."""

from __future__ import annotations

import re

from asd_jax.evaluation.grading.boxed import boxed
from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.grading.thinking import answer_part

_OPEN = r"[\s*_`\"'$(\[{]*"
# No further letter or digit, and no apostrophe as in "A's".
_CLOSE = r"(?![A-Za-z0-9]|['’][a-z])"
# No second letter, as in "A or B", "A, C" and "B and D".
_NO_SECOND = r"(?![)\].*]*\s*(?:,|/|&|or\b|and\b)?\s*\(?[A-D]\b(?![.)]\s))"
# "The answer is (B)", "Answer: **B**", "the correct option would be C", "I choose option D". An
# article is no choice: "the answer is a matter of taste".
_STATED = re.compile(
    r"(?:(?i:\b(?:answer|option|choice)\b[\s*_]*(?:is|would\s+be|must\s+be|should\s+be|:|=)"
    r"|\bI\s+(?:choose|pick|select)\b)[\s:*_]*"
    r"(?i:(?:the\s+)?(?:correct|right|best)?\s*(?:answer|option|choice|letter)?\s*(?:is|:)?))"
    rf"{_OPEN}([B-D]|A(?!\s+(?!because|since|as|for|by|with)[a-z])){_CLOSE}{_NO_SECOND}"
)
_LINE_START = re.compile(
    rf"^[\s*_`\"'$]*([A-D])(?:[).\]:,*]{_NO_SECOND}|[ \t]*$|[ \t]+[-–—:])", re.MULTILINE
)
_SET_OFF = re.compile(r"\(([A-D])\)|\[([A-D])\]|\*\*([A-D])(?:[.):][^*\n]*)?\*\*")
_ALONE = re.compile(rf"{_OPEN}([A-Da-d])[\s*_`\"'$)\]}}.:]*")
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*")


def choice_letter(text: str) -> str | None:
    r"""Returns the letter A to D that an answer names, or None if it names none or several.

    The first of these that applies decides: the last \boxed{}; the statements of the kind "the
    answer is B"; the letters with which lines begin, as in "B. because"; the letters set off by
    brackets or bold type. Where the deciding ones differ, the answer is ambiguous: None.
    """
    text = answer_part(text)
    boxes = boxed(text)
    if boxes:
        alone = _ALONE.match(_LATEX_TEXT.sub("", boxes[-1]))
        inside = _LATEX_TEXT.sub("", boxes[-1]).strip()
        if alone and (alone.end() == len(inside) or _LINE_START.match(inside)):
            return alone[1].upper()
    alone = _ALONE.fullmatch(text)
    if alone:
        return alone[1].upper()
    for pattern in (_STATED, _LINE_START, _SET_OFF):
        letters = {next(filter(None, match.groups())) for match in pattern.finditer(text)}
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def grade_letter(answer: str, reference: str) -> Grade:
    """Compares the letter of an answer with the right one; an ambiguous answer is wrong.

    Raises:
      ValueError: The reference is none of A to D.
    """
    if reference not in ("A", "B", "C", "D"):
        raise ValueError(f"reference: got {reference!r}, allowed is A, B, C or D")
    letter = choice_letter(answer)
    if letter is None:
        return Grade(False, None, "no letter, or several")
    return Grade(letter == reference, letter, f"{letter} against {reference}")
