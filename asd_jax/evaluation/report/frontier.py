"""Speed against quality: settings of ASD, rival rules, and strict and autoregressive decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from asd_jax.evaluation.report import svg
from asd_jax.evaluation.report.markup import Markup, join, table, tag
from asd_jax.evaluation.report.numbers import options, plain, spread

_WIDTH, _HEIGHT = 400.0, 316.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 390.0, 10.0, 270.0
_STRIP = 30.0  # room at the left for what is off the scale
_EDGE = _LEFT + 10
_ANCHORS = ("strict", "autoregressive")
# ASD's value schemes have the first two, whatever the order in the study.
_FIRST = ("asd (remaining)", "asd (realised)")
_SHAPES = (
    "M-4.5,0A4.5,4.5 0 1 0 4.5,0A4.5,4.5 0 1 0 -4.5,0Z",  # disc
    "M0,-5.8L5.8,0L0,5.8L-5.8,0Z",  # diamond
    "M-4.2,-4.2H4.2V4.2H-4.2Z",  # square
    "M0,-5.2L5,3.6H-5Z",  # triangle
    "M0,5.2L5,-3.6H-5Z",  # triangle, pointing down
    "M-1.8,-5H1.8V-1.8H5V1.8H1.8V5H-1.8V1.8H-5V-1.8H-1.8Z",  # plus
    "M0,-5.5L5.2,-1.7L3.2,4.5H-3.2L-5.2,-1.7Z",  # pentagon
    "M-5.4,-3.4H5.4L0,5.4ZM-5.4,3.4H5.4L0,-5.4Z",  # star
)
_ANCHOR_SHAPES = {"strict": "M-5,-5L5,5M-5,5L5,-5", "autoregressive": "M0,-6.5V6.5M-6.5,0H6.5"}


def series_name(point: dict[str, Any]) -> str:
    """Returns what a point of the frontier belongs to: its rule, and ASD's value scheme."""
    scheme = (point["options"] or {}).get("value_scheme")
    rule = str(point["rule"])
    if rule == "asd":
        return f"asd ({scheme or 'remaining'})"
    return rule


def pareto(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the points that no other beats in both estimates, by rising speed."""
    best: list[dict[str, Any]] = []
    order = sorted(points, key=lambda p: (p["speed"].estimate, p["quality"].estimate))
    for point in reversed(order):
        if not best or point["quality"].estimate > best[-1]["quality"].estimate:
            best.append(point)
    return best[::-1]


def draw_frontier(points: Sequence[dict[str, Any]], units: dict[str, Any]) -> Markup:
    """Returns the figure.

    Args:
      points: The study's frontier, at least one.
      units: What `speed` and `quality` are counted in, if the study says so.
    """
    across, outside = _speed_scale(points)
    upright = svg.Scale(*svg.value_range(_ends(points, "quality")), _BOTTOM, _TOP)
    styles = _styles(points)
    drawn = svg.across(across, svg.ticks(across.low, across.high, 5), _TOP, _BOTTOM)
    drawn += svg.upright(upright, svg.ticks(upright.low, upright.high, 5), _LEFT, _RIGHT)
    at = [
        (
            _EDGE if point in outside else across(point["speed"].estimate),
            upright(point["quality"].estimate),
        )
        for point in points
    ]
    if outside:
        drawn.append(svg.line(_LEFT + _STRIP, _TOP, _LEFT + _STRIP, _BOTTOM, "break"))
    drawn.append(_pareto_line(points, at))
    for point, xy in zip(points, at, strict=True):
        drawn.append(_whiskers(point, xy, None if point in outside else across, upright))
    drawn += [_mark(point, *xy, styles) for point, xy in zip(points, at, strict=True)]
    drawn += _labels(points, at, outside)
    middle = (_LEFT + _RIGHT) / 2
    drawn.append(svg.label(middle, _HEIGHT - 8, axis_name("speed", units), "axis", "middle"))
    turned = f"rotate(-90) translate({-(_TOP + _BOTTOM) / 2:g} 12)"
    words = axis_name("quality", units)
    drawn.append(
        tag("g", svg.label(0, 0, words, "axis", "middle"), transform=turned, class_="turned")
    )
    spoken = (
        f"Speed against quality of {len(points)} settings; the table of settings has the numbers."
    )
    return svg.drawing(_WIDTH, _HEIGHT, spoken, drawn, name="frontier")


def draw_legend(points: Sequence[dict[str, Any]]) -> Markup:
    """Returns what the marks of the figure mean."""
    styles = _styles(points)
    items = [_item(_shape(name, styles, certified=True), name) for name in styles]
    if any(p["certified"] is not None for p in points):
        items.append(_item(_shape("", {"": 0}, certified=False), "hollow: not certified"))
    ring = tag("circle", r=8.5, class_="frozen")
    if any(p["is_frozen"] for p in points):
        items.append(_item(ring, "frozen setting"))
    step = svg.line(-9, 0, 9, 0, "pareto")
    items.append(_item(step, "Pareto line, by the estimates"))
    return tag("ul", items, class_="legend")


def frontier_table(points: Sequence[dict[str, Any]], units: dict[str, Any]) -> Markup:
    """Returns the numbers behind the figure, fastest first."""
    order = sorted(points, key=lambda p: -p["speed"].estimate)
    on_line = [id(point) for point in pareto(points)]
    rows = []
    for point in order:
        names = {False: "no", True: "yes", None: "–"}
        marks = ["frozen"] * bool(point["is_frozen"]) + ["Pareto"] * (id(point) in on_line)
        rows.append(
            (
                point["rule"],
                options(point["options"]),
                ", ".join(marks),
                names[point["certified"]],
                spread(point["speed"], 2),
                spread(point["quality"], 3),
            )
        )
    head = ["Rule", "Options", "Marked", "Certified"]
    head += [f"{axis_name(name, units)} [interval]" for name in ("speed", "quality")]
    return table("Settings on the plot, fastest first", head, rows, num_text_columns=4)


def axis_name(name: str, units: dict[str, Any]) -> str:
    """Returns a quantity with its unit, as far as the study says it."""
    unit = units.get(name)
    return f"{name.capitalize()}, {unit}" if unit else f"{name.capitalize()}, in the study's unit"


def _speed_scale(points: Sequence[dict[str, Any]]) -> tuple[svg.Scale, list[dict[str, Any]]]:
    """Returns the scale of speed, and the points that are off it, at its left.

    Autoregressive decoding is often so much slower that it would push all others together.
    """
    low, high = svg.value_range(_ends(points, "speed"))
    others = [point for point in points if point["rule"] != "autoregressive"]
    if others and len(others) < len(points):
        near, far = svg.value_range(_ends(others, "speed"))
        if near - low > 0.4 * (high - low):
            outside = [point for point in points if point["rule"] == "autoregressive"]
            return svg.Scale(near, far, _LEFT + _STRIP, _RIGHT), outside
    return svg.Scale(low, high, _LEFT, _RIGHT), []


def _ends(points: Iterable[dict[str, Any]], name: str) -> list[float]:
    return [value for point in points for value in point[name][:3]]


def _styles(points: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Returns the number of each series' shape and colour; anchors have the number -1."""
    names = list(dict.fromkeys(series_name(point) for point in points))
    rivals = [name for name in names if name not in _FIRST + _ANCHORS]
    numbers = {name: i for i, name in enumerate(_FIRST) if name in names}
    numbers |= {name: len(_FIRST) + i for i, name in enumerate(rivals)}
    return numbers | {name: -1 for name in _ANCHORS if name in names}


def _shape(name: str, styles: dict[str, int], *, certified: bool | None) -> Markup:
    number = styles[name]
    if number < 0:
        return tag("path", d=_ANCHOR_SHAPES[name], class_="anchor")
    kind = f"mark series-{number % len(_SHAPES)}"
    return tag(
        "path",
        d=_SHAPES[number % len(_SHAPES)],
        class_=f"{kind} hollow" if certified is False else kind,
    )


def _mark(point: dict[str, Any], x: float, y: float, styles: dict[str, int]) -> Markup:
    name = series_name(point)
    said = f"{name}: {options(point['options'])}; speed {spread(point['speed'], 2)}"
    said += f", quality {spread(point['quality'], 3)}"
    ring = tag("circle", r=8.5, class_="frozen") if point["is_frozen"] else None
    shape = _shape(name, styles, certified=point["certified"])
    where = f"translate({x:g} {y:g})"
    return tag("g", tag("title", said), ring, shape, transform=where, class_="point")


def _whiskers(
    point: dict[str, Any], xy: tuple[float, float], across: svg.Scale | None, upright: svg.Scale
) -> Markup:
    (x, y), speed, quality = xy, point["speed"], point["quality"]
    level = svg.line(across(speed.low), y, across(speed.high), y, "error") if across else None
    return join(level, svg.line(x, upright(quality.low), x, upright(quality.high), "error"))


def _pareto_line(points: Sequence[dict[str, Any]], at: Sequence[tuple[float, float]]) -> Markup:
    """Returns steps: what lies between two settings has not been measured."""
    where = {id(point): xy for point, xy in zip(points, at, strict=True)}
    line: list[tuple[float, float]] = []
    for point in pareto(points):
        x, y = where[id(point)]
        if line:
            line.append((line[-1][0], y))
        line.append((x, y))
    return svg.polyline(line, "pareto")


def _labels(
    points: Sequence[dict[str, Any]],
    at: Sequence[tuple[float, float]],
    outside: Sequence[dict[str, Any]],
) -> list[Markup]:
    """Returns names beside anchors and the frozen setting, where they hide the least."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    drawn = []
    for point, (x, y) in zip(points, at, strict=True):
        words = "frozen" if point["is_frozen"] else str(point["rule"])
        if not point["is_frozen"] and point["rule"] not in _ANCHORS:
            continue
        if point in outside:
            drawn.append(_strip_label(f"← {words}, {plain(point['speed'].estimate, 2)}", y))
            continue
        width = 6.6 * len(words)
        places = []
        for dy in (-9, 17, -22, 30):
            for left in (x + 9, x - 9 - width):
                box = (left, y + dy - 10, left + width, y + dy + 2)
                inside = _LEFT < box[0] and box[2] < _WIDTH and _TOP < box[1] and box[3] < _BOTTOM
                places.append((sum(_overlaps(box, other) for other in taken), not inside, box))
        _, _, box = min(places, key=lambda place: (place[1], place[0]))
        taken.append(box)
        drawn.append(svg.label(round(box[0], 2), round(box[3] - 2, 2), words, "callout"))
    return drawn


def _strip_label(words: str, y: float) -> Markup:
    """Returns upright text beside a mark in the strip, on the side with more room."""
    is_high = y < (_TOP + _BOTTOM) / 2
    start, anchor = (y + 8, "end") if is_high else (y - 8, "start")
    where = f"translate({_LEFT + _STRIP - 6:g} {start:g}) rotate(-90)"
    return tag("g", svg.label(0, 0, words, "callout", anchor), transform=where)


def _overlaps(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _item(mark: Markup, words: str) -> Markup:
    sample = tag("svg", mark, viewBox="-10 -10 20 20", class_="sample", aria_hidden="true")
    return tag("li", sample, tag("span", words))
