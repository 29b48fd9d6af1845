"""Four pairs of answers, every number worked out by hand (see `synthetic_rows`).

id   strict                     ASD                      exceptions of ASD
g/0  right, 10 tokens, stop     the same                 none
g/1  right, 10 tokens, stop     wrong, 10 tokens, stop   at 7 for 1.5
g/2  wrong, 10 tokens, stop     right, 11 tokens, stop   at 0 for 0.5
g/3  wrong, 20 tokens, length   wrong, 5 tokens, stop    at 2 for 1 and at 3 for 3: budget of 4
"""

import dataclasses

import pytest

from asd_jax.evaluation.audit import (
    Mark,
    compare,
    grade_steps,
    mean_over_tasks,
    paired_grades,
    read_pairs,
)
from asd_jax.evaluation.statistics.paired import newcombe_interval, wilson_interval
from asd_jax.evaluation.tasks import TASKS
from tests.evaluation.audit.synthetic_rows import EXAMPLES, QUICK, ROWS, decode, write_rows

GSM8K = TASKS["gsm8k"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = write_rows(tmp_path_factory.mktemp("hand") / "output.jsonl", ROWS)
    pairs = read_pairs(path, EXAMPLES)
    grades = paired_grades(pairs, grade_steps(pairs, GSM8K))
    return compare(pairs, grades, GSM8K, decode, bootstrap=QUICK)


def test_accuracy(found):
    accuracy = found.accuracy
    assert (accuracy.both_right, accuracy.only_strict) == (1, 1)
    assert (accuracy.only_asd, accuracy.both_wrong) == (1, 1)
    assert accuracy.strict == accuracy.asd == wilson_interval(2, 4)
    assert accuracy.difference == newcombe_interval(1, 1, 1, 1)
    assert accuracy.difference.estimate == accuracy.bootstrap_difference.estimate == 0
    # One example was lost and one won; a resample of four may be all of either.
    assert -1 <= accuracy.bootstrap_difference.low < 0 < accuracy.bootstrap_difference.high <= 1
    assert accuracy.p_value == 1
    assert found.overlap_not_quality is None
    assert (found.num, found.is_graded, found.missing) == (4, True, {"strict": 0, "asd": 0})


def test_length(found):
    assert (found.length.strict_mean, found.length.asd_mean) == (12.5, 9.0)
    assert found.length.difference.estimate == -3.5
    change = found.length.change_percent
    assert change.estimate == pytest.approx(-28)
    # From four times g/3 to four times g/2, and from -15 tokens to +1.
    assert -75 <= change.low < change.high <= 10
    assert -15 <= found.length.difference.low < found.length.difference.high <= 1


def test_divergence(found):
    assert found.divergence.num_different == 3
    assert found.divergence.share == wilson_interval(3, 4)
    assert found.divergence.without_exception == 0
    quantiles = {"0.1": 0.4, "0.25": 1.0, "0.5": 2.0, "0.75": 4.5, "0.9": 6.0}  # of 0, 2, 7
    assert found.first_divergence == pytest.approx(quantiles)


def test_stops(found):
    stops = dataclasses.asdict(found.stops)
    assert stops == {
        "num": 4,
        "strict": {"stop": 3, "length": 1, "capacity": 0, "nonfinite": 0},
        "asd": {"stop": 4, "length": 0, "capacity": 0, "nonfinite": 0},
        "earlier": 1,
        "later": 1,
        "only_strict": 0,
        "only_asd": 1,
    }


def test_exceptions(found):
    exceptions = found.exceptions
    assert exceptions.per_answer.estimate == 1.0
    assert exceptions.regret_per_answer.estimate == 1.5
    assert exceptions.reused_per_answer.estimate == 1.0
    assert exceptions.exhausted_share == wilson_interval(1, 4)
    # 7 of 10 tokens, 0 of 11, 2 and 3 of 5.
    assert exceptions.places == (1, 0, 0, 0, 1, 0, 1, 1, 0, 0)
    eighths = [0.125] * 4 + [0.375] * 2 + [1.125] + [1.5] * 3  # of budgets, four answers together
    assert exceptions.spent_over_answer == pytest.approx([share / 4 for share in eighths])


def test_acceptance(found):
    strict, asd = found.acceptance.strict, found.acceptance.asd
    assert strict.accept_histogram == (10, 9, 2, 3)
    assert asd.accept_histogram == (3, 8, 3, 1)
    assert strict.kept_share == pytest.approx((14 / 24, 5 / 24, 3 / 24))
    assert asd.kept_share == pytest.approx((12 / 15, 4 / 15, 1 / 15))
    assert strict.tokens_per_forward.estimate == pytest.approx(46 / 24)
    assert asd.tokens_per_forward.estimate == pytest.approx(32 / 15)
    assert 9 / 6 <= strict.tokens_per_forward.low < strict.tokens_per_forward.high <= 19 / 6
    change = 100 * ((32 / 15) / (46 / 24) - 1)
    assert found.acceptance.change_percent.estimate == pytest.approx(change)


def test_worst(found):
    assert [entry.id for entry in found.worst] == ["g/1", "g/3", "g/2"]  # g/0 is the same
    assert [entry.is_lost for entry in found.worst] == [True, False, False]
    assert [entry.spent for entry in found.worst] == [1.5, 4.0, 0.5]
    assert [entry.first_divergence for entry in found.worst] == [7, 2, 0]
    lost, spent, _ = found.worst
    assert lost.turns == GSM8K.prompt(EXAMPLES[1])
    assert (lost.reference, lost.strict_text, lost.asd_text) == ("5", "\\boxed{5}", "\\boxed{6}")
    assert (lost.strict_grade.is_right, lost.asd_grade.is_right) == (True, False)
    assert lost.pieces == (
        ("\\boxed{", None),
        ("6", Mark(7, "6", "5", 1.5, 1)),
        ("}", None),
    )
    assert spent.pieces == (
        ("ab", None),
        ("X", Mark(2, "X", "c", 1.0, 1)),
        ("Y", Mark(3, "Y", "Z", 3.0, 1)),
    )


def test_the_mean_of_one_task_is_that_task(found):
    mean = mean_over_tasks({"gsm8k": found}, QUICK)
    assert mean.tasks == mean.graded_tasks == ("gsm8k",)
    assert mean.accuracy_difference.estimate == 0
    assert mean.length_change_percent == found.length.change_percent
    assert mean.tokens_per_forward_change_percent == found.acceptance.change_percent
    assert mean.divergence.estimate == 0.75
    assert mean.exceptions_per_answer == found.exceptions.per_answer
    assert mean.regret_per_answer == found.exceptions.regret_per_answer
