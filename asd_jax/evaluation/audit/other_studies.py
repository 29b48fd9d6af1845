"""What an audit shows beside its answers: the controls, and speeds and settings measured elsewhere.

A speed is taken only from a study of the same controls, a frontier only from one of the same target
and drafter; the other study's own receipt says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from asd_jax.evaluation.audit.fields import AuditError, refusal
from asd_jax.evaluation.controls_file import FrozenControls
from asd_jax.evaluation.plain_json import infinity_as_text
from asd_jax.evaluation.throughput import for_report

_SHOWN_ITEMS = 8
# Of a point, as `evaluation.report.study` knows them.
_POINT = ("rule", "options", "speed", "quality", "is_frozen", "certified", "details")
_DECISIVE = ("budget", "gate", "block_cap", "value_scheme")


@dataclasses.dataclass(frozen=True)
class Speed:
    """Measured speed.

    Attributes:
      tasks: Of each task, as in `evaluation.report.study`.
      gain_percent: The mean gain over tasks as the JSON value of an interval, or None.
    """

    tasks: Mapping[str, Any]
    gain_percent: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Frontier:
    """Settings with their speeds and qualities.

    Attributes:
      points: As in `evaluation.report.study`.
      units: What speed and quality are counted in, or None.
    """

    points: tuple[Mapping[str, Any], ...]
    units: Mapping[str, Any] | None


def controls_entry(controls: FrozenControls) -> dict[str, Any]:
    """Returns what a study says of its controls, made of plain JSON types.

    How they were chosen is in it without the long tables chosen from, which are in the controls
    file that the fingerprint names.
    """
    names = ("value_scheme", "num_draft_tokens", "protect_stop_ids", "status", "target", "drafter")
    return {
        "fingerprint": controls.fingerprint,
        "budget": infinity_as_text(controls.budget),
        "gate": infinity_as_text(controls.gate),
        "block_cap": controls.block_cap,
        **{name: getattr(controls, name) for name in names},
        "calibration_examples": len(controls.calibration_ids),
        "chosen": _brief(controls.chosen),
        "chosen_at": {name: controls.run.get(name) for name in ("command", "commit")},
    }


def require_same_run(result: Mapping[str, Any], name: str, *, target: str, drafter: str) -> None:
    """Refuses a study of another target or drafter.

    Args:
      result: The study's JSON value.
      name: Of its file, for the message.
      target: Digest of the audit's target.
      drafter: Digest or name of its drafter.

    Raises:
      AuditError: They differ.
    """
    run = _mapping(result.get("run"))
    timed, drafted = (_mapping(run.get(part)) for part in ("target", "drafter"))
    for field, got, wanted in (
        ("run.target.digest", timed.get("digest"), target),
        ("run.drafter", drafted.get("digest") or drafted.get("name"), drafter),
    ):
        if got != wanted:
            raise AuditError(f"{name}: {refusal(field, got, f'{wanted}, as audited')}")


def require_tasks(timed: Collection[str], name: str, tasks: Collection[str]) -> None:
    """Refuses speeds of tasks that are not audited: their mean would be one of other tasks.

    Raises:
      AuditError: There are such.
    """
    if others := [task for task in timed if task not in tasks]:
        raise AuditError(
            f"{name}: tasks: got {', '.join(others)}, allowed are those audited: {', '.join(tasks)}"
        )


def speed_of(result: Mapping[str, Any], name: str, controls: FrozenControls) -> Speed:
    """Returns what a throughput study found of these very controls.

    Args:
      result: The study's JSON value, as `evaluation.throughput` makes it.
      name: Of its file, for the message.
      controls: Those audited.

    Raises:
      AuditError: It is no such study, or one of other controls or another rule.
    """
    timed = _mapping(result.get("controls"))
    for field, wanted in (("fingerprint", controls.fingerprint), ("rule", "asd")):
        if timed.get(field) != wanted:
            allowed = f"{wanted}, as audited"
            raise AuditError(f"{name}: {refusal(f'controls.{field}', timed.get(field), allowed)}")
    try:
        tasks, gain = for_report(result)
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"{name}: is no result of a throughput study: {error}") from error
    return Speed(tasks, gain)


def frontier_of(result: Mapping[str, Any], name: str, controls: FrozenControls) -> Frontier:
    """Returns the points of a frontier study, that of the audited controls marked as frozen.

    Args:
      result: The study's JSON value, with `points`, `units` and `run`.
      name: Of its file, for the message.
      controls: Those audited.

    Raises:
      AuditError: It has no points.
    """
    points = result.get("points")
    if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
        raise AuditError(f"{name}: {refusal('points', points, 'a list of objects')}")
    config = _mapping(_mapping(result.get("run")).get("config"))
    is_same_length = (
        _mapping(config.get("decode")).get("num_draft_tokens") == controls.num_draft_tokens
    )
    kept = []
    for point in points:
        shown = {field: point[field] for field in _POINT if field in point}
        if is_same_length and _is_of(point, controls):
            shown["is_frozen"] = True
        kept.append(shown)
    units = result.get("units")
    return Frontier(tuple(kept), units if isinstance(units, Mapping) else None)


def _is_of(point: Mapping[str, Any], controls: FrozenControls) -> bool:
    """Whether a point is that of some controls, the draft length aside."""
    options = _mapping(point.get("options"))
    return point.get("rule") == "asd" and all(
        options.get(name) == infinity_as_text(getattr(controls, name)) for name in _DECISIVE
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _brief(value: Any) -> Any:
    """Returns a JSON value, long lists as the number of their items."""
    if isinstance(value, Mapping):
        return {str(name): _brief(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > _SHOWN_ITEMS:
            return f"{len(value)} items"
        return [_brief(item) for item in value]
    return infinity_as_text(value)
