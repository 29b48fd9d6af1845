"""Checks what an output row claims about its exceptions and its ledger. Pure numpy, no model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asd_jax.evaluation.replay.rescore import Rescored


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a request was allowed.

    Attributes:
      budget: Logits for the whole request.
      gate: Logits a token of suffix value.
      block_cap: Exceptions a block.
      value_scheme: "remaining" or "realised".
      protected_ids: Ids that an exception may neither introduce nor skip.
    """

    budget: float
    gate: float
    block_cap: int
    value_scheme: str = "remaining"
    protected_ids: Collection[int] = ()


@dataclasses.dataclass(frozen=True)
class Claim:
    """What an output row says of one request under one arm, all its turns together.

    Attributes:
      id: The request.
      arm: The arm.
      token_ids: Emitted ids.
      exceptions: As in `asd_jax.evaluation.records`.
      ledger: As there: `spent` and `exceptions` are read.
    """

    id: str
    arm: str
    token_ids: Sequence[int]
    exceptions: Sequence[Mapping[str, Any]]
    ledger: Mapping[str, Any]

    def said_targets(self) -> list[int]:
        """Returns for every token what the row says the target would have chosen, [N]."""
        said = list(self.token_ids)
        for entry in self.exceptions:
            if 0 <= entry["position"] < len(said):
                said[entry["position"]] = entry["target_id"]
        return said


@dataclasses.dataclass(frozen=True)
class Finding:
    """A claim that does not hold.

    Attributes:
      id: The request.
      arm: The arm.
      kind: "unlisted" (a token that is not the target's and no exception), "token" (a listed draft
        that was not emitted), "target" (a listed target id that is not its choice), "charge",
        "gate", "cap", "protected", "budget", "spent" or "count".
      position: In the answer; -1 where it is about the whole of it.
      claimed: What the row says.
      found: What it should say, or may be at most.
    """

    id: str
    arm: str
    kind: str
    position: int
    claimed: float
    found: float


def check_claim(
    claim: Claim, rescored: Rescored, limits: Limits, *, tolerance: float
) -> list[Finding]:
    """Returns everything about a row that does not hold, in the order of the answer.

    Args:
      claim: The row.
      rescored: The target's own scores, with `claim.said_targets()` as its claims.
      limits: What the request was allowed; budget 0 for arms without exceptions.
      tolerance: Logits by which scores of another batch shape may differ. The ledger's own
        arithmetic, on the regrets that the row claims, has to hold exactly.
    """
    size = len(claim.token_ids)
    findings: list[Finding] = []

    def report(kind: str, position: int, claimed: float, found: float) -> None:
        findings.append(Finding(claim.id, claim.arm, kind, position, float(claimed), float(found)))

    listed = {int(entry["position"]): entry for entry in claim.exceptions}
    for place, (regret, own) in enumerate(
        zip(rescored.regret.tolist(), rescored.target_regret.tolist(), strict=True)
    ):
        entry = listed.get(place)
        if entry is None:
            if not regret <= tolerance:
                report("unlisted", place, 0.0, regret)
            continue
        if entry["draft_id"] != claim.token_ids[place]:
            report("token", place, entry["draft_id"], claim.token_ids[place])
        if not own <= tolerance or entry["draft_id"] == entry["target_id"]:
            report("target", place, entry["target_id"], int(rescored.top_ids[place]))
        if not abs(float(entry["regret"]) - regret) <= tolerance:
            report("charge", place, float(entry["regret"]), regret)
    for place in sorted(set(listed) - set(range(size))):
        report("token", place, listed[place]["draft_id"], -1)
    _check_limits(claim, limits, report)
    return sorted(findings, key=lambda finding: finding.position)


def _check_limits(claim: Claim, limits: Limits, report: Any) -> None:
    """Holds the claimed exceptions against gate, cap, protection, budget and the ledger."""
    entries = sorted(claim.exceptions, key=lambda entry: entry["position"])
    spent = np.float32(0)
    for entry in entries:
        place, regret = int(entry["position"]), np.float32(entry["regret"])
        value = int(entry["draft_length"]) - int(entry["draft_position"])
        if limits.value_scheme == "realised":
            # Matches behind an accepted exception are kept, unless the answer ended among them.
            following = int(entry["reused"])
            if place + 1 + following < len(claim.token_ids):
                value = min(value, 1 + following)
        allowed = np.float32(np.float32(limits.gate) * np.float32(value))
        if not regret <= allowed:
            report("gate", place, regret, allowed)
        if {entry["draft_id"], entry["target_id"]} & set(limits.protected_ids):
            report("protected", place, entry["draft_id"], entry["target_id"])
        if not spent < limits.budget:
            report("budget", place, regret, limits.budget - spent)
        spent = np.float32(spent + regret)
    by_block = itertools.groupby(entries, key=lambda e: e["position"] - e["draft_position"])
    for _, block in by_block:
        members = list(block)
        if len(members) > limits.block_cap:
            report("cap", members[-1]["position"], len(members), limits.block_cap)
    if not spent <= np.float32(limits.budget):
        report("budget", -1, spent, limits.budget)
    if np.float32(claim.ledger["spent"]) != spent:
        report("spent", -1, np.float32(claim.ledger["spent"]), spent)
    if int(claim.ledger["exceptions"]) != len(entries):
        report("count", -1, claim.ledger["exceptions"], len(entries))
