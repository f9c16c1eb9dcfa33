"""The devices of a process that share a model: one thread for each, and work that all do at the same time."""

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
    """The part of each device, its name for errors, and its Communicator.

    reset: lets the groups start again after one has left. When a device fails, the others abort their work,
    and all can be tried again. A device that does not return within `timeout_s` after that is lost, and with
    it everything that the devices share.
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
        """The result of `work` on each part, all at the same time, each in its device's thread; a single part
        runs in this thread.

        Raises the first error, in the order of devices, that no other device caused, with the name of the
        device that failed. A stop of this thread (StopFlag, Ctrl-C) stops all.
        """
        if self._lost:
            raise RunError(self._lost)
        if not self._threads:
            return [self._do(0, work, None)]
        self._reset()
        stop = watched_flag()
        tasks = [
            thread.submit(partial(self._do, number, work, stop))
            for number, thread in enumerate(self._threads)
        ]
        try:
            wait(tasks, return_when=FIRST_EXCEPTION)
        except BaseException:  # Ctrl-C
            self._abort()
            self._await(tasks)
            raise
        self._await(tasks)
        if self._lost:
            raise RunError(self._lost)
        errors = [error for error in map(_error, tasks) if error]
        for error in sorted(errors, key=lambda one: isinstance(one, PeerError)):
            raise error
        return [each.result() for each in tasks]

    def close(self) -> None:
        """End the threads, and leave the groups."""
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
        """Wait for the tasks that have not ended, after one failed or was stopped. A device that does not end
        is lost."""
        _, unfinished = wait(tasks, self._timeout_s)
        if unfinished:
            names = [name for name, each in zip(self._names, tasks, strict=True) if each in unfinished]
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
    """A thread that runs one task after the other, until this object is deleted."""

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
    while (item := tasks.get()) is not None:
        future, task = item
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)
        del item, future, task  # which would keep a model alive that nobody has any more
