"""Parses tool calls in the text of an answer as it is generated: the function, and its arguments piece by
piece."""

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
    """A new piece of call `number`, from 0: first the function's name, then pieces of its JSON arguments."""

    number: int
    name: str | None
    arguments: str


class ToolCall(NamedTuple):
    """A complete call. arguments: a JSON object as text; cut off if the answer was."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallSpec:
    """What to parse in an answer. shown: special tokens that its text must show."""

    tools: Tools
    format: ToolCallFormat
    shown: frozenset[int]

    def reader(self) -> ToolCallParser:
        """A parser for one answer."""
        return ToolCallParser(self.tools, self.format)


def tool_call_spec(tools: Tools, tokenizer: Tokenizer) -> ToolCallSpec:
    """The spec for these tools and the tokenizer's model."""
    form = tokenizer.tool_call_format
    token = tokenizer.added_tokens().get(form.trigger)
    return ToolCallSpec(tools, form, frozenset([] if token is None else [token]))


class ToolCallParser:
    """Takes an answer's text in pieces, and gives text and pieces of calls. For answers of call_grammar."""

    def __init__(self, tools: Tools, call_format: ToolCallFormat) -> None:
        self._tools = tools
        names = [tool.name for tool in tools.callable]
        called = call_prefix_regex(names, "(?P<name>")
        opening = _loose(call_format.opening)
        self._first = re.compile(rf"\s*{called}") if call_format.is_bare else None
        self._later = (
            re.compile(_loose(call_format.trigger) + opening + called) if call_format.trigger else None
        )
        self._next = re.compile(called)
        self._trigger = call_format.trigger
        self._longest = max(map(len, names)) + len(called)
        self._pending, self._is_first = "", True
        self._arguments: _Value | None = None
        self._calls: list[tuple[str, list[str]]] = []

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; the last may be incomplete."""
        return tuple(ToolCall(name, "".join(pieces)) for name, pieces in self._calls)

    def feed(self, piece: str) -> Iterator[str | ToolCallDelta]:
        """Add a piece of text. Yields what is certain now."""
        self._pending += piece
        while self._pending:
            if self._arguments is not None:
                yield from self._argument_deltas()
            elif match := self._next_call():
                before, self._pending = self._pending[: match.start()], self._pending[match.end() :]
                if before.strip() and not self._calls:
                    yield before
                self._arguments = _Value()
                self._calls.append((match["name"], []))
                yield ToolCallDelta(len(self._calls) - 1, match["name"], "")
            else:
                yield from self._text()
                return

    def flush(self) -> str:
        """The remaining text at the end of the answer; an incomplete start of a call is dropped."""
        rest, self._pending = self._pending, ""
        return "" if self._tools.must_call or self._calls else rest

    def truncate(self, pieces: Iterable[str]) -> Iterator[str]:
        """The texts of these pieces, without calls; "" if a piece gives none."""
        for piece in pieces:
            with isolate_request_errors():
                text = "".join(part for part in self.feed(piece) if isinstance(part, str))
            yield text
        yield self.flush()

    def _argument_deltas(self) -> Iterator[ToolCallDelta]:
        assert self._arguments is not None
        if not self._arguments.is_started:
            self._pending = self._pending.lstrip()
        end = self._arguments.end_in(self._pending)
        text = self._pending if end is None else self._pending[:end]
        self._pending = self._pending[len(text) :]
        if end is not None:
            self._arguments = None
        if text:
            self._calls[-1][1].append(text)
            yield ToolCallDelta(len(self._calls) - 1, None, text)

    def _next_call(self) -> re.Match[str] | None:
        """The position where a call starts."""
        if self._calls:
            return self._next.search(self._pending)
        first = self._first.match(self._pending) if self._first and self._is_first else None
        return first or (self._later.search(self._pending) if self._later else None)

    def _text(self) -> Iterator[str]:
        """The text that cannot be the start of a call."""
        if self._tools.must_call or self._calls or (self._is_first and self._may_begin()):
            return
        sure = len(self._pending) - self._trigger_length()
        text = self._pending[:sure]
        if text.strip() or not self._is_first:  # blanks before a call are left out
            self._pending, self._is_first = self._pending[sure:], False
            yield text

    def _may_begin(self) -> bool:
        """Whether an answer with this start may be a call."""
        start = self._pending.lstrip()
        return self._first is not None and start[:1] == "{" and len(start) < self._longest

    def _trigger_length(self) -> int:
        """Number of characters at the end that are a trigger, or a part of one."""
        if not self._trigger:
            return 0
        at = self._pending.find(self._trigger)
        if at >= 0:
            return len(self._pending) - at
        longest = min(len(self._pending), len(self._trigger) - 1)
        return next((n for n in range(longest, 0, -1) if self._pending.endswith(self._trigger[:n])), 0)


def _loose(text: str) -> str:
    """A regular expression of the text with other blanks, or none."""
    return "".join(
        SPACE if piece.isspace() else re.escape(piece) for piece in re.split(r"(\s+)", text) if piece
    )


class _Value:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth, self._is_text, self._is_escaped = 0, False, False

    @property
    def is_started(self) -> bool:
        return self._depth > 0

    def end_in(self, piece: str) -> int | None:
        """The position after the end, if it is in this piece."""
        for position, character in enumerate(piece, start=1):
            if self._is_text:
                self._is_text = character != '"' or self._is_escaped
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._is_text = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return position
        return None
