"""Token ids that configuration files declare, checked before they are believed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def declared_ids(value: Any, *, field: str, num_ids: int) -> tuple[int, ...]:
    """Returns the ids that a field declares.

    Args:
      value: What the file has there: an id, a list of ids, or None.
      field: File and field, for the message.
      num_ids: Ids of the model, one more than the largest that it knows.

    Returns:
      The distinct ids, ascending; none for None.

    Raises:
      ValueError: Something else, or an id that the model does not have.
    """
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(_is_id(item, num_ids) for item in ids):
        raise ValueError(
            f"{field}: got {value!r}, allowed is an id 0..{num_ids - 1}, a list of them, or null"
        )
    return tuple(sorted(set(ids)))


def united(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Returns the distinct ids of all groups, ascending."""
    return tuple(sorted({index for group in groups for index in group}))


def _is_id(value: Any, num_ids: int) -> bool:
    # bool is an int to Python, but a flag to whoever wrote the file.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < num_ids
