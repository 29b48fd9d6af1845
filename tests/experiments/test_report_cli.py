"""The report as a user asks for it: a page, messages, exit status."""

from __future__ import annotations

import json

import pytest

from experiments import report

STUDY = {"run": {"command": "x"}, "mean": {"gain_percent": None}}


def test_a_study_becomes_a_page(tmp_path, capsys):
    study, page = tmp_path / "study.json", tmp_path / "new" / "page.html"
    study.write_text(json.dumps(STUDY))
    assert report.main([str(study), "--output", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == f"written {page}\n"


@pytest.mark.parametrize("name", ["page.html", "public.json"])
def test_a_study_can_be_shown_without_its_texts(name, tmp_path, capsys):
    secret = {"id": "g/1", "turns": ["the question"], "strict": {"text": "first answer"}}
    answer = secret | {"asd": {"pieces": [["second answer", None]]}}
    study, output = tmp_path / "study.json", tmp_path / name
    study.write_text(json.dumps(STUDY | {"tasks": {"gsm8k": {"num": 3, "worst": [answer]}}}))
    command = [str(study), "--output", str(output)]
    assert report.main(command) == 0
    assert "second answer" in output.read_text(encoding="utf-8")
    assert report.main([*command, "--replace", "--without-answers"]) == 0
    written = output.read_text(encoding="utf-8")
    assert "gsm8k" in written and not any(
        text in written for text in ("the question", "first answer", "second answer")
    )
    if name.endswith(".json"):
        assert json.loads(written)["tasks"]["gsm8k"]["num"] == 3
        assert report.main([str(output), "--output", str(tmp_path / "again.html")]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "study.json: cannot be read as JSON"),
        ("[" * 100_000, "study.json: cannot be read as JSON"),
        ("[]", "the study: expected an object"),
        ('{"run": {"seconds": NaN}}', "run.seconds: expected a finite number, got nan"),
        ('{"run": {}, "tasks": {"a": {"num": -1}}}', "tasks.a.num: expected a whole number"),
    ],
)
def test_what_is_no_study_ends_with_status_2(text, message, tmp_path, capsys):
    (tmp_path / "study.json").write_text(text)
    page = tmp_path / "page.html"
    assert report.main([str(tmp_path / "study.json"), "--output", str(page)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not page.exists()


def test_an_output_is_written_over_only_when_asked(tmp_path, capsys):
    study, page = tmp_path / "study.json", tmp_path / "page.html"
    study.write_text(json.dumps(STUDY))
    page.write_text("mine")
    assert report.main([str(study), "--output", str(page)]) == 2
    assert "which exists" in capsys.readouterr().err and page.read_text() == "mine"
    assert report.main([str(study), "--output", str(page), "--replace"]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_missing_file_ends_with_status_2(tmp_path, capsys):
    missing = str(tmp_path / "none.json")
    assert report.main([missing, "--output", str(tmp_path / "page.html")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_wrong_flag_ends_with_status_2():
    with pytest.raises(SystemExit) as ended:
        report.main(["--nothing"])
    assert ended.value.code == 2
