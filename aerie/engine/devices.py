"""The devices of a process that share a model: a thread for each, and one thing that all do at once."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

from aerie.engine.communication import PEER_TIMEOUT_S, Communicator, PeerError
from aerie.runtime import RunError, StopFlag, watched_flag

Part = TypeVar("Part")
T = TypeVar("T")


class Devices(Generic[Part]):
    """What each device has (`parts`), by which name errors call it, and its way to the others (`groups`).

    begin: has the groups meet anew, after one had left. A device that fails has the others leave what they
    do, and can be tried again. One that does not come back within `patience_s` after that is lost, and with
    it all that the devices share.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        names: Sequence[str],
        groups: Sequence[Communicator],
        reset: Callable[[], None] = lambda: None,
        timeout_s: float = PEER_TIMEOUT_S,
    ) -> None:
        self.parts, self._names, self._groups = parts, names, groups
        self._reset, self._timeout_s = reset, timeout_s
        self._threads = [_Worker(name) for name in names] if len(parts) > 1 else []
        self._lost = ""

    def run_on_all(self, work: Callable[[Part], T]) -> list[T]:
        """What `work` makes of each part, all at once, each in its device's thread; of a single one, here.

        Raises the first error, in the order of devices, that is not of another one's, with its device named
        where that failed; nothing goes on then. What stops this thread (Stop, Ctrl-C) stops all.
        """
        if self._lost:
            raise RunError(self._lost)
        if not self._threads:
            return [self._do(0, work, None)]
        self._reset()
        stop = watched_flag()
        begun = [
            thread.submit(partial(self._do, number, work, stop))
            for number, thread in enumerate(self._threads)
        ]
        try:
            wait(begun, return_when=FIRST_EXCEPTION)
        except BaseException:  # Ctrl-C
            self._abort()
            self._await(begun)
            raise
        self._await(begun)
        if self._lost:
            raise RunError(self._lost)
        errors = [error for error in map(_error, begun) if error]
        for error in sorted(errors, key=lambda one: isinstance(one, PeerError)):
            raise error
        return [each.result() for each in begun]

    def close(self) -> None:
        """End the threads, and leave the others."""
        for thread in self._threads:
            thread.end()
        self._abort()

    def _do(self, number: int, work: Callable[[Part], T], stop: StopFlag | None) -> T:
        try:
            with stop.watching() if stop else nullcontext():
                return work(self.parts[number])
        except PeerError:
            self._groups[number].abort()
            raise
        except RunError as error:
            self._groups[number].abort()
            headline = f"{self._names[number]} failed: {error.headline}"
            raise RunError(headline, *error.details, lost=error.lost) from error
        except BaseException:
            self._groups[number].abort()
            raise

    def _await(self, tasks: Sequence[Future[T]]) -> None:
        """Wait for those that have not ended, for one has failed or was stopped; who does not is lost."""
        _, left = wait(tasks, self._timeout_s)
        if left:
            names = [name for name, each in zip(self._names, tasks, strict=True) if each in left]
            self._lost = (
                f"{' and '.join(names)} did not come back in {self._timeout_s:g} s after another device had "
                "ended; load the model again, without it where it does so again"
            )

    def _abort(self) -> None:
        for group in self._groups:
            group.abort()


def _error(task: Future[Any]) -> BaseException | None:
    return task.exception() if task.done() else None


class _Worker:
    """A thread that does one task after the other, until this goes."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._tasks.put, None)

    def submit(self, task: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, task))
        return future

    def end(self) -> None:
        self._end()


def _work(tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (one := tasks.get()) is not None:
        future, task = one
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)
        del one, future, task  # which would keep a model alive that nobody has any more
