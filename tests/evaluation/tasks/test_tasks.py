"""Every task on its samples and on literal answers, right and wrong."""

import dataclasses

import pytest

from asd_jax.evaluation.tasks import TASKS, Example, ExampleError, read_examples, sample_path
from benchmarks.graders import known_answer, returns_none

SAMPLES = {name: read_examples(sample_path(name), name) for name in TASKS}
GRADED = [name for name in TASKS if TASKS[name].is_graded]
BOX = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def test_the_tasks_are_the_seven():
    names = ["gsm8k", "math500", "humaneval", "mbpp", "mmlu", "mt_bench", "alpaca"]
    assert list(TASKS) == names and [TASKS[name].name for name in names] == names
    assert GRADED == names[:5]


@pytest.mark.parametrize("name", TASKS)
def test_samples_are_a_handful_in_equal_splits(name):
    splits = [example.split for example in SAMPLES[name]]
    assert 6 <= len(splits) <= 8
    assert splits.count("calibration") == splits.count("audit")


@pytest.mark.parametrize("name", GRADED)
def test_the_reference_is_right_and_anothers_is_wrong(name):
    task, examples = TASKS[name], SAMPLES[name]
    for number, example in enumerate(examples):
        grade = task.grade(example, [known_answer(example)])
        assert grade.is_right is True, (example.id, grade)
        other = next(
            other
            for other in (*examples[number:], *examples)
            if other.reference != example.reference
        )
        assert task.grade(example, [known_answer(other)]).is_right is False, example.id
        assert task.grade(example, ["I do not know."]).is_right is False, example.id
        assert task.grade(example, [""]).is_right is False, example.id


def test_the_worked_solutions_of_the_samples_are_right():
    for example in SAMPLES["math500"]:
        assert TASKS["math500"].grade(example, [example.meta["solution"]]).is_right, example.id


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_a_function_that_returns_none_is_wrong(name):
    for example in SAMPLES[name]:
        assert TASKS[name].grade(example, [returns_none(example)]).is_right is False, example.id


def test_forms_in_which_a_function_is_answered():
    grade, stub = TASKS["humaneval"].grade, SAMPLES["humaneval"][2]
    body = stub.reference
    whole = f"def seat_labels(rows, seats):\n{body}"
    annotated = f"def seat_labels(rows: int, seats: int) -> List[str]:\n{body}"
    for answer in (
        body,  # the body by itself
        whole,
        f"```\n{whole}```",
        f"```python\n{whole}",  # cut off before the fence closes
        f"Sure!\n\n{whole}",
        f"```python\n{body}```",
        f"```python\ndef seat_labels(a, b):\n    return None\n```\nBetter:\n```py\n{whole}```",
        f"```python\n{whole}```\nUse it:\n```python\nprint(seat_labels(1, 1))\n```",
        f"```sh\npip install x\n```\n```python\n{whole}```",
        f"```python\nN = 65\n{whole}```",
        f"<think>\n```python\ndef seat_labels(a, b): return 1\n```\n</think>\n\n{whole}",
        f"```python\n{annotated}```",  # with the import of the stub
    ):
        assert grade(stub, [answer]).is_right, answer
    helped = SAMPLES["humaneval"][3]
    answer = f"```python\ndef digit_walk(number):\n{helped.reference}```"  # calls the stub's `step`
    assert grade(helped, [answer]).is_right


def test_the_stub_does_not_stand_in_for_a_missing_function():
    example = SAMPLES["humaneval"][0]
    grade = TASKS["humaneval"].grade(example, ["def longest_plateau(h): pass\ndel longest_plateau"])
    assert not grade.is_right and "NameError" in grade.detail
    none = dict(example.meta) | {"test": "def check(f):\n    assert f([]) is None\n"}
    quoted = "```python\n'''\ndef longest_plateau(heights): return None\n'''\n```"
    grade = TASKS["humaneval"].grade(dataclasses.replace(example, meta=none), [quoted])
    assert not grade.is_right and "NameError" in grade.detail


def test_hostile_answers_fail_and_the_next_is_graded():
    example = SAMPLES["mbpp"][0]
    for act in ("import os; os._exit(0)", "print('passed'); raise SystemExit(0)", "'''"):
        answer = f"```python\n{example.reference}\n{act}\n```"
        assert TASKS["mbpp"].grade(example, [answer]).is_right is False
    assert TASKS["mbpp"].grade(example, [known_answer(example)]).is_right is True


def test_prompts_are_the_turns_with_the_instruction_of_the_task():
    for name in ("gsm8k", "math500"):
        example = SAMPLES[name][0]
        assert TASKS[name].prompt(example) == (example.turns[0] + BOX,)
    example = SAMPLES["mmlu"][0]
    (prompt,) = TASKS["mmlu"].prompt(example)
    assert prompt.startswith(example.turns[0]) and "letter" in prompt[len(example.turns[0]) :]
    for name in ("humaneval", "mbpp", "mt_bench", "alpaca"):
        for example in SAMPLES[name]:
            assert TASKS[name].prompt(example) == example.turns


def test_open_questions_are_described_and_not_graded():
    example = SAMPLES["alpaca"][1]
    same = TASKS["alpaca"].grade(example, [example.reference])
    assert same.is_right is None and "not a quality score" in same.detail
    assert same.measures == {"words": 9.0, "overlap_not_quality": 1.0}
    other = TASKS["alpaca"].grade(example, ["The gardener slept."])
    assert other.measures["overlap_not_quality"] == pytest.approx(2 * 2 / (3 + 9))
    assert TASKS["alpaca"].grade(example, [""]).measures["overlap_not_quality"] == 0.0
    without = SAMPLES["mt_bench"][0]
    grade = TASKS["mt_bench"].grade(without, ["one two", "three"])
    assert grade.is_right is None and grade.measures == {"words": 3.0}


@pytest.mark.parametrize("name", TASKS)
def test_another_number_of_answers_is_refused(name):
    example = SAMPLES[name][0]
    for answers in ([], ["a", "b", "c"]):
        with pytest.raises(ValueError, match=f"{example.id}: answers: got {len(answers)}"):
            TASKS[name].grade(example, answers)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8k", "reference: got None"),
        ("math500", "reference: got None"),
        ("mmlu", "reference: got None"),
        ("humaneval", "meta.prompt: got None, allowed is a str"),
        ("mbpp", "meta.test_list: got None, allowed is a list"),
    ],
)
def test_an_example_that_cannot_be_graded_says_why(name, message):
    bare = Example("bare", name, "audit", ("?",), None, {})
    with pytest.raises(ExampleError, match=f"bare: {message}"):
        TASKS[name].grade(bare, ["A"])


def test_a_task_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="task: got 'gsm9k', allowed are gsm8k, math500"):
        sample_path("gsm9k")
