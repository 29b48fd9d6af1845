"""The arithmetic of the frontier: points, value schemes, rivals and files, against hand counts.

Two requests have four equally likely resamples, so that the ends of a percentile interval are those
of the requests taken twice.
"""

from __future__ import annotations

import numpy as np
import pytest

from asd_jax.acceptance import RULES
from asd_jax.evaluation.audit import AuditError
from asd_jax.evaluation.audit.measures import ArmMeasures, Measures
from asd_jax.evaluation.calibration.grid import Setting, grid_id
from asd_jax.evaluation.frontier import (
    RIVAL_VALUES,
    UNITS,
    Rival,
    compare_schemes,
    document,
    join,
    make_point,
    read_answers,
    read_grid_answers,
    reason_left_out,
    rival_settings,
    to_markdown,
)
from asd_jax.evaluation.report.study import read_study
from asd_jax.evaluation.statistics.bootstrap import Bootstrap
from tests.evaluation.audit.synthetic_rows import encode, make_example, make_row, write_rows

BOOTSTRAP = Bootstrap(method="percentile", num_resamples=400)
TIGHT, LOOSE = Setting(0.1, 1, 4.0), Setting(0.5, 2, 8.0)


def floats(*values):
    return np.array(values, np.float64)


def measures(tokens, rounds, *, spent=(1, 0.5), right=(True, True), graded=True):
    """Two requests; strict decoding emits 8 and 12 tokens in 4 and 6 rounds and is right twice."""
    empty = floats(np.nan, np.nan)
    strict_right, own_right = np.array([True, True]), np.array(right)
    return Measures(
        strict=ArmMeasures(
            floats(9, 13), floats(8, 12), floats(4, 6), strict_right if graded else None, empty
        ),
        asd=ArmMeasures(
            floats(*tokens) + 1, floats(*tokens), floats(*rounds), own_right if graded else None,
            empty,
        ),
        first_divergence=np.array([3, -1]),
        exceptions=floats(2, 0),
        reused=floats(1, 0),
        spent=floats(*spent),
        budget=floats(8, 8),
        is_exhausted=np.array([False, False]),
    )  # fmt: skip


# 3 and 0 tokens more than strict decoding in as many forwards, for 1 and 0.5 logits.
REMAINING = measures((9, 12), (3, 6), right=(False, True))
# 3 and 1 tokens more, for 0.5 logits each.
REALISED = measures((9, 13), (3, 6), spent=(0.5, 0.5), right=(True, False))


def ends(interval):
    return pytest.approx((interval.estimate, interval.low, interval.high))


def test_a_point_is_what_was_counted_by_hand():
    point = make_point("asd", {"gate": 0.1}, {"gsm8k": REMAINING}, BOOTSTRAP)
    assert (100 * (21 / 9 / 2 - 1), 0, 50) == ends(point.speed)
    assert (-50, -100, 0) == ends(point.quality)
    details = point.details
    assert (details.right, details.right_strict, details.num_graded) == (1, 2, 2)
    paired = details.paired_accuracy_difference
    assert (paired.estimate, paired.method) == (-0.5, "newcombe") and paired.high > 0
    assert (21 / 9, 2, 3) == ends(details.tokens_per_forward)
    assert (0.5, 0, 1) == ends(details.divergence)
    assert (1, 0, 2) == ends(details.exceptions_per_answer)
    assert (1.5 / 23, 0.5 / 13, 1 / 10) == ends(details.regret_per_token)
    assert (100 * (23 / 22 - 1), 0, 100 * (10 / 9 - 1)) == ends(details.length_change_percent)
    assert details.num_examples == {"gsm8k": 2} and point.speed.num_units == 2


def test_tasks_weigh_the_same_and_ungraded_ones_have_no_say_in_quality():
    other = measures((24, 36), (6, 9), graded=False)  # twice as fast: 4 tokens a forward
    tasks = {"gsm8k": REMAINING, "alpaca": other}
    point = make_point("mars", {}, tasks, BOOTSTRAP, split="audit")
    assert point.speed.estimate == pytest.approx((100 / 6 + 100) / 2)
    assert point.quality.estimate == -50 and point.quality.num_units == 2
    assert point.details.num_examples == {"gsm8k": 2, "alpaca": 2}
    assert (point.details.num_graded, point.details.split) == (2, "audit")
    assert point.details.tokens_per_forward.estimate == pytest.approx(81 / 24)


def test_a_frontier_without_graders_or_rounds_is_refused():
    with pytest.raises(AuditError, match="tasks: got alpaca, allowed is one with a grader"):
        make_point("asd", {}, {"alpaca": measures((1, 1), (1, 1), graded=False)}, BOOTSTRAP)
    with pytest.raises(AuditError, match="asd: got a task without rounds"):
        make_point("asd", {}, {"gsm8k": measures((0, 0), (0, 0))}, BOOTSTRAP)


def test_schemes_are_compared_by_what_a_logit_buys():
    found = compare_schemes({TIGHT: {"gsm8k": REMAINING}}, {TIGHT: {"gsm8k": REALISED}}, BOOTSTRAP)
    contrast = found.settings[TIGHT]
    assert (1.5, 0, 3) == ends(contrast.remaining.extra_tokens_per_answer)
    assert (2, 1, 3) == ends(contrast.realised.extra_tokens_per_answer)
    assert (0.75, 0.5, 1) == ends(contrast.remaining.regret_per_answer)
    assert (2, 0, 3) == ends(contrast.remaining.tokens_per_logit)
    assert (4, 2, 6) == ends(contrast.realised.tokens_per_logit)
    assert (2, 2, 3) == ends(contrast.tokens_per_logit_difference)
    # One of remaining's resamples has no extra token: there is nothing to divide by.
    assert contrast.remaining.loss_per_token is None
    assert (1 / 4, 0, 1) == ends(contrast.realised.loss_per_token)
    assert contrast.loss_per_token_difference is None
    assert found.pooled == contrast and found.num_requests == 2
    assert "Realised gives +2.00 tokens per logit" in found.verdict
    assert "95 % interval [+2.00, +3.00]: more." in found.verdict
    assert "cannot be compared" in found.verdict


def test_harm_is_lost_answers_over_extra_tokens_of_graded_tasks():
    clean = measures((9, 13), (3, 6), right=(True, True))
    alpaca = measures((90, 90), (1, 1), graded=False)
    found = compare_schemes(
        {TIGHT: {"gsm8k": REALISED, "alpaca": alpaca}},
        {TIGHT: {"gsm8k": clean, "alpaca": alpaca}},
        BOOTSTRAP,
    )
    assert (1 / 4, 0, 1) == ends(found.pooled.remaining.loss_per_token)
    assert (0, 0, 0) == ends(found.pooled.realised.loss_per_token)
    assert (-1 / 4, -1, 0) == ends(found.pooled.loss_per_token_difference)
    assert "It loses -250.00 right answers per 1,000 extra tokens" in found.verdict


def test_settings_are_pooled_by_sums():
    found = compare_schemes(
        {TIGHT: {"gsm8k": REMAINING}, LOOSE: {"gsm8k": REALISED}},
        {TIGHT: {"gsm8k": REALISED}, LOOSE: {"gsm8k": REALISED}},
        BOOTSTRAP,
    )
    assert found.pooled.remaining.tokens_per_logit.estimate == pytest.approx((3 + 4) / (1.5 + 1))
    assert found.pooled.realised.tokens_per_logit.estimate == pytest.approx(8 / 2)
    assert found.pooled.remaining.extra_tokens_per_answer.estimate == pytest.approx(7 / 4)
    assert list(found.settings) == [TIGHT, LOOSE] and "2 settings, 2 requests" in found.verdict


def test_a_scheme_that_spends_nothing_gets_no_verdict():
    idle = measures((8, 12), (4, 6), spent=(0, 0))
    found = compare_schemes({TIGHT: {"gsm8k": REMAINING}}, {TIGHT: {"gsm8k": idle}}, BOOTSTRAP)
    assert found.pooled.realised.tokens_per_logit is None
    assert found.pooled.tokens_per_logit_difference is None
    assert found.verdict.startswith("No verdict on tokens per logit")
    with pytest.raises(AuditError, match="got 1 and 0 that are not the same"):
        compare_schemes({TIGHT: {"gsm8k": idle}}, {}, BOOTSTRAP)


@pytest.mark.parametrize("rule", RIVAL_VALUES)
def test_every_rival_is_drawn_by_default_and_at_other_values(rule):
    settings = rival_settings(rule)
    assert settings[0] == Rival(rule, {}) and len(settings) >= (1 if rule.startswith("rej") else 2)
    assert len({setting.name for setting in settings}) == len(settings)
    rules = [RULES[rule](**setting.options) for setting in settings]
    assert len(set(rules)) == len(settings)  # no setting is drawn twice
    assert [setting.all_options.keys() for setting in settings] == [
        settings[0].all_options.keys()
    ] * len(settings)


def test_values_are_combined_and_named():
    assert set(RIVAL_VALUES) == set(RULES) - {"asd", "strict"}
    found = rival_settings("relaxed_top_k", {"top_k": [1, 10], "delta": [0.0, 0.6]})
    assert [setting.name for setting in found] == [
        "relaxed_top_k", "relaxed_top_k-delta_0.6", "relaxed_top_k-top_k_10",
        "relaxed_top_k-top_k_10-delta_0.6",
    ]  # fmt: skip
    assert found[1].all_options == {"top_k": 1, "delta": 0.6}
    assert rival_settings("mars", {}) == (Rival("mars", {}),)


@pytest.mark.parametrize(
    ("rule", "values", "message"),
    [
        ("asd", {}, "got rule 'asd', allowed are rejection_sampling, medusa_typical"),
        ("mars", {"alpha": [1]}, "mars.alpha: no such option, allowed are theta"),
        ("mars", {"theta": 0.5}, "mars.theta: got 0.5, allowed is a list"),
        ("mars", {"theta": [2]}, r"mars.theta: got 2, allowed is a number in \[0, 1\]"),
        ("rejection_sampling", {"x": [1]}, "rejection_sampling.x: no such option, allowed are no"),
    ],
)
def test_bad_rivals_are_named(rule, values, message):
    with pytest.raises(ValueError, match=message):
        rival_settings(rule, values)


def test_what_cannot_be_drawn_says_why():
    def reason(rule, *, has=True, temperature=1.0, length=3, **options):
        return reason_left_out(
            Rival(rule, options), has_distribution=has, temperature=temperature,
            num_draft_tokens=length,
        )  # fmt: skip

    assert all(reason(rule) is None for rule in RIVAL_VALUES)
    without = {rule for rule in RIVAL_VALUES if reason(rule, has=False)}
    assert without == {"static_ensemble"}
    assert "drafter's distribution" in reason("static_ensemble", has=False)
    at_0 = {rule for rule in RIVAL_VALUES if reason(rule, temperature=0.0)}
    assert at_0 == {"rejection_sampling", "lenient_thresholds"}
    assert "strict verification" in reason("lenient_thresholds", temperature=0.0)
    assert reason("fly", window=2) is None and "window of 3" in reason("fly", window=3)
    assert "draft of 1" in reason("fly", length=1)


REASON = "it reads what is not there"
EXAMPLES = [make_example("g/1"), make_example("g/0")]


def row(own, arm, text, **more):
    return make_row(own, arm, encode(text), **more)


def test_answers_of_several_files_and_settings_are_joined(tmp_path):
    run = {"target": {"digest": "t"}, "drafter": {"digest": None}}
    strict_rows = [row(f"g/{i}", arm, "ab") for i in (0, 1) for arm in ("strict", "greedy")]
    strict = read_answers(write_rows(tmp_path / "a.jsonl", strict_rows, run), "strict")
    rows = [row(grid_id(f"g/{i}", n), "asd", "xyz"[: n + 1]) for i in (0, 1) for n in (0, 1)]
    path = write_rows(tmp_path / "grid.jsonl", rows, run)
    settings = read_grid_answers(path, "asd", 2)
    pairs = join(EXAMPLES, strict, settings[1])
    assert [pair.id for pair in pairs] == ["g/0", "g/1"]
    assert {(pair.strict.text, pair.asd.text) for pair in pairs} == {("ab", "xy")}

    with pytest.raises(AuditError, match=r"setting 1, allowed is 0\.\.0"):
        read_grid_answers(path, "asd", 1)
    with pytest.raises(AuditError, match="got 0 answers, allowed are all 2; missing are 'g/0'"):
        join(EXAMPLES, strict, read_grid_answers(path, "asd", 3)[2])
    other = write_rows(tmp_path / "b.jsonl", strict_rows, {"target": {"digest": "u"}})
    with pytest.raises(AuditError, match="target digest: got u, allowed is that of .*a.jsonl"):
        join(EXAMPLES, strict, read_answers(other, "greedy"))
    twice = write_rows(tmp_path / "c.jsonl", [strict_rows[0]] * 2, run)
    with pytest.raises(AuditError, match="'g/0': got it again"):
        read_answers(twice, "strict")
    with pytest.raises(AuditError, match="got setting|id: got 'g/0'"):
        read_grid_answers(tmp_path / "a.jsonl", "strict", 1)
    talk = [make_example("g/0", turns=("a", "b")), make_example("g/1")]
    with pytest.raises(AuditError, match="turns: got 1, allowed are 2"):
        join(talk, strict, settings[0])
    (tmp_path / "d.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(AuditError, match="got no field 'run'"):
        read_answers(tmp_path / "d.jsonl", "strict")


def written(split="calibration"):
    points = [
        make_point(rule, options, {"gsm8k": task}, BOOTSTRAP, split=split)
        for rule, options, task in (
            ("strict", {}, measures((8, 12), (4, 6), spent=(0, 0))),
            ("asd", {"value_scheme": "realised", "budget": float("inf")}, REALISED),
            ("fly", {"window": None}, REMAINING),
        )
    ]
    schemes = compare_schemes(
        {TIGHT: {"gsm8k": REMAINING}}, {TIGHT: {"gsm8k": REALISED}}, BOOTSTRAP
    )
    left_out = [(Rival("static_ensemble", {}), REASON)]
    run = {"target": {"name": "model"}, "drafter": {"name": "ngram"}, "commit": "c"}
    return document(points, schemes, left_out, run, split=split)


def test_the_document_is_what_the_page_takes():
    found = written()
    study = read_study(
        {"run": found["run"], "frontier": found["points"], "frontier_units": found["units"]}
    )
    assert study.not_shown == [] and study.units == UNITS
    assert [point["rule"] for point in study.frontier] == ["strict", "asd", "fly"]
    assert study.frontier[1]["options"] == {"value_scheme": "realised", "budget": "inf"}
    assert study.frontier[1]["quality"].estimate == -50
    assert found["left_out"] == [
        {"rule": "static_ensemble", "options": {"weight": 0.5}, "reason": REASON}
    ]
    only, pooled = found["schemes"]["settings"][0], found["schemes"]["pooled"]
    assert (only["budget"], only["gate"], only["block_cap"]) == (4.0, 0.1, 1)
    assert only["remaining"] == pooled["remaining"]


def test_the_tables_hold_the_numbers_and_warn_of_audit_rows():
    text = to_markdown(written())
    assert "| fly | window None |  | +16.7 [+0.0, +50.0], holds 0 |" in text
    assert "| asd | value scheme realised, budget inf | yes | +22.2 [+8.3, +50.0] |" in text
    assert "| strict |  | yes | +0.0 [+0.0, +0.0], holds 0 |" in text
    assert "| 4.0 | 0.1 | 1 | realised | 2.00 [1.00, 3.00] |" in text
    assert written()["schemes"]["verdict"] in text
    assert f"- static_ensemble (weight 0.5): {REASON}." in text
    assert "strict decoding got 2 of 2 right" in text and "audit examples" not in text
    assert "These are audit examples" in to_markdown(written("audit"))
