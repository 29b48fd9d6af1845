"""Claims about exceptions and ledgers, one planted error at a time."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from asd_jax.evaluation.replay import Claim, Limits, Rescored, check_claim

IDS = [11, 12, 13, 14, 15, 16, 17, 18]
LIMITS = Limits(budget=1.0, gate=0.25, block_cap=2, protected_ids=(99,))


def entry(position, regret, *, draft_position, target=50, length=4, reused=0):
    return {
        "position": position, "draft_id": IDS[position], "target_id": target, "regret": regret,
        "reused": reused, "draft_position": draft_position, "draft_length": length,
    }  # fmt: skip


def right():
    """Two blocks: exceptions at 1 (first of its block), 3 (third) and 5 (second)."""
    exceptions = [
        entry(1, 0.5, draft_position=0, reused=1),
        entry(3, 0.25, draft_position=2),
        entry(5, 0.125, draft_position=1),
    ]
    return Claim("a", "asd", IDS, exceptions, {"spent": 0.875, "exceptions": 3})


def scores(**changes):
    regret = np.zeros(len(IDS), np.float32)
    regret[[1, 3, 5]] = [0.5, 0.25, 0.125]
    top_ids = np.array(IDS, np.int32)
    top_ids[[1, 3, 5]] = 50
    fields = {"top_ids": top_ids, "regret": regret, "target_regret": np.zeros_like(regret)}
    for name, (place, value) in changes.items():
        fields[name][place] = value
    return Rescored(**fields)


def kinds(claim, rescored=None, limits=LIMITS):
    found = check_claim(claim, rescored or scores(), limits, tolerance=1e-3)
    return [(finding.kind, finding.position) for finding in found]


def changed(index=None, ledger=None, drop=None, **fields):
    claim = right()
    exceptions = copy.deepcopy(list(claim.exceptions))
    if index is not None:
        exceptions[index].update(fields)
    if drop is not None:
        del exceptions[drop]
    return Claim("a", "asd", IDS, exceptions, {**claim.ledger, **(ledger or {})})


def test_what_is_right_has_no_findings():
    assert kinds(right()) == []
    strict = Claim("a", "strict", IDS, (), {"spent": 0.0, "exceptions": 0})
    plain = Rescored(np.array(IDS), np.full(len(IDS), 5e-4), np.zeros(len(IDS)))
    assert kinds(strict, plain, Limits(0.0, 0.0, 0)) == []


def test_a_wrong_charge_is_found():
    claim = changed(0, regret=0.375, ledger={"spent": 0.75})
    assert kinds(claim) == [("charge", 1)]
    # The charge is right, and the ledger does not have it.
    assert kinds(changed(ledger={"spent": 0.375})) == [("spent", -1)]


def test_a_skipped_exception_is_found():
    claim = changed(drop=1, ledger={"spent": 0.625, "exceptions": 2})
    assert kinds(claim) == [("unlisted", 3)]
    assert kinds(changed(drop=1)) == [("spent", -1), ("count", -1), ("unlisted", 3)]


def test_an_over_budget_ledger_is_found():
    assert kinds(right(), limits=Limits(0.8, 0.25, 2)) == [("budget", -1)]
    # Spent before the last exception, which was therefore not allowed at any price.
    assert kinds(right(), limits=Limits(0.75, 0.25, 2)) == [("budget", -1), ("budget", 5)]


def test_gates_caps_and_protected_ids():
    assert kinds(right(), limits=Limits(1.0, 0.11, 2)) == [("gate", 1), ("gate", 3)]
    assert kinds(right(), limits=Limits(1.0, 0.25, 1)) == [("cap", 3)]
    assert kinds(right(), limits=Limits(1.0, 0.25, 2, protected_ids=(50,))) == [
        ("protected", place) for place in (1, 3, 5)
    ]
    assert kinds(right(), limits=Limits(1.0, 0.25, 2, protected_ids=(14,))) == [("protected", 3)]


def test_realised_values_count_the_matches_behind():
    limits = Limits(1.0, 0.25, 2, value_scheme="realised")
    # 0.5 for one token and the one behind it, 0.25 and 0.125 for one token each.
    assert kinds(right(), limits=limits) == []
    assert kinds(changed(0, reused=0), limits=limits) == [("gate", 1)]
    # At the answer's end the matches that would have followed are not known.
    last = entry(7, 0.5, draft_position=0)
    claim = Claim("a", "asd", IDS, [last], {"spent": 0.5, "exceptions": 1})
    rescored = scores(regret=(7, 0.5))
    rescored.regret[[1, 3, 5]] = 0
    assert kinds(claim, rescored, limits) == []


def test_claims_about_tokens():
    assert kinds(changed(2, draft_id=77)) == [("token", 5)]
    assert kinds(right(), scores(target_regret=(3, 0.7))) == [("target", 3)]
    assert kinds(changed(2, target_id=IDS[5])) == [("target", 5)]
    assert kinds(changed(2, position=40, draft_position=1)) == [("unlisted", 5), ("token", 40)]


def test_what_is_no_number_does_not_pass():
    assert kinds(right(), scores(regret=(0, math.nan))) == [("unlisted", 0)]
    assert kinds(right(), scores(regret=(1, math.nan))) == [("charge", 1)]
    assert kinds(right(), scores(target_regret=(1, math.nan))) == [("target", 1)]


@pytest.mark.parametrize("scheme", ["remaining", "realised"])
def test_no_limits_no_findings(scheme):
    assert kinds(right(), limits=Limits(math.inf, math.inf, 9, scheme)) == []
