"""`throughput.md`: the result in words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asd_jax.evaluation.audit.cells import NONE, change, interval, table

_SPEED_HEADS = (
    "task|prompts|repeats|gates|verdict|gain, %|rounds alone, %|drift, %|strict, tokens/s|"
    "candidate, tokens/s"
)
_WORK_HEADS = (
    "task|strict, tokens a forward|candidate, tokens a forward|exceptions a request|"
    "regret a request, logits|strict over greedy|candidate over greedy"
)

_SHOWN_CONTROLS = (
    "rule", "budget", "gate", "block_cap", "value_scheme", "num_draft_tokens", "status",
)  # fmt: skip


def to_markdown(document: Mapping[str, Any]) -> str:
    """Returns the tables of a result.

    Args:
      document: From `make_document`.

    Returns:
      Markdown that ends in a line break. Estimates stand with their intervals in brackets. Where a
      gate fails the columns of gains hold what was timed, in parentheses.
    """
    rows = [*document["tasks"].items(), ("mean of tasks", document["mean"])]
    sections = [
        _heading(document),
        table(_SPEED_HEADS, [_speed_row(name, found) for name, found in rows]),
        _gates(document),
        "## Work",
        table(_WORK_HEADS, [_work_row(name, found) for name, found in rows]),
        _left_out(document),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _heading(document: Mapping[str, Any]) -> str:
    run, mean, controls = document["run"], document["mean"], document["controls"]
    target, drafter, device = (run.get(part) or {} for part in ("target", "drafter", "device"))
    confidence = mean["raw_gain_percent"]["confidence"]
    set_to = ", ".join(
        f"{name} {controls[name]}" for name in _SHOWN_CONTROLS if controls.get(name) is not None
    )
    return "\n\n".join(
        [
            "# Throughput on fixed work",
            f"Target {target.get('name') or NONE}, drafter {drafter.get('name') or NONE}, device "
            f"{device.get('kind') or NONE}, commit {run.get('commit') or NONE}. Candidate: "
            f"{set_to}.",
            "Every role decodes the same prompts to the same number of tokens; for each batch "
            "strict, candidate and strict run one behind the other. The gain is that in tokens "
            "per second over whole requests, prefill included, against the mean of the two strict "
            f"roles. Brackets hold {100 * confidence:g} % intervals.",
            f"**{_verdict(document)}**",
        ]
    )


def _verdict(document: Mapping[str, Any]) -> str:
    mean, target = document["mean"], document["limits"]["min_gain_percent"]
    if not mean["protocol_valid"]:
        return (
            "Protocol invalid: no gain is claimed, as a gate fails. The numbers below are what "
            "was timed."
        )
    met = "is met" if mean["speed_target_met"] else "is missed"
    return (
        f"The candidate against strict decoding: {mean['verdict']}, "
        f"{change(mean['gain_percent'])} %. The target of {target:g} % {met}."
    )


def _speed_row(name: str, found: Mapping[str, Any]) -> list[Any]:
    is_valid = found["protocol_valid"]
    gains = [change(found[f"raw_{kind}"]) for kind in ("gain_percent", "rounds_gain_percent")]
    return [
        name,
        found.get("num_prompts", ""),
        found.get("num_repeats", ""),
        "hold" if is_valid else "fail",
        found["verdict"],
        *(gain if is_valid else f"({gain})" for gain in gains),
        f"{found['drift_percent']:+.2f}",
        f"{found['baseline_tokens_per_second']:.2f}",
        f"{found['candidate_tokens_per_second']:.2f}",
    ]


def _work_row(name: str, found: Mapping[str, Any]) -> list[Any]:
    return [
        name,
        f"{found['tokens_per_forward']['strict']:.3f}",
        f"{found['tokens_per_forward']['candidate']:.3f}",
        f"{found['exceptions_per_request']:.2f}",
        f"{found['regret_per_request']:.2f}",
        interval(found["strict_over_greedy"]),
        interval(found["candidate_over_greedy"]),
    ]


def _gates(document: Mapping[str, Any]) -> str:
    lines = ["## Gates", "", *(f"- {_gate_line(*item)}" for item in document["tasks"].items())]
    if document.get("steadied") is not None:
        lines += [f"- {line}" for line in _again(document["steadied"])]
    together = [reason for reason in document["mean"]["reasons"] if ": " not in reason]
    if together:
        lines.append(f"- all tasks together: {_words(together)}")
    return "\n".join(lines)


def _gate_line(name: str, task: Mapping[str, Any]) -> str:
    drifts = ", ".join(f"{drift:+.2f}" for drift in task["repeats_drift_percent"])
    told = f"{name}: {_words(task['reasons']) or 'hold'}; drift in each repeat {drifts} %"
    if task["resampled"] != "batches":
        told += "; a single batch, so its intervals tell nothing about other prompts"
    return told


def _again(steadied: Mapping[str, Any]) -> list[str]:
    def counted(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {num}" for name, num in counts.items() if num) or "none"

    first = steadied["first_attempts"]
    drifts = ", ".join(f"{name} {value:+.2f}" for name, value in first["drift_percent"].items())
    over_greedy = ""
    if first["strict_over_greedy"] is not None:
        over_greedy = (
            f", strict over greedy {interval(first['strict_over_greedy'])}, candidate "
            f"{interval(first['candidate_over_greedy'])}"
        )
    return [
        f"batches are steady whose two strict runs differ by at most "
        f"{steadied['within_percent']:g} %, whatever the candidate does; others are measured up to "
        f"{steadied['max_attempts']} times, and the last measurement counts",
        f"batches of which earlier measurements were set aside: {counted(steadied['set_aside'])}",
        f"batches that count and are not steady: {counted(steadied['unsteady'])}",
        f"first measurements alone: gain {change(first['raw_gain_percent'])} %{over_greedy}; drift "
        f"{drifts} %; gates {_words(list(first['reasons'])) or 'hold'}",
    ]


def _words(reasons: list[str]) -> str:
    return ", ".join(reason.replace("_", " ") for reason in reasons)


def _left_out(document: Mapping[str, Any]) -> str:
    lines = [
        f"- {name}, {number}: {why}"
        for name, prompts in document["left_out"].items()
        for number, why in prompts.items()
    ]
    return "\n".join(["## Prompts that were left out", "", *lines]) if lines else ""
