"""Chat templates, rendered. Imported by the child process of `chat_template` alone, for a template is code of
whoever made the checkpoint: it may loop, and ask for memory without end.

The sandbox, and the functions beside jinja's own, are those of transformers (utils/chat_template_utils.py).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text that the template makes of the values. Raises what jinja does, and whatever else a template
    may run into."""
    text = _compiled(template).render(values)
    text.encode()  # a template can write halves of characters, which no tokenizer takes
    return text


class GenerationBlocks(Extension):
    """{% generation %}, by which transformers finds an assistant's text: its content, in a scope of its
    own."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment.from_string(template)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own, it keeps < and & as they are."""
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
