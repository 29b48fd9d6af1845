"""The page as a document: it parses, asks for nothing, says what is missing and hides nothing."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from asd_jax.evaluation.report import render_report, write_report
from tests.evaluation.report.studies import (
    TASKS,
    answers_of,
    interval,
    make_answer,
    make_study,
    make_task,
    parse,
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script> ]]> --> <img src=https://example.com/x.png onerror=alert(1)>",
    "\"><svg onload=alert(1)> &amp; &lt; ' `",
    "line\u2028separator\u2029paragraph \x00 null \x1b[31m \x7f \x9f",
    "lone \ud800 and \udfff surrogates",
    "turned \u202e around \u2066",
    "$\\frac{1}{2}$ \\u003c/script\\u003e {{x}} ${x}",
    "x" * 50_000,
]
ELEMENTS_THAT_LOAD = {"link", "img", "iframe", "object", "embed", "base", "image", "use", "video"}


def test_the_page_parses_and_asks_for_nothing_outside():
    root = parse(render_report(make_study()))
    for node in root.walk():
        assert node.name not in ELEMENTS_THAT_LOAD
        loads = {"src", "href", "xlink:href", "srcset", "action", "style"}
        assert not loads & node.attributes.keys()
        assert not [name for name in node.attributes if name.startswith("on")]
        assert "http" not in " ".join(
            v or "" for k, v in node.attributes.items() if k != "http-equiv"
        )
    (style,) = root.all("style")
    assert not re.search(r"url\(|@import|http", style.text)
    assert not re.search(r"fetch|XMLHttp|import\(|http|innerHTML|eval", root.all("script")[-1].text)


def test_the_policy_allows_only_the_pages_own_style_and_script():
    root = parse(render_report(make_study()))
    (policy,) = (n for n in root.all("meta") if "http-equiv" in n.attributes)
    rule = policy.attributes["content"]
    assert rule.startswith("default-src 'none'") and "unsafe" not in rule
    for node in (root.all("style")[0], root.all("script")[-1]):
        digest = base64.b64encode(hashlib.sha256(node.text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in rule


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_of_the_study_leaves_its_place(text, tmp_path):
    study = make_study()
    plain = [node.name for node in parse(render_report(study)).walk()]
    answer = make_answer(text)
    answer |= {"id": text, "turns": [text], "reference": text}
    answer["asd"]["pieces"][1] = [text, {"draft": text, "target": text, "regret": 1.0}]
    study["tasks"]["gsm8k"]["worst"] = [answer]
    study["run"]["command"] = text
    study["controls"]["status"] = text
    study["frontier"][4]["rule"] = text
    study["tasks"]["gsm8k"]["throughput"]["reasons"] = [text]
    write_report(study, tmp_path / "page.html")
    root = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [node.name for node in root.walk()] == plain
    (shown,) = (task["answers"] for task in answers_of(root) if task["task"] == "gsm8k")
    assert shown[0]["strict"]["text"] == text
    assert shown[0]["asd"]["pieces"][1]["text"] == text
    if text.isprintable() and len(text) < 1000:
        assert text in [node.text for node in root.all("code")]


@pytest.mark.parametrize("text", HOSTILE[:5], ids=range(5))
def test_a_task_may_have_any_name(text):
    study = make_study()
    study["tasks"] = {text: make_task()}
    root = parse(render_report(study))
    assert len(root.all("details", "task")) == 1
    assert answers_of(root)[0]["task"] == text


def test_the_carried_answers_are_ascii_without_markup():
    study = make_study()
    study["tasks"]["gsm8k"]["worst"] = [make_answer(text) for text in HOSTILE]
    page = render_report(study)
    carried = page.split('id="answers">')[1].split("</script>")[0]
    assert carried.isascii() and not set("<>&\n\x00") & set(carried)


def test_every_part_may_be_missing():
    whole = make_study()
    for part in whole.keys() - {"run"}:
        for missing in ({k: v for k, v in whole.items() if k != part}, whole | {part: None}):
            parse(render_report(missing))
    for field in whole["tasks"]["gsm8k"]:
        study = make_study()
        for task in study["tasks"].values():
            task[field] = None
        assert parse(render_report(study)).all("main")


def test_a_study_of_nothing_says_so():
    text = parse(render_report({"run": {}})).all("main")[0].text
    for sentence in (
        "The gain in throughput was not measured.",
        "The change in accuracy was not measured.",
        "The protocol's gates were not run",
        "there is no frontier to draw",
        "No task was measured.",
        "no exception can be shown",
    ):
        assert sentence in text


def test_a_task_of_nothing_says_so():
    text = parse(render_report({"run": {}, "tasks": {"gsm8k": {}}})).all("main")[0].text
    for sentence in (
        "Throughput was not measured on any task.",
        "Accuracy was not measured on any task.",
        "Acceptance by draft position was not measured on any task.",
        "Regret over the course of answers was not measured on any task.",
        "Where exceptions fall was not measured on any task.",
        "There is no measure of quality for gsm8k.",
    ):
        assert sentence in text


def test_one_task_without_a_mean_speaks_for_itself():
    study = make_study()
    del study["mean"]
    study["tasks"] = {"gsm8k": make_task(3)}
    text = parse(render_report(study)).all("ul", "findings")[0].text
    assert "+5.0\u00a0% (95\u00a0% interval +4.0 to +6.0) on gsm8k" in text
    assert "The gates hold on gsm8k, the one timed task" in text


def test_tasks_without_answers_are_left_out_of_the_browser():
    study = make_study()
    study["tasks"]["gsm8k"]["worst"] = []
    assert [task["task"] for task in answers_of(parse(render_report(study)))] == list(TASKS[1:])
    for task in study["tasks"].values():
        task["worst"] = []
    root = parse(render_report(study))
    assert not [n for n in root.walk() if n.attributes.get("id") in ("answers", "browser")]


def test_tables_have_captions_headers_and_numbers_to_the_right():
    root = parse(render_report(make_study()))
    assert len(root.all("table")) >= 4 + 2 * len(TASKS)
    for table in root.all("table"):
        assert table.all("caption")[0].text
        columns = table.all("thead")[0].all("th")
        assert all(th.attributes["scope"] == "col" for th in columns)
        for row in table.all("tbody")[0].all("tr"):
            cells = [n for n in row.children if not isinstance(n, str)]
            assert len(cells) == len(columns)
            assert cells[0].name == "th" and cells[0].attributes["scope"] == "row"
            for cell, head in zip(cells, columns, strict=True):
                assert ("num" in cell.classes) == ("num" in head.classes)


def test_figures_are_named_for_those_who_do_not_see_them():
    root = parse(render_report(make_study()))
    for svg in root.all("svg"):
        assert svg.attributes.get("aria-label") or svg.attributes.get("aria-hidden") == "true"
    ids = [node.attributes["id"] for node in root.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    for node in root.walk():
        assert node.attributes.get("aria-labelledby", ids[0]) in ids


def test_fields_that_are_not_shown_are_named():
    study = make_study() | {"colour": "blue"}
    study["tasks"]["gsm8k"]["acuracy"] = interval(0.5, 0.1)
    text = parse(render_report(study)).all("main")[0].text
    assert "does not show: colour tasks.gsm8k.acuracy" in text
    assert "does not show" not in parse(render_report(make_study())).all("main")[0].text
