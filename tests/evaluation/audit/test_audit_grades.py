"""Grading that is killed goes on where it stopped, and never grades an answer twice."""

import dataclasses
import json

import pytest

from asd_jax.evaluation.audit import (
    AuditError,
    GradeCache,
    grade_steps,
    paired_grades,
    read_pairs,
)
from asd_jax.evaluation.grading.grade import Grade
from asd_jax.evaluation.tasks import TASKS, ExampleError
from tests.evaluation.audit.synthetic_rows import EXAMPLES, ROWS, write_rows

GSM8K = TASKS["gsm8k"]
# g/0's answers are the same, so that there are seven texts under their ids.
NUM_TEXTS = 7


@pytest.fixture
def pairs(tmp_path):
    return read_pairs(write_rows(tmp_path / "output.jsonl", ROWS), EXAMPLES)


@pytest.fixture
def counting():
    graded = []

    def grade(example, answers):
        graded.append(example.id)
        return GSM8K.grade(example, answers)

    return GSM8K._replace(grade=grade), graded


def test_steps_tell_how_far_grading_is(pairs, counting):
    task, graded = counting
    steps = list(grade_steps(pairs, task))
    assert [step.done for step in steps] == list(range(1, 9))
    assert {step.total for step in steps} == {8}
    assert [(step.id, step.arm) for step in steps[:3]] == [
        ("g/0", "strict"),
        ("g/0", "asd"),
        ("g/1", "strict"),
    ]
    assert [step.is_known for step in steps] == [False, True] + [False] * 6
    assert len(graded) == NUM_TEXTS
    grades = paired_grades(pairs, steps)
    right = [(grade.strict.is_right, grade.asd.is_right) for grade in grades]
    assert right == [(True, True), (True, False), (False, True), (False, False)]
    with pytest.raises(AuditError, match="g/3, asd: got no grade"):
        paired_grades(pairs, steps[:-1])


def test_a_second_time_nothing_is_graded(pairs, counting, tmp_path):
    task, graded = counting
    path = tmp_path / "new" / "grades.jsonl"
    with GradeCache(path) as cache:
        first = paired_grades(pairs, grade_steps(pairs, task, cache))
    content = path.read_bytes()
    with GradeCache(path) as cache:
        assert len(cache) == NUM_TEXTS
        steps = list(grade_steps(pairs, task, cache))
    assert paired_grades(pairs, steps) == first
    assert all(step.is_known for step in steps)
    assert len(graded) == NUM_TEXTS
    assert path.read_bytes() == content
    line = json.loads(content.splitlines()[0])
    assert {"task", "id", "sha256"} < line.keys()
    assert (line["task"], line["id"], line["is_right"]) == ("gsm8k", "g/0", True)


def test_grading_that_was_killed_at_any_byte_resumes(pairs, counting, tmp_path):
    task, graded = counting
    path = tmp_path / "grades.jsonl"
    with GradeCache(path) as cache:
        whole = paired_grades(pairs, grade_steps(pairs, task, cache))
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    for size in range(start, len(content)):
        path.write_bytes(content[:size])
        graded.clear()
        with GradeCache(path) as cache:
            assert path.read_bytes() == content[:start]
            assert len(cache) == NUM_TEXTS - 1
            assert paired_grades(pairs, grade_steps(pairs, task, cache)) == whole
        assert graded == ["g/3"]
        assert path.read_bytes() == content


def test_every_grade_is_on_disk_before_the_next_answer(pairs, tmp_path):
    path = tmp_path / "grades.jsonl"
    with GradeCache(path) as cache:
        for step in grade_steps(pairs, GSM8K, cache):
            lines = path.read_bytes().split(b"\n")
            assert len(lines) == max(step.done - 1, 1) + 1
            assert lines[-1] == b""
            if step.done == 3:
                break
    with GradeCache(path) as cache:
        assert len(cache) == 2


def test_a_grade_is_void_when_the_reference_changes(pairs, counting, tmp_path):
    task, graded = counting
    path = tmp_path / "grades.jsonl"
    with GradeCache(path) as cache:
        list(grade_steps(pairs, task, cache))
        graded.clear()
        moved = [
            dataclasses.replace(pair, example=dataclasses.replace(pair.example, reference="6"))
            for pair in pairs
        ]
        grades = paired_grades(
            pairs, grade_steps(dataclasses.replace(pairs, pairs=tuple(moved)), task, cache)
        )
    assert len(graded) == NUM_TEXTS
    assert [grade.strict.is_right for grade in grades] == [False, False, True, False]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"task": "gsm8k"}',
        b'{"task": "t", "id": "i", "sha256": "s", "example": "e", "is_right": 1, '
        b'"extracted": null, "detail": "", "measures": {}}',
        b'{"task": "t", "id": "i", "sha256": "s", "example": "e", "is_right": null, '
        b'"extracted": null, "detail": "", "measures": {"a": "b"}}',
    ],
)
def test_a_line_that_is_no_grade_is_named_and_left_alone(tmp_path, line):
    path = tmp_path / "grades.jsonl"
    path.write_bytes(line + b"\n")
    for _ in range(2):  # the lock is given back, too
        with pytest.raises(AuditError, match=r"grades\.jsonl, line 1: .*(got|missing).*allowed"):
            GradeCache(path)
        assert path.read_bytes() == line + b"\n"


def test_two_gradings_cannot_write_one_file(tmp_path):
    path = tmp_path / "grades.jsonl"
    with GradeCache(path), pytest.raises(AuditError, match="another process is writing it"):
        GradeCache(path)
    GradeCache(path).close()
    with pytest.raises(AuditError, match="cannot be written"):
        GradeCache(path / "below")


def test_what_cannot_be_graded_is_named(pairs):
    def failing(example, answers):
        raise ExampleError("reference: got None, allowed is a text")

    with pytest.raises(AuditError, match="g/0, strict: cannot be graded: reference: got None"):
        list(grade_steps(pairs, GSM8K._replace(grade=failing)))
    with pytest.raises(AuditError, match="g/0: task: got 'gsm8k', allowed is 'mmlu'"):
        list(grade_steps(pairs, TASKS["mmlu"]))
    undecided = GSM8K._replace(grade=lambda example, answers: Grade(None, None, ""))
    with pytest.raises(AuditError, match="is_right: got None, allowed is True or False"):
        list(grade_steps(pairs, undecided))
