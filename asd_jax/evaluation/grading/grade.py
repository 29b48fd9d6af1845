"""What a grader says about an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Grade:
    """The judgement on one answer.

    Attributes:
      is_right: Whether it is right; None where the task has no right answer.
      extracted: The part of the answer that was compared, or None if there was none.
      detail: Why, in words.
      measures: Numbers that describe the answer and are no score of its quality, by name.
    """

    is_right: bool | None
    extracted: str | None
    detail: str
    measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
