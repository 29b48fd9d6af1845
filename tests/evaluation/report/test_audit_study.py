"""What the audit writes is a study that the page shows, with nothing left out."""

from __future__ import annotations

import json

import pytest

from asd_jax.evaluation.audit import (
    compare,
    grade_steps,
    make_study,
    paired_grades,
    read_pairs,
    write_study,
)
from asd_jax.evaluation.report import StudyError, render_report
from asd_jax.evaluation.tasks import TASKS
from tests.evaluation.audit.synthetic_rows import EXAMPLES, QUICK, ROWS, decode, write_rows
from tests.evaluation.report.studies import answers_of, make_task, parse


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    pairs = read_pairs(write_rows(folder / "output.jsonl", ROWS), EXAMPLES)
    grades = paired_grades(pairs, grade_steps(pairs, TASKS["gsm8k"]))
    task = compare(pairs, grades, TASKS["gsm8k"], decode, bootstrap=QUICK)
    study = make_study({"gsm8k": task}, pairs.run, controls={"budget": 4}, bootstrap=QUICK)
    write_study(folder / "study.json", study)
    return json.loads((folder / "study.json").read_text(encoding="utf-8"))


def test_the_audits_study_is_shown_whole(audited):
    root = parse(render_report(audited))
    text = root.all("main")[0].text
    assert "does not show" not in text
    for name in ("acceptance", "spent", "places"):
        assert len(root.all("svg", name)) == 1
    rows = {
        row.all("th")[0].text: row.all("td")[-1].text for row in root.all("tr")[1:] if row.all("td")
    }
    assert rows["Answers that differ, %"].startswith("75.0 [")
    assert rows["Prompts without an answer from ASD"] == "0"
    assert rows["Only ASD stopped by itself, turns"] == "1"


def test_the_audits_answers_are_carried_with_their_exceptions(audited):
    (task,) = answers_of(parse(render_report(audited)))
    told = {answer["id"]: answer for answer in task["answers"]}
    assert told["g/1"]["strict"]["is_right"] and not told["g/1"]["asd"]["is_right"]
    (mark,) = (p["exception"] for p in told["g/1"]["asd"]["pieces"] if p["exception"])
    assert (mark["position"], mark["regret"]) == (7, 1.5)


def test_throughput_may_stand_beside_the_tasks(audited):
    timing = make_task(3)["throughput"]
    text = parse(render_report(audited | {"throughput": {"gsm8k": timing}})).all("main")[0].text
    assert "+5.0\u00a0% (95\u00a0% interval +4.0 to +6.0) on gsm8k" in text
    with pytest.raises(StudyError, match="throughput.other: is no task"):
        render_report(audited | {"throughput": {"other": timing}})


def test_an_undefined_figure_is_not_measured(audited):
    study = json.loads(json.dumps(audited))
    study["tasks"]["gsm8k"]["length"]["change_percent"]["high"] = None
    parse(render_report(study))
    study["tasks"]["gsm8k"]["accuracy"]["difference"]["high"] = None
    with pytest.raises(StudyError, match="accuracy.difference: has null"):
        render_report(study)


def test_the_page_needs_no_field_of_the_audit(audited):
    task = audited["tasks"]["gsm8k"]
    for name in task:
        parse(render_report(audited | {"tasks": {"gsm8k": task | {name: None}}}))


def test_a_judges_ratings_stand_beside_the_tasks(audited):
    def rated(estimate):
        return {
            "estimate": estimate,
            "low": estimate - 0.25,
            "high": estimate + 0.25,
            "confidence": 0.95,
        }

    judge = {"strict": rated(6.5), "asd": rated(6.0), "difference": rated(-0.5)}
    told = {"mt_bench": judge | {"model": "a judge", "num": 80}}
    root = parse(render_report(audited | {"judge": told}))
    (row,) = (
        [cell.text for cell in row.all("td")]
        for row in root.all("tr")
        if row.all("th") and row.all("th")[0].text == "mt_bench"
    )
    assert row[:2] == ["a judge", "80"]
    assert row[2].startswith("6.50 [") and row[4].startswith("\u22120.50 [")
    assert "does not show" not in root.all("main")[0].text
    wrong = {"mt_bench": told["mt_bench"] | {"strict": rated(11.0)}}
    with pytest.raises(StudyError, match=r"judge\.mt_bench\.strict"):
        render_report(audited | {"judge": wrong})
