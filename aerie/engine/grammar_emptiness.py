"""Whether a grammar has a finite text: whether an answer of it can ever end.

A rule ends where one of its alternatives does, and an alternative where all its parts do: the least fixpoint
of that says which rules have a text. The grammar is one in llguidance's form of lark, of which the shape
alone is read: definitions, names, texts, expressions, groups and repetitions. What is not known here ends.
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
      | (?P<told>%\w+[^\n]*)
      | (?P<special><[^>\n]*>)
      | (?P<name>@?[a-zA-Z_]\w*(?:::\w+(?:\([^)\n]*\))?)?)
      | (?P<count>\{\s*(?P<least>\d*)\s*(?:,\s*\d*\s*)?\}|~\s*(?P<from>\d+)(?:\s*\.\.\s*\d+)?)
      | (?P<sign>.)""",
    re.X,
)


@dataclass(frozen=True)
class _Group:
    """Alternatives, each of parts: names of rules, or groups. A group without any never ends."""

    ways: tuple[tuple[Part, ...], ...]


Part: TypeAlias = str | _Group
ENDS: Final = _Group(((),))


class _UnknownError(Exception):
    """A grammar whose shape cannot be read."""


def accepts_any_text(grammar: str, is_empty: Callable[[str], bool]) -> bool:
    """See the module. is_empty: whether no text is of a terminal, as it is called or written there."""
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
    """The rules that have a text, and names that are no rules."""
    found = {name for group in rules.values() for name in _names(group)} - rules.keys()
    users: dict[str, set[str]] = {}
    for name, group in rules.items():
        for used in _names(group):
            users.setdefault(used, set()).add(name)
    left = [*rules]
    while left:
        name = left.pop()
        if name not in found and _ends(rules[name], found):
            found.add(name)
            left += users.get(name, ())
    return found


def _names(group: _Group) -> Iterator[str]:
    for way in group.ways:
        for part in way:
            yield from [part] if isinstance(part, str) else _names(part)


def _ends(group: _Group, known: set[str]) -> bool:
    return any(
        all(part in known if isinstance(part, str) else _ends(part, known) for part in way)
        for way in group.ways
    )


def _without(group: _Group, is_empty: Callable[[str], bool]) -> _Group:
    """With expressions, which are among the names as they are written, as groups."""

    def part(each: Part) -> Part:
        if isinstance(each, _Group):
            return _without(each, is_empty)
        if each.startswith("/"):
            return _Group(()) if is_empty(each) else ENDS
        return each

    return _Group(tuple(tuple(map(part, way)) for way in group.ways))


def _rules(grammar: str) -> Iterator[tuple[str, _Group]]:
    found = [*DEFINITION.finditer(grammar)]
    ends = [*(each.start() for each in found[1:]), len(grammar)]
    for each, end in zip(found, ends, strict=True):
        yield each["name"], _Reader(grammar[each.end() : end]).whole()


class _Reader:
    """Of what stands behind a rule's name. Raises _UnknownError."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text)]
        self._at = 0

    def whole(self) -> _Group:
        made = self._group()
        if self._at < len(self._tokens):
            raise _UnknownError
        return made

    def _group(self) -> _Group:
        ways: list[tuple[Part, ...]] = []
        way: list[Part] = []
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in (")", "]"):
            kind, text = self._tokens[self._at]
            self._at += 1
            if text == "|":
                ways.append(tuple(way))
                way = []
            elif kind == "count" or text in ("*", "+", "?"):
                if text in ("*", "?") or _least(text) == 0:
                    way[-1:] = [ENDS]
            elif kind not in ("told", "blank"):
                way.append(self._part(kind, text))
        return _Group((*ways, tuple(way)))

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
    """Where JSON ends that begins here."""
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        raise _UnknownError from None


def terminals(grammar: str) -> Iterable[str]:
    """The lines that define terminals, for a grammar that has one of them alone."""
    found = [*DEFINITION.finditer(grammar)]
    ends = [*(each.start() for each in found[1:]), len(grammar)]
    for each, end in zip(found, ends, strict=True):
        if each["name"].isupper():
            yield grammar[each.start() : end]
