"""Progress and remarks on standard error; standard output is for the model's text alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter:
    """Says what is going on: bars on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def note(self, message: RenderableType) -> None:
        """One line, or a table."""
        self._console.print(message)

    @contextmanager
    def steps(self, title: str, total: int) -> Iterator[Callable[[str], None]]:
        """A stage of `total` steps; call what this gives with the name of each step done."""
        if self._console.is_terminal:
            with self._bar() as bar:
                task = bar.add_task(title, total=total, step="")
                yield lambda step: bar.update(task, advance=1, step=step)
        else:
            done = 0

            def count(step: str) -> None:
                nonlocal done
                done += 1
                self.note(f"{title} [{done}/{total}] {step}")

            yield count

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}"),
            console=self._console,
            transient=True,
        )
