"""Prompt files: what is a request, what is a bad line, and that the others go on."""

import json
import math
import sys
import types
from pathlib import Path

import pytest

from asd_jax.evaluation.prompts import PromptError, read_prompts

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD = {"id": "a", "prompt": "Hello"}


def write(path: Path, *lines: object) -> Path:
    encoded = [
        line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def test_all_four_kinds_are_read_and_other_keys_carried_along(tmp_path):
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    file = read_prompts(
        write(
            tmp_path / "p.jsonl",
            {"id": "raw", "prompt": " ", "reference": 3, "meta": {"x": [1]}},
            {"id": "chat", "messages": messages, "task": "t", "split": None, "thinking": False},
            {"id": "turns", "turns": ["one", "zwei ☕"], "max_new_tokens": 5, "seed": 2**63 - 1},
            {"id": "ids", "prompt_token_ids": [0, 5], "budget": "inf", "gate": 0.5, "block_cap": 0},
            {"id": "short", "prompt": "x", "draft_length": 2},
        )
    )
    raw, chat, turns, ids, short = file.records
    assert (short.draft_length, raw.draft_length) == (2, None)
    assert not file.problems
    assert (raw.kind, raw.content, raw.extra) == (
        "prompt",
        " ",
        {"reference": 3, "meta": {"x": [1]}},
    )
    assert chat.content == tuple(messages) and chat.extra == {"task": "t", "split": None}
    assert turns.content == ("one", "zwei ☕") and turns.num_turns == 2
    assert (turns.max_new_tokens, turns.seed, turns.budget) == (5, 2**63 - 1, None)
    assert (chat.thinking, turns.thinking) == (False, None)
    assert ids.content == (0, 5) and ids.budget == math.inf
    assert (ids.gate, ids.block_cap) == (0.5, 0)
    assert [record.index for record in file.records] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json", "not JSON"),
        (b'{"id": "x", "prompt": "\xff"}', "not UTF-8: byte 0xff at offset 23"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "got a JSON list, allowed is an object"),
        (b"null", "got a JSON null"),
        ({"id": "a", "prompt": "again"}, "id: 'a' was used before, on line 1"),
        ({"prompt": "x"}, "id: got None"),
        ({"id": 3, "prompt": "x"}, "id: got 3"),
        ({"id": " ", "prompt": "x"}, "id: got ' '"),
        ({"id": "x"}, "got none of prompt, messages, turns, prompt_token_ids"),
        ({"id": "x", "prompt": "y", "turns": ["z"]}, "got prompt and turns of"),
        ({"id": "x", "prompt": ""}, "prompt: got ''"),
        ({"id": "x", "prompt": 5}, "prompt: got 5"),
        (b'{"id": "x", "prompt": "\\ud800"}', "prompt: got '\\ud800'"),
        ({"id": "x", "turns": []}, "turns: got []"),
        ({"id": "x", "turns": "one"}, "turns: got 'one'"),
        ({"id": "x", "turns": ["one", " "]}, "turns[1]: got ' '"),
        ({"id": "x", "messages": {}}, "messages: got {}"),
        ({"id": "x", "messages": ["hi"]}, "messages[0]: got 'hi'"),
        ({"id": "x", "messages": [{"role": "user"}]}, "messages[0].content: got None"),
        ({"id": "x", "messages": [{"content": "hi"}]}, "messages[0].role: got None"),
        ({"id": "x", "messages": [{"role": "user", "content": ""}]}, "messages: got ''"),
        ({"id": "x", "prompt_token_ids": []}, "prompt_token_ids: got []"),
        ({"id": "x", "prompt_token_ids": [1, -1]}, "prompt_token_ids: got [1, -1]"),
        ({"id": "x", "prompt_token_ids": [True]}, "prompt_token_ids: got [True]"),
        ({"id": "x", "prompt": "y", "budget": -1}, "budget: got -1"),
        (b'{"id": "x", "prompt": "y", "budget": NaN}', "budget: got nan"),
        ({"id": "x", "prompt": "y", "budget": "8"}, "budget: got '8'"),
        ({"id": "x", "prompt": "y", "gate": True}, "gate: got True"),
        ({"id": "x", "prompt": "y", "block_cap": 1.5}, "block_cap: got 1.5"),
        ({"id": "x", "prompt": "y", "draft_length": -1}, "draft_length: got -1"),
        ({"id": "x", "prompt": "y", "max_new_tokens": 0}, "max_new_tokens: got 0"),
        ({"id": "x", "prompt": "y", "seed": 2**63}, "seed: got 9223372036854775808"),
        ({"id": "x", "turns": ["y"], "thinking": 1}, "thinking: got 1, allowed is true or false"),
        ({"id": "x", "prompt": "y", "thinking": True}, "thinking: got True, allowed is none with"),
    ],
)
def test_a_bad_line_is_reported_by_number_and_the_others_go_on(tmp_path, line, message):
    last = {"id": "z", "prompt": "last"}
    file = read_prompts(write(tmp_path / "p.jsonl", GOOD, b"", line, last))
    assert [record.id for record in file.records] == ["a", "z"]
    assert [record.index for record in file.records] == [0, 2]  # the bad line keeps its place
    (problem,) = file.problems
    assert problem.line == 3
    assert message in problem.message
    assert len(problem.message) < 200


def test_a_byte_order_mark_and_windows_line_ends_are_tolerated(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    file = read_prompts(path)
    assert [record.id for record in file.records] == ["a"] and not file.problems


def test_the_digest_follows_the_content_and_not_the_spelling(tmp_path):
    one = read_prompts(write(tmp_path / "1.jsonl", {"id": "a", "prompt": "é"}))
    two = read_prompts(write(tmp_path / "2.jsonl", b'  {"prompt": "\\u00e9", "id": "a"}  '))
    three = read_prompts(write(tmp_path / "3.jsonl", {"id": "a", "prompt": "e"}))
    assert one.digest == two.digest != three.digest


def test_a_file_that_cannot_be_used_is_an_error(tmp_path):
    with pytest.raises(PromptError, match="no such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(PromptError, match=r"data/none\.jsonl: no such file"):
        read_prompts("data/none.jsonl")
    with pytest.raises(PromptError, match="is a directory"):
        read_prompts(tmp_path)
    with pytest.raises(PromptError, match="is empty"):
        read_prompts(write(tmp_path / "empty.jsonl"))
    with pytest.raises(PromptError, match="none of its 2 lines is a request; line 1: got a JSON"):
        read_prompts(write(tmp_path / "bad.jsonl", [1], [2]))


def test_a_data_set_names_the_extra_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(PromptError, match=r"pip install 'asd_jax\[hub\]'"):
        read_prompts("owner/name:test")


def test_a_data_set_is_read_by_split_and_column_and_local_files_come_first(tmp_path, monkeypatch):
    calls = []

    def load_dataset(path, config, split):
        calls.append((path, config, split))
        return [{"question": "One?", "answer": "1"}, {"question": "", "answer": "2"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    file = read_prompts("owner/name/main:train:question")
    assert calls == [("owner/name", "main", "train")]
    assert file.records[0].id == "owner/name/0" and file.records[0].content == ("One?",)
    assert file.records[0].extra == {"meta": {"answer": "1"}}
    assert file.problems[0].line == 2
    with pytest.raises(PromptError, match="no column 'text', only question, answer"):
        read_prompts("owner/name:train:text")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    write(tmp_path / "owner" / "name", GOOD)
    assert read_prompts("owner/name").records[0].id == "a"


def test_the_prompts_of_the_project_are_good_and_various():
    file = read_prompts(REPOSITORY / "experiments/data/prompts.jsonl")
    assert not file.problems
    assert len(file.records) >= 28
    assert {record.kind for record in file.records} == {"prompt", "messages", "turns"}
    numbers = [record for record in file.records if record.id.startswith("word/")]
    assert len(numbers) >= 9 and all(float(record.extra["reference"]) for record in numbers)
    assert any(len(str(record.content).split()) > 700 for record in file.records)
    assert any(record.num_turns > 1 for record in file.records)
