"""What a command tells on standard error, and how Ctrl-C reaches it.

Standard output is for the model's text alone. Ctrl-C is a request to stop at the next token, so that nothing
is torn out of a running program.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Step = Callable[[str, int], None]
"""Called with what is going on and how many steps are done."""


class Reporter:
    """Says what is going on. Bars move on a terminal only; notes are said everywhere."""

    def __init__(self, file: TextIO | None = None, terminal: bool | None = None) -> None:
        """Writes to `file` (default: standard error), which is asked whether it is a terminal."""
        self._console = Console(
            file=file,
            stderr=file is None,
            force_terminal=terminal,
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    @property
    def has_bars(self) -> bool:
        return self._console.is_terminal

    def note(self, message: RenderableType) -> None:
        """A line, or a table."""
        self._console.print(message)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Step]:
        """A bar of `total` steps, gone when it is done; it may be moved from any thread."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}"),
        )
        with Progress(*columns, console=self._console, transient=True, disable=not self.has_bars) as bars:
            task = bars.add_task(title, total=total, what="")
            yield lambda what, done: bars.update(task, completed=done, what=what)


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
