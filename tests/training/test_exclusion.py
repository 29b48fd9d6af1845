"""No question of a task set gets into training, however it comes in."""

from __future__ import annotations

import json

import pytest

from asd_jax.evaluation.prompts import parse_record
from asd_jax.training.exclusion import Exclusion, normalised, read_exclusion, with_numbers_masked

LONG = "Ann has 3 apples and buys 4 more; how many has she?"


def task_set(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def question(number, *turns, split="audit", **meta):
    return {"id": f"q/{number}", "split": split, "turns": list(turns), "meta": meta}


@pytest.fixture
def exclusion(tmp_path):
    return read_exclusion(
        [
            task_set(
                tmp_path / "a.jsonl",
                question(0, LONG),
                question(1, "Why is the sky blue?", "Say it in rhyme."),
                question(2, "Only for training.", split="train"),
            ),
            task_set(
                tmp_path / "b.jsonl",
                question(3, "Straße\u2028 №5: Größe?", split="calibration"),
                question(4, "2 + 2?\nA. 3\nB. 4", choices=["3", "4"]),
                question(
                    5,
                    "Sort a list.\nTests: ...",
                    text="Sort a list.",
                    sanitized={"prompt": "Put it in order."},
                ),
                question(6, "Finish this: def one(): ...", prompt="def one():"),
                question(7, "∀ ∃"),
            ),
        ]
    )


def reason(exclusion, text, **fields):
    drop = exclusion.drop(parse_record({"id": "t/0", "turns": [text], **fields}))
    return drop and (drop.reason, drop.file, drop.row)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LONG, ("text", "a.jsonl", "q/0")),
        ("ann HAS 3   apples, and buys 4 more. How many has she", ("text", "a.jsonl", "q/0")),
        (LONG.replace("3", "1250"), ("masked text", "a.jsonl", "q/0")),
        (f"Solve this: {LONG} Reason step by step.", ("held text", "a.jsonl", "q/0")),
        (f"Now: {LONG.replace('4', '5')}", ("held text", "a.jsonl", "q/0")),
        ("say it in rhyme", ("text", "a.jsonl", "q/1")),
        ("STRASSE no5 größe", ("text", "b.jsonl", "q/3")),
        ("2 + 2?", ("text", "b.jsonl", "q/4")),
        ("7 + 9?\nA. 1\nB. 2", ("masked text", "b.jsonl", "q/4")),
        ("Sort a list.", ("text", "b.jsonl", "q/5")),
        ("put it in order", ("text", "b.jsonl", "q/5")),
        ("def one():", ("text", "b.jsonl", "q/6")),
    ],
)
def test_a_question_is_found_however_it_is_written(exclusion, text, expected):
    assert reason(exclusion, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Only for training.",
        LONG.replace("apples", "pears"),
        LONG.removesuffix(" has she?"),
        "Tell me: why is the sky blue?",  # too few words to count as a part
        "∑ ∫",  # as empty, normalised, as q/7
    ],
)
def test_other_texts_may_be_trained_on(exclusion, text):
    assert reason(exclusion, text) is None


def test_an_id_a_marked_part_and_every_turn_and_message_count(exclusion):
    later = parse_record({"id": "t", "turns": ["Hello.", "Say it in rhyme."]})
    assert exclusion.drop(later).row == "q/1"
    assert reason(exclusion, "Other.", id="q/1") == ("id", "a.jsonl", "q/1")
    text = "Write Python code to: sort a list."
    assert reason(exclusion, text) is None
    marked = {"span": [text.index("sort"), len(text)]}
    assert reason(exclusion, text, meta=marked) == ("text", "b.jsonl", "q/5")
    messages = [{"role": "system", "content": "And?"}, {"role": "user", "content": LONG}]
    for kind, content, found in (
        ("messages", messages, "text"),
        ("prompt", LONG, "text"),
        ("prompt_token_ids", [1, 2], "no text"),
    ):
        assert exclusion.drop(parse_record({"id": "t", kind: content})).reason == found
    ids = parse_record({"id": "t", "prompt_token_ids": [1, 2]})
    assert Exclusion().drop(ids) is None


def test_what_was_dropped_is_counted_by_reason_and_file(exclusion):
    texts = [LONG, "fine", LONG, "Say it in rhyme?", "Sort a list"]
    prompts = [
        parse_record({"id": f"t/{n}", "turns": [text]}, line=n + 1) for n, text in enumerate(texts)
    ]
    dropped = exclusion.dropped([*prompts, parse_record({"id": "q/3", "turns": ["x"]}, line=9)])
    assert dropped.counts == {
        ("text", "a.jsonl"): 3,
        ("text", "b.jsonl"): 1,
        ("id", "b.jsonl"): 1,
    }
    assert [(drop.id, drop.line) for drop in dropped.prompts] == [
        ("t/0", 1), ("t/2", 3), ("t/3", 4), ("t/4", 5), ("q/3", 9),
    ]  # fmt: skip


def test_normalising_is_that_of_the_task_sets():
    assert normalised(" ｆｕｌｌ_Width--x²\n") == "full width x2"  # noqa: RUF001
    assert with_numbers_masked("12 of 3b4") == "# of #b#"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "line 1: not JSON"),
        ("[]", r"line 1: got '\[\]', allowed is an object"),
        ('\n{"split": "audit", "turns": ["x"]}', "line 2: id: got None, allowed is a text"),
        (
            '{"id": "x", "split": "test", "turns": ["x"]}',
            "line 1: split: got 'test', allowed is one of",
        ),
        ('{"id": "x", "split": "audit", "turns": []}', r"line 1: turns: got \[\], allowed is a"),
        ('{"id": "x", "split": "train", "turns": ["x"]}', "got no new row of split audit or"),
    ],
)
def test_a_file_that_is_no_task_set_is_refused(tmp_path, content, told):
    path = tmp_path / "set.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"exclusion: .*set\.jsonl: {told}"):
        read_exclusion([path])
