"""Write text to a terminal as it comes, without breaking words at the margin.

A word is held back until it is complete, as its width decides in which line it stands. What is wider than the
terminal is written as it is.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Callable
from typing import TextIO

TAB_WIDTH = 8


def terminal_width() -> int:
    """Columns of the terminal now; people resize it."""
    return shutil.get_terminal_size().columns


class WordWrapper:
    """Writes words to `out`, each in the line that it fits. width: returns the columns of a line."""

    def __init__(self, out: TextIO, width: Callable[[], int] = terminal_width) -> None:
        self._out, self._width = out, width
        self._column = 0
        self._blanks = self._word = ""

    def write(self, text: str) -> None:
        for char in text:
            if char == "\n":
                self.finish()
                self._out.write(char)
                self._column = 0
            elif char in " \t":
                self._end_word()
                self._blanks += char
            elif unicodedata.east_asian_width(char) in "WF":  # a line may break before and after each
                self._end_word()
                self._word = char
                self._end_word()
            else:
                self._word += char
        self._out.flush()

    def finish(self) -> None:
        """Write what is held back."""
        self._end_word()
        self._out.write(self._blanks)
        self._column += text_width(self._blanks)
        self._blanks = ""
        self._out.flush()

    def _end_word(self) -> None:
        if not self._word:
            return
        word, blanks, columns = text_width(self._word), text_width(self._blanks), self._width()
        if self._column and self._column + blanks + word > columns >= word:
            self._out.write(f"\n{self._word}")
            self._column = word
        else:
            self._out.write(self._blanks + self._word)
            self._column = _end_column(self._column + blanks + word, columns)
        self._blanks = self._word = ""


def text_width(text: str) -> int:
    """Columns that a terminal takes for a text without line breaks; a tab counts as 8."""
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if char == "\t":
        return TAB_WIDTH
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.category(char) in ("Mn", "Me", "Cf", "Cc") else 1


def _end_column(end: int, columns: int) -> int:
    """The column after a text that ends at `end`, where the terminal broke what is wider than its line."""
    return end if end <= columns else end % max(1, columns)
