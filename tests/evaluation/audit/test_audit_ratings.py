"""A judge's ratings: what is asked, that no answer is rated twice, and the arms' comparison."""

import json

import pytest

from asd_jax.evaluation.audit import AuditError, read_pairs
from asd_jax.evaluation.audit.ratings import RatingCache, compare_ratings, rating_steps
from asd_jax.evaluation.grading.judge import Judge, JudgeError, Rating
from asd_jax.evaluation.tasks import TASKS, Example
from tests.evaluation.audit.synthetic_rows import QUICK, encode, make_row, write_rows

TALK = TASKS["mt_bench"]
VALUES = {"good": 9.0, "fair": 6.0, "poor": 3.0, "same": 5.0}


@pytest.fixture
def pairs(tmp_path):
    """Two conversations of two turns; the second has the same answers in both arms."""
    examples = [
        Example("t/0", "mt_bench", "audit", ("q1", "q2"), None, {"reference_turns": ["", "ref"]}),
        Example("t/1", "mt_bench", "audit", ("q3", "q4"), None, {"reference_turns": None}),
    ]
    said = {
        ("t/0", "strict"): ("good", "fair"),
        ("t/0", "asd"): ("good", "poor"),
        ("t/1", "strict"): ("same", "same"),
        ("t/1", "asd"): ("same", "same"),
    }
    rows = [make_row(*key, None, turns=[*map(encode, texts)]) for key, texts in said.items()]
    return read_pairs(write_rows(tmp_path / "output.jsonl", rows), examples)


@pytest.fixture
def asked(monkeypatch):
    """What a judge by the values above was asked."""
    requests = []

    def rate(judge, questions, answers, reference=None):
        requests.append((tuple(questions), tuple(answers), reference))
        return Rating(VALUES[answers[-1]], "because", f"{judge.model}-1")

    monkeypatch.setattr(Judge, "rate", rate)
    return requests


JUDGE = Judge("http://127.0.0.1:9/v1", "critic")


def test_every_turn_is_rated_in_view_of_those_before_it(pairs, asked, tmp_path):
    with RatingCache(tmp_path / "ratings.jsonl") as cache:
        steps = list(rating_steps(pairs, TALK, JUDGE, cache))
    assert asked == [
        (("q1",), ("good",), None),
        (("q1", "q2"), ("good", "fair"), "ref"),
        (("q1", "q2"), ("good", "poor"), "ref"),
        (("q3",), ("same",), None),
        (("q3", "q4"), ("same", "same"), None),
    ]
    assert [(step.id, step.arm, step.value) for step in steps] == [
        ("t/0", "strict", 7.5), ("t/0", "asd", 6.0), ("t/1", "strict", 5.0), ("t/1", "asd", 5.0),
    ]  # fmt: skip
    assert [step.done for step in steps] == [1, 2, 3, 4] and {step.total for step in steps} == {4}
    found = compare_ratings(steps, QUICK)
    assert (found.num, found.model) == (2, "critic-1")
    assert (found.strict.estimate, found.asd.estimate) == (6.25, 5.5)
    assert found.difference.estimate == -0.75
    assert found.difference.low == -1.5 and found.difference.high == 0.0


def test_killed_it_goes_on_and_ends_with_the_same_file(pairs, asked, tmp_path):
    path = tmp_path / "ratings.jsonl"
    with RatingCache(path) as cache:
        steps = list(rating_steps(pairs, TALK, JUDGE, cache))
    whole = path.read_bytes()
    assert json.loads(whole.splitlines()[0])["explanation"] == "because"
    path.write_bytes(whole[: len(whole) // 2])
    kept = whole[: len(whole) // 2].count(b"\n")
    assert 0 < kept < len(asked) == 5
    asked.clear()
    with RatingCache(path) as cache:
        assert list(rating_steps(pairs, TALK, JUDGE, cache)) == steps
    assert len(asked) == 5 - kept and path.read_bytes() == whole
    asked.clear()
    with RatingCache(path) as cache:
        another = Judge(JUDGE.url, "stricter")
        assert list(rating_steps(pairs, TALK, another, cache))[0].models == {"stricter-1"}
    assert len(asked) == 5


def test_a_judge_that_does_not_answer_is_told_with_the_answer(pairs, monkeypatch, tmp_path):
    def rate(*arguments):
        raise JudgeError("http://127.0.0.1:9/v1: no reply")

    monkeypatch.setattr(Judge, "rate", rate)
    with RatingCache(tmp_path / "ratings.jsonl") as cache:
        with pytest.raises(AuditError, match="t/0, strict: not rated: http://127.0.0.1:9/v1: no"):
            list(rating_steps(pairs, TALK, JUDGE, cache))


def test_a_line_that_is_no_rating_is_named(tmp_path):
    path = tmp_path / "ratings.jsonl"
    path.write_text('{"key": "a", "value": "high", "model": "m"}\n')
    with pytest.raises(AuditError, match=r"ratings.jsonl, line 1: value: got 'high', allowed is"):
        RatingCache(path)
