"""The command line on a mesh and in several processes: the same rows, written by one of them."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import pytest

PROMPTS = [
    {"id": "plain", "prompt": "abcabcabcabc"},
    {"id": "strict", "prompt": "xyxyxyxy", "budget": 0},
    {"id": "talk", "turns": ["abab", "cdcd"], "max_new_tokens": 9},
    {"id": "ids", "prompt_token_ids": [5, 6, 7, 5, 6]},
    {"id": "last", "prompt": "1212121212"},
]
COMMON = dict(prompts="several.jsonl", batch_size=4, arms="asd", seed=3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def rows_of(path: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in lines[1:]}


def start_two(cli, second=None, **fields):
    """Starts two processes of four devices each; `second` holds other fields of process 1."""
    address = f"localhost:{free_port()}"
    return [
        cli.start(
            **COMMON
            | fields
            | (second or {} if index else {})
            | dict(
                mesh__data=4,
                mesh__model=2,
                processes__coordinator=address,
                processes__count=2,
                processes__index=index,
                processes__cpu_devices=4,
            )
        )
        for index in range(2)
    ]


def run_two(cli, second=None, **fields):
    """Runs two processes to their end; returns (status, stdout, stderr) of both."""
    started = start_two(cli, second, **fields)
    ended = [process.communicate(timeout=300) for process in started]
    return [(p.returncode, *streams) for p, streams in zip(started, ended, strict=True)]


@pytest.fixture(scope="module")
def expected(cli):
    (cli.folder / "several.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    status, _, stderr = cli.run(**COMMON, output="single.jsonl")
    assert status == 0, stderr
    return rows_of(cli.folder / "single.jsonl")


def assert_same(rows, expected):
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        ledger, reference = row.pop("ledger"), dict(expected[name])
        assert ledger.pop("spent") == pytest.approx(reference["ledger"]["spent"], abs=1e-4)
        kept = {k: v for k, v in reference.pop("ledger").items() if k != "spent"}
        assert (row, ledger) == (reference, kept)


def test_a_mesh_in_one_process(cli, expected):
    status, stdout, stderr = cli.run(
        **COMMON, output="mesh.jsonl", mesh__data=-1, mesh__model=2, processes__cpu_devices=8
    )
    assert status == 0, stderr
    assert "on 4 x 2 x cpu" in stdout
    assert any(row["ledger"]["exceptions"] for row in expected.values())
    assert_same(rows_of(cli.folder / "mesh.jsonl"), expected)


@pytest.mark.slow
def test_two_processes_write_one_file_and_take_it_up_again(cli, expected):
    """Half of the rows are there already, on the disk of process 0 alone as far as it tells."""
    first, second = run_two(cli, output="two.jsonl", limit=4)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "tokens" in first[1] and "error" not in second[2]
    assert not [line for line in second[1].splitlines() if "Gloo" not in line and line.strip()]
    assert len(rows_of(cli.folder / "two.jsonl")) == 4

    ends = run_two(cli, output="two.jsonl")
    assert [status for status, _, _ in ends] == [2, 2]
    assert all("exists already" in stderr for _, _, stderr in ends)

    ends = run_two(cli, output="two.jsonl", resume=True)
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert_same(rows_of(cli.folder / "two.jsonl"), expected)
    run = json.loads((cli.folder / "two.jsonl").read_text().splitlines()[0])["run"]
    assert run["device"]["processes"] == 2 and run["device"]["count"] == 8


def test_processes_with_other_files_or_fields_all_end_with_a_message(cli, expected):
    (cli.folder / "other.jsonl").write_text(json.dumps(PROMPTS[0]) + "\n")
    for change, words in (
        (dict(prompts="other.jsonl"), "prompts: process 1 has"),
        (dict(prompts="missing.jsonl"), "missing.jsonl: no such file"),
        (dict(max_new_tokens=5), "max_new_tokens: process 1 has 5, process 0 has 24"),
    ):
        ends = run_two(cli, second=change, output="never.jsonl")
        assert [status for status, _, _ in ends] == [2, 2], ends
        assert all(words in stderr for _, _, stderr in ends), ends
        assert not (cli.folder / "never.jsonl").exists()


def test_a_port_in_use_ends_with_a_message(cli, expected):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        status, _, stderr = cli.run(
            **COMMON,
            processes__coordinator=f"localhost:{taken.getsockname()[1]}",
            processes__count=2,
            processes__index=0,
        )
    assert status == 2
    assert "processes.coordinator: got" in stderr and "in use" in stderr


def wait_for_rows(path: Path, count: int, process) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and len(path.read_bytes().split(b"\n")) > count + 1:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {count} rows; process ended with {process.poll()}")


@pytest.mark.slow  # JAX takes half a minute to miss a process
@pytest.mark.parametrize("killed", [0, 1])
def test_rows_survive_a_lost_process_and_the_run_goes_on(cli, expected, killed):
    """SIGTERM to process 0 ends it as Ctrl-C does; a lost process ends the other one soon."""
    many = [{"id": f"m{i}", "prompt": "abcabc" * 3} for i in range(300)]
    (cli.folder / "many.jsonl").write_text("\n".join(map(json.dumps, many)))
    output = f"killed{killed}.jsonl"
    started = start_two(cli, prompts="many.jsonl", output=output)
    wait_for_rows(cli.folder / output, 4, started[0])
    started[killed].send_signal(signal.SIGTERM if killed == 0 else signal.SIGKILL)
    begun = time.monotonic()
    ended = [process.communicate(timeout=120) for process in started]
    assert time.monotonic() - begun < 100
    if killed == 0:
        assert started[0].returncode == 130, ended
    elif started[0].returncode == 3:  # an exchange failed, and the run could say so
        assert "another process or its devices failed" in ended[0][1]
        summary = json.loads((cli.folder / output).with_suffix(".summary.json").read_text())
        assert summary["status"] == "failed" and not summary["failures"]
    else:  # JAX noticed first, and ends the process
        assert started[0].returncode == -signal.SIGABRT
    assert started[1].returncode != 0
    rows = rows_of(cli.folder / output)
    assert 4 <= len(rows) < 300


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(mesh__data=0), "mesh.data: got 0"),
        (dict(mesh__data=2, batch_size=3), "batch_size: got 3, allowed is a multiple of mesh.data"),
        (dict(mesh__data=3, batch_size=3, processes__cpu_devices=2), "got 3 x 1"),
        (dict(mesh__data=-1, batch_size=3, processes__cpu_devices=2), "allowed is a multiple of 2"),
        (dict(mesh__model=8, processes__cpu_devices=8), "allowed is a divisor of num_heads 4"),
        (dict(mesh__size=2), "mesh.size: no such field"),
        (dict(processes__coordinator="nowhere"), "allowed is HOST:PORT, auto or None"),
        (dict(processes__coordinator="here:99999"), "allowed is HOST:PORT, auto or None"),
        (dict(processes__coordinator="here:1234"), "processes.count and processes.index: got None"),
        (
            dict(
                processes__coordinator="here:1234", processes__count=2, processes__index=2
            ),
            "processes.index: got 2, allowed is 0..1",
        ),
        (dict(processes__count=2), "processes.count: got 2, allowed is None"),
    ],
)  # fmt: skip
def test_bad_fields_end_with_a_message(cli, expected, outcomes, fields, message):
    status, _, stderr = outcomes[repr(fields)]
    assert status == 2
    assert message in stderr and "Traceback" not in stderr


@pytest.fixture(scope="module")
def outcomes(cli, expected):
    marks = test_bad_fields_end_with_a_message.pytestmark
    cases = [fields for fields, _ in marks[0].args[1]]
    ended = cli.run_each([cli.arguments(**COMMON | fields) for fields in cases])
    return {repr(fields): outcome for fields, outcome in zip(cases, ended, strict=True)}
