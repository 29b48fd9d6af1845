"""Timing, acceptance and divergence counts against plain loops, and what they refuse."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.counters import (
    TimedRequest,
    count_acceptance,
    formal_timing,
    hash_divergence,
)


def test_a_request_that_was_given_up_costs_time_and_brings_nothing():
    answered = TimedRequest(0, 10**9, completion_tokens=30)
    given_up = TimedRequest(10**9, 3 * 10**9, completion_tokens=0, attempts=3)
    got = formal_timing([answered, given_up])
    assert (got.tokens_per_second, got.wall_seconds, got.retry_attempts) == (10.0, 3.0, 2)


def test_the_clock_runs_between_requests_and_over_requests_side_by_side():
    requests = [TimedRequest(5, 10, 1), TimedRequest(0, 4, 1), TimedRequest(20, 25, 1)]
    assert formal_timing(requests).wall_seconds == 25e-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_ns": 0}, "end_ns: got 0 at request 0, needs start_ns = 1"),
        ({"completion_tokens": -1}, "completion_tokens: got -1 at request 0"),
        ({"attempts": 0}, "attempts: got 0 at request 0"),
        ({"end_ns": 1}, "all start and end at 1 ns"),
    ],
)
def test_an_impossible_request_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        formal_timing([dataclasses.replace(TimedRequest(1, 2, 1), **changes)])


def test_no_request_has_no_timing():
    with pytest.raises(ValueError, match="requests: got none"):
        formal_timing([])


KEPT = st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5)


@given(KEPT.filter(any))
def test_counts_are_those_of_the_proposals_one_by_one(kept):
    histograms = [np.bincount(request, minlength=5) for request in kept]
    proposed = [4 * len(request) for request in kept]
    tokens = [sum(request) + len(request) + 1 for request in kept]
    got = count_acceptance(np.array(histograms), proposed, tokens)
    flat = [number for request in kept for number in request]
    assert (got.proposals, got.accepted) == (len(flat), sum(flat))
    assert got.by_position == tuple(sum(number > g for number in flat) for g in range(4))
    assert sum(got.by_position) == got.accepted
    assert got.acceptance_rate == sum(flat) / (4 * len(flat))
    assert got.accepted_per_proposal == sum(flat) / len(flat)
    # The token of each request's prefill is in the authors' figure.
    extra = len(kept) / len(flat)
    assert got.acceptance_length_with_bonus == pytest.approx(got.accepted_per_proposal + 1 + extra)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [3], [4]), r"got histograms \(2,\)"),
        (([[1, 2]], [3, 3], [4]), r"proposed \(2,\)"),
        (([[1.0, 2]], [3], [4]), "histograms: got float64"),
        (([[-1, 2]], [3], [4]), "histograms: got -1"),
        (([[1, 1]], [0], [4]), "proposed: got 0 at request 0, which kept 1 in 2 proposals"),
        (([[1, 1]], [3], [4]), "proposed: got 3 at request 0, .* of up to 1"),
        (([[0, 0]], [0], [4]), "got 0 draft tokens in all"),
        (([[2, 0]], [0], [4]), "got 0 draft tokens in all"),
    ],
)
def test_counts_that_cannot_be_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        count_acceptance(*arguments)


def test_divergence_counts_answers_that_differ_at_all():
    strict = [[1, 2], [3], [4, 5], []]
    assert hash_divergence(strict, [(1, 2), [3, 3], [5, 4], []]) == 0.5
    assert hash_divergence(strict, strict) == 0.0
    assert hash_divergence([[1]] * 500, [[1]] * 15 + [[1, 2]] * 485) == 0.97


@pytest.mark.parametrize("candidate", [[], [[1], [2]]])
def test_divergence_needs_the_same_requests(candidate):
    with pytest.raises(ValueError, match="needs the same number"):
        hash_divergence([[1]] if candidate else [], candidate)
