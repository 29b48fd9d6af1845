"""How many words an answer shares with a reference: a description, not a score of its quality.

Two good answers to an open question share few words, and a bad one can share many. The numbers are
good for one thing: to see whether two arms write differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from asd_jax.evaluation.grading.grade import Grade

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.casefold())


def rouge_l(answer: str, reference: str) -> float:
    """Returns the F1 of the longest common subsequence of words, in [0, 1].

    Precision and recall weigh the same. 0 if either text has no words. (Lin 2004, ROUGE, section 3,
    with beta = 1 and no stemming.)
    """
    ours, theirs = words(answer), words(reference)
    common = _longest_common_subsequence(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def describe(answers: Sequence[str], reference: str | None) -> Grade:
    """Describes the answers to an open question; `is_right` is None.

    Args:
      answers: The model's answers, a turn each.
      reference: Somebody's answer to the first turn, or None.

    Returns:
      A `Grade` whose measures are `words` (the number of words in all answers) and, with a
      reference, `overlap_not_quality` (`rouge_l` of the first answer).
    """
    measures = {"words": float(sum(len(words(answer)) for answer in answers))}
    detail = f"no right answer; {measures['words']:.0f} words"
    if reference is not None and answers:
        overlap = rouge_l(answers[0], reference)
        measures["overlap_not_quality"] = overlap
        detail += f", word overlap {overlap:.3f} with the reference (not a quality score)"
    return Grade(None, None, detail, measures)


def _longest_common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    previous = [0] * (len(theirs) + 1)
    for word in ours:
        row = [0]
        for index, other in enumerate(theirs):
            row.append(
                previous[index] + 1 if word == other else max(previous[index + 1], row[index])
            )
        previous = row
    return previous[-1]
