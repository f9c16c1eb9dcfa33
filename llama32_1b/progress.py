"""What a command tells on standard error, and how Ctrl-C reaches it.

Standard output is for the model's text alone. Ctrl-C is a request to stop at the next token, so that nothing
is torn out of a running program.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Step = Callable[[str, int], None]
"""Called with what is going on and how many steps are done."""


class Reporter:
    """Says what is going on. Bars move on a terminal only; notes are said everywhere."""

    def __init__(self, file: TextIO | None = None, terminal: bool | None = None) -> None:
        """Writes to `file` (default: standard error), which is asked whether it is a terminal."""
        self._file = file
        self._terminal = terminal
        self._console: Console | None = None
        """What shows a bar, while there is one: notes appear above it."""

    @property
    def has_bars(self) -> bool:
        return (self._file or sys.stderr).isatty() if self._terminal is None else self._terminal

    def note(self, message: str) -> None:
        """A line."""
        if self._console:
            self._console.print(message)
        else:
            print(message, file=self._file or sys.stderr, flush=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Step]:
        """A bar of `total` steps, gone when it is done; it may be moved from any thread."""
        if not self.has_bars:
            yield lambda what, done: None  # noqa: ARG005
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


def end_as_at_ctrl_c() -> None:
    """`kill`, and a terminal that closes, stop what Ctrl-C stops: compilers, which do not end with us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that stays
            signal.signal(number, signal.default_int_handler)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Within this, the first Ctrl-C makes the given function return True; a second one raises
    KeyboardInterrupt. Only for the main thread, where Python delivers signals."""
    interrupted = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            signal.default_int_handler(signum, frame)
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
