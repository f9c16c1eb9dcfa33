"""Whether a grammar has a finite text, so that an answer of it can end.

A rule ends if one of its alternatives ends, and an alternative if all its parts end: the least fixpoint of
that gives the rules with a finite text. The grammar is in llguidance's dialect of lark. Only its shape is
parsed: definitions, names, texts, expressions, groups and repetitions. Anything unknown counts as ending.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

DEFINITION: Final = re.compile(
    r"^[ \t]*[!?]*(?P<name>[a-zA-Z_]\w*)(?:::\w+)?(?:\.-?\d+)?[ \t]*(?P<how>\[[^\]\n]*\])?[ \t]*:(?!:)", re.M
)
TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"i?(?:\s*\.\.\s*"(?:[^"\\\n]|\\.)*")?)
      | (?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)
      | (?P<nested>%(?:json|regex|lark)\s*(?=\{))
      | (?P<directive>%\w+[^\n]*)
      | (?P<special><[^>\n]*>)
      | (?P<name>@?[a-zA-Z_]\w*(?:::\w+(?:\([^)\n]*\))?)?)
      | (?P<count>\{\s*(?P<least>\d*)\s*(?:,\s*\d*\s*)?\}|~\s*(?P<from>\d+)(?:\s*\.\.\s*\d+)?)
      | (?P<sign>.)""",
    re.X,
)


@dataclass(frozen=True)
class _Group:
    """Alternatives, each a tuple of parts: names of rules, or groups. A group without alternatives never
    ends."""

    alternatives: tuple[tuple[Part, ...], ...]


Part: TypeAlias = str | _Group
ENDS: Final = _Group(((),))


class _UnknownError(Exception):
    """The shape of the grammar cannot be parsed."""


def accepts_any_text(grammar: str, is_empty: Callable[[str], bool]) -> bool:
    """Whether the grammar has a finite text. is_empty: whether a terminal, given by its name or its text, has
    none."""
    try:
        rules = dict(_rules(grammar))
    except (_UnknownError, RecursionError):
        return True
    for name, group in rules.items():
        if name.isupper() and is_empty(name):
            rules[name] = _Group(())
        elif not name.isupper():
            rules[name] = _without(group, is_empty)
    return "start" not in rules or "start" in _ending(rules)


def _ending(rules: Mapping[str, _Group]) -> set[str]:
    """Rules with a finite text, and names without a rule."""
    ending = {name for group in rules.values() for name in _names(group)} - rules.keys()
    users: dict[str, set[str]] = {}
    for name, group in rules.items():
        for used in _names(group):
            users.setdefault(used, set()).add(name)
    remaining = [*rules]
    while remaining:
        name = remaining.pop()
        if name not in ending and _is_ending(rules[name], ending):
            ending.add(name)
            remaining += users.get(name, ())
    return ending


def _names(group: _Group) -> Iterator[str]:
    for alternative in group.alternatives:
        for part in alternative:
            yield from [part] if isinstance(part, str) else _names(part)


def _is_ending(group: _Group, ending: set[str]) -> bool:
    return any(
        all(part in ending if isinstance(part, str) else _is_ending(part, ending) for part in alternative)
        for alternative in group.alternatives
    )


def _without(group: _Group, is_empty: Callable[[str], bool]) -> _Group:
    """The group with regular expressions, which are among the names as written, replaced by groups."""

    def part(each: Part) -> Part:
        if isinstance(each, _Group):
            return _without(each, is_empty)
        if each.startswith("/"):
            return _Group(()) if is_empty(each) else ENDS
        return each

    return _Group(tuple(tuple(map(part, alternative)) for alternative in group.alternatives))


def _rules(grammar: str) -> Iterator[tuple[str, _Group]]:
    definitions = [*DEFINITION.finditer(grammar)]
    ends = [*(each.start() for each in definitions[1:]), len(grammar)]
    for each, end in zip(definitions, ends, strict=True):
        yield each["name"], _Reader(grammar[each.end() : end]).parse()


class _Reader:
    """Parses the right side of a rule. Raises _UnknownError."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text)]
        self._at = 0

    def parse(self) -> _Group:
        made = self._group()
        if self._at < len(self._tokens):
            raise _UnknownError
        return made

    def _group(self) -> _Group:
        alternatives: list[tuple[Part, ...]] = []
        alternative: list[Part] = []
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in (")", "]"):
            kind, text = self._tokens[self._at]
            self._at += 1
            if text == "|":
                alternatives.append(tuple(alternative))
                alternative = []
            elif kind == "count" or text in ("*", "+", "?"):
                if text in ("*", "?") or _least(text) == 0:
                    alternative[-1:] = [ENDS]
            elif kind not in ("directive", "blank"):
                alternative.append(self._part(kind, text))
        return _Group((*alternatives, tuple(alternative)))

    def _part(self, kind: str, text: str) -> Part:
        if text in ("(", "["):
            made = self._group()
            if self._at == len(self._tokens):
                raise _UnknownError
            self._at += 1
            return made if text == "(" else ENDS
        if kind in ("text", "nested", "special"):
            return ENDS
        if kind == "name":
            return ENDS if text.startswith("@") else text.partition("::")[0]
        if kind == "regex" or text in ("&", "~"):
            return text if kind == "regex" else ENDS
        raise _UnknownError


def _least(text: str) -> int:
    found = re.search(r"\d+", text.partition(",")[0])
    return int(found[0]) if found and text != "+" else int(text == "+")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        assert found is not None
        at, kind = found.end(), str(found.lastgroup if found.lastgroup not in ("least", "from") else "count")
        if kind == "nested":
            at = _nested(text, at)
        if kind != "blank":
            yield kind, found[0]


def _nested(text: str, at: int) -> int:
    """The end of the JSON value that starts here."""
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        raise _UnknownError from None


def terminals(grammar: str) -> Iterable[str]:
    """The lines that define terminals, for a grammar of one terminal only."""
    definitions = [*DEFINITION.finditer(grammar)]
    ends = [*(each.start() for each in definitions[1:]), len(grammar)]
    for each, end in zip(definitions, ends, strict=True):
        if each["name"].isupper():
            yield grammar[each.start() : end]
