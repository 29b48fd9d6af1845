"""Axes and marks of hand-made SVG; colours are classes, so that they follow the page's scheme.

Every figure is drawn for a phone, in a view box about as wide as it has pixels there, and grows on
wider screens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asd_jax.evaluation.report.markup import Child, Markup, tag
from asd_jax.evaluation.report.numbers import plain


class Scale(NamedTuple):
    """A linear map from values to coordinates.

    Attributes:
      low: Value at `start`.
      high: Value at `end`.
      start: Coordinate.
      end: Coordinate, which is the smaller one on an upright axis.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


class Ticks(NamedTuple):
    """Round values along an axis and how they are written."""

    values: list[float]
    labels: list[str]


def value_range(values: Iterable[float], *, margin: float = 0.05) -> tuple[float, float]:
    """Returns a range that holds the values, with a margin and never empty."""
    known = list(values)
    low, high = min(known), max(known)
    pad = margin * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def ticks(low: float, high: float, about: int) -> Ticks:
    """Returns round values between two: 3 or more, about so many."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [m * power for m in (10, 5, 2, 1) if m * power < 2.5 * rough]
    for step in steps:
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
        if last - first >= max(2, about - 2):
            break
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [i * step for i in range(first, last + 1)]
    return Ticks(values, [plain(value, digits) for value in values])


def drawing(
    width: float, height: float, label: str, *children: Child | Iterable[Child], name: str
) -> Markup:
    """Returns an `<svg>` that is read aloud as its label."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        class_=name,
    )


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    """Returns a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=name)


def label(x: float, y: float, words: str, name: str = "", anchor: str = "start") -> Markup:
    """Returns text; `anchor` is start, middle or end."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=name or None)


def polyline(points: Sequence[tuple[float, float]], name: str) -> Markup:
    """Returns a line through points."""
    return tag("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in points), class_=name)


def across(scale: Scale, marks: Ticks, top: float, bottom: float) -> list[Markup]:
    """Returns the grid and numbers of a horizontal axis below `bottom`."""
    drawn = []
    for value, words in zip(*marks, strict=True):
        name = "zero" if value == 0 else "grid"
        drawn.append(line(scale(value), top, scale(value), bottom, name))
        drawn.append(label(scale(value), bottom + 14, words, "tick", "middle"))
    return drawn


def upright(scale: Scale, marks: Ticks, left: float, right: float) -> list[Markup]:
    """Returns the grid and numbers of a vertical axis left of `left`."""
    drawn = []
    for value, words in zip(*marks, strict=True):
        name = "zero" if value == 0 else "grid"
        drawn.append(line(left, scale(value), right, scale(value), name))
        drawn.append(label(left - 4, scale(value) + 3.5, words, "tick", "end"))
    return drawn
