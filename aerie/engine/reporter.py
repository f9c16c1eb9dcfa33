"""Reports progress on standard error, and handles Ctrl-C.

Standard output has the model's text only. Ctrl-C ends the current work, also within a program; during an
answer it drops the current token and keeps the answer so far.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from aerie.runtime import stop_this_thread

if TYPE_CHECKING:
    from rich.console import Console

OnProgress = Callable[[str, int], None]
"""Called with a description and the number of steps done."""


def no_progress(what: str, done: int) -> None:
    """An OnProgress that shows nothing."""


Bar = Callable[[int], AbstractContextManager[OnProgress]]
"""A context that shows this number of steps, and how many are done."""


def no_bar(total: int) -> AbstractContextManager[OnProgress]:  # noqa: ARG001
    """A Bar that shows nothing."""
    return nullcontext(no_progress)


class Reporter:
    """Reports what a command does. Bars are shown on a terminal only, notes everywhere."""

    def __init__(self, file: TextIO | None = None, terminal: bool | None = None, quiet: bool = False) -> None:
        """file: default is standard error. terminal: whether it is a terminal; None asks the file. quiet:
        print nothing."""
        self._file, self._quiet = file, quiet
        self._terminal = terminal
        self._console: Console | None = None
        """What shows a bar, while there is one: notes appear above it."""

    @property
    def has_bars(self) -> bool:
        return (self._file or sys.stderr).isatty() if self._terminal is None else self._terminal

    def note(self, message: str) -> None:
        """Print a line."""
        if self._quiet:
            return
        if self._console:
            self._console.print(message)
        else:
            print(message, file=self._file or sys.stderr, flush=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[OnProgress]:
        """A bar of `total` steps, removed when it is done. Any thread may move it."""
        if not self.has_bars:
            yield no_progress
            return
        from rich import progress  # here, since its import takes longer than a warm start without it
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[what]}"),
        )
        self._console = Console(
            file=self._file or sys.stderr,
            force_terminal=True,
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        try:
            with progress.Progress(*columns, console=self._console, transient=True) as bars:
                task = bars.add_task(title, total=total, what="")
                yield lambda what, done: bars.update(task, completed=done, what=what)
        finally:
            self._console = None


def treat_signals_as_interrupt() -> None:
    """Let SIGTERM and SIGHUP (`kill`, a closed terminal) stop what Ctrl-C stops: compilers do not end with
    this process."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that stays
            signal.signal(number, signal.default_int_handler)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """In this context Ctrl-C raises KeyboardInterrupt until the given function was called once. After that
    the first Ctrl-C makes it return True, and stops a call that runs under a StopFlag; a second one raises
    KeyboardInterrupt.

    Main thread only, where Python delivers signals.
    """
    is_polled = interrupted = False

    def on_signal(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted or not is_polled:
            signal.default_int_handler(signum, frame)
        interrupted = True
        stop_this_thread()

    def was_interrupted() -> bool:
        nonlocal is_polled
        is_polled = True
        return interrupted

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield was_interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """In this context Ctrl-C is deferred to the end: for short work that must be done completely or not at
    all. Signals reach the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda signum, frame: waiting.append((signum, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for each in waiting[:1]:
            handler(*each)
