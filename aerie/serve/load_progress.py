"""What a model that is being opened does now: the bar of its Reporter, readable by the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aerie.engine.reporter import OnProgress, Reporter


class Progress(NamedTuple):
    """A bar: `done` of `total` steps of `title` are done. what: the step under way, if it has a name."""

    title: str
    done: int
    total: int
    what: str = ""


class WatchedReporter(Reporter):
    """A Reporter with the bar that is open now; None if there is none. Any thread may read it."""

    progress: Progress | None = None

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[OnProgress]:
        with super().bar(title, total) as show:

            def step(what: str, done: int) -> None:
                self.progress = Progress(title, done, total, what)
                show(what, done)

            self.progress = Progress(title, 0, total)
            try:
                yield step
            finally:
                self.progress = None
