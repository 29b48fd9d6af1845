"""Numbers of word problems, by the ASD authors' own cases."""

import json
from pathlib import Path

import pytest

from asd_jax.evaluation.grading.boxed import boxed
from asd_jax.evaluation.grading.numeric import (
    boxed_number,
    grade_number,
    last_number,
    normalize_number,
    reference_number,
)

DATA = Path(__file__).resolve().parents[2] / "data" / "asd_vectors.json"
ANSWERS = [entry for entry in json.loads(DATA.read_text()) if entry["variant"] == "answers"]
READ = {"reference": reference_number, "model": boxed_number, "number": normalize_number}


def test_all_of_the_authors_cases_are_there():
    assert len(ANSWERS) == 8
    assert {entry["expect"]["kind"] for entry in ANSWERS} == set(READ)


@pytest.mark.parametrize("entry", ANSWERS, ids=lambda entry: f"{entry['name']}:{entry['inputs']!r}")
def test_the_authors_cases(entry):
    expect = entry["expect"]
    assert READ[expect["kind"]](entry["inputs"]) == expect["value"]
    if expect["kind"] == "model" and expect["value"] is None:
        assert grade_number(entry["inputs"], "9").is_right is False


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"),
        ("007", "7"),
        (" 12. ", "12"),
        (".50", "0.5"),
        ("+3", "3"),
        ("1{,}200", "1200"),
        ("10\\,000", "10000"),
        ("0.0", "0"),
        ("-0.10", "-0.1"),
        ("100000000000000000001", "100000000000000000001"),
        ("", None),
        (".", None),
        ("--3", None),
        ("1.2.3", None),
        ("3 apples", None),
        ("1e3", None),
        ("٣", None),
        ("x", None),
    ],
)
def test_a_number_has_one_spelling(text, number):
    assert normalize_number(text) == number


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", ["1", r"\frac{1}{2}"]),
        (r"\boxed {\{1,2\}}", [r"\{1,2\}"]),
        (r"\fbox{4}", ["4"]),
        (r"\boxed{cut off", []),
        (r"\boxed{cut \boxed{5} off", ["5"]),
        (r"\boxed{\boxed{3}}", [r"\boxed{3}"]),
        ("no box", []),
    ],
)
def test_boxes_are_found_by_counting_braces(text, contents):
    assert boxed(text) == contents


def test_the_last_box_with_a_number_counts():
    assert boxed_number(r"\boxed{3}, no: \boxed{4} \boxed{\text{cats}}") == "4"


def test_without_a_box_a_number_counts_only_on_request():
    strict = grade_number("The total is $1,250.", "1250")
    assert (strict.is_right, strict.extracted) == (False, None)
    lenient = grade_number("First 3, then the total is $1,250.", "1250", is_box_needed=False)
    assert (lenient.is_right, lenient.extracted) == (True, "1250")
    assert grade_number(r"\boxed{3}, not 4", "4", is_box_needed=False).is_right is False
    assert grade_number("none", "4", is_box_needed=False).is_right is False


@pytest.mark.parametrize(
    ("text", "number"), [("x2 = 5", "5"), ("-3.", "-3"), ("1/2", "2"), ("v1", None), ("", None)]
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


def test_a_reference_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="reference: got 'nine', allowed is a plain number"):
        grade_number("9", "nine")
