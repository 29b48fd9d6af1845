"""Colours can be read: text and marks against what they stand on, light and dark."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("asd_jax.evaluation.report").joinpath("style.css").read_text("utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    for block in (STYLE.split("@media")[0], STYLE.split("@media")[1])
)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_have_contrast(scheme):
    assert LIGHT.keys() == DARK.keys()
    for text, ground in (
        ("ink", "page"),
        ("ink", "card"),
        ("muted", "page"),
        ("muted", "card"),
        ("ink", "mark"),
        ("muted", "mark"),
    ):
        assert contrast(scheme[text], scheme[ground]) >= 4.5, (text, ground)
    marks = ["strict", "asd", "warn", "link", "mark-edge", *(f"s{i}" for i in range(8))]
    for mark in marks:
        assert contrast(scheme[mark], scheme["page"]) >= 3, mark
