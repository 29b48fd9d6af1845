"""Joining rows of two arms: what is refused, in words that name the place, and what is let by."""

import copy
import json
import re

import pytest

from asd_jax.evaluation.audit import AuditError, read_pairs
from tests.evaluation.audit.synthetic_rows import (
    ASD_ROWS,
    EXAMPLES,
    ROWS,
    RUN,
    STRICT_ROWS,
    encode,
    make_example,
    make_row,
    write_rows,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "output.jsonl"


def changed(row, field, value):
    row = copy.deepcopy(row)
    *parents, last = field.split(".")
    at = row
    for name in parents:
        at = at[int(name) if isinstance(at, list) else name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return row


def test_pairs_are_in_order_of_ids_and_other_arms_are_passed_over(path):
    greedy = make_row("g/9", "greedy", encode("x"))
    pairs = read_pairs(write_rows(path, [*ROWS[::-1], greedy]), EXAMPLES[::-1])
    assert [pair.id for pair in pairs] == ["g/0", "g/1", "g/2", "g/3"]
    assert [(pair.strict.arm, pair.asd.arm) for pair in pairs] == [("strict", "asd")] * 4
    assert [pair.is_same for pair in pairs] == [True, False, False, False]
    assert pairs.run == RUN


def test_one_run_may_be_spread_over_files(tmp_path):
    first = write_rows(tmp_path / "a.jsonl", STRICT_ROWS)
    second = write_rows(tmp_path / "b.jsonl", ASD_ROWS, RUN | {"prompts": {"digest": "half"}})
    assert len(read_pairs([first, second], EXAMPLES)) == 4
    other = write_rows(tmp_path / "c.jsonl", ASD_ROWS, RUN | {"target": {"digest": "u"}})
    with pytest.raises(AuditError, match=r"c\.jsonl, line 1: got other settings .*target digest"):
        read_pairs([first, other], EXAMPLES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ledger", ..., "ledger: is missing, allowed is an object"),
        ("ledger", [], "ledger: got [], allowed is an object"),
        ("ledger.spent", -1, "ledger.spent: got -1, allowed is a finite number, 0 or more"),
        ("ledger.spent", "inf", "ledger.spent: got 'inf', allowed is a finite number, 0 or more"),
        ("ledger.budget", "nan", "ledger.budget: got 'nan', allowed is a number, 0 or more, or"),
        ("ledger.exceptions", True, "ledger.exceptions: got True, allowed is a whole number"),
        ("ledger.exceptions", 3, "exceptions: got 2, allowed are as many as were charged, 3"),
        ("ledger.exhausted_at", None, "ledger.exhausted_at: got None, allowed is a whole number"),
        ("ledger.rounds", 9, "accept_histogram: got (0, 0, 0, 1), allowed is 9 in all"),
        ("arm", "", "arm: got '', allowed is a text that is not empty"),
        ("text", 5, "text: got 5, allowed is a text"),
        ("token_ids", [1, -2], "token_ids: got [1, -2], allowed is a list of whole numbers"),
        ("token_ids", [1, 2.0], "token_ids: got [1, 2.0], allowed is a list of whole numbers"),
        ("token_ids", [97], "completion_tokens: got 5, allowed is 1"),
        ("completion_tokens", 4, "completion_tokens: got 4, allowed is 5"),
        ("finish_reason", "eos", "finish_reason: got 'eos', allowed is one of stop, length"),
        ("exceptions", {}, "exceptions: got {}, allowed is a list of objects"),
        ("exceptions.1", 7, "exceptions[1]: got 7, allowed is an object"),
        ("exceptions.1.regret", ..., "exceptions[1].regret: is missing"),
        ("exceptions.1.position", 2, "exceptions[1].position: got 2, allowed is 3..4"),
        ("exceptions.1.position", 5, "exceptions[1].position: got 5, allowed is 3..4"),
        ("exceptions.1.position", 4, "exceptions[1].position: got 4, allowed is a place of token"),
    ],
)
def test_a_bad_row_names_file_line_id_got_and_allowed(path, field, value, message):
    if field == "exceptions.1":
        row = changed(ASD_ROWS[3], "exceptions", [ASD_ROWS[3]["exceptions"][0], value])
    else:
        row = changed(ASD_ROWS[3], field, value)
    write_rows(path, [*ROWS[:-1], row])
    with pytest.raises(AuditError, match=re.escape(f"{path}, line 9, id 'g/3': {message}")):
        read_pairs(path, EXAMPLES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 2: row: got [], allowed is an object"),
        ("{", "line 2: got b'{', allowed is a line of JSON"),
        ('{"arm": "asd"}', "line 2: ledger: is missing"),
        ('"\\ud800"', "line 2: row: got"),
    ],
)
def test_a_line_that_is_no_row_is_named(path, line, message):
    rows = "".join(json.dumps(row) + "\n" for row in ROWS)
    path.write_text(f"{json.dumps({'run': RUN})}\n{line}\n{rows}")
    with pytest.raises(AuditError, match=re.escape(message)):
        read_pairs(path, EXAMPLES)


@pytest.mark.parametrize("content", ["", "\n\n", '{"id": "g/0"}\n', "7\n", '{"run": 5}\n'])
def test_a_file_without_the_description_of_a_run_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(AuditError, match="line 1: .*allowed is the description of a run"):
        read_pairs(path, EXAMPLES)


def test_a_file_that_is_not_there_is_named(path):
    with pytest.raises(AuditError, match=r"output\.jsonl: cannot be read: No such file"):
        read_pairs(path, EXAMPLES)
    with pytest.raises(AuditError, match="path: got no file"):
        read_pairs([], EXAMPLES)


def test_an_answer_that_comes_twice_is_refused(path):
    write_rows(path, [*ROWS, ROWS[2]])
    with pytest.raises(AuditError, match=r"line 10, id 'g/1': arm: got 'strict' again.*line 4"):
        read_pairs(path, EXAMPLES)


def test_answers_to_other_examples_are_refused_unless_allowed(path):
    write_rows(path, [*ROWS, make_row("h/1", "asd", encode("x"))])
    with pytest.raises(AuditError, match="line 10: id: got 'h/1', allowed are the 4 ids"):
        read_pairs(path, EXAMPLES)
    assert len(read_pairs(path, EXAMPLES, allow_others=True)) == 4


def test_missing_answers_are_counted_and_refused_unless_allowed(path):
    write_rows(path, ROWS[:-3])  # g/2 of asd, g/3 of both
    message = r"arm 'strict': got 3 answers, allowed are all 4; missing are 1: 'g/3'"
    with pytest.raises(AuditError, match=message):
        read_pairs(path, EXAMPLES)
    pairs = read_pairs(path, EXAMPLES, allow_missing=True)
    assert [pair.id for pair in pairs] == ["g/0", "g/1"]
    assert pairs.missing == {"strict": 1, "asd": 2}
    write_rows(path, STRICT_ROWS)
    with pytest.raises(AuditError, match="got no example that both strict and asd answered"):
        read_pairs(path, EXAMPLES, allow_missing=True)


def test_a_last_row_that_a_kill_cut_short_counts_as_missing(path):
    content = write_rows(path, ROWS).read_bytes()
    start = content.rstrip(b"\n").rfind(b"\n") + 1
    for size in (start, start + 1, (start + len(content)) // 2, len(content) - 2):
        path.write_bytes(content[:size])
        assert read_pairs(path, EXAMPLES, allow_missing=True).missing == {"strict": 0, "asd": 1}
        with pytest.raises(AuditError, match=r"arm 'asd': got 3 answers.*'g/3'"):
            read_pairs(path, EXAMPLES)
    path.write_bytes(content[:-1])  # only the line break is gone: the row is whole
    assert len(read_pairs(path, EXAMPLES)) == 4


def test_turns_are_told_apart_and_must_be_as_many_as_asked(path):
    parts = [encode("ab"), encode("c")]
    rows = [make_row("m/1", arm, None, turns=parts) for arm in ("strict", "asd")]
    example = make_example("m/1", "mt_bench", None, ("One?", "Two?"))
    (pair,) = read_pairs(write_rows(path, rows), [example])
    assert pair.asd.texts == ("ab", "c")
    assert pair.asd.text == "ab\n\nc"
    assert pair.asd.round_tokens == 3
    with pytest.raises(AuditError, match="line 2, id 'm/1': turns: got 2, allowed are 1, as asked"):
        read_pairs(path, [make_example("m/1")])
    for field, value in (("text", "abc"), ("token_ids", [97])):
        write_rows(path, [rows[0], changed(rows[1], field, value)])
        with pytest.raises(AuditError, match=f"line 3, id 'm/1': {field}: got"):
            read_pairs(path, [example])
