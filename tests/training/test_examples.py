"""Prompts and answers become the very texts that the target read and wrote."""

from __future__ import annotations

import json

import numpy as np
import pytest

from asd_jax.evaluation.conversation import Answer, Turn
from asd_jax.evaluation.plan import Settings, make_plan, prompt_ids
from asd_jax.evaluation.prompts import read_prompts
from asd_jax.evaluation.records import Writer, row
from asd_jax.tokenizer import from_hf
from asd_jax.training.examples import is_held_out, read_examples
from asd_jax.training.exclusion import Exclusion, read_exclusion
from asd_jax.types import FinishReason
from tests.tiny_tokenizer import EOT, hf_dir

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {{ m.content }}<|end|>{% endfor %}<s>assistant "
    "{% if enable_thinking %}hm {% endif %}"
)
LEDGER = dict.fromkeys(
    ("spent", "exceptions", "reused", "proposed", "accepted", "rounds"), 0
) | {"exhausted_at": -1}  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path):
    config = {"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    return from_hf(hf_dir(tmp_path / "tokenizer", tokenizer_config=config))


@pytest.fixture
def files(tmp_path, tokenizer):
    return Files(tmp_path, tokenizer)


class Files:
    """Writes prompts and answers as `experiments.decode` does, and reads them back."""

    def __init__(self, path, tokenizer):
        self.path, self.tokenizer = path, tokenizer
        self.answers = path / "answers.jsonl"

    def write(self, records, answers, *, header=None, thinking=None):
        """`answers` are (id, arm, [ids of each turn]); returns the prompts."""
        (self.path / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        prompts = read_prompts(self.path / "prompts.jsonl")
        plan = make_plan(
            prompts.records,
            self.tokenizer,
            Settings(thinking=thinking),
            vocab_size=263,
            context_length=512,
        )
        requests = {r.prompt.id: r for batch in plan.batches for r in batch}
        writer = Writer(self.answers)
        config = {"thinking": thinking, "ignore_eos": False}
        writer.start(
            {"target": {"digest": "T"}, "prompts": {"digest": prompts.digest}, "config": config}
            | (header or {})
        )
        for name, arm, turns in answers:
            writer.write([row(self.answer(requests[name], arm, turns), self.tokenizer)])
        writer.close()
        return prompts

    def answer(self, request, arm, turns):
        made, texts = [], []
        for ids in turns:
            prompt = prompt_ids(
                request.prompt,
                texts,
                self.tokenizer,
                thinking=request.thinking,
                vocab_size=263,
                context_length=512,
            )
            has_stopped = bool(ids) and ids[-1] == EOT
            reason = FinishReason.STOP if has_stopped else FinishReason.LENGTH
            reason = FinishReason.NONFINITE if not ids else reason
            made.append(Turn(len(prompt), tuple(ids), reason, len(ids), (len(ids),)))
            texts.append(self.tokenizer.decode(ids))
        return Answer(request, arm, tuple(made), LEDGER, 0.0)

    def read(self, prompts, **options):
        options = {"target_digest": "T", "max_tokens": 200, "exclusion": Exclusion()} | options
        return read_examples(
            prompts, self.answers, self.tokenizer, held_out_fraction=0.0, **options
        )


def ask(name, *turns, **fields):
    return {"id": name, "turns": list(turns or ["hi"]), **fields}


def spelled(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False)


def test_an_example_is_the_prompt_as_it_was_read_and_the_answer_as_it_was_written(files):
    ids = files.tokenizer.encode
    prompts = files.write(
        [ask("a"), ask("b", "one", "two"), {"id": "c", "prompt": "raw"}],
        [
            ("b", "greedy", [[*ids("yes\u2028"), EOT], ids("no")]),
            ("c", "strict", [ids("text")]),
            ("a", "greedy", [[*ids("ho"), EOT]]),
        ],
    )
    examples = files.read(prompts)
    first = "<s>user one<|end|><s>assistant "
    assert [spelled(files.tokenizer, examples.text(row)) for row in range(4)] == [
        f"{first}yes\u2028<|end|>",
        f"{first}yes\u2028<|end|><s>user two<|end|><s>assistant no",
        "rawtext",
        "<s>user hi<|end|><s>assistant ho<|end|>",
    ]
    answers = [
        spelled(files.tokenizer, examples.text(row)[start:])
        for row, start in enumerate(examples.answer_start)
    ]
    assert answers == ["yes\u2028<|end|>", "no", "text", "ho<|end|>"]
    assert spelled(files.tokenizer, examples.labels()) == "".join(answers)
    assert examples.ids == ("b", "b", "c", "a")
    assert examples.stop_ids == (EOT,)
    assert examples.tokens.dtype == np.int32 and examples.offsets[-1] == examples.tokens.size
    report = examples.report
    assert (report.used, report.held_out, report.cut, report.unanswered) == (4, 0, 0, 0)
    assert report.tokens == examples.tokens.size
    assert report.answer_tokens == examples.labels().size
    assert report.dropped == {}


@pytest.mark.parametrize(("run", "own", "seen"), [(True, None, True), (True, False, False)])
def test_the_run_or_the_request_says_whether_thinking_was_on(files, run, own, seen):
    record = ask("a") if own is None else ask("a", thinking=own)
    prompts = files.write([record], [("a", "greedy", [[65, 66]])], thinking=run)
    text = spelled(files.tokenizer, files.read(prompts).text(0))
    assert ("assistant hm " in text) == seen


def test_everything_that_becomes_no_example_is_counted(files, tmp_path):
    secret = "Why is the sky blue?"
    audit = tmp_path / "audit.jsonl"
    audit.write_text(json.dumps({"id": "q", "split": "audit", "turns": [secret]}) + "\n")
    prompts = files.write(
        [
            ask("good"),
            ask("secret", secret),
            ask("long", "x" * 100),
            ask("short"),
            ask("broken"),
            ask("late"),
            ask("twice", "one", "two"),
        ],
        [
            ("good", "asd", [[65, 66]]),
            ("good", "greedy", [[65, 66, 67, EOT]]),
            ("good", "strict", [[65, 66, 67, EOT]]),
            ("secret", "greedy", [[65, 66]]),
            ("long", "greedy", [[65, 66]]),
            ("short", "greedy", [[EOT]]),
            ("broken", "greedy", [[]]),
            ("twice", "greedy", [[EOT], [67, 68]]),
        ],
    )
    examples = files.read(prompts, exclusion=read_exclusion([audit]), max_tokens=100)
    assert examples.ids == ("good", "twice")
    assert examples.report.dropped == {
        "arm": 1, "repeated": 1, "excluded": 1, "long prompt": 1, "short answer": 2,
        "not finite": 1,
    }  # fmt: skip
    assert examples.report.unanswered == 1
    assert examples.report.exclusion.counts == {("text", "audit.jsonl"): 1}


def test_long_answers_lose_their_end_and_are_counted(files):
    prompts = files.write(
        [ask("a"), ask("b")],
        [("a", "greedy", [[65, 66, 67, EOT]]), ("b", "greedy", [[65, 66, EOT]])],
    )
    whole = files.read(prompts)
    start = int(whole.answer_start[0])
    cut = files.read(prompts, max_tokens=start + 3)
    assert list(cut.text(0)) == list(whole.text(0)[:-1])
    assert list(cut.text(1)) == list(whole.text(1))
    assert cut.report.cut == 1
    assert files.read(prompts, max_tokens=start + 2).report.cut == 2
    with pytest.raises(ValueError, match="no example for training.*'long prompt': 2"):
        files.read(prompts, max_tokens=start + 1)


def test_the_id_alone_decides_what_is_held_out(files):
    names = [f"t/{n}" for n in range(400)]
    held = {name for name in names if is_held_out(name, 0.25)}
    assert 70 <= len(held) <= 130
    assert held <= {name for name in names if is_held_out(name, 0.5)}
    assert not any(is_held_out(name, 0.0) for name in names)
    few = names[:12]
    prompts = files.write(
        [ask(name, "one", "two") for name in few],
        [(name, "greedy", [[65, 66], [67, 68]]) for name in reversed(few)],
    )
    examples = read_examples(
        prompts,
        files.answers,
        files.tokenizer,
        target_digest="T",
        max_tokens=200,
        exclusion=Exclusion(),
        held_out_fraction=0.25,
    )
    assert {examples.ids[row] for row in examples.rows(held_out=True)} == held & set(few)
    assert {examples.ids[row] for row in examples.rows()} == set(few) - held
    assert examples.report.held_out == 2 * len(held & set(few)) > 0
    assert examples.labels(held_out=True).size == 2 * examples.report.held_out


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"target": {"digest": "X"}}, "line 1: target digest: got X, allowed is T"),
        ({"prompts": {"digest": "X"}}, "line 1: prompts digest: got X, allowed is"),
        ({"config": {"ignore_eos": True}}, "line 1: ignore_eos: got True, allowed is False"),
        ({"config": 3}, "not an output file of experiments.decode"),
    ],
)
def test_answers_of_another_run_are_refused(files, header, told):
    prompts = files.write([ask("a")], [("a", "greedy", [[65, 66]])], header=header)
    with pytest.raises(ValueError, match=rf"answers\.jsonl: {told}"):
        files.read(prompts)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"token_ids": [65, 261]}, r"token_ids: got \[65, 261\], allowed is .* 0\.\.260"),
        ({"token_ids": None}, "token_ids: got None"),
        ({"prompt_tokens": 3}, "turn 1: prompt_tokens: got 3, allowed is 21"),
        ({"prompt_tokens": "3"}, "prompt_tokens: got '3', allowed is a whole number"),
        ({"finish_reason": None}, "finish_reason: got None, allowed is a text"),
        ({"turns": [{"token_ids": [1], "prompt_tokens": 1, "finish_reason": "stop"}] * 2},
         "turns: got 2, allowed is 1"),
        ({"turns": [3, 4]}, "turn 1: token_ids: got None"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_by_line_and_id(files, change, told):
    prompts = files.write([ask("a", "hi th")], [("a", "greedy", [[65, 66]])])
    header, line = files.answers.read_text().splitlines()
    files.answers.write_text(f"{header}\n{json.dumps(json.loads(line) | change)}\n")
    with pytest.raises(ValueError, match=rf"answers\.jsonl: line 2: id 'a': {told}"):
        files.read(prompts)


def test_other_files_and_rows_are_refused_and_a_cut_last_line_is_not(files):
    prompts = files.write([ask("a")], [("a", "greedy", [[65, 66]])])
    whole = files.answers.read_bytes()
    for more, told in ((b"{\n", "line 3: not JSON"), (b'{"id": 3}\n', "line 3: id: got 3")):
        files.answers.write_bytes(whole + more)
        with pytest.raises(ValueError, match=told):
            files.read(prompts)
    files.answers.write_bytes(whole + b'{"id": "b", "arm')
    assert files.read(prompts).report.used == 1
    for other in (b"", b"text\n", b"[]\n", b'{"run": {}}\n'):
        files.answers.write_bytes(other)
        with pytest.raises(ValueError, match=r"answers\.jsonl: not an output file"):
            files.read(prompts)


@pytest.mark.parametrize(("name", "value"), [("max_tokens", 2), ("held_out_fraction", 1.0)])
def test_limits_out_of_range_are_refused(files, name, value):
    prompts = files.write([ask("a")], [("a", "greedy", [[65, 66]])])
    options = {"max_tokens": 9, "held_out_fraction": 0.0} | {name: value}
    with pytest.raises(ValueError, match=f"{name}: got {value}, allowed is"):
        read_examples(
            prompts,
            files.answers,
            files.tokenizer,
            target_digest="T",
            exclusion=Exclusion(),
            **options,
        )
