"""The exception browser: both arms' texts side by side, with each exception marked.

The texts travel as JSON inside the page and are put into it by `browser.js` as text, never as HTML.
"""

from __future__ import annotations

import json
from typing import Any

from asd_jax.evaluation.report.markup import Markup, tag
from asd_jax.evaluation.report.study import Study


def safe_json(value: Any) -> Markup:
    """Returns JSON that no HTML parser can leave early, in pure ASCII.

    Lone surrogates and the separators U+2028 and U+2029 are escaped by being outside ASCII.
    """
    written = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return Markup(written)


def exception_browser(study: Study) -> Markup:
    """Returns the section in which to read single answers."""
    # A list, since scripts put object keys that look like numbers first.
    answers = [
        {"task": name, "answers": task["worst"]}
        for name, task in study.tasks.items()
        if task["worst"]
    ]
    heading = tag("h2", "Exceptions in single answers", id="browser-title")
    if not answers:
        nothing = tag("p", "The study holds no answers to read, so no exception can be shown.")
        return tag("section", heading, nothing, aria_labelledby="browser-title")
    about = (
        "These answers were picked because they fared worst; they are no sample. A marked stretch "
        "is an exception: a draft token that the verifier kept though strict decoding would have "
        "put the target's own token there. Point at it, tap it, or reach it with the Tab key to "
        "see what it cost; Escape closes the note."
    )
    return tag(
        "section",
        heading,
        tag("p", about),
        tag("noscript", tag("p", "Reading the answers needs JavaScript; nothing else here does.")),
        tag(
            "div",
            _controls(),
            tag("p", id="answer-state", role="status", class_="muted"),
            tag("div", id="answer"),
            id="browser",
            hidden=True,
        ),
        tag("div", id="note", role="tooltip", hidden=True),
        tag("script", safe_json(answers), type="application/json", id="answers"),
        aria_labelledby="browser-title",
    )


def _controls() -> Markup:
    def choice(name: str, words: str) -> Markup:
        return tag("label", words, tag("select", id=name), class_="choice")

    return tag(
        "div",
        choice("choose-task", "Task"),
        choice("choose-answer", "Answer"),
        tag("button", "Previous", type="button", id="previous"),
        tag("button", "Next", type="button", id="next"),
        class_="controls",
    )
