"""HTML and SVG by small functions: whatever is not `Markup` already is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_VOID = frozenset({"br", "hr", "input", "link", "meta", "wbr"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Text that turns the reading direction would turn the page around it as well.
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")

Child = str | int | None


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Returns text as HTML that shows it, whatever is in it.

    Lone surrogates, which no file can hold, become U+FFFD, and so do characters that turn the
    reading direction; control characters become their pictures.
    """
    text = _TURNING.sub("\ufffd", _SURROGATE.sub("\ufffd", text))
    return Markup(html.escape(_CONTROL.sub(_picture, text)))


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def join(*children: Child | Iterable[Child]) -> Markup:
    """Returns children one after the other; None is left out."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str | int):
            parts.append(escape(str(child)))
        elif child is not None:
            parts.append(join(*child))
    return Markup("".join(parts))


def name_of(words: str) -> Markup:
    """Returns a name that may go on in the next line after `_`, `.`, `/` and `-`."""
    parts = re.split(r"(?<=[_./-])(?=.)", words)
    return join(
        tag("wbr") if index % 2 else parts[index // 2] for index in range(2 * len(parts) - 1)
    )


def tag(
    name: str, /, *children: Child | Iterable[Child], **attributes: str | float | bool | None
) -> Markup:
    """Returns an element.

    Args:
      name: Of the element.
      *children: What is in it.
      **attributes: `class_` is class and `aria_label` is aria-label; None and False are left out,
        True is an attribute without value.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {attribute}")
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            written.append(f' {attribute}="{escape(shown)}"')
    opening = f"<{name}{''.join(written)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    num_text_columns: int = 1,
) -> Markup:
    """Returns a table whose first cell of each row names it, and that scrolls by itself.

    Args:
      caption: What it shows.
      header: Names of the columns, with units.
      rows: The cells.
      num_text_columns: So many columns, from the left, are words; the others are numbers.
    """

    def kind(column: int) -> str | None:
        return None if column < num_text_columns else "num"

    head = [tag("th", name, scope="col", class_=kind(i)) for i, name in enumerate(header)]
    body = []
    for row in rows:
        cells = [tag("th", row[0], scope="row")]
        cells += [tag("td", cell, class_=kind(i)) for i, cell in enumerate(row) if i]
        body.append(tag("tr", cells))
    inside = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body)
    )
    return tag("div", inside, class_="scroll", tabindex=0, role="region", aria_label=caption)
