"""Which letter an answer settles on."""

import pytest

from asd_jax.evaluation.grading.letter import choice_letter, grade_letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" b ", "B"),
        ("(c)", "C"),
        ("B.", "B"),
        ("**B**", "B"),
        ("B. because light is stored", "B"),
        ("B) Chemical energy", "B"),
        ("**D. 120 km/h**", "D"),
        ("The answer is (B)", "B"),
        ("The answer is B.", "B"),
        ("the correct answer is **B. Chemical energy**", "B"),
        ("Answer: C", "C"),
        ("**Answer:** C", "C"),
        ("The correct option would be D, since speed is distance over time.", "D"),
        ("I choose option A.", "A"),
        ("Thus the best choice is: [C]", "C"),
        (r"So $\boxed{B}$", "B"),
        (r"So \boxed{\text{(D)}}", "D"),
        (r"\boxed{B. 60 km/h}", "B"),
        (r"The answer is A. No: \boxed{B}", "B"),
        ("A. is wrong, so is D.\nThe answer is C.", "C"),
        ("A. too slow\nB. too slow\nD. right\nThe answer: D", "D"),
        ("It must be (C) because the price rises.", "C"),
        ("Option B is wrong. The answer is A", "A"),
        ("The answer is A because it is first", "A"),
        ("The answer is B because light is stored", "B"),
        ("(B) Chemical energy", "B"),
        ("B, since light is stored", "B"),
        ("<think>\nMaybe (A), or B.\n</think>\n\nC", "C"),
        ("C - since the price rises", "C"),
        # None: ambiguous, or no letter at all
        ("The answer is A. The answer is B.", None),
        ("A. one\nB. two", None),
        ("(A) or (B)", None),
        ("A or B", None),
        ("A, B", None),
        ("The answer is A or B", None),
        ("The answer is (B) or (C)", None),
        ("The answer is B and C.", None),
        ("A good question about plants.", None),
        ("Alpha", None),
        ("The answer is a matter of taste", None),
        ("The answer is A matter of taste", None),
        ("The answer is E", None),
        ("Bananas", None),
        ("A's value", None),
        ("The answer is Chemical energy", None),
        (r"\boxed{7}", None),
        ("", None),
    ],
)
def test_the_letter_of(text, letter):
    assert choice_letter(text) == letter


def test_an_ambiguous_answer_is_wrong():
    grade = grade_letter("A or B: (A), (B)", "A")
    assert (grade.is_right, grade.extracted) == (False, None)
    assert grade_letter("A", "A").is_right is True
    assert grade_letter("A", "B").is_right is False


def test_a_reference_that_is_no_letter_is_refused():
    with pytest.raises(ValueError, match="reference: got 'E', allowed is A, B, C or D"):
        grade_letter("A", "E")
