"""An audit as a user meets it: frozen controls in, a study out, and kills that leave no trace."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from asd_jax.evaluation.grading.judge import Judge, Rating
from asd_jax.evaluation.tasks import TASKS, parse_example
from experiments import audit as audit_cli
from tests.experiments.audit_study import (
    FRONTIER,
    THROUGHPUT,
    TURNS,
    config_of,
    controls,
    example,
    interval,
    set_up,
)
from tests.experiments.conftest import Cli

FILES = ("prompts.jsonl", "answers.jsonl", "grades.jsonl", "study.json", "study.md", "report.html")


@pytest.fixture(scope="module")
def place(cli) -> Cli:
    """The command line's folder with what an audit needs."""
    return set_up(cli)


def start(place: Cli, **fields: object) -> subprocess.Popen:
    flags = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.audit", "--config=audit.py", *flags],
        cwd=place.folder, env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def audit(place: Cli, **fields: object) -> tuple[int, str, str]:
    process = start(place, **fields)
    stdout, stderr = process.communicate(timeout=300)
    return process.returncode, stdout, stderr


WITH_OTHERS = {"throughput": "throughput.json", "frontier": "frontier.json", "directory": "whole"}


@pytest.fixture(scope="module")
def whole(place) -> tuple[str, dict, list[dict]]:
    """One audit to the end: its stdout, study and rows."""
    status, stdout, stderr = audit(place, **WITH_OTHERS)
    assert status == 0, stdout + stderr
    study = json.loads((place.folder / "whole" / "study.json").read_text())
    lines = (place.folder / "whole" / "answers.jsonl").read_text().splitlines()
    return stdout, study, [json.loads(line) for line in lines[1:]]


def test_only_audit_questions_are_asked_with_their_tasks_limits(place, whole):
    lines = (place.folder / "whole" / "prompts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == [f"{t}/audit/{n}" for t in TURNS for n in range(3)]
    assert {row["max_new_tokens"] for row in rows} == {20}
    assert rows[0]["turns"][0].endswith("A, B, C or D.")  # as the task asks
    assert {(row["id"], row["arm"]) for row in whole[2]} == {
        (row["id"], arm) for row in rows for arm in ("strict", "asd")
    }
    assert any(row["exceptions"] for row in whole[2])
    assert all(row["completion_tokens"] <= 20 * len(row.get("turns", [0])) for row in whole[2])


def test_figures_are_those_of_the_rows(place, whole):
    _, study, rows = whole
    for task in TURNS:
        own = {
            arm: sorted(
                (row for row in rows if row["arm"] == arm and row["id"].startswith(task)),
                key=lambda row: row["id"],
            )
            for arm in ("strict", "asd")
        }
        found = study["tasks"][task]
        assert found["num"] == 3
        pairs = list(zip(own["strict"], own["asd"], strict=True))
        differing = sum(old["token_ids"] != new["token_ids"] for old, new in pairs)
        assert found["divergence"]["num_different"] == differing
        for arm in own:
            mean = sum(row["completion_tokens"] for row in own[arm]) / 3
            assert found["length"][f"{arm}_mean"] == pytest.approx(mean)
        spent = sum(row["ledger"]["spent"] for row in own["asd"]) / 3
        assert found["exceptions"]["regret_per_answer"]["estimate"] == pytest.approx(spent)
        if task == "mmlu":
            right = [
                TASKS[task].grade(parse_example(example(task, n, "audit")), [row["text"]]).is_right
                for n, row in enumerate(own["asd"])
            ]
            assert found["accuracy"]["asd"]["estimate"] == pytest.approx(sum(right) / 3)
    assert study["tasks"]["mt_bench"]["accuracy"] is None
    assert study["tasks"]["mt_bench"]["overlap_not_quality"]["num"] == 3
    assert study["mean"]["graded_tasks"] == ["mmlu"]


def test_the_study_says_what_was_run_and_what_others_measured(place, whole):
    stdout, study, _ = whole
    frozen = controls(place)
    assert study["controls"]["fingerprint"] == frozen.fingerprint
    assert study["controls"]["budget"] == "inf" and study["controls"]["gate"] == 3.0
    assert study["controls"]["chosen"] == {"method": "risk", "epsilon": 0.02, "table": "99 items"}
    run = study["run"]
    assert run["config"]["verifier"]["budget"] == "inf" and run["config"]["num_draft_tokens"] == 4
    assert run["target"]["digest"] == frozen.target and run["device"]["platform"] == "cpu"
    assert {"versions", "commit", "compared_at_commit"} <= run.keys()
    assert run["longest_answers"] == {"mmlu": 20, "mt_bench": 20}
    told = (place.folder / "whole" / "study.md").read_text()
    assert "Longest answers, tokens a turn: mmlu 20, mt_bench 20." in told
    assert run["command"].startswith("python -m experiments.audit --config=audit.py ")
    assert study["mean"]["gain_percent"] == THROUGHPUT["mean"]["gain_percent"]
    assert study["throughput"]["mt_bench"] == {
        "gain_percent": interval(5.0), "valid": True, "drift_percent": 0.5, "reasons": [],
    }  # fmt: skip
    assert [point.get("is_frozen") for point in study["frontier"]] == [None, True]
    assert "spare" not in study["frontier"][0] and study["frontier_units"] == FRONTIER["units"]
    page = (place.folder / "whole" / "report.html").read_text()
    assert "ASD decodes more tokens a second than strict decoding" in page
    assert frozen.fingerprint in page and "typical" in page
    tables = (place.folder / "whole" / "study.md").read_text()
    assert "| mmlu | +7.00 [+6.00, +8.00] | +0.50 | yes |" in tables
    assert f"| fingerprint | {frozen.fingerprint} |" in tables
    assert "mmlu: answers are cut at 20 tokens a turn; the task's own limit is 64" in stdout
    assert "mmlu: graded 6 of 6 answers" in stdout and "in whole" in stdout


def test_cut_short_it_goes_on_and_ends_with_the_same_files(place, whole):
    folder = place.folder / "whole"
    before = {name: (folder / name).read_bytes() for name in FILES}
    answers, grades = before["answers.jsonl"], before["grades.jsonl"]
    (folder / "answers.jsonl").write_bytes(answers[: len(answers) * 2 // 3])
    (folder / "grades.jsonl").write_bytes(grades[: len(grades) // 2])
    for name in ("study.json", "study.md", "report.html"):
        (folder / name).unlink()
    status, stdout, stderr = audit(place, **WITH_OTHERS)
    assert status == 0, stdout + stderr
    assert {name: (folder / name).read_bytes() for name in FILES} == before


def in_process(place: Cli, monkeypatch, directory: str, **fields: object) -> dict:
    """Compares the answers of the whole audit again, in a folder of their own."""
    monkeypatch.chdir(place.folder)
    if not (place.folder / directory).exists():
        shutil.copytree("whole", directory)
    assert audit_cli.run(config_of(directory=directory, **fields), "audit") == 0
    return json.loads((place.folder / directory / "study.json").read_text())


def test_grades_that_are_there_are_not_made_again(place, whole, monkeypatch, capfd):
    lines = (place.folder / "whole" / "grades.jsonl").read_text().splitlines()
    grades = [json.loads(line) for line in lines]
    asd = {row["id"]: row["text"] for row in whole[2] if row["arm"] == "asd"}
    for grade in grades:
        digest = hashlib.sha256(asd[grade["id"]].encode()).hexdigest()
        if grade["task"] == "mmlu" and grade["sha256"] == digest:
            grade["is_right"] = True
    shutil.copytree(place.folder / "whole", place.folder / "planted")
    path = place.folder / "planted" / "grades.jsonl"
    path.write_text("".join(json.dumps(grade) + "\n" for grade in grades))
    found = in_process(place, monkeypatch, "planted")["tasks"]["mmlu"]["accuracy"]
    assert found["asd"]["estimate"] == 1.0
    same = 3 - whole[1]["tasks"]["mmlu"]["divergence"]["num_different"]
    assert (found["both_right"], found["only_asd"]) == (same, 3 - same)
    assert f"right {100 * same / 3:.1f} % strict, 100.0 % ASD" in capfd.readouterr().out
    assert len(path.read_text().splitlines()) == len(grades)


def test_a_judge_rates_what_has_no_right_answer_and_each_text_once(place, whole, monkeypatch):
    asked = []

    def rate(judge, questions, answers, reference=None):
        asked.append((judge.model, len(questions), answers[-1]))
        return Rating(4.0 + len(asked) % 3, "so so", "critic-2")

    monkeypatch.setattr(Judge, "rate", rate)
    judge = {"url": "http://127.0.0.1:9/v1", "model": "critic"}
    study = in_process(place, monkeypatch, "judged", judge=judge)
    rows = [row for row in whole[2] if row["id"].startswith("mt_bench")]
    conversations = {
        (row["id"], *(turn["text"] for turn in row["turns"][:n])) for row in rows for n in (1, 2)
    }
    assert len(asked) == len(conversations) and {model for model, *_ in asked} == {"critic"}
    assert list(study["judge"]) == ["mt_bench"] and study["judge"]["mt_bench"]["num"] == 3
    assert 4 <= study["judge"]["mt_bench"]["asd"]["estimate"] <= 6
    tables = (place.folder / "judged" / "study.md").read_text()
    assert "| mt_bench | 3 | critic-2 |" in tables
    before = (place.folder / "judged" / "study.json").read_bytes()
    in_process(place, monkeypatch, "judged", judge=judge)
    assert len(asked) == len(conversations)
    assert (place.folder / "judged" / "study.json").read_bytes() == before


@pytest.mark.slow
def test_killed_while_decoding_it_goes_on_and_ends_with_the_same_files(place, whole):
    folder = place.folder / "whole"
    before = {name: (folder / name).read_bytes() for name in FILES}
    shutil.rmtree(folder)
    process = start(place, **WITH_OTHERS)
    answers = folder / "answers.jsonl"
    deadline = time.monotonic() + 120
    while not (answers.exists() and answers.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "study.json").exists()
    status, stdout, stderr = audit(place, **WITH_OTHERS)
    assert status == 0, stdout + stderr
    assert {name: (folder / name).read_bytes() for name in FILES} == before
