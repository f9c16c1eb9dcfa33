"""The pages of commands: every command of `aerie` with its options, and every target of make."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from md_text import code, page, section, table

from aerie import __main__ as command_line

PROJECT = Path(__file__).parents[2]


class _Found(BaseException):
    """Carries the parser that was about to read a command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def parser_of(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser that reads these words of `aerie`; nothing of the command is done."""

    def found(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise _Found(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", found):
        try:
            command_line.main(words)
        except _Found as error:
            return error.parser
    raise AssertionError(f"aerie {' '.join(words)} reads its words without argparse")


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: sub
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, sub in action.choices.items()
    }


def every_command() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(words, what it does, its parser) of each command, those of `aerie vnpu` and the like by themselves."""
    for each in command_line.COMMANDS:
        parser = parser_of([each.name])
        yield f"aerie {each.name}", each.summary, subcommands(parser).get(each.name, parser)
    for each in command_line.TOOLS:
        parser = parser_of([each.name])
        yield from _of_tool(f"aerie {each.name}", each.summary, parser)


def _of_tool(
    words: str, summary: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    subs = subcommands(parser)
    if not subs:
        yield words, summary, parser
    for name, sub in subs.items():
        yield f"{words} {name}", sub.description or summary, sub


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(how it is written, what it means) of each argument and option."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            name = formatter._format_action_invocation(action)
            yield name, formatter._expand_help(action) if action.help else ""


def commands_page() -> str:
    sections = []
    for words, summary, parser in every_command():
        rows = [(code(name), text) for name, text in options(parser)]
        shown = table(("argument", "meaning"), rows) if rows else "It takes no arguments."
        sections.append(section(code(words), summary, shown))
    return page(
        "Commands",
        "Each command prints the same with `--help`. Exit codes are [below](#exit-codes).",
        *sections,
        exit_codes(),
    )


def exit_codes() -> str:
    rows = (
        ("0", "Done."),
        (
            "1",
            "The command ran and says no: a gate or a comparison failed, a kernel is out of tolerance, a "
            "program failed while it ran, a limit is exceeded, a text is not valid AIR, or no model can run "
            "here.",
        ),
        (
            "2",
            "A request that cannot be met. One line on standard error says what, the limit, and what to do.",
        ),
        ("70", "`aerie vnpu`: a defect of Aerie. Please report it."),
        ("130", "Stopped by Ctrl-C, by `kill`, or because the terminal was closed."),
        ("141", "The reader of standard output went away, as `head` does."),
    )
    return section("Exit codes", table(("code", "meaning"), rows))


TARGET = re.compile(r"^([a-z-]+):.*## (.*)", re.MULTILINE)
VARIABLE = re.compile(r'echo "  ([A-Z_]+) +(.*?)"$', re.MULTILINE)


def make_page() -> str:
    makefile = (PROJECT / "Makefile").read_text()
    targets = [(code(f"make {name}"), text) for name, text in TARGET.findall(makefile)]
    variables = [(code(name), text) for name, text in VARIABLE.findall(makefile)]
    return page(
        "make",
        "Every target makes what it needs in `.venv` first. `make help` prints both tables.",
        section("Targets", table(("target", "what it does"), targets)),
        section(
            "Variables",
            "Each reaches the program as you typed it. A name that is none of these is refused.",
            table(("variable", "meaning"), variables),
        ),
    )


@contextlib.contextmanager
def width(columns: int) -> Iterator[None]:
    """Help texts as on a terminal of so many columns."""
    with mock.patch.dict("os.environ", {"COLUMNS": str(columns)}):
        yield
