"""Progress and remarks on standard error; standard output is for the model's text alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
