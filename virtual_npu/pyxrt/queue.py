"""The device's queue: started runs, carried out one after the other in start order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtual_npu.pyxrt.runs import Run


class RunQueue:
    """Holds started runs until someone waits: whoever waits carries them out, on its own thread."""

    def __init__(self) -> None:
        self._started: deque[Run] = deque()
        self._busy = threading.Lock()

    def submit(self, run: Run) -> None:
        self._started.append(run)

    def drain(self, until: Run) -> None:
        """Carry out started runs up to and with `until`; on return it is no longer pending."""
        with self._busy:
            started = self._started
            while until.pending and started:
                run = started.popleft()
                run.execute()
                if run is until:
                    break

    @contextlib.contextmanager
    def emptied(self) -> Iterator[None]:
        """All that was started is carried out, and nothing else until the caller is done."""
        with self._busy:
            while self._started:
                self._started.popleft().execute()
            yield

    def drain_within(self, until: Run, milliseconds: float | None) -> None:
        """As `drain`, but give up waiting (not running) after that time; None does not wait at all."""
        worker = threading.Thread(target=self.drain, args=(until,), name="virtual-npu", daemon=True)
        worker.start()
        worker.join(0.0 if milliseconds is None else milliseconds / 1000)
