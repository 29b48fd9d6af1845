"""What must hold of any two arms: order is nothing, and swapping the arms turns the signs."""

import dataclasses
import json
import random

import numpy as np
import pytest

from asd_jax.evaluation.audit import (
    AuditError,
    compare,
    grade_steps,
    make_study,
    mean_over_tasks,
    paired_grades,
    read_pairs,
)
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.tasks import TASKS, read_examples, sample_path
from tests.evaluation.audit.synthetic_rows import (
    EXAMPLES,
    QUICK,
    ROWS,
    decode,
    encode,
    exception,
    make_example,
    make_row,
    write_rows,
)


def random_rows(examples, seed):
    """Returns rows of both arms for examples of any number of turns."""
    rng = random.Random(seed)
    rows = []
    for example in examples:
        for arm in ("strict", "asd"):
            texts = [
                "".join(rng.choices("abé ", k=rng.randint(1, 9))) + rng.choice(["5", "\\boxed{5}"])
                for _ in example.turns
            ]
            turns = [encode(text, is_stopped=rng.random() < 0.7) for text in texts]
            ids = [token for turn in turns for token in turn]
            places = sorted(rng.sample(range(len(ids)), k=rng.randint(0, 2)))
            entries = [exception(p, ids[p], 63, rng.choice([0.25, 1.0])) for p in places]
            rows.append(make_row(example.id, arm, None, None, entries, turns=turns))
    return rows


def study_of(path, task, examples, bootstrap=QUICK, **options):
    pairs = read_pairs(path, examples, **options)
    grades = paired_grades(pairs, grade_steps(pairs, TASKS[task]))
    return compare(pairs, grades, TASKS[task], decode, bootstrap=bootstrap)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_and_examples_is_nothing(tmp_path, seed):
    examples = [make_example(f"g/{i}") for i in range(9)]
    rows = random_rows(examples, seed)
    first = study_of(write_rows(tmp_path / "a.jsonl", rows), "gsm8k", examples)
    rng = random.Random(seed)
    rng.shuffle(rows)
    rng.shuffle(examples)
    second = study_of(write_rows(tmp_path / "b.jsonl", rows), "gsm8k", examples)
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())


@pytest.mark.parametrize("seed", range(3))
def test_swapping_the_arms_turns_the_signs(tmp_path, seed):
    examples = [make_example(f"g/{i}") for i in range(9)]
    path = write_rows(tmp_path / "a.jsonl", random_rows(examples, seed))
    # BCa corrects the two ends differently; percentiles of the same resamples mirror exactly.
    bootstrap = Bootstrap("percentile", num_resamples=199)
    a = study_of(path, "gsm8k", examples, bootstrap)
    b = study_of(path, "gsm8k", examples, bootstrap, arms=("asd", "strict"))
    assert (a.accuracy.strict, a.accuracy.asd) == (b.accuracy.asd, b.accuracy.strict)
    assert (a.accuracy.only_strict, a.accuracy.only_asd) == (
        b.accuracy.only_asd,
        b.accuracy.only_strict,
    )
    assert a.accuracy.p_value == b.accuracy.p_value
    for one, other in (
        (a.accuracy.difference, b.accuracy.difference),
        (a.length.difference, b.length.difference),
    ):
        turned = (-other.estimate, -other.high, -other.low)
        assert (one.estimate, one.low, one.high) == pytest.approx(turned)
    for one, other in (
        (a.length.change_percent, b.length.change_percent),
        (a.acceptance.change_percent, b.acceptance.change_percent),
    ):
        assert (1 + one.estimate / 100) * (1 + other.estimate / 100) == pytest.approx(1)
    assert (a.stops.only_strict, a.stops.only_asd) == (b.stops.only_asd, b.stops.only_strict)
    assert (a.stops.strict, a.stops.asd) == (b.stops.asd, b.stops.strict)
    assert (a.divergence.share, a.first_divergence) == (b.divergence.share, b.first_divergence)
    assert a.acceptance.strict == b.acceptance.asd


@pytest.mark.parametrize("task", ["gsm8k", "math500", "mmlu", "mt_bench", "alpaca"])
def test_the_sample_tasks_go_all_the_way(tmp_path, task):
    examples = read_examples(sample_path(task), task)
    path = write_rows(tmp_path / "output.jsonl", random_rows(examples, 5))
    found = study_of(path, task, examples)
    assert (found.accuracy is None) == (not TASKS[task].is_graded)
    assert found.num == len(examples)
    if TASKS[task].is_graded:
        assert found.overlap_not_quality is None
    else:
        references = sum(example.reference is not None for example in examples)
        assert found.overlap_not_quality.num == references
    assert found.stops.num == sum(len(example.turns) for example in examples)
    for entry in found.worst:
        assert "".join(piece.text for piece in entry.pieces) == entry.asd_text
    mean = make_study({task: found}, {}, bootstrap=QUICK).mean
    assert (mean.accuracy_difference is None) == (not TASKS[task].is_graded)


def test_every_task_weighs_the_same(tmp_path):
    few = [make_example(f"g/{i}") for i in range(2)]
    many = [make_example(f"a/{i}", "alpaca", None) for i in range(6)]
    same, longer = encode("abc"), encode("abcabcab")  # 4 tokens, and 9
    rows = [make_row(example.id, "strict", same) for example in [*few, *many]]
    rows += [make_row(example.id, "asd", longer) for example in few]
    rows += [make_row(example.id, "asd", same) for example in many]
    path = write_rows(tmp_path / "output.jsonl", rows)
    tasks = {
        "gsm8k": study_of(path, "gsm8k", few, allow_others=True),
        "alpaca": study_of(path, "alpaca", many, allow_others=True),
    }
    mean = mean_over_tasks(tasks, QUICK)
    assert (mean.tasks, mean.graded_tasks) == (("gsm8k", "alpaca"), ("gsm8k",))
    assert mean.length_change_percent.estimate == pytest.approx((125 + 0) / 2)
    assert mean.divergence.estimate == 0.5
    assert tasks["alpaca"].overlap_not_quality is None  # no references
    assert tasks["alpaca"].first_divergence is None
    # They part without any exception: arithmetic, not the rule.
    assert tasks["gsm8k"].divergence.without_exception == 2


def test_without_a_trace_or_a_budget_places_are_unknown(tmp_path):
    rows = [dict(row) for row in ROWS]
    for row in rows:
        del row["exceptions"]
    found = study_of(write_rows(tmp_path / "a.jsonl", rows), "gsm8k", EXAMPLES)
    assert found.exceptions.places is None
    assert found.exceptions.spent_over_answer is None
    assert found.exceptions.per_answer.estimate == 1.0
    assert found.divergence.without_exception is None
    assert [len(entry.pieces) for entry in found.worst] == [1, 1, 1]
    endless = [row | {"ledger": row["ledger"] | {"budget": "inf"}} for row in ROWS]
    found = study_of(write_rows(tmp_path / "b.jsonl", endless), "gsm8k", EXAMPLES)
    assert found.exceptions.places is not None
    assert found.exceptions.spent_over_answer is None


def test_answers_without_rounds_leave_their_ratios_open(tmp_path):
    examples = [make_example(f"g/{i}") for i in range(3)]
    rows = [
        make_row(example.id, arm, encode("5", is_stopped=False), [0, 0])
        for example in examples
        for arm in ("strict", "asd")
    ]
    found = study_of(write_rows(tmp_path / "a.jsonl", rows), "gsm8k", examples)
    assert found.acceptance.strict.tokens_per_forward is None
    assert found.acceptance.change_percent is None
    assert found.acceptance.strict.kept_share == (0.0,)
    mean = mean_over_tasks({"gsm8k": found}, QUICK)
    assert mean.tokens_per_forward_change_percent is None
    assert found.length.change_percent.estimate == 0


def test_at_most_twenty_are_listed(tmp_path):
    examples = [make_example(f"g/{i:02}") for i in range(30)]
    rows = []
    for number, example in enumerate(examples):
        entry = exception(0, ord("b"), ord("a"), float(number))
        rows.append(make_row(example.id, "strict", encode("a")))
        rows.append(make_row(example.id, "asd", encode("b"), None, [entry], budget=99.0))
    found = study_of(write_rows(tmp_path / "a.jsonl", rows), "gsm8k", examples)
    assert [entry.id for entry in found.worst] == [f"g/{i}" for i in range(29, 9, -1)]


def test_one_pair_is_too_few_for_an_interval(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", ROWS[:2])
    with pytest.raises(AuditError, match="pairs: got 1, allowed are 2 or more"):
        study_of(path, "gsm8k", EXAMPLES[:1])
    pairs = read_pairs(write_rows(path, ROWS), EXAMPLES)
    with pytest.raises(AuditError, match="grades: got 0, allowed are 4"):
        compare(pairs, (), TASKS["gsm8k"], decode)
    with pytest.raises(AuditError, match="tasks: got none"):
        mean_over_tasks({})


def test_a_change_over_two_tasks_resamples_within_each(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    found = study_of(path, "gsm8k", EXAMPLES)
    mean = mean_over_tasks({"one": found, "two": found}, QUICK)
    one, both = found.length.change_percent, mean.length_change_percent
    assert both.estimate == pytest.approx(one.estimate)
    assert both.num_units == 8
    assert both.high - both.low < one.high - one.low
    assert np.isfinite([both.low, both.high]).all()
    assert dataclasses.asdict(mean)["tasks"] == ("one", "two")
