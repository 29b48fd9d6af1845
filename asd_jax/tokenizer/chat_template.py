"""Renders conversations with a model's own chat template, in jinja2's sandbox."""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox


def render_chat(template: str, /, **variables: Any) -> str:
    """Renders a template as transformers does (utils/chat_template_utils.py, 5.24).

    Args:
      template: Jinja source.
      **variables: What the template sees: `messages`, `add_generation_prompt`, ...

    Raises:
      ValueError: The template is no valid Jinja, or it refused the conversation.
    """
    try:
        return _compiled(template).render(**variables)
    except Exception as error:  # a template is a program and may raise anything
        raise ValueError(f"the chat template refused these messages: {error}") from error


def check_template(template: str, field: str) -> None:
    """Checks that a template can be compiled, before there is a conversation.

    Args:
      template: Jinja source.
      field: File and field, for the message.

    Raises:
      ValueError: It is no valid Jinja.
    """
    try:
        _compiled(template)
    except jinja2.TemplateSyntaxError as error:
        where = f"{field}: line {error.lineno}"
        raise ValueError(f"{where}: no valid chat template: {error.message}") from error


@functools.lru_cache(maxsize=32)
def template_variables(template: str) -> frozenset[str]:
    """Returns the variables that a valid template asks for, such as "messages"."""
    return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(template)))


class _Generation(jinja2.ext.Extension):
    """Accepts `{% generation %}` blocks, which mark the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own: what it sets does not outlive it.
        return jinja2.nodes.Scope(body).set_lineno(line)


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    # jinja2's own tojson escapes HTML characters.
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
