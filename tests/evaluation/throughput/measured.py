"""Measurements made in code, from tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.throughput import ROLES, Measured, Unit, whole_measurements

TOKENS = 100


def measured(unit: Unit, role: str, rate: float, **fields: Any) -> Measured:
    """Returns a row of one request that emitted `TOKENS` at a rate, a fifth of it in the prefill.

    The rounds emit all but the first token, at the same number of seconds a token.
    """
    seconds = TOKENS / rate
    is_candidate = role == "candidate"
    values: dict[str, Any] = dict(
        ids=(f"p{unit.batch}",),
        tokens=TOKENS,
        round_tokens=TOKENS - 1,
        prefill_seconds=seconds / 5,
        rounds_seconds=seconds * 4 / 5,
        rounds=(33 if is_candidate else TOKENS - 1 if role == "greedy" else 45,),
        exceptions=(4 if is_candidate else 0,),
        spent=(1.5 if is_candidate else 0.0,),
        digest="candidate" if is_candidate else "strict",
    )
    return Measured(unit=unit, role=role, **values | fields)


def units_of(
    rates: Mapping[tuple[int, int], tuple[float, ...]], task: str = "gsm8k"
) -> dict[Unit, dict[str, Measured]]:
    """Returns units by (repeat, batch), given the rate of each role in the order of `ROLES`."""
    found = {}
    for (repeat, batch), each in rates.items():
        unit = Unit(task, repeat, batch)
        found[unit] = {
            role: measured(unit, role, rate) for role, rate in zip(ROLES, each, strict=False)
        }
    return found


def last_whole(rows, roles=ROLES):
    """Returns each unit's measurement that counts."""
    return {unit: found[-1] for unit, found in whole_measurements(rows, roles).items()}
