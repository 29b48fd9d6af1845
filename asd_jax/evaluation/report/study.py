"""What a study is made of.

Shares, accuracies and accuracy differences are between 0 and 1 (the page shows percent and
percentage points); fields whose name ends in `_percent` are in percent; regret is in logits.
Everything but `run` may be missing or null. What `asd_jax.evaluation.audit` writes is a study; the
caller adds `mean.gain_percent`, and `throughput` to each task or, by task, to the whole. Fields
that need more words:

- `exceptions.places`: how many exceptions fall into each tenth of the answers.
- `exceptions.spent_over_answer`: the share of the budget that is spent by the end of each tenth of
  the answer, so it never falls.
- `acceptance.ARM.by_position` or `.kept_share`: the share of the rounds in which the draft token at
  each position is kept.
- `frontier[i]`: a setting; `frontier_units` says what its speed and quality are counted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from asd_jax.evaluation.report.fields import (
    Check,
    StudyError,
    amount,
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
_DIFFERENCE = interval(-1, 1)
_PERCENT_CHANGE = interval(-100)
_NUM_PARTS = 10


class Study(NamedTuple):
    """A study that has been checked; fields that it does not have are None, or empty.

    Attributes:
      run: The receipt.
      controls: The verifier's setting and how it was found.
      tasks: What was measured on each task, by name.
      mean: Means over tasks, by name, as Intervals.
      gain: Mean gain in throughput over tasks, percent (an Interval), or None.
      accuracy_difference: Mean over graded tasks, a share (an Interval), or None.
      ratings: What a judge thinks of both arms, by task.
      frontier: Settings and rivals, each with its speed and quality.
      units: What speed and quality of the frontier are counted in, by those names.
      not_shown: Names of fields that the page knows nothing of.
    """

    run: Plain
    controls: Plain
    tasks: dict[str, Plain]
    mean: Plain
    gain: Any
    accuracy_difference: Any
    ratings: dict[str, Plain]
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


def _divergence(value: Any, where: str, extra: list[str]) -> Plain:
    """The share of answers that differ, alone or with counts."""
    plain = value if isinstance(value, Mapping) and "share" in value else {"share": value}
    return dict(_COUNTED_DIVERGENCE(plain, where, extra))


def _answer(value: Any, where: str, extra: list[str]) -> Plain:
    """An answer with an object for each arm, or as the audit writes it, with a grade for each."""
    if not (isinstance(value, Mapping) and "strict_text" in value):
        return dict(_PLAIN_ANSWER(value, where, extra))
    read = _AUDITED_ANSWER(value, where, extra)
    judged = {
        arm: {name: (read[f"{arm}_grade"] or {}).get(name) for name in ("is_right", "extracted")}
        for arm in ("strict", "asd")
    }
    return {
        "id": read["id"],
        "turns": read["turns"],
        "reference": read["reference"],
        "strict": {"text": read["strict_text"], **judged["strict"]},
        "asd": {"pieces": read["pieces"], "spent": read["spent"], **judged["asd"]},
    }


_COUNTED_DIVERGENCE = record(
    {"share": amount(0, 1)}, {"num_different": count, "without_exception": count}
)
_EXCEPTION = record(
    {"draft": as_text, "target": as_text, "regret": number(0)}, {"position": count, "num": count}
)
_ACCURACIES = record(
    {"strict": _ACCURACY, "asd": _ACCURACY, "difference": _DIFFERENCE},
    {
        "bootstrap_difference": _DIFFERENCE,
        "p_value": _SHARE,
        "both_right": count,
        "only_strict": count,
        "only_asd": count,
        "both_wrong": count,
    },
)
_OVERLAP = record(
    {"strict": interval(0, 1), "asd": interval(0, 1)}, {"difference": _DIFFERENCE, "num": count}
)
_LENGTH = record(
    {},
    {
        "strict_mean": number(0),
        "asd_mean": number(0),
        "difference": interval(),
        "change_percent": _PERCENT_CHANGE,
    },
)
_STOPS = record(
    {},
    {
        "num": count,
        "strict": named(count),
        "asd": named(count),
        "earlier": count,
        "later": count,
        "only_strict": count,
        "only_asd": count,
    },
)
_EXCEPTIONS = record(
    {},
    {
        "per_answer": amount(0),
        "regret_per_answer": amount(0),
        "reused_per_answer": amount(0),
        "exhausted_share": amount(0, 1),
        "places": listing(count, _NUM_PARTS),
        # Sums of rounded shares may end a hair above the whole.
        "spent_over_answer": _growing(listing(number(0, 1.000001), _NUM_PARTS)),
    },
)
_ARM_ACCEPTANCE = record(
    {},
    {
        "tokens_per_forward": interval(0),
        "by_position": listing(_SHARE),
        "kept_share": listing(_SHARE),
        "accept_histogram": free,  # what kept_share is made of
    },
)
_ACCEPTANCE = record(
    {}, {"strict": _ARM_ACCEPTANCE, "asd": _ARM_ACCEPTANCE, "change_percent": _PERCENT_CHANGE}
)
_THROUGHPUT = record(
    {"gain_percent": _PERCENT_CHANGE, "valid": flag},
    {"drift_percent": number(), "reasons": listing(text)},
)
_PLAIN_ANSWER = record(
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
_GRADE = record({}, {"is_right": flag, "extracted": as_text, "detail": text, "measures": free})
_AUDITED_ANSWER = record(
    {"id": as_text, "strict_text": text, "pieces": listing(_piece)},
    {
        "turns": listing(as_text),
        "reference": as_text,
        "strict_grade": _GRADE,
        "asd_grade": _GRADE,
        "spent": number(0),
        "asd_text": text,  # what the pieces come to
        "is_lost": flag,
        "first_divergence": count,
    },
)
_TASK = record(
    {},
    {
        "num": count,
        "missing": named(count),
        "is_graded": flag,
        "accuracy": _ACCURACIES,
        "overlap_not_quality": _OVERLAP,
        "length": _LENGTH,
        "divergence": _divergence,
        "first_divergence": named(number(0)),
        "stops": _STOPS,
        "exceptions": _EXCEPTIONS,
        "acceptance": _ACCEPTANCE,
        "throughput": _THROUGHPUT,
        "worst": listing(_answer),
    },
)
_MEAN = record(
    {},
    {
        "gain_percent": _PERCENT_CHANGE,
        "accuracy_difference": _DIFFERENCE,
        "length_change_percent": _PERCENT_CHANGE,
        "tokens_per_forward_change_percent": _PERCENT_CHANGE,
        "divergence": interval(0, 1),
        "exceptions_per_answer": interval(0),
        "regret_per_answer": interval(0),
        "tasks": free,
        "graded_tasks": free,
    },
)
_RATED = interval(1, 10)
_RATINGS = record(
    {"strict": _RATED, "asd": _RATED}, {"difference": interval(-9, 9), "num": count, "model": text}
)
_POINT = record(
    {"rule": text, "speed": interval(), "quality": interval()},
    {"options": free_mapping, "is_frozen": flag, "certified": flag, "details": free_mapping},
)
_STUDY = record(
    {"run": free_mapping},
    {
        "controls": free_mapping,
        "tasks": named(_TASK),
        "throughput": named(_THROUGHPUT),
        "mean": _MEAN,
        "judge": named(_RATINGS),
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
    mean, tasks = read["mean"] or {}, read["tasks"] or {}
    for name, timing in (read["throughput"] or {}).items():
        if name not in tasks:
            raise StudyError(f"throughput.{name}: is no task of the study")
        tasks[name]["throughput"] = tasks[name]["throughput"] or timing
    return Study(
        run=read["run"],
        controls=read["controls"] or {},
        tasks=tasks,
        mean=mean,
        gain=mean.get("gain_percent"),
        accuracy_difference=mean.get("accuracy_difference"),
        ratings=read["judge"] or {},
        frontier=read["frontier"] or [],
        units=read["frontier_units"] or {},
        not_shown=not_shown,
    )
