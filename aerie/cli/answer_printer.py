"""Write an answer as it comes: on a terminal with its thinking, dim, before it; elsewhere its text alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final, TextIO

from aerie.cli.word_wrap import WordWrapper
from aerie.engine.thinking import AnswerPart, ThinkingStart

DIM: Final = "\x1b[2m", "\x1b[22m"
HEADINGS: Final = "[thinking]\n", "[answer]\n"
"""Where there are no colours: what comes before the thinking, and before the answer after it."""


class AnswerPrinter:
    """Writes the parts of one answer to `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._is_thinking, self._is_terminal = out, False, out.isatty()
        self._wrapper = WordWrapper(out) if self._is_terminal else None
        has_no_colours = os.environ.get("NO_COLOR") is not None or os.environ.get("TERM") == "dumb"
        self._marks = HEADINGS if has_no_colours else DIM

    def write(self, part: AnswerPart) -> None:
        if part.thinking and self._is_terminal:
            if not self._is_thinking:
                self._is_thinking = True
                self._out.write(self._marks[0])
            self._write(part.thinking)
        if part.text:
            self._end_thinking()
            self._write(part.text)

    def finish(self) -> None:
        """Write what is held back, and end the thinking: an error or Ctrl-C may come in the middle."""
        if self._wrapper:
            self._wrapper.finish()
        if self._is_thinking and self._marks is DIM:
            self._out.write(DIM[1])
        self._is_thinking = False

    def _end_thinking(self) -> None:
        if not self._is_thinking:
            return
        self._is_thinking = False
        if self._wrapper:
            self._wrapper.finish()
        self._write("\n\n" if self._marks is HEADINGS else "")
        self._out.write(self._marks[1])
        self._write("" if self._marks is HEADINGS else "\n\n")

    def _write(self, text: str) -> None:
        if self._wrapper:
            self._wrapper.write(text)
        else:
            self._out.write(text)
            self._out.flush()


def print_answer(pieces: Iterable[str], out: TextIO | None, start: ThinkingStart | None = None) -> AnswerPart:
    """Write an answer to `out` as its pieces come, and a line break at the end. start: how it begins, if the
    model thinks. Returns the whole answer."""
    thinking, text = list[str](), list[str]()
    printer = AnswerPrinter(out) if out else None
    try:
        for part in _parts(pieces, start):
            thinking.append(part.thinking)
            text.append(part.text)
            if printer:
                printer.write(part)
    finally:
        if printer:
            printer.finish()
    if out:
        out.write("\n")
        out.flush()
    return AnswerPart("".join(thinking), "".join(text))


def _parts(pieces: Iterable[str], start: ThinkingStart | None) -> Iterator[AnswerPart]:
    if start:
        return start.splitter().split(pieces)
    return (AnswerPart("", piece) for piece in pieces)
