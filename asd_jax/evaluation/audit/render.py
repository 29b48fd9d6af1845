"""A study as Markdown: numbers with their intervals, and what they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.audit.cells import NONE, change, interval, listed, table
from asd_jax.evaluation.audit.study import Study


def to_markdown(study: Study | Mapping[str, Any]) -> str:
    """Returns the tables of a study.

    Args:
      study: A study, or the JSON value of one.

    Returns:
      Markdown that ends in a line break. Estimates stand with their intervals in brackets; an
      interval that holds 0 says so.
    """
    document = study.to_json() if isinstance(study, Study) else study
    tasks = document["tasks"]
    sections = [
        _heading(document),
        _accuracy(tasks, document["mean"]),
        _overlap(tasks),
        _work(tasks, document["mean"]),
        _drift(tasks, document["mean"]),
        _exceptions(tasks, document["mean"]),
        _kept(tasks),
        _worst(tasks),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _heading(document: Mapping[str, Any]) -> str:
    confidence = next(iter(document["tasks"].values()))["divergence"]["share"]["confidence"]
    run = document["run"]
    target, drafter = (run.get(part) or {} for part in ("target", "drafter"))
    lines = [
        "# ASD against strict decoding",
        "",
        f"Target {target.get('name') or NONE}, drafter {drafter.get('name') or NONE}, commit "
        f"{run.get('commit') or NONE}. Both arms answered the same examples. Brackets hold "
        f"{100 * confidence:g} % intervals; requests are what is resampled.",
    ]
    if limits := run.get("longest_answers"):
        told = ", ".join(f"{name} {limit}" for name, limit in limits.items())
        lines += ["", f"Longest answers, tokens a turn: {told}."]
    lost = {
        name: task["missing"]
        for name, task in document["tasks"].items()
        if any(task["missing"].values())
    }
    for name, missing in lost.items():
        counts = ", ".join(f"{number} of arm {arm}" for arm, number in missing.items())
        lines += [
            "",
            f"**{name}: answers are missing ({counts}).** Only examples that both arms answered "
            "are compared, and those that are missing may have been the hard ones.",
        ]
    return "\n".join(lines)


def _accuracy(tasks: Mapping[str, Any], mean: Mapping[str, Any]) -> str:
    rows = []
    for name, task in tasks.items():
        found = task["accuracy"]
        if found is not None:
            rows.append(
                [
                    name,
                    task["num"],
                    interval(found["strict"], scale=100),
                    interval(found["asd"], scale=100),
                    change(found["difference"], scale=100),
                    change(found["bootstrap_difference"], scale=100),
                    f"{found['p_value']:.3g}",
                    found["both_right"],
                    found["only_strict"],
                    found["only_asd"],
                    found["both_wrong"],
                ]
            )
    if not rows:
        return ""
    difference = change(mean["accuracy_difference"], scale=100)
    rows.append(["mean of tasks", "", "", "", "", difference, *[""] * 5])
    return "\n\n".join(
        [
            "## Right answers",
            table(
                "task|n|strict, %|ASD, %|ASD - strict, points|bootstrap|McNemar p|both right|"
                "only strict|only ASD|both wrong",
                rows,
            ),
            "An interval that holds 0 does not show that the arms are equally good: it shows that "
            "these examples are too few to tell them apart within its ends. Intervals of an "
            "accuracy are Wilson's, of a difference Newcombe's for paired answers; a bootstrap, "
            "as of the mean, knows of no harm that none of these examples shows.",
        ]
    )


def _overlap(tasks: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            found["num"],
            interval(found["strict"], 3),
            interval(found["asd"], 3),
            change(found["difference"], 3),
        ]
        for name, task in tasks.items()
        if (found := task["overlap_not_quality"]) is not None
    ]
    ungraded = [name for name, task in tasks.items() if not task["is_graded"]]
    if not ungraded:
        return ""
    parts = [
        "## Tasks without right answers",
        f"No quality was measured on {', '.join(ungraded)}. Overlap counts the words that an "
        "answer shares with one reference (ROUGE-L, 0 to 1). It is not quality: good answers share "
        "few words and bad ones many. It only tells whether the arms write differently.",
    ]
    if rows:
        parts.append(table("task|n with reference|strict|ASD|ASD - strict", rows))
    return "\n\n".join(parts)


def _work(tasks: Mapping[str, Any], mean: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            interval(task["acceptance"]["strict"]["tokens_per_forward"]),
            interval(task["acceptance"]["asd"]["tokens_per_forward"]),
            change(task["acceptance"]["change_percent"]),
            f"{task['length']['strict_mean']:.1f}",
            f"{task['length']['asd_mean']:.1f}",
            change(task["length"]["change_percent"]),
        ]
        for name, task in tasks.items()
    ]
    per_forward = change(mean["tokens_per_forward_change_percent"])
    length = change(mean["length_change_percent"])
    rows.append(["mean of tasks", "", "", per_forward, "", "", length])
    return "\n\n".join(
        [
            "## Tokens per target forward, and length",
            table(
                "task|strict|ASD|change, %|strict answer, tokens|ASD answer, tokens|change, %", rows
            ),
            "Tokens per forward are those that rounds emitted, the target's own token included, "
            "over the rounds. They are no speed: a longer answer needs more forwards.",
        ]
    )


def _drift(tasks: Mapping[str, Any], mean: Mapping[str, Any]) -> str:
    rows = []
    for name, task in tasks.items():
        parts, places, stops = task["divergence"], task["first_divergence"], task["stops"]
        rows.append(
            [
                name,
                interval(parts["share"], scale=100),
                NONE if parts["without_exception"] is None else parts["without_exception"],
                NONE if places is None else " / ".join(f"{place:.0f}" for place in places.values()),
                f"{stops['strict']['stop']} / {stops['asd']['stop']} of {stops['num']}",
                stops["earlier"],
                stops["later"],
                stops["only_strict"],
                stops["only_asd"],
            ]
        )
    rows.append(["mean of tasks", interval(mean["divergence"], scale=100), *[""] * 7])
    return "\n\n".join(
        [
            "## Answers that differ, and how they end",
            table(
                "task|differ, %|not by an exception|first difference at token (10/25/50/75/90 %)|"
                "end by a stop, strict / ASD|ASD stops earlier|later|only strict stops|"
                "only ASD stops",
                rows,
            ),
            "An answer differs if one token id does; that alone makes it neither better nor worse.",
        ]
    )


def _exceptions(tasks: Mapping[str, Any], mean: Mapping[str, Any]) -> str:
    rows = []
    for name, task in tasks.items():
        found = task["exceptions"]
        rows.append(
            [
                name,
                interval(found["per_answer"]),
                interval(found["regret_per_answer"]),
                interval(found["exhausted_share"], scale=100),
                NONE if found["places"] is None else " ".join(map(str, found["places"])),
                listed(found["spent_over_answer"], "{:.0f}", scale=100),
            ]
        )
    means = [interval(mean["exceptions_per_answer"]), interval(mean["regret_per_answer"])]
    rows.append(["mean of tasks", *means, "", "", ""])
    return "\n\n".join(
        [
            "## Exceptions",
            table(
                "task|per answer|regret per answer, logits|budget used up, %|"
                "exceptions by tenth of the answer|budget spent by each tenth, %",
                rows,
            ),
        ]
    )


def _kept(tasks: Mapping[str, Any]) -> str:
    rows = [
        [name, arm, listed(task["acceptance"][key]["kept_share"], "{:.1f}", scale=100)]
        for name, task in tasks.items()
        for key, arm in (("strict", "strict"), ("asd", "ASD"))
    ]
    return "\n\n".join(
        ["## Draft positions kept, % of all rounds", table("task|arm|first to last", rows)]
    )


def _worst(tasks: Mapping[str, Any]) -> str:
    rows = []
    for name, task in tasks.items():
        shown = task["worst"]
        lost = [entry["id"] for entry in shown if entry["is_lost"]]
        rows.append([name, len(shown), len(lost), ", ".join(lost) or "none"])
    return "\n\n".join(
        [
            "## Most harmed answers",
            "Picked for their harm (strict right and ASD wrong first, then by regret spent), so "
            "they stand for no average. Their texts are in the audit's own study.json, and in none "
            "that was written without answers.",
            table("task|listed|strict right, ASD wrong|ids", rows),
        ]
    )
