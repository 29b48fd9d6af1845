"""What the tried settings came to, as points of a frontier and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asd_jax.evaluation.audit.ratios import ratio_interval
from asd_jax.evaluation.calibration.barriers import BLOCK_CAP, VALUE_SCHEME, Quartile
from asd_jax.evaluation.calibration.choice import Selection
from asd_jax.evaluation.calibration.trials import Candidate, Floats, Outcome
from asd_jax.evaluation.plain_json import plain_json
from asd_jax.evaluation.statistics.bootstrap import Bootstrap, Interval
from asd_jax.evaluation.statistics.paired import compare_accuracy

UNITS = {
    "speed": "tokens per target forward",
    "quality": "accuracy less that of strict decoding, a share",
}
NOTES = {
    "speed": (
        "tokens that rounds emitted over target forwards, prefills not counted: it depends on no "
        "machine, and is no time; `experiments.throughput` measures that"
    ),
    "quality": (
        "over the graded examples of all tasks together; Newcombe's interval, as no resampling of "
        "answers that are all right shows a wrong one"
    ),
    "loss": "accuracy of strict decoding less that of the setting, on the same examples",
    "likeness": "word overlap with references less strict decoding's; no quality",
}


def frontier_points(
    tried: Sequence[Candidate],
    outcomes: Sequence[Outcome],
    certified: Sequence[bool] | None = None,
    *,
    bootstrap: Bootstrap,
) -> list[dict[str, Any]]:
    """Returns strict decoding and all settings as the report draws them.

    Args:
      tried: The S settings.
      outcomes: Of each. [S].
      certified: Whether each is certified, or None where nothing was tested. [S].
      bootstrap: How to resample examples for the intervals of speed.

    Returns:
      S + 1 objects of plain JSON, with the fields of `report.study`'s frontier.

    Raises:
      ValueError: Fewer than two answers have a round.
    """
    first = outcomes[0]
    right = first.strict_is_right
    strict = {
        "rule": "strict",
        "options": {},
        "speed": speed_interval(first.strict_round_tokens, first.strict_rounds, bootstrap),
        "quality": _quality(right, right, bootstrap.confidence),
        "certified": None,
        "is_frozen": False,
    }
    flags: Sequence[bool | None] = [None] * len(tried) if certified is None else certified
    points = [
        {
            "rule": "asd",
            "options": candidate.options(),
            "speed": speed_interval(outcome.round_tokens, outcome.rounds, bootstrap),
            "quality": _quality(outcome.is_right, right, bootstrap.confidence),
            "certified": flag,
            "is_frozen": False,
        }
        for candidate, outcome, flag in zip(tried, outcomes, flags, strict=True)
    ]
    return [dict(plain_json(point)) for point in [strict, *points]]


def speed_interval(round_tokens: Floats, rounds: Floats, bootstrap: Bootstrap) -> Interval:
    """Returns tokens per target forward with its interval.

    Answers of a single token, which come from the prefill, have no round and say nothing of speed.

    Raises:
      ValueError: Fewer than two answers have a round.
    """
    has_round = rounds > 0
    if has_round.sum() < 2:
        raise ValueError(f"rounds: got {int(has_round.sum())} answers with any, needs 2 or more")
    interval = ratio_interval(round_tokens[has_round], rounds[has_round], bootstrap)
    assert interval is not None
    return interval


def setting_table(
    tried: Sequence[Candidate], outcomes: Sequence[Outcome], selection: Selection
) -> list[dict[str, Any]]:
    """Returns what each setting came to, an object of plain JSON each, strict decoding first."""
    first = outcomes[0]
    rows: list[dict[str, Any]] = [
        {
            "rule": "strict",
            "speed": first.strict_speed,
            "accuracy": float(first.strict_is_right.mean()) if first.losses.size else None,
        }
    ]
    for place, (candidate, outcome) in enumerate(zip(tried, outcomes, strict=True)):
        row = {
            "rule": "asd",
            **candidate.options(),
            "speed": outcome.speed,
            "accuracy": float(outcome.is_right.mean()),
            "loss": float(outcome.losses.mean()),
            "only_strict_right": int((outcome.losses > 0).sum()),
            "only_asd_right": int((outcome.losses < 0).sum()),
            "likeness": float(outcome.likeness.mean()) if outcome.likeness.size else None,
            "changed": float(outcome.is_changed.mean()),
            "exceptions_per_answer": float(outcome.exceptions.mean()),
            "regret_per_answer": float(outcome.spent.mean()),
        }
        if selection.p_values is not None and selection.certified is not None:
            row |= {
                "p_value": selection.p_values[place],
                "certified": selection.certified[place],
            }
        rows.append(row)
    return rows


def quartile_page(found: Quartile) -> str:
    """Returns what the quartile was taken of, in Markdown."""
    names = ("smallest", "lower quartile", "median", "upper quartile", "largest")
    head = (
        f"{found.num_answers} strict answers, {found.num_rounds} rounds, {found.num_refusals} "
        f"refused tokens: {found.num_barriers} of positive regret, {found.num_ties} ties and "
        f"{found.num_unpriced} without a finite regret left out; {found.num_short} in proposals of "
        f"fewer than {found.block_size} tokens.\n"
    )
    if (sure := found.interval) is not None:
        head += (
            f"The lower quartile is {sure.estimate:.3f} [{sure.low:.3f}, {sure.high:.3f}], the "
            f"{100 * sure.confidence:.0f} % interval over {sure.num_units} answers in which "
            "a token was refused.\n"
        )
    share = _table(
        ("regret per share of a block", "logits"),
        zip(names, found.spread, strict=True),
    )
    units = _table(
        ("control", "normalised scheme", f"scheme {VALUE_SCHEME}"),
        [
            ("budget", found.budget, found.budget),
            ("gate", found.value, found.gate),
            ("block cap", BLOCK_CAP, BLOCK_CAP),
        ],
    )
    return f"{head}\n{share}\n{units}"


def setting_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns `setting_table` in Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row if name != "likeness"))
    if any(row.get("likeness") is not None for row in rows):
        names.append("likeness")
    notes = "\n".join(f"- {name}: {words}" for name, words in NOTES.items() if name in names)
    body = ([row.get(name) for name in names] for row in rows)
    return f"{_table([name.replace('_', ' ') for name in names], body)}\n{notes}\n"


def _quality(
    right: np.ndarray[Any, Any], strict: np.ndarray[Any, Any], confidence: float
) -> Interval:
    return compare_accuracy(right, strict, confidence=confidence).difference


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), ["---"] * len(head), *([_shown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)
