"""Reading task sets: what is an example, and that a bad line is named."""

import json

import pytest

from asd_jax.evaluation.tasks import ExampleError, read_examples

GOOD = {
    "id": "gsm8k/test/0",
    "task": "gsm8k",
    "split": "audit",
    "turns": ["How many?"],
    "reference": "3",
    "meta": {"source_split": "test"},
}


def write(path, *lines):
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def test_good_lines_are_read_in_order(tmp_path):
    other = GOOD | {"id": "x", "task": "mt_bench", "turns": ["a ☕", "b"], "reference": None}
    first, second = read_examples(write(tmp_path / "t.jsonl", GOOD, b"", other))
    assert (first.id, first.task, first.split) == ("gsm8k/test/0", "gsm8k", "audit")
    assert (first.turns, first.reference) == (("How many?",), "3")
    assert first.meta == {"source_split": "test"}
    assert (second.turns, second.reference) == (("a ☕", "b"), None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{no json", "not JSON: .* at column 2"),
        (b'{"id": "\xff"}', "not UTF-8: byte 0xff at offset 8"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "got a list, allowed is an object"),
        (GOOD | {"id": ""}, "id: got '', allowed is a text that is not empty"),
        (GOOD | {"id": 3}, "id: got 3, allowed is a text"),
        (GOOD, "id: got 'gsm8k/test/0', allowed is a new id, this is that of line 1"),
        (GOOD | {"id": "b", "task": "mmlu"}, "task: got 'mmlu', allowed is 'gsm8k'"),
        (GOOD | {"id": "b", "split": "test"}, "split: got 'test', allowed is 'calibration' or"),
        (GOOD | {"id": "b", "split": ["audit"]}, r"split: got \['audit'\]"),
        (GOOD | {"id": "b", "turns": []}, r"turns: got \[\], allowed is a list of texts"),
        (GOOD | {"id": "b", "turns": "How?"}, "turns: got 'How\\?', allowed is a list"),
        (GOOD | {"id": "b", "turns": ["a", " "]}, r"turns\[1\]: got ' ', allowed is a text"),
        (GOOD | {"id": "b", "reference": 3}, "reference: got 3, allowed is a text or null"),
        (GOOD | {"id": "b", "meta": None}, "meta: got None, allowed is an object"),
        (GOOD | {"id": "b", "answer": 1}, "answer: is unknown, allowed are id, task, split"),
        ({"id": "b"}, "task: is missing, allowed are all of id, task, split"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, message):
    path = write(tmp_path / "t.jsonl", GOOD, line)
    with pytest.raises(ExampleError, match=f"t.jsonl, line 2: {message}"):
        read_examples(path, "gsm8k")


def test_a_file_that_is_missing_or_empty_is_named(tmp_path):
    with pytest.raises(ExampleError, match="no.jsonl: cannot be read: No such file"):
        read_examples(tmp_path / "no.jsonl")
    with pytest.raises(ExampleError, match="cannot be read: Is a directory"):
        read_examples(tmp_path)
    with pytest.raises(ExampleError, match="t.jsonl: has no rows"):
        read_examples(write(tmp_path / "t.jsonl", b" "))
