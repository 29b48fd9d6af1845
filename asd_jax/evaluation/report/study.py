"""What a study is made of.

Shares, accuracies and accuracy differences are between 0 and 1 (the page shows percent and
percentage points); fields whose name ends in `_percent` are in percent; regret is in logits.
Everything but `run` may be missing or null. Two fields need more words:

- `exceptions.places`: how many exceptions fall into each tenth of the answers.
- `exceptions.spent_over_answer`: the share of the budget that is spent by the end of each tenth of
  the answer, so it never falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from asd_jax.evaluation.report.fields import (
    Check,
    as_text,
    count,
    flag,
    free,
    free_mapping,
    interval,
    listing,
    named,
    number,
    optional,
    record,
    text,
    wrong,
)

Plain = dict[str, Any]

_SHARE = number(0, 1)
_ACCURACY = interval(0, 1)
_PERCENT_CHANGE = interval(-100)
_NUM_PARTS = 10


class Study(NamedTuple):
    """A study that has been checked; fields that it does not have are None, or empty.

    Attributes:
      run: The receipt.
      controls: The verifier's setting and how it was found.
      tasks: What was measured on each task, by name.
      gain: Mean gain in throughput over tasks, percent (an Interval), or None.
      accuracy_difference: Mean over graded tasks, a share (an Interval), or None.
      frontier: Settings and rivals, each with its speed and quality.
      units: What speed and quality of the frontier are counted in, by those names.
      not_shown: Names of fields that the page knows nothing of.
    """

    run: Plain
    controls: Plain
    tasks: dict[str, Plain]
    gain: Any
    accuracy_difference: Any
    frontier: list[Plain]
    units: Plain
    not_shown: list[str]


def _growing(check: Check) -> Check:
    def check_growing(value: Any, where: str, extra: list[str]) -> list[float]:
        shares: list[float] = check(value, where, extra)
        for index in range(1, len(shares)):
            if shares[index] < shares[index - 1] - 1e-9:
                raise wrong(f"{where}[{index}]", f"at least {shares[index - 1]:g}", shares[index])
        return shares

    return check_growing


def _piece(value: Any, where: str, extra: list[str]) -> Plain:
    """A stretch of an answer, and what was accepted in it if it is an exception."""
    pair = listing(free, length=2)(value, where, extra)
    words = text(pair[0], f"{where}[0]", extra)
    exception = optional(_EXCEPTION)(pair[1], f"{where}[1]", extra)
    return {"text": words, "exception": exception}


_EXCEPTION = record({"draft": as_text, "target": as_text, "regret": number(0)}, {"position": count})
_ACCURACIES = record(
    {"strict": _ACCURACY, "asd": _ACCURACY, "difference": interval(-1, 1)},
    {
        "p_value": _SHARE,
        "both_right": count,
        "only_strict": count,
        "only_asd": count,
        "both_wrong": count,
    },
)
_LENGTH = record(
    {}, {"strict_mean": number(0), "asd_mean": number(0), "change_percent": _PERCENT_CHANGE}
)
_STOPS = record({}, {"strict": named(count), "asd": named(count), "earlier": count, "later": count})
_EXCEPTIONS = record(
    {},
    {
        "per_answer": number(0),
        "regret_per_answer": number(0),
        "exhausted_share": _SHARE,
        "places": listing(count, _NUM_PARTS),
        "spent_over_answer": _growing(listing(_SHARE, _NUM_PARTS)),
    },
)
_ARM_ACCEPTANCE = record({}, {"tokens_per_forward": interval(0), "by_position": listing(_SHARE)})
_THROUGHPUT = record(
    {"gain_percent": _PERCENT_CHANGE, "valid": flag},
    {"drift_percent": number(), "reasons": listing(text)},
)
_ANSWER = record(
    {"id": as_text},
    {
        "turns": listing(as_text),
        "reference": as_text,
        "strict": record({"text": text}, {"is_right": flag, "extracted": as_text}),
        "asd": record(
            {"pieces": listing(_piece)},
            {"is_right": flag, "extracted": as_text, "spent": number(0)},
        ),
    },
)
_TASK = record(
    {},
    {
        "num": count,
        "is_graded": flag,
        "accuracy": _ACCURACIES,
        "overlap_not_quality": record({"strict": interval(0, 1), "asd": interval(0, 1)}),
        "length": _LENGTH,
        "divergence": _SHARE,
        "stops": _STOPS,
        "exceptions": _EXCEPTIONS,
        "acceptance": record({}, {"strict": _ARM_ACCEPTANCE, "asd": _ARM_ACCEPTANCE}),
        "throughput": _THROUGHPUT,
        "worst": listing(_ANSWER),
    },
)
_POINT = record(
    {"rule": text, "speed": interval(), "quality": interval()},
    {"options": free_mapping, "is_frozen": flag, "certified": flag},
)
_STUDY = record(
    {"run": free_mapping},
    {
        "controls": free_mapping,
        "tasks": named(_TASK),
        "mean": record(
            {}, {"gain_percent": _PERCENT_CHANGE, "accuracy_difference": interval(-1, 1)}
        ),
        "frontier": listing(_POINT),
        "frontier_units": record({}, {"speed": text, "quality": text}),
    },
)


def read_study(study: Mapping[str, Any]) -> Study:
    """Returns a study as the page uses it.

    Args:
      study: As read from JSON.

    Raises:
      StudyError: It is not one; the message names the field.
    """
    not_shown: list[str] = []
    read = _STUDY(study, "", not_shown)
    mean = read["mean"] or {}
    return Study(
        run=read["run"],
        controls=read["controls"] or {},
        tasks=read["tasks"] or {},
        gain=mean.get("gain_percent"),
        accuracy_difference=mean.get("accuracy_difference"),
        frontier=read["frontier"] or [],
        units=read["frontier_units"] or {},
        not_shown=not_shown,
    )
