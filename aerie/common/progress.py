"""One line on a terminal that says what a command is doing, once it was silent for a second."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

SILENCE_S: Final = 1.0
"""Seconds after which the line appears."""
REFRESH_S: Final = 0.5
ERASE: Final = "\r\x1b[K"


def _ignore(what: str) -> None: ...


@contextmanager
def working(what: str, file: TextIO | None = None) -> Iterator[Callable[[str], None]]:
    """Within this context a terminal shows `what` and the seconds since it began, in a line that is erased at
    the end. Gives a function that changes the text. Without a terminal nothing is shown.

    Do not print within it. file: default is standard error.
    """
    out = file or sys.stderr
    if not out.isatty():
        yield _ignore
        return
    line = _Line(what, out)
    line.start()
    try:
        yield line.change
    finally:
        line.end()


class _Line(threading.Thread):
    def __init__(self, what: str, out: TextIO) -> None:
        super().__init__(daemon=True)
        self._what, self._out = what, out
        self._began = time.monotonic()
        self._has_ended = threading.Event()

    def change(self, what: str) -> None:
        self._what = what

    def run(self) -> None:
        is_over = self._has_ended.wait(SILENCE_S)
        while not is_over:
            text = f"{self._what}, {time.monotonic() - self._began:.0f} s"
            self._write(ERASE + text[: shutil.get_terminal_size().columns - 1])
            is_over = self._has_ended.wait(REFRESH_S)
        if time.monotonic() - self._began >= SILENCE_S:
            self._write(ERASE)

    def end(self) -> None:
        self._has_ended.set()
        self.join()

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
