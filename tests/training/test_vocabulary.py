"""Draft vocabularies in cases that can be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asd_jax.training.vocabulary import coverage, draft_vocabulary
from tests.training.example_sets import make_examples

# Answers of the training part: 5 5 7 9, 5 7 2; 8 is in a prompt only, 6 in the held-out part only.
EXAMPLES = make_examples(
    [[8, 8, 8, 5, 5, 7, 9], [8, 5, 7, 2], [8, 5, 6, 6, 6]],
    [3, 1, 1],
    held_out=[2],
    stop_ids=(1,),
)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, [1, 5]),
        (3, [1, 5, 7]),
        (4, [1, 2, 5, 7]),  # 2 and 9 are equals: the lower one
        (5, [1, 2, 5, 7, 9]),
        (6, [1, 2, 5, 7, 8, 9]),  # 8 is in prompts
        (8, [0, 1, 2, 3, 5, 7, 8, 9]),  # 6 was not seen where it counts
        (12, list(range(12))),
    ],
)
def test_the_most_frequent_answer_tokens_are_taken(size, expected):
    found = draft_vocabulary(EXAMPLES, size, 12)
    assert found.dtype == np.int32
    assert found.tolist() == expected


def test_coverage_is_the_share_of_answer_tokens():
    assert coverage(EXAMPLES, np.asarray([1, 5, 7], np.int32)) == (5 / 7, 1 / 4)
    assert coverage(EXAMPLES, draft_vocabulary(EXAMPLES, 12, 12)) == (1.0, 1.0)
    alone = make_examples([[1, 2]], [1])
    assert math.isnan(coverage(alone, np.asarray([2], np.int32)).held_out)


@pytest.mark.parametrize(
    ("size", "vocab_size", "told"),
    [
        (1, 12, r"size: got 1, allowed is 2\.\.12"),
        (13, 12, r"size: got 13, allowed is 2\.\.12"),
        (4, 9, "vocab_size: got 9, allowed is > 9"),
    ],
)
def test_sizes_that_cannot_be_are_refused(size, vocab_size, told):
    with pytest.raises(ValueError, match=told):
        draft_vocabulary(EXAMPLES, size, vocab_size)
