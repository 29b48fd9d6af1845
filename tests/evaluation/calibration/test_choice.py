"""Choices by estimate and by certificate, and the points that they are shown as."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asd_jax.evaluation.calibration.choice import (
    LOSS_RANGE,
    TESTS,
    examples_needed,
    fastest_certified,
    fastest_within,
)
from asd_jax.evaluation.calibration.grid import grid
from asd_jax.evaluation.calibration.points import (
    UNITS,
    frontier_points,
    setting_page,
    setting_table,
    speed_interval,
)
from asd_jax.evaluation.calibration.trials import Outcome, candidates
from asd_jax.evaluation.report import render_report
from asd_jax.evaluation.report.study import read_study
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from asd_jax.evaluation.statistics.p_values import p_values
from asd_jax.evaluation.statistics.risk_control import CORRECTIONS, certify

QUICK = Bootstrap(num_resamples=99)


def make_outcome(losses, speed, strict_speed=2.0, num_open=0):
    losses = np.asarray(losses)
    num = losses.size + num_open
    ones = np.ones(num)
    return Outcome(
        round_tokens=speed * ones,
        rounds=ones,
        strict_round_tokens=strict_speed * ones,
        strict_rounds=ones,
        is_right=losses <= 0,
        strict_is_right=losses >= 0,
        likeness=np.zeros(num_open),
        exceptions=ones,
        spent=ones,
        is_changed=ones > 0,
    )


def test_losses_are_those_it_was_made_of():
    assert make_outcome([1, -1, 0], 3.0).losses.tolist() == [1, -1, 0]


def test_the_fastest_within_the_loss_that_is_allowed():
    clean, slight, harmful = [0] * 10, [0] * 9 + [1], [0] * 5 + [1] * 5
    tried = [make_outcome(clean, 2.2), make_outcome(slight, 2.8), make_outcome(harmful, 3.9)]
    assert [fastest_within(tried, e).index for e in (0.02, 0.1, 0.5)] == [0, 1, 2]
    assert fastest_within(tried[2:], 0.1).index is None
    assert "the smallest loss is 0.5" in fastest_within(tried[2:], 0.1).reason
    slow = fastest_within([make_outcome(clean, 2.0)], 0.1)
    assert slow.index is None and "not faster than strict" in slow.reason
    assert fastest_within([make_outcome(clean, 2.5)] * 2, 0.1).index == 0
    assert fastest_within(tried, 0.1).certified is None


@pytest.mark.parametrize("choose", [fastest_within, lambda o, e: fastest_certified(o, e, 0.1)])
def test_nothing_to_choose_from(choose):
    with pytest.raises(ValueError, match="outcomes: got none"):
        choose([], 0.1)
    with pytest.raises(ValueError, match="no graded example"):
        choose([make_outcome(np.zeros(0), 2.5, num_open=3)], 0.1)


def test_a_setting_that_changes_nothing_is_certified_from_the_needed_number_on():
    needed = examples_needed(0.05, 0.1)
    assert needed == 62
    enough = fastest_certified([make_outcome(np.zeros(needed), 2.5)], 0.05, 0.1)
    assert (enough.index, enough.certified, enough.needed) == (0, (True,), needed)
    short = fastest_certified([make_outcome(np.zeros(needed - 1), 2.5)], 0.05, 0.1)
    assert (short.index, short.certified) == (None, (False,))
    assert f"there are {needed - 1} examples" in short.reason and f"needs {needed}" in short.reason


def test_examples_that_are_needed():
    assert examples_needed(0.02, 0.1) == 158  # as the documentation says
    assert examples_needed(0.02, 0.1, test="hoeffding_bentkus") == 8102
    assert examples_needed(1e-5, 0.1, test="hoeffding_bentkus") is None
    corrected = examples_needed(0.05, 0.1, level=0.1 / 4)
    assert corrected > 62
    tried = [make_outcome(np.zeros(corrected), 2.5)] * 4
    assert fastest_certified(tried, 0.05, 0.1, correction="bonferroni").certified == (True,) * 4
    tried = [make_outcome(np.zeros(corrected - 1), 2.5)] * 4
    assert fastest_certified(tried, 0.05, 0.1, correction="bonferroni").certified == (False,) * 4


def test_a_harmful_setting_is_not_taken_however_fast():
    clean, harmful = np.zeros(400), np.tile([1, 0], 200)
    tried = [make_outcome(clean, 2.2), make_outcome(harmful, 9.0)]
    chosen = fastest_certified(tried, 0.05, 0.1)
    assert (chosen.index, chosen.certified) == (0, (True, False))
    assert chosen.p_values[1] == 1.0


def test_a_certified_setting_that_is_no_faster_is_not_taken():
    chosen = fastest_certified([make_outcome(np.zeros(100), 2.0)], 0.05, 0.1)
    assert chosen.index is None and chosen.certified == (True,)
    assert "not faster than strict" in chosen.reason


@settings(max_examples=60, deadline=None)
@given(data=st.data(), test=st.sampled_from(TESTS), correction=st.sampled_from(CORRECTIONS))
def test_what_is_chosen_is_certified_and_none_certified_is_faster(data, test, correction):
    num_settings, num = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 20, 120]))
    seed, spoilt = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.floats(0, 0.3))
    rng = np.random.default_rng(seed)
    shares = [spoilt / 2, 1 - spoilt, spoilt / 2]
    losses = rng.choice([-1, 0, 1], size=(num_settings, num), p=shares)
    speeds = data.draw(st.lists(st.floats(1, 4), min_size=num_settings, max_size=num_settings))
    tried = [make_outcome(row, speed) for row, speed in zip(losses, speeds, strict=True)]
    epsilon, delta = 0.2, 0.2
    chosen = fastest_certified(tried, epsilon, delta, test=test, correction=correction)
    values = p_values(losses, epsilon, test, loss_range=LOSS_RANGE, level=delta)
    certified = certify(values, delta, correction)
    assert chosen.certified == tuple(certified)
    if chosen.index is None:
        assert not any(c and t.speed > 2.0 for c, t in zip(certified, tried, strict=True))
    else:
        assert certified[chosen.index] and tried[chosen.index].speed > 2.0
        assert tried[chosen.index].speed == max(
            t.speed for t, c in zip(tried, certified, strict=True) if c
        )


def test_a_test_that_needs_losses_at_the_ends_is_refused():
    with pytest.raises(ValueError, match="test: got 'binomial', allowed is one of betting"):
        fastest_certified([make_outcome([0, 1], 2.5)], 0.1, 0.1, test="binomial")


def test_points_are_those_of_the_report_and_tables_name_every_setting():
    tried = candidates(grid([2, float("inf")], [0.25], [1]), ("remaining",))
    outcomes = [
        make_outcome([0, 1, 0, -1], 2.5, num_open=2),
        make_outcome([0, 0, 0, 0], 3, num_open=2),
    ]
    chosen = fastest_certified(outcomes, 0.5, 0.5)
    points = frontier_points(tried, outcomes, chosen.certified, bootstrap=QUICK)
    strict, first, second = points
    assert (strict["rule"], strict["options"], strict["certified"]) == ("strict", {}, None)
    assert strict["quality"]["estimate"] == 0 and strict["speed"]["estimate"] == 2
    assert first["options"] == {
        "value_scheme": "remaining", "budget": 2.0, "gate": 0.25, "block_cap": 1,
    }  # fmt: skip
    assert second["options"]["budget"] == "inf"
    assert [p["certified"] for p in points[1:]] == list(chosen.certified)
    assert second["quality"]["low"] < 0 < second["quality"]["high"]  # four are no proof
    study = {"run": {}, "frontier": points, "frontier_units": UNITS}
    assert read_study(study).not_shown == []
    assert "tokens per target forward" in render_report(study)

    table = setting_table(tried, outcomes, chosen)
    assert (table[1]["only_strict_right"], table[1]["only_asd_right"], table[1]["loss"]) == (
        1,
        1,
        0,
    )
    page = setting_page(table)
    assert page.count("\n| asd |") == 2 and "| inf |" in page and "likeness: word overlap" in page


def test_answers_of_one_token_do_not_count_for_speed():
    speed = speed_interval(np.array([0.0, 6, 4]), np.array([0.0, 2, 2]), QUICK)
    assert (speed.estimate, speed.num_units) == (2.5, 2)
    with pytest.raises(ValueError, match="rounds: got 1 answers with any"):
        speed_interval(np.array([0.0, 6]), np.array([0.0, 2]), QUICK)
