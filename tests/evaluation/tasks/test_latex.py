"""Formulas compared by meaning, by a worker that hostile LaTeX cannot hold up."""

import os
import time

import pytest

from asd_jax.evaluation.grading import latex
from asd_jax.evaluation.grading.latex import FormulaComparer, GraderError, grade_formula


@pytest.fixture(scope="module")
def comparer():
    with FormulaComparer(seconds=60.0) as shared:
        yield shared


@pytest.mark.parametrize(
    ("reference", "answer", "is_right"),
    [
        (r"\frac{1}{9}", r"\boxed{\dfrac19}", True),
        (r"\frac{1}{9}", r"\boxed{1/9}", True),
        (r"\frac{1}{9}", r"\boxed{\frac{1}{8}}", False),
        ("9", r"first \boxed{8}, then \boxed{9}", True),
        ("9", r"first \boxed{9}, then \boxed{8}", False),
        ("(-1,4)", r"\boxed{(-1, 4)}", True),
        ("(-1,4)", r"\boxed{[-1, 4]}", False),
        (r"7\sqrt{3}", r"\boxed{\sqrt{147}}", True),
        ("(2y-1)(3y+2)", r"\boxed{(3y+2)(2y-1)}", True),
        (r"25\pi", r"\boxed{25 \pi}", True),
        (r"25\pi", r"\boxed{25}", False),
        (r"\text{odd}", r"\boxed{odd}", True),
        (r"\text{odd}", r"\boxed{\text{even}}", False),
        ("9", "It is 9.", False),
        ("9", r"\boxed{}", False),
        ("9", r"\boxed{9", False),
    ],
)
def test_formulas(comparer, reference, answer, is_right):
    assert grade_formula(answer, reference, comparer).is_right is is_right


def test_the_same_text_needs_no_worker():
    idle = FormulaComparer()
    assert idle.compare(r"\frac{1} {2}", r"\frac{1}{2}").is_equal
    assert idle._process is None


def test_a_formula_without_end_is_given_up_and_the_next_compared():
    with FormulaComparer(seconds=5.0) as comparer:
        assert comparer.compare("2", "1+1").is_equal
        first = comparer._process.pid
        start = time.monotonic()
        outcome = comparer.compare("2", "9^{9^{9^{9^{9}}}}")
        assert not outcome.is_equal and "not compared within 5 s" in outcome.detail
        assert time.monotonic() - start < 30
        assert comparer.compare("2", r"\sqrt{4}").is_equal
        assert comparer._process.pid != first


@pytest.mark.parametrize(
    "answer",
    [
        "\\frac{" * 40,
        "}{",
        "\\",
        "\0",
        "\ud800",
        "9\n9",
        "1" * 3000,
        "__import__('os')._exit(0)",
        "\\input{/etc/passwd}",
    ],
)
def test_nonsense_is_wrong_and_harmless(comparer, answer):
    assert not comparer.compare("2", answer).is_equal
    assert comparer.compare("2", "4/2").is_equal


def test_a_worker_that_died_is_replaced(comparer):
    assert comparer.compare("2", "4/2").is_equal
    os.kill(comparer._process.pid, 9)
    comparer._process.wait()
    assert comparer.compare("2", "4/2").is_equal


def test_many_comparisons_are_quick(comparer):
    comparer.compare("2", "4/2")
    start = time.monotonic()
    for number in range(100):
        assert comparer.compare(str(number), f"{number}.0").is_equal
    assert time.monotonic() - start < 4


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("""print('{"missing": "No module named math_verify"}')""")
    monkeypatch.setattr(latex, "_WORKER", worker)
    with pytest.raises(GraderError, match=r"No module named math_verify.*asd_jax\[evaluation\]"):
        FormulaComparer().compare("1", "2")
