"""Argument parsers whose errors are one line, with the nearest name for a mistyped one.

difflib and re are imported where an error is made, as every command waits for what is imported above.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

ABOUT_AS_NEAR = 0.15
"""Difference in difflib's ratio up to which a second name is named: `rum` may be `rm` or `run`."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question after a semicolon that names the nearest of `known`, or two that are about as near; empty if
    none is near."""
    import difflib

    def nearness(name: str) -> float:
        return difflib.SequenceMatcher(None, name, word).ratio()

    near = difflib.get_close_matches(word, list(known), n=2)
    near = [name for name in near if nearness(name) > nearness(near[0]) - ABOUT_AS_NEAR]
    return f"; did you mean {' or '.join(sorted(near))}?" if near else ""


class SuggestingParser(argparse.ArgumentParser):
    """Adds the nearest option or command to the message about a mistyped one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse. What no parser takes is an error of the subcommand that was named."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = self._named_parser(args)
            parser.error(f"unrecognized arguments: {' '.join(rest)}{_meant(rest[0], parser)}")
        return options

    def _named_parser(self, args: Any) -> argparse.ArgumentParser:
        """The parser of the subcommand in `args`; this one if it has none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                words = sys.argv[1:] if args is None else args
                name = next((word for word in words if word in action.choices), None)
                return self if name is None else action.choices[name]
        return self


def _meant(word: str, parser: argparse.ArgumentParser) -> str:
    """What a word that no parser takes may have been meant for: an option near it, or the model."""
    options = [name for action in parser._actions for name in action.option_strings]
    if word.startswith("-"):
        return did_you_mean(word.partition("=")[0], options)
    return f"; a model is named with --model {word}" if "--model" in options else ""


def with_nearest_choice(message: str) -> str:
    """An error of argparse; if a choice is invalid, with the nearest one."""
    import re

    match = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
    if match is None:
        return message
    return message + did_you_mean(match[1], re.findall(r"[^\s',]+", match[2]))


class OneLineParser(SuggestingParser):
    """Prints one line for a wrong command line, without the usage, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {with_nearest_choice(message)} (see {self.prog} --help)\n")
