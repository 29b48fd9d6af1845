"""`controls.json`: controls with how they were chosen, and what they hold for.

Evidence has three stages. *Discovery*: the best of a search, which says nothing about new prompts.
*Candidate*: chosen by a procedure that was fixed beforehand. *Frozen*: a candidate that nobody
changes any more; only those are audited. A fingerprint over what decides a decode (controls, draft
length, target, drafter) shows whether two files mean the same; notes are not in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asd_jax.evaluation.plain_json import infinity_as_text
from asd_jax.evaluation.whole_files import write_text
from asd_jax.types import Controls
from asd_jax.verifier import VALUE_SCHEMES

STATUSES = ("discovery", "candidate", "frozen")
_FORMAT = 1


class ControlsError(ValueError):
    """A controls file that cannot be used for what is asked; the message names the field."""


@dataclasses.dataclass(frozen=True)
class FrozenControls:
    """The content of a controls file.

    Attributes:
      budget: Logits a request.
      gate: Logits a token of suffix value.
      block_cap: Exceptions a block.
      value_scheme: What an exception is worth.
      num_draft_tokens: G.
      protect_stop_ids: Whether stop ids are protected.
      status: One of `STATUSES`.
      target: Digest of the target's files.
      drafter: Digest of the drafter's files, or its name where it has none.
      calibration_ids: Examples that the choice has seen.
      chosen: How: method, its parameters, the table it chose from.
      run: Receipt: command, commit, versions, device.
    """

    budget: float
    gate: float
    block_cap: int
    value_scheme: str
    num_draft_tokens: int
    protect_stop_ids: bool
    status: str
    target: str
    drafter: str
    calibration_ids: tuple[str, ...]
    chosen: Mapping[str, Any]
    run: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, value in (("budget", self.budget), ("gate", self.gate)):
            if not _is_number(value) or not value >= 0:
                raise ControlsError(f"{name}: got {value!r}, allowed is a number >= 0")
        for name, low in (("block_cap", 0), ("num_draft_tokens", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ControlsError(f"{name}: got {value!r}, allowed is a whole number >= {low}")
        if self.value_scheme not in VALUE_SCHEMES:
            raise ControlsError(
                f"value_scheme: got {self.value_scheme!r}, allowed is one of {VALUE_SCHEMES}"
            )
        if self.status not in STATUSES:
            raise ControlsError(f"status: got {self.status!r}, allowed is one of {STATUSES}")

    @property
    def controls(self) -> Controls:
        """The controls, scalar leaves."""
        return Controls(self.budget, self.gate, self.block_cap)

    @property
    def tokenizer(self) -> str | None:
        """Digest of the tokenizer that they were chosen with, None where the receipt has none."""
        found = self.run.get("tokenizer")
        return found.get("digest") if isinstance(found, Mapping) else None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what decides a decode, 64 hex digits."""
        names = ("budget", "gate", "block_cap", "value_scheme", "num_draft_tokens")
        decides = {name: getattr(self, name) for name in (*names, "protect_stop_ids")}
        decides |= {"target": self.target, "drafter": self.drafter}
        canonical = json.dumps(decides, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def frozen(self) -> FrozenControls:
        """Returns the same as frozen.

        Raises:
          ControlsError: They are only a discovery.
        """
        if self.status == "discovery":
            raise ControlsError(
                "status: got 'discovery', allowed is 'candidate': the best of a search has to be "
                "confirmed on other examples before it is frozen"
            )
        return dataclasses.replace(self, status="frozen")

    def require_same(self, *, target: str, drafter: str, tokenizer: str) -> None:
        """Refuses controls that were chosen for something else.

        Args:
          target: Digest of the target.
          drafter: Digest or name of its drafter.
          tokenizer: Digest of the target's tokenizer; not compared where the receipt has none.

        Raises:
          ControlsError: One of them is another.
        """
        for name, got in (("target", target), ("drafter", drafter), ("tokenizer", tokenizer)):
            wanted = getattr(self, name)
            if got != wanted and wanted is not None:
                raise ControlsError(
                    f"{name} digest: got {got}, the controls were chosen for {wanted}"
                )

    def require_auditable(
        self, *, target: str, drafter: str, tokenizer: str, audit_ids: Iterable[str]
    ) -> None:
        """Refuses an audit that would prove nothing.

        Args:
          target: As in `require_same`, of the target that is to be audited.
          drafter: As in `require_same`.
          tokenizer: As in `require_same`.
          audit_ids: Examples of the audit.

        Raises:
          ControlsError: They are not frozen, were chosen for another target, drafter or
            tokenizer, or have seen examples of the audit.
        """
        if self.status != "frozen":
            raise ControlsError(f"status: got {self.status!r}, allowed is 'frozen' for an audit")
        self.require_same(target=target, drafter=drafter, tokenizer=tokenizer)
        seen = sorted(set(self.calibration_ids) & set(audit_ids))
        if seen:
            raise ControlsError(
                f"calibration_ids: {len(seen)} examples of the audit are among them, such as "
                f"{', '.join(seen[:3])}; allowed is none"
            )


def write_controls(path: str | Path, controls: FrozenControls) -> None:
    """Writes a controls file, whole or not at all.

    Raises:
      OSError: It cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        "format": _FORMAT,
        "fingerprint": controls.fingerprint,
        **dataclasses.asdict(controls),
    }
    write_text(path, json.dumps(infinity_as_text(fields), indent=1) + "\n")


def read_controls(path: str | Path) -> FrozenControls:
    """Reads a controls file.

    Raises:
      ControlsError: It is none, a field is missing or unusable, or was changed by hand.
      OSError: It cannot be read.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ControlsError(f"{path}: not JSON: {error}") from error
    names = {field.name for field in dataclasses.fields(FrozenControls)}
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise ControlsError(f"{path}: not a controls file of format {_FORMAT}")
    if missing := sorted((names | {"fingerprint"}) - fields.keys()):
        raise ControlsError(f"{path}: missing are {', '.join(missing)}")
    values = {name: fields[name] for name in names}
    for name in ("budget", "gate"):
        values[name] = _number(values[name])
    values["calibration_ids"] = tuple(values["calibration_ids"])
    try:
        controls = FrozenControls(**values)
    except ControlsError as error:
        raise ControlsError(f"{path}: {error}") from error
    if controls.fingerprint != fields["fingerprint"]:
        raise ControlsError(
            f"{path}: fingerprint: got {fields['fingerprint']}, its fields give "
            f"{controls.fingerprint}: it was changed by hand"
        )
    return controls


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    return math.inf if value == "inf" else float(value) if _is_number(value) else value
