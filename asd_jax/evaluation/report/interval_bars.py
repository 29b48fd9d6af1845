"""One bar a task, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asd_jax.evaluation.report import svg
from asd_jax.evaluation.report.fields import Interval
from asd_jax.evaluation.report.markup import Markup, escape, tag
from asd_jax.evaluation.report.numbers import NOT_MEASURED, signed, spread

_WIDTH, _LEFT, _RIGHT = 400.0, 104.0, 348.0
_TOP, _ROW, _BAR, _FOOT = 6.0, 26.0, 13.0, 40.0
_NAME_LENGTH = 15


class Bar(NamedTuple):
    """A row of the figure.

    Attributes:
      name: Written beside the bar.
      value: The figure, or None if it was not measured.
      is_sound: False draws an outline: the figure must not be taken for a result.
      is_mean: Set apart from the tasks.
    """

    name: str
    value: Interval | None
    is_sound: bool = True
    is_mean: bool = False


def draw_bars(bars: Sequence[Bar], unit: str, about: str) -> Markup:
    """Returns the figure of changes around zero.

    Args:
      bars: From top to bottom; at least one has a value.
      unit: Title of the axis.
      about: What the figure shows, for those who do not see it.
    """
    known = [bar.value for bar in bars if bar.value is not None]
    values = [0.0, *(end for value in known for end in (value.estimate, value.low, value.high))]
    scale = svg.Scale(*svg.value_range(values), _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(bars)
    marks = svg.ticks(scale.low, scale.high, 4)
    drawn = svg.across(scale, marks, _TOP, bottom)
    for index, bar in enumerate(bars):
        drawn.append(_draw_bar(bar, scale, _TOP + _ROW * index))
    drawn.append(svg.label((_LEFT + _RIGHT) / 2, bottom + 32, unit, "axis", "middle"))
    spoken = [
        f"{bar.name} {spread(bar.value, is_change=True) if bar.value else NOT_MEASURED}"
        for bar in bars
    ]
    words = f"{about}, {unit}: {'; '.join(spoken)}."
    return svg.drawing(_WIDTH, bottom + _FOOT, words, drawn, name="bars")


def _draw_bar(bar: Bar, scale: svg.Scale, top: float) -> Markup:
    middle = top + _ROW / 2
    short = bar.name
    if len(short) > _NAME_LENGTH:
        short = short[: _NAME_LENGTH - 1] + "…"
    name = svg.label(_LEFT - 8, middle + 4, short, "name", "end")
    kind = "bar-row mean" if bar.is_mean else "bar-row"
    if bar.value is None:
        missing = svg.label(scale(0) + 4, middle + 4, NOT_MEASURED, "tick")
        if scale(0) > _RIGHT - 70:
            missing = svg.label(scale(0) - 4, middle + 4, NOT_MEASURED, "tick", "end")
        return tag("g", name, missing, class_=kind)
    zero, end = scale(0), scale(bar.value.estimate)
    low, high = scale(bar.value.low), scale(bar.value.high)
    rect = tag(
        "rect",
        x=min(zero, end),
        y=middle - _BAR / 2,
        width=round(abs(end - zero), 2),
        height=_BAR,
        class_="bar sound" if bar.is_sound else "bar unsound",
    )
    whisker = [svg.line(low, middle, high, middle, "whisker")]
    whisker += [svg.line(x, middle - 3, x, middle + 3, "whisker cap") for x in (low, high)]
    value = svg.label(_WIDTH - 4, middle + 4, signed(bar.value.estimate), "value", "end")
    title = tag("title", escape(f"{bar.name}: {spread(bar.value, is_change=True)}"))
    return tag("g", title, name, rect, whisker, value, class_=kind)
