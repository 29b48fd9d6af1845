"""Plain numpy loops that say what the verifier must do, one position and one token at a time.

Written from the design text (section 2), not from the vectorised code. Every number is an
`np.float32` scalar, and sums run from left to right, starting at the ledger's `spent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# The numbers of asd_jax.types.StopReason, spelled out so that a renumbering shows.
NONE, END_OF_DRAFT, GATE, BUDGET, CAP, PROTECTED, INVALID, STRICT = range(8)

VERDICT_FIELDS = (
    "num_accepted",
    "next_token",
    "target_tokens",
    "regret",
    "exception_mask",
    "num_strict",
    "stop_reason",
    "stop_regret",
    "is_finite",
    "num_finite",
)
LEDGER_FIELDS = (
    "spent",
    "exceptions",
    "reused",
    "proposed",
    "accepted",
    "strict_accepted",
    "rounds",
    "exhausted_at",
    "first_exception_at",
)


def fresh_ledger() -> dict[str, Any]:
    """Returns the ledger of a request that has not been verified yet."""
    ledger: dict[str, Any] = dict.fromkeys(LEDGER_FIELDS, 0)
    ledger.update(spent=np.float32(0), exhausted_at=-1, first_exception_at=-1)
    return ledger


def _argmax(row: np.ndarray) -> int:
    """Returns the lowest id of the maximum, where a NaN counts as +inf."""
    best, top = 0, -np.inf
    for i, z in enumerate(row):
        z = np.float32(np.inf) if np.isnan(z) else z
        if z > top:
            best, top = i, z
    return best


def verify_loop(
    draft_tokens: Iterable[int],
    target_logits: np.ndarray,
    spent: float,
    budget: float,
    gate: float,
    block_cap: int,
    *,
    draft_length: int | None = None,
    value_length: int | None = None,
    value_scheme: str = "remaining",
    protected_ids: Iterable[int] = (),
) -> dict[str, Any]:
    """Decides one block of one request; returns the fields of a `Verdict` by name."""
    draft = [int(x) for x in draft_tokens]
    logits = np.asarray(target_logits).astype(np.float32)
    num_draft, vocab_size = len(draft), logits.shape[1]
    assert logits.shape[0] == num_draft + 1
    n = num_draft if draft_length is None else int(draft_length)
    value_n = n if value_length is None else int(value_length)
    budget, gate = np.float32(budget), np.float32(gate)
    protected = {int(i) for i in protected_ids}

    target = [_argmax(row) for row in logits]
    top = [row[y] for row, y in zip(logits, target, strict=True)]
    is_match = [draft[i] == target[i] for i in range(num_draft)]

    num_finite = 0
    while num_finite <= num_draft and np.isfinite(top[num_finite]):
        num_finite += 1
    num_strict = 0
    while num_strict < n and is_match[num_strict]:
        num_strict += 1

    total = np.float32(spent)
    count = 0
    regret = np.zeros(num_draft, np.float32)
    mask = np.zeros(num_draft, bool)
    accepted, reason, stop_regret = 0, NONE, np.float32(0)
    with np.errstate(invalid="ignore", over="ignore"):
        for i in range(num_draft):
            if i >= n:
                reason = END_OF_DRAFT
                break
            if not is_match[i]:
                in_vocabulary = 0 <= draft[i] < vocab_size
                r = np.float32(top[i] - logits[i, draft[i]]) if in_vocabulary else np.float32(0)
                if value_scheme == "realised":
                    q = 1
                    while i + q < n and is_match[i + q]:
                        q += 1
                else:
                    q = value_n - i
                after = np.float32(total + r)
                if not in_vocabulary or not np.isfinite(r):
                    reason = INVALID
                elif budget == 0 or gate == 0 or block_cap == 0:
                    reason = STRICT
                elif draft[i] in protected or target[i] in protected:
                    reason = PROTECTED
                elif not r <= np.float32(gate * np.float32(q)):
                    reason = GATE
                elif count + 1 > block_cap:
                    reason = CAP
                elif not total < budget or not after <= budget:
                    reason = BUDGET
                if reason != NONE:
                    is_valid = in_vocabulary and np.isfinite(r)
                    stop_regret = r if is_valid else np.float32(np.inf)
                    break
                total, count = after, count + 1
                regret[i], mask[i] = r, True
            accepted = i + 1

    return {
        "num_accepted": accepted,
        "next_token": target[accepted],
        "target_tokens": np.asarray(target, np.int32),
        "regret": regret,
        "exception_mask": mask,
        "num_strict": num_strict,
        "stop_reason": reason,
        "stop_regret": stop_regret,
        "is_finite": num_finite > accepted,
        "num_finite": num_finite,
    }


def settle_loop(
    ledger: Mapping[str, Any],
    verdict: Mapping[str, Any],
    num_committed: int,
    *,
    draft_length: int | None = None,
    position: int | None = None,
) -> dict[str, Any]:
    """Charges one block; takes and returns the fields of a `Ledger` by name."""
    new = dict(ledger)
    num_draft = len(verdict["regret"])
    start = ledger["accepted"] + ledger["rounds"] if position is None else int(position)
    spent = np.float32(ledger["spent"])
    seen_exception = False
    for i in range(min(int(num_committed), int(verdict["num_accepted"]))):
        new["accepted"] += 1
        if seen_exception:
            new["reused"] += 1
        if verdict["exception_mask"][i]:
            spent = np.float32(spent + np.float32(verdict["regret"][i]))
            new["exceptions"] += 1
            seen_exception = True
            if new["first_exception_at"] < 0:
                new["first_exception_at"] = start + i
    new["spent"] = spent
    new["proposed"] += num_draft if draft_length is None else int(draft_length)
    new["strict_accepted"] += min(int(num_committed), int(verdict["num_strict"]))
    is_next_committed = int(num_committed) > int(verdict["num_accepted"])
    if verdict["stop_reason"] == BUDGET and is_next_committed and ledger["exhausted_at"] < 0:
        new["exhausted_at"] = ledger["rounds"]
    new["rounds"] += 1
    return new


def block_logits(
    vocab_size: int,
    top_ids: Iterable[int],
    top_logits: Iterable[float],
    draft_ids: Iterable[int],
    draft_logits: Iterable[float],
    next_id: int,
) -> np.ndarray:
    """Returns whole rows [G+1, V] in which the target's and the draft's logit are the given ones.

    All other tokens lie far below. The last row's argmax is `next_id`. A row that cannot have the
    given argmax (the draft's logit is the higher one, or a tie that the lower draft id wins) is
    refused, so that no case is quietly turned into another one.
    """
    top_ids, draft_ids = list(top_ids), list(draft_ids)
    logits = np.full((len(draft_ids) + 1, vocab_size), -1000, np.float32)
    for row, y, top, x, z in zip(
        logits[:-1], top_ids, top_logits, draft_ids, draft_logits, strict=True
    ):
        if x == y and np.float32(z) != np.float32(top):
            raise ValueError(f"token {x} cannot have the logits {z} and {top} in one row")
        if x != y and (z > top or (z == top and x < y)):
            raise ValueError(f"argmax would be {x} ({z}), not {y} ({top})")
        row[x], row[y] = z, top
    logits[-1, next_id] = 0
    return logits
