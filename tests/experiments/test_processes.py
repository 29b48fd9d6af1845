"""The command line on a mesh and in several processes: the same rows, written by one of them."""

from __future__ import annotations

import json
import socket
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


def run_two(cli, **fields):
    """Runs two processes of four devices each; returns (status, stdout, stderr) of both."""
    address = f"localhost:{free_port()}"
    started = [
        cli.start(
            **COMMON,
            mesh__data=4,
            mesh__model=2,
            processes__coordinator=address,
            processes__count=2,
            processes__index=index,
            processes__cpu_devices=4,
            **fields,
        )
        for index in range(2)
    ]
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
