"""Small figures, one a task: acceptance, regret spent and where exceptions fall."""

from __future__ import annotations

from collections.abc import Sequence

from asd_jax.evaluation.report import svg
from asd_jax.evaluation.report.markup import Markup, join, tag
from asd_jax.evaluation.report.numbers import percent

_WIDTH, _HEIGHT = 170.0, 128.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 31.0, 164.0, 6.0, 98.0
_PERCENT = svg.Ticks([0.0, 0.5, 1.0], ["0", "50", "100"])
_WHOLE = svg.Scale(0, 1, _BOTTOM, _TOP)


def draw_acceptance(
    task: str, strict: Sequence[float] | None, asd: Sequence[float] | None
) -> Markup:
    """Returns the share of rounds that keep each position of the draft, for both arms.

    Args:
      task: Its name.
      strict: Shares by position, or None if they were not measured.
      asd: The same for the other arm.
    """
    length = max(len(strict or ()), len(asd or ()))
    scale = svg.Scale(0.5, length + 0.5, _LEFT, _RIGHT)
    every = max(1, -(-length // 8))
    places = [float(place) for place in range(1, length + 1, every)]
    drawn = svg.upright(_WHOLE, _PERCENT, _LEFT, _RIGHT)
    drawn += [svg.label(scale(x), _BOTTOM + 13, f"{x:g}", "tick", "middle") for x in places]
    spoken = []
    for arm, shares in (("strict", strict), ("asd", asd)):
        if not shares:
            continue
        points = [(scale(i + 1), _WHOLE(share)) for i, share in enumerate(shares)]
        drawn.append(svg.polyline(points, f"curve {arm}"))
        drawn.append(tag("g", [_dot(x, y, arm) for x, y in points], class_=f"dots {arm}"))
        spoken.append(f"{arm} {', '.join(percent(share, 0) for share in shares)}")
    drawn.append(_axis("position in the draft"))
    words = f"{task}, percent kept by position in the draft: {'; '.join(spoken)}."
    return svg.drawing(_WIDTH, _HEIGHT, words, drawn, name="acceptance")


def _dot(x: float, y: float, arm: str) -> Markup:
    if arm == "strict":  # arms differ in shape as well as in colour
        return tag("rect", x=round(x - 2.4, 2), y=round(y - 2.4, 2), width=4.8, height=4.8)
    return tag("circle", cx=x, cy=y, r=2.8)


def draw_spent(task: str, shares: Sequence[float]) -> Markup:
    """Returns the share of the budget that is spent by the end of each tenth of the answer."""
    scale = svg.Scale(0, len(shares), _LEFT, _RIGHT)
    points = [(scale(0), _WHOLE(0))]
    points += [(scale(i + 1), _WHOLE(share)) for i, share in enumerate(shares)]
    area = [*points, (scale(len(shares)), _WHOLE(0))]
    drawn = [
        *svg.upright(_WHOLE, _PERCENT, _LEFT, _RIGHT),
        tag("polygon", points=" ".join(f"{x:g},{y:g}" for x, y in area), class_="area asd"),
        svg.polyline(points, "curve asd"),
        _course(),
    ]
    spoken = ", ".join(percent(share, 0) for share in shares)
    words = f"{task}, percent of the budget spent by each tenth of the answer: {spoken}."
    return svg.drawing(_WIDTH, _HEIGHT, words, drawn, name="spent")


def draw_places(task: str, counts: Sequence[int]) -> Markup:
    """Returns how many exceptions fall into each tenth of the answers."""
    most = max(max(counts), 1)
    marks = svg.ticks(0, most * 1.05, 3)
    if marks.values[1:] and marks.values[1] < 1:  # exceptions come whole
        marks = svg.Ticks([0.0, 1.0], ["0", "1"])
    upright = svg.Scale(0, most * 1.05, _BOTTOM, _TOP)
    scale = svg.Scale(0, len(counts), _LEFT, _RIGHT)
    drawn = svg.upright(upright, marks, _LEFT, _RIGHT)
    for index, number in enumerate(counts):
        top, left = upright(number), scale(index) + 1
        drawn.append(
            tag(
                "rect",
                x=round(left, 2),
                y=top,
                width=round(scale(index + 1) - left - 1, 2),
                height=round(_BOTTOM - top, 2),
                class_="column asd",
            )
        )
    words = f"{task}, exceptions in each tenth of the answers: {', '.join(map(str, counts))}."
    return svg.drawing(_WIDTH, _HEIGHT, words, drawn, _course(), name="places")


def _course() -> Markup:
    ends = [(_LEFT, "start", "start"), (_RIGHT, "end", "end")]
    drawn = [svg.label(x, _BOTTOM + 13, words, "tick", anchor) for x, words, anchor in ends]
    return join(drawn, _axis("course of the answer"))


def _axis(words: str) -> Markup:
    return svg.label((_LEFT + _RIGHT) / 2, _BOTTOM + 26, words, "axis", "middle")
