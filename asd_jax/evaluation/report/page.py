"""The page as a whole."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from asd_jax.evaluation.report import figures, tables
from asd_jax.evaluation.report.browser import exception_browser
from asd_jax.evaluation.report.markup import Markup, tag
from asd_jax.evaluation.report.study import Study, read_study
from asd_jax.evaluation.report.summary import summary
from asd_jax.evaluation.whole_files import write_text

_TITLE = "ASD against strict speculative decoding"
_LEAD = (
    "An audit of Approximate Speculative Decoding (ASD), which keeps some draft tokens that are "
    "not the target's own choice, against strict speculative decoding, which keeps none."
)


def write_report(study: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes the page of a study.

    Args:
      study: As `asd_jax.evaluation.report.study` describes it.
      path: The HTML file; one that exists is replaced. Its folder must exist.

    Raises:
      StudyError: The study is not one; the message names the field.
      OSError: The file cannot be written.
    """
    write_text(Path(path), render_report(study))


def render_report(study: Mapping[str, Any]) -> str:
    """Returns the page of a study: one HTML document that asks for nothing else.

    Args:
      study: As `asd_jax.evaluation.report.study` describes it.

    Raises:
      StudyError: The study is not one; the message names the field.
    """
    read = read_study(study)
    style, script = _source("style.css"), _source("browser.js")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        _policy(style, script),
        tag("title", _TITLE),
        tag("style", style),
    )
    body = tag("body", tag("main", _sections(read)), tag("script", script))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _sections(study: Study) -> list[Markup]:
    return [
        tag("header", tag("h1", _TITLE), tag("p", _LEAD, class_="muted")),
        summary(study),
        figures.section("setting", "The setting", tables.settings(study)),
        figures.frontier_section(study),
        *_task_sections(study),
        exception_browser(study),
        figures.section(
            "receipt",
            "How this was made",
            tables.named_values("Run receipt", study.run),
            tables.not_shown(study),
        ),
    ]


def _task_sections(study: Study) -> list[Markup]:
    if not study.tasks:
        missing = tag("p", "No task was measured.")
        return [figures.section("changes", "Task by task", missing)]
    return [
        figures.change_section(study),
        figures.acceptance_section(study),
        figures.spent_section(study),
        figures.places_section(study),
        figures.section(
            "tasks",
            "Tasks in numbers",
            tables.overview(study),
            tables.means(study),
            tables.ratings(study),
            [tables.task_details(name, task) for name, task in study.tasks.items()],
        ),
    ]


def _source(name: str) -> Markup:
    file = resources.files("asd_jax.evaluation.report").joinpath(name)
    return Markup(file.read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> Markup:
    """Returns the rule that the page loads nothing and runs only its own script.

    Text that slipped through as HTML would still not run.
    """
    rule = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"
    return tag("meta", http_equiv="Content-Security-Policy", content=rule)


def _digest(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
