"""Earlier outputs as a corpus: only of the same target, each answer once."""

from __future__ import annotations

import json

import pytest

from asd_jax.evaluation.corpus import read_corpus


def write(path, *rows, digest="d"):
    lines = [{"run": {"target": {"digest": digest}}}, *({"token_ids": ids} for ids in rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_answer_counts_once_and_empty_ones_not_at_all(tmp_path):
    path = write(tmp_path / "out.jsonl", [1, 2], [3], [1, 2], [])
    assert read_corpus(path, "d") == [[1, 2], [3]]
    with path.open("a") as file:  # a text with a line separator of its own
        file.write('{"token_ids": [4], "text": "one\u2028two"}\n')
    assert read_corpus(path, "d") == [[1, 2], [3], [4]]


def test_outputs_of_another_target_are_refused(tmp_path):
    path = write(tmp_path / "out.jsonl", [1], digest="theirs")
    with pytest.raises(ValueError, match="digest theirs, this one's is ours"):
        read_corpus(path, "ours")


@pytest.mark.parametrize("content", ["", "text", '{"id": "x"}\n', '{"run": {}}\n', "[]\n"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"corpus: .*other\.jsonl: not an output file"):
        read_corpus(path, "d")
