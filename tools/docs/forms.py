"""The pages of answer forms and of errors."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

from md_text import code, page, section, table
from settings import files

from aerie import AerieError
from aerie.engine import json_schema, tool_calls
from aerie.virtual_npu.errors import ERROR_KINDS

LEFT_OUT = (
    ("uniqueItems, not, if, contains, propertyNames, dependentRequired, unevaluatedProperties", "not held"),
    ("look-ahead in a pattern", "not held"),
    ("$ref to another document", "not held"),
    ("oneOf whose members overlap", "held as anyOf"),
    ("a keyword that is null", "is none"),
)
"""Of JSON Schema: what answers are not held to."""


KINDS = (
    (
        "JSON schema",
        "`json_schema=`, `--json-schema FILE`",
        "`response_format`, `json_schema`, `text.format`",
    ),
    (
        "any JSON object",
        'a schema `{"type": "object"}`',
        "`response_format` of type `json_object`",
    ),
    ("grammar (GBNF or lark)", "none", "`grammar`"),
    ("regular expression", "none", "`regex`"),
    ("calls of tools", "`tools=`", "`tools`"),
)
"""Kinds of structured output, and what asks for them."""


def _call_formats() -> list[tuple[str, str, str]]:
    """Marks of the formats of tool calls."""
    return [
        (
            ", ".join(code(mark) for mark in form.template_markers),
            ", ".join(code(mark) for mark in form.excluded_markers) or "none",
            "one" if form.is_bare else "several",
        )
        for form in tool_calls.FORMATS
    ]


def forms_page() -> str:
    formats = ", ".join(code(each) for each in sorted(json_schema.FORMATS - {"unknown"}))
    return page(
        "Structured output",
        "Structured output has a form: a schema, grammar or expression that says which tokens may come "
        "next, so every answer that the model ends has it. "
        "[llguidance](https://github.com/guidance-ai/llguidance) decides. An answer that is cut by its "
        "length is cut in the middle of its form.",
        section(
            "Which forms there are",
            table(
                ("form", "Python and command line", "HTTP"),
                KINDS,
            ),
        ),
        section(
            "JSON Schema",
            f"Names of `format` that are held: {formats}. Other names are passed over, and refused with "
            "`strict` true.",
            f"Numbers are f64. `const`, `enum` and `multipleOf` with an integer beyond "
            f"{json_schema.MAX_EXACT} or with more than {json_schema.MAX_DIGITS} digits are refused. Bounds "
            "beyond are moved inwards.",
            "With `strict` true, and in the field `json_schema`, what cannot be held is refused. Else it is "
            "left out, and the header `X-Aerie-Note` says what. Each of these only narrows a schema, so no "
            "answer is lost.",
            table(("of a schema", "what happens"), LEFT_OUT),
        ),
        section(
            "Limits",
            "A form has up to 262144 characters. It is read in a process of its own, with 1 s of processor "
            "time, 512 MiB of memory and 1 MiB of stack. A form that takes more is refused, and so is one "
            "that no finite text has.",
        ),
        section(
            "How models write calls of tools",
            "The form is found by marks in the model's chat template. A template that has none of these "
            "gets a system message with the tools and a JSON form. There are at most "
            f"{tool_calls.MAX_TOOLS} tools. Their names have {tool_calls.NAME_SIGNS}.",
            table(("mark in the template", "but not with", "calls in an answer"), _call_formats()),
        ),
    )


def errors_page() -> str:
    kinds = [
        (code(name.rpartition(".")[2]), code(name.rpartition(".")[0]), _first_paragraph(kind))
        for name, kind in _errors()
    ]
    return page(
        "Errors",
        "All errors that a caller can mend are an `aerie.AerieError`. The message says what was given, the "
        "limit, and what to do. The command line prints it in one line and ends with 2.",
        section("Classes", table(("class", "of", "when"), kinds)),
        section(
            "What goes wrong in a run on the virtual NPU",
            "`kind` of the error, and of `--json`: "
            + ", ".join(code(each) for each in (*ERROR_KINDS, "schedule", "garbage", "sanitizer", "crash"))
            + ". [The table of checks](virtual-npu-checks.md) explains each.",
        ),
    )


def _first_paragraph(kind: type[Exception]) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _errors() -> Iterator[tuple[str, type[Exception]]]:
    """Public errors of the package, each by the shortest name that it can be imported from."""
    found: dict[type[Exception], str] = {AerieError: "aerie.AerieError"}
    for name, path in files():
        if not re.search(r"^class \w+\(.*Error", path.read_text(), re.MULTILINE):
            continue
        module = importlib.import_module(name)
        for each in vars(module).values():
            is_error = inspect.isclass(each) and issubclass(each, AerieError) and each.__module__ == name
            if is_error and not each.__name__.startswith("_"):
                found.setdefault(each, f"{name}.{each.__name__}")
    yield from sorted((name, kind) for kind, name in found.items())
