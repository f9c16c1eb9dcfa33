"""What a command tells on standard error, and how Ctrl-C reaches it.

Standard output is for the model's text alone. Ctrl-C ends what goes on, in the middle of a program too; in an
answer it drops the token under way and keeps the answer so far whole.
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
"""Called with what is going on and how many steps are done."""


def no_progress(what: str, done: int) -> None:
    """A Step that shows nothing."""


Bar = Callable[[int], AbstractContextManager[OnProgress]]
"""Shows so many steps, and how many are done, as long as it is entered."""


def no_bar(total: int) -> AbstractContextManager[OnProgress]:  # noqa: ARG001
    """A Bar that shows nothing."""
    return nullcontext(no_progress)


class Reporter:
    """Says what is going on. Bars move on a terminal only; notes are said everywhere."""

    def __init__(self, file: TextIO | None = None, terminal: bool | None = None, quiet: bool = False) -> None:
        """Writes to `file` (default: standard error), which is asked whether it is a terminal; quiet: says
        nothing."""
        self._file, self._quiet = file, quiet
        self._terminal = terminal
        self._console: Console | None = None
        """What shows a bar, while there is one: notes appear above it."""

    @property
    def has_bars(self) -> bool:
        return (self._file or sys.stderr).isatty() if self._terminal is None else self._terminal

    def note(self, message: str) -> None:
        """A line."""
        if self._quiet:
            return
        if self._console:
            self._console.print(message)
        else:
            print(message, file=self._file or sys.stderr, flush=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[OnProgress]:
        """A bar of `total` steps, gone when it is done; it may be moved from any thread."""
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
    """`kill`, and a terminal that closes, stop what Ctrl-C stops: compilers, which do not end with us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that stays
            signal.signal(number, signal.default_int_handler)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Within this, Ctrl-C raises KeyboardInterrupt until the given function was called once. From then on the
    first one makes that return True, and stops a step that is under way under a Stop; a second one raises
    KeyboardInterrupt.

    Only for the main thread, where Python delivers signals.
    """
    is_asked = interrupted = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted or not is_asked:
            signal.default_int_handler(signum, frame)
        interrupted = True
        stop_this_thread()

    def ask() -> bool:
        nonlocal is_asked
        is_asked = True
        return interrupted

    before = signal.signal(signal.SIGINT, note)
    try:
        yield ask
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Within this Ctrl-C waits, and does at the end what it does: for what must be done whole or not at all,
    and is soon done. Signals come in the main thread alone."""
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
