"""Calls in the text of an answer, while it comes: which function, and its arguments piece by piece."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aerie.engine.call_grammar import SPACE, call_prefix_regex
from aerie.engine.error_scope import isolate_request_errors
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import ToolCallFormat, Tools


class ToolCallDelta(NamedTuple):
    """What has come of call `number`, from 0: with the first its function's name, then what JSON there is of
    its arguments."""

    number: int
    name: str | None
    arguments: str


class ToolCall(NamedTuple):
    """arguments: JSON, an object; cut where the answer was."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallSpec:
    """What is to be found in an answer. shown: the special tokens that its text has to show for it."""

    tools: Tools
    format: ToolCallFormat
    shown: frozenset[int]

    def reader(self) -> ToolCallParser:
        """For one answer."""
        return ToolCallParser(self.tools, self.format)


def tool_call_spec(tools: Tools, tokenizer: Tokenizer) -> ToolCallSpec:
    """Of the tokenizer's model."""
    form = tokenizer.tool_call_format
    token = tokenizer.added_tokens().get(form.trigger)
    return ToolCallSpec(tools, form, frozenset([] if token is None else [token]))


class ToolCallParser:
    """Takes an answer's text in pieces; gives texts, and pieces of calls. For answers of call_grammar."""

    def __init__(self, tools: Tools, form: ToolCallFormat) -> None:
        self._tools = tools
        names = [tool.name for tool in tools.callable]
        called = call_prefix_regex(names, "(?P<name>")
        opening = _loose(form.opening)
        self._first = re.compile(rf"\s*{called}") if form.is_bare else None
        self._later = re.compile(_loose(form.trigger) + opening + called) if form.trigger else None
        self._next = re.compile(called)
        self._trigger = form.trigger
        self._longest = max(map(len, names)) + len(called)
        self._held, self._is_first = "", True
        self._arguments: _Value | None = None
        self._calls: list[tuple[str, list[str]]] = []

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Those that have come, the last perhaps not whole."""
        return tuple(ToolCall(name, "".join(pieces)) for name, pieces in self._calls)

    def feed(self, piece: str) -> Iterator[str | ToolCallDelta]:
        """What is sure now that this has come."""
        self._held += piece
        while self._held:
            if self._arguments is not None:
                yield from self._more()
            elif found := self._found():
                before, self._held = self._held[: found.start()], self._held[found.end() :]
                if before.strip() and not self._calls:
                    yield before
                self._arguments = _Value()
                self._calls.append((found["name"], []))
                yield ToolCallDelta(len(self._calls) - 1, found["name"], "")
            else:
                yield from self._text()
                return

    def flush(self) -> str:
        """The rest of a text, where no more comes; of what was to become a call, nothing."""
        rest, self._held = self._held, ""
        return "" if self._tools.must_call or self._calls else rest

    def truncate(self, pieces: Iterable[str]) -> Iterator[str]:
        """The texts in a text of pieces, "" where one gives none."""
        for piece in pieces:
            with isolate_request_errors():
                text = "".join(part for part in self.feed(piece) if isinstance(part, str))
            yield text
        yield self.flush()

    def _more(self) -> Iterator[ToolCallDelta]:
        assert self._arguments is not None
        if not self._arguments.is_begun:
            self._held = self._held.lstrip()
        at = self._arguments.end_in(self._held)
        come = self._held if at is None else self._held[:at]
        self._held = self._held[len(come) :]
        if at is not None:
            self._arguments = None
        if come:
            self._calls[-1][1].append(come)
            yield ToolCallDelta(len(self._calls) - 1, None, come)

    def _found(self) -> re.Match[str] | None:
        """Where a call begins."""
        if self._calls:
            return self._next.search(self._held)
        first = self._first.match(self._held) if self._first and self._is_first else None
        return first or (self._later.search(self._held) if self._later else None)

    def _text(self) -> Iterator[str]:
        """What no call can begin in."""
        if self._tools.must_call or self._calls or (self._is_first and self._may_begin()):
            return
        sure = len(self._held) - self._begun()
        text = self._held[:sure]
        if text.strip() or not self._is_first:  # blanks before a call are told to nobody
            self._held, self._is_first = self._held[sure:], False
            yield text

    def _may_begin(self) -> bool:
        """Whether an answer that begins so may be a call."""
        begun = self._held.lstrip()
        return self._first is not None and begun[:1] == "{" and len(begun) < self._longest

    def _begun(self) -> int:
        """How many characters at the end are a trigger, or may become one."""
        if not self._trigger:
            return 0
        at = self._held.find(self._trigger)
        if at >= 0:
            return len(self._held) - at
        most = min(len(self._held), len(self._trigger) - 1)
        return next((n for n in range(most, 0, -1) if self._held.endswith(self._trigger[:n])), 0)


def _loose(text: str) -> str:
    """With other blanks than these, or none."""
    return "".join(
        SPACE if piece.isspace() else re.escape(piece) for piece in re.split(r"(\s+)", text) if piece
    )


class _Value:
    """Where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth, self._is_text, self._is_escaped = 0, False, False

    @property
    def is_begun(self) -> bool:
        return self._depth > 0

    def end_in(self, piece: str) -> int | None:
        """The place after its end, where it ends in this piece."""
        for at, sign in enumerate(piece, start=1):
            if self._is_text:
                self._is_text = sign != '"' or self._is_escaped
                self._is_escaped = sign == "\\" and not self._is_escaped
            elif sign == '"':
                self._is_text = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return at
        return None
