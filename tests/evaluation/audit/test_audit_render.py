"""The study as JSON and as Markdown: the documented keys, and wording that claims nothing."""

import json

import pytest

from asd_jax.evaluation.audit import (
    compare,
    grade_steps,
    make_study,
    paired_grades,
    read_pairs,
    to_markdown,
    write_study,
)
from asd_jax.evaluation.tasks import TASKS
from tests.evaluation.audit.synthetic_rows import (
    EXAMPLES,
    QUICK,
    ROWS,
    decode,
    encode,
    make_example,
    make_row,
    write_rows,
)


def comparison(path, task, examples, **options):
    pairs = read_pairs(path, examples, **options)
    grades = paired_grades(pairs, grade_steps(pairs, TASKS[task]))
    return pairs.run, compare(pairs, grades, TASKS[task], decode, bootstrap=QUICK)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("render")
    run, graded = comparison(write_rows(folder / "g.jsonl", ROWS), "gsm8k", EXAMPLES)
    asked = [make_example(f"a|{i}", "alpaca", "one two") for i in range(4)]
    rows = [make_row(e.id, "strict", encode("one two")) for e in asked]
    rows += [make_row(e.id, "asd", encode("one")) for e in asked[:3]]
    path = write_rows(folder / "a.jsonl", rows)
    _, ungraded = comparison(path, "alpaca", asked, allow_missing=True)
    return make_study(
        {"gsm8k": graded, "alpaca": ungraded},
        run,
        controls={"budget_0": {"same": 4}},
        throughput={"ratio": 1.1},
        bootstrap=QUICK,
    )


INTERVAL = {"estimate", "low", "high", "confidence", "method", "num_units"}


def test_the_json_has_the_documented_keys(study, tmp_path):
    write_study(tmp_path / "study.json", study)
    document = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert document == study.to_json()
    assert set(document) == {"run", "controls", "tasks", "mean", "throughput", "frontier"}
    assert document["controls"] == {"budget_0": {"same": 4}}
    assert (document["throughput"], document["frontier"]) == ({"ratio": 1.1}, None)
    assert document["run"]["target"]["name"] == "tiny"
    task = document["tasks"]["gsm8k"]
    assert set(task) == {
        "num",
        "missing",
        "is_graded",
        "accuracy",
        "overlap_not_quality",
        "length",
        "divergence",
        "first_divergence",
        "stops",
        "exceptions",
        "acceptance",
        "worst",
    }
    assert set(task["accuracy"]["difference"]) == INTERVAL
    assert task["worst"][0]["pieces"] == [
        ["\\boxed{", None],
        ["6", {"position": 7, "draft": "6", "target": "5", "regret": 1.5, "num": 1}],
        ["}", None],
    ]
    assert document["tasks"]["alpaca"]["accuracy"] is None
    overlap = document["tasks"]["alpaca"]["overlap_not_quality"]
    assert (overlap["num"], overlap["strict"]["estimate"]) == (3, 1.0)
    assert overlap["asd"]["estimate"] == pytest.approx(2 / 3)


def test_markdown_says_what_the_numbers_are(study):
    text = to_markdown(study)
    assert text == to_markdown(json.loads(json.dumps(study.to_json())))
    accuracy = study.tasks["gsm8k"].accuracy
    low, high = (100 * end for end in (accuracy.difference.low, accuracy.difference.high))
    assert f"+0.00 [{low:+.2f}, {high:+.2f}], holds 0" in text
    assert "It is not quality" in text
    assert "No quality was measured on alpaca" in text
    assert "+113" not in text
    assert "**alpaca: answers are missing (0 of arm strict, 1 of arm asd).**" in text
    assert "| gsm8k | 3 | 1 | g/1 |" in text
    assert "| gsm8k | ASD | 80.0 26.7 6.7 |" in text
    assert "| 1 0 0 0 1 0 1 1 0 0 |" in text
    assert text.endswith("|\n")


def test_tables_have_as_many_cells_as_heads(study):
    lines = to_markdown(study).splitlines()
    for above, line in zip(lines, lines[1:], strict=False):
        if above.startswith("|") and line.startswith("|"):
            assert line.replace("\\|", "").count("|") == above.replace("\\|", "").count("|")


def test_an_ungraded_study_speaks_of_no_right_answers(study):
    only = {"alpaca": study.tasks["alpaca"]}
    text = to_markdown(make_study(only, study.run, bootstrap=QUICK))
    assert "Right answers" not in text
    assert "McNemar" not in text
