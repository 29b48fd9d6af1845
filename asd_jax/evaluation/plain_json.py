"""Turns results and settings into plain JSON types.

JSON has no number that is not finite. In a result such a number is an undefined figure and becomes
null; in a setting infinity means "no limit", which null would not tell, and becomes a text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

# Metadata of a dataclass field that stays out of the JSON.
HIDDEN = {"is_hidden": True}


def plain_json(value: Any) -> Any:
    """Returns dataclasses and mappings as objects, tuples as lists.

    Numbers that are not finite become null: an undefined figure is no figure.

    Args:
      value: Dataclasses, mappings, lists, tuples, numbers, texts and None.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.metadata.get("is_hidden")
        }
    if isinstance(value, Mapping):
        return {str(name): plain_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def infinity_as_text(value: Any) -> Any:
    """Returns mappings as objects, tuples as lists, and infinity as "inf".

    Args:
      value: Mappings, lists, tuples, numbers, texts and None.
    """
    if isinstance(value, Mapping):
        return {name: infinity_as_text(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [infinity_as_text(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
