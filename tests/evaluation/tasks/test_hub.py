"""Rows of the public data sets, by their columns, as examples."""

import sys
import types

import pytest

from asd_jax.evaluation.tasks import TASKS, ExampleError, read_hub
from experiments.fields import ConfigError
from experiments.study import HUB, TaskFields, read_task

ROWS = {
    "gsm8k": {"question": "How many?", "answer": "1 + 2 = 3\n#### 1,003"},
    "math500": {
        "problem": "Find $x$.",
        "solution": "It is $\\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    "humaneval": {
        "task_id": "HumanEval/7",
        "prompt": "def f(x):\n    '''Return x.'''\n",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(3) == 3\n",
        "entry_point": "f",
    },
    "mbpp": {
        "task_id": 11,
        "text": "Write a function to return 1.",
        "code": "def one():\r\n    return 1",
        "test_list": ["assert one() == 1"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    "mmlu": {"question": " Which? ", "subject": "law", "choices": list("wxyz"), "answer": 2},
    "mt_bench": {"category": "math", "prompt": ["1?", "2?"], "reference": ["a"], "prompt_id": 111},
    "alpaca": {"instruction": "Sort.", "input": "b a", "output": "a b", "text": "..."},
}
EXPECTED = {
    "gsm8k": ("gsm8k/test/0", ("How many?",), "1003"),
    "math500": ("math500/test/algebra/1.json", ("Find $x$.",), "2"),
    "humaneval": ("humaneval/7", None, "    return x\n"),
    "mbpp": ("mbpp/11", None, "def one():\n    return 1"),
    "mmlu": ("mmlu/test/law/0", ("Which?\nA. w\nB. x\nC. y\nD. z",), "C"),
    "mt_bench": ("mt_bench/111", ("1?", "2?"), "a"),
    "alpaca": ("alpaca/89b8aa869bb3", ("Sort.\n\nInput:\nb a",), "a b"),
}


# Splits that the public data sets really have (gsm8k main, mbpp full, mmlu all), and where our
# calibration and audit questions are in them. MATH-500 is a test set alone.
ON_THE_HUB = {
    "gsm8k": {"train", "test"},
    "math500": {"test"},
    "humaneval": {"test"},
    "mbpp": {"train", "test", "validation", "prompt"},
    "mmlu": {"auxiliary_train", "dev", "validation", "test"},
    "mt_bench": {"train"},
    "alpaca": {"train"},
}
SPLITS = {
    "gsm8k": {"calibration": "train", "audit": "test"},
    "math500": {"audit": "test"},
    "humaneval": {"calibration": "test", "audit": "test"},
    "mbpp": {"calibration": "train", "audit": "test"},
    "mmlu": {"calibration": "dev", "audit": "test"},
    "mt_bench": {"calibration": "train", "audit": "train"},
    "alpaca": {"calibration": "train", "audit": "train"},
}


@pytest.fixture
def hub(monkeypatch):
    """Puts a `datasets` in place that gives out `hub.rows` and notes what was asked for."""
    module = types.ModuleType("datasets")
    module.rows, module.asked = [], []

    def load_dataset(path, config, *, split):
        module.asked.append((path, config, split))
        if isinstance(module.rows, Exception):
            raise module.rows
        return module.rows

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


@pytest.mark.parametrize("name", TASKS)
def test_a_row_becomes_an_example_that_can_be_graded(hub, name):
    hub.rows = [ROWS[name]]
    (example,) = read_hub(TASKS[name])
    own, turns, reference = EXPECTED[name]
    assert (example.id, example.reference) == (own, reference)
    assert turns is None or example.turns == turns
    owner, title, *config = TASKS[name].hub_id.split("/")
    split = SPLITS[name]["audit"]
    assert hub.asked == [(f"{owner}/{title}", config[0] if config else None, split)]
    answers = {
        "humaneval": ["```python\ndef f(x):\n    return x\n```"],
        "mbpp": ["def one(): return 1"],
        "mt_bench": ["x", "y"],
    }.get(name, [f"\\boxed{{{reference}}}"])
    assert TASKS[name].grade(example, answers).is_right in (True, None)


@pytest.mark.parametrize("split", ["calibration", "audit"])
@pytest.mark.parametrize("name", SPLITS)
def test_a_study_reads_splits_that_there_are(hub, name, split):
    hub.rows = [ROWS[name]]
    if name == "humaneval":
        hub.rows = [ROWS[name] | {"task_id": f"HumanEval/{n}"} for n in range(20)]
    if name == "mt_bench":
        hub.rows = [ROWS[name] | {"prompt_id": n} for n in range(81, 161)]
    if name == "alpaca":
        hub.rows = [ROWS[name] | {"input": str(n)} for n in range(30)]
    tasks = TaskFields(names=(name,), data=HUB, limit=0)
    wanted = SPLITS[name].get(split)
    if wanted is None:
        with pytest.raises(ConfigError, match=f"tasks.data: got hub, where {name} has no {split}"):
            read_task(tasks, name, split)
        return
    examples = read_task(tasks, name, split)
    assert examples and {example.split for example in examples} == {split}
    assert [asked[2] for asked in hub.asked] == [wanted]
    assert wanted in ON_THE_HUB[name]


def test_the_split_is_the_rows_own_or_told_by_the_hubs(hub):
    hub.rows = [ROWS["gsm8k"], ROWS["gsm8k"] | {"split": "calibration"}]
    assert [e.split for e in read_hub(TASKS["gsm8k"])] == ["audit", "calibration"]
    assert [e.split for e in read_hub(TASKS["gsm8k"], split="train")] == ["calibration"] * 2


def test_sets_with_one_split_are_divided_by_id(hub):
    hub.rows = [ROWS["humaneval"] | {"task_id": f"HumanEval/{n}"} for n in range(164)]
    examples = read_hub(TASKS["humaneval"])
    assert [e.split for e in examples].count("calibration") == 40
    assert examples[1].split == "calibration"
    hub.rows = [ROWS["mt_bench"] | {"prompt_id": n} for n in range(81, 161)]
    examples = read_hub(TASKS["mt_bench"])
    assert [e.split for e in examples].count("calibration") == 24
    assert (examples[0].split, examples[2].split) == ("audit", "calibration")


def test_the_sanitized_form_of_mbpp(hub):
    row = {
        "task_id": 2,
        "prompt": "Write one.",
        "code": "def one(): return 1",
        "test_imports": ["import math"],
        "test_list": ["assert math.floor(one()) == 1"],
    }
    hub.rows = [row]
    (example,) = read_hub(TASKS["mbpp"], "google-research-datasets/mbpp/sanitized")
    assert example.meta["test_setup_code"] == "import math"
    assert TASKS["mbpp"].grade(example, [example.reference]).is_right is True


def test_what_cannot_be_read_is_named(hub):
    task = TASKS["gsm8k"]
    hub.rows = [{"prompt": "x"}]
    with pytest.raises(ExampleError, match="row 0: column 'question' is missing, there are prompt"):
        read_hub(task)
    hub.rows = [ROWS["gsm8k"], {"question": " ", "answer": "#### 1"}]
    with pytest.raises(ExampleError, match=r"row 1: turns\[0\]: got ' '"):
        read_hub(task)
    hub.rows = []
    with pytest.raises(ExampleError, match="split test: has no rows"):
        read_hub(task)
    hub.rows = OSError("no route")
    with pytest.raises(ExampleError, match="no route"):
        read_hub(task)
    with pytest.raises(ExampleError, match="hub_id: got 'gsm8k', allowed is owner/name"):
        read_hub(task, "gsm8k")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ExampleError, match=r"pip install 'asd_jax\[hub\]'"):
        read_hub(TASKS["gsm8k"])
