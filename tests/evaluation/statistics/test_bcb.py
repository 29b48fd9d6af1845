"""Gates of the B-C-B protocol, each at its limit and beyond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asd_jax.evaluation.statistics.bcb import Limits, Role, judge, percent_change

GOOD = {"accuracy_delta": 0.0, "length_change_percent": 0.0}


def fixed(before=100.0, candidate=110.0, after=100.0, tokens=(64, 64, 64), **quality):
    roles = [Role(r, t) for r, t in zip((before, candidate, after), tokens, strict=True)]
    return judge(*roles, fixed_work=True, **quality)


@pytest.mark.parametrize(
    ("after", "is_valid"), [(97.0, True), (103.0, True), (96.99, False), (103.01, False)]
)
def test_the_drift_limit_holds_in_both_directions_and_includes_its_end(after, is_valid):
    got = fixed(after=after)
    assert got.protocol_valid == is_valid
    assert ("baseline_drift_exceeds_limit" in got.reasons) != is_valid


@pytest.mark.parametrize(("candidate", "is_met"), [(105.0, True), (104.99, False)])
def test_the_gain_target_includes_its_end(candidate, is_met):
    got = fixed(candidate=candidate)
    assert got.speed_target_met == is_met
    assert got.protocol_valid
    assert ("gain_below_target" in got.reasons) != is_met


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ((64, 63, 64), "completion_tokens_differ"),
        ((63, 64, 64), "completion_tokens_differ"),
        ((64, None, 64), "completion_tokens_missing"),
        ((None, None, None), "completion_tokens_missing"),
    ],
)
def test_fixed_work_needs_equal_totals_and_natural_ends_do_not(tokens, reason):
    got = fixed(tokens=tokens, **GOOD)
    assert not (got.protocol_valid or got.speed_target_met or got.overall_success)
    assert got.reasons == (reason,)
    roles = [Role(100, tokens[0]), Role(110, tokens[1]), Role(100, tokens[2])]
    assert judge(*roles, fixed_work=False, **GOOD).overall_success


@pytest.mark.parametrize(
    ("accuracy", "length", "verdict", "reasons"),
    [
        (-1.0, 3.0, True, ()),
        (-1.0, -3.0, True, ()),
        (-1.01, 0.0, False, ("accuracy_delta_below_limit",)),
        (0.0, -3.01, False, ("length_change_exceeds_limit",)),
        (-2.0, 4.0, False, ("accuracy_delta_below_limit", "length_change_exceeds_limit")),
        (None, 0.0, False, ("accuracy_delta_missing",)),
        (0.0, None, False, ("length_change_missing",)),
        (None, None, None, ("quality_not_measured",)),
    ],
)
def test_quality(accuracy, length, verdict, reasons):
    got = fixed(accuracy_delta=accuracy, length_change_percent=length)
    assert got.quality_constraints_met is verdict
    assert got.reasons == reasons
    assert got.overall_success == (verdict is True)


def test_limits_can_be_set():
    roles = Role(100), Role(102), Role(110)
    limits = Limits(max_drift_percent=10, min_gain_percent=-10)
    assert judge(*roles, fixed_work=False, limits=limits).speed_target_met


RATE = st.floats(1e-3, 1e6)


@given(RATE, RATE, RATE, st.booleans())
def test_verdicts_follow_from_the_figures(before, candidate, after, fixed_work):
    got = judge(Role(before, 1), Role(candidate, 1), Role(after, 1), fixed_work=fixed_work, **GOOD)
    assert min(before, after) * (1 - 1e-9) <= got.baseline <= max(before, after) * (1 + 1e-9)
    assert got.gain_percent == pytest.approx(100 * (candidate / got.baseline - 1), abs=1e-6)
    assert got.drift_percent == pytest.approx(100 * (after / before - 1), rel=1e-9, abs=1e-6)
    assert got.overall_success == (not got.reasons) == got.speed_target_met
    assert got.protocol_valid or not got.speed_target_met


def test_a_percentage_of_whole_numbers_is_exact():
    assert [percent_change(100 + i, 100) for i in range(-9, 10)] == list(range(-9, 10))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_positive(rate):
    with pytest.raises(ValueError, match=f"tokens_per_second: got {rate}"):
        Role(rate)


@pytest.mark.parametrize("name", GOOD)
def test_a_quality_must_be_finite(name):
    with pytest.raises(ValueError, match=f"{name}: got nan"):
        fixed(**(GOOD | {name: float("nan")}))
