"""Cancellation of a thread's runs by another thread or by a signal handler.

    stop = StopFlag()
    with stop.watching():       # in the thread that runs programs
        run(...)                # raises RunStopped once anyone has called stop.set()

A run on the virtual NPU looks at the flag between its launches and within those that take long; on an NPU
a run that has begun goes on to its end. What a stopped run had written stays in its buffers, and the next run
begins as if nothing was.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aerie.virtual_npu.thread_team import watch


class RunStopped(BaseException):
    """A run was cancelled. Like KeyboardInterrupt it is no Exception: it is no failure of a device, after
    which another device would be tried."""


class StopFlag:
    """A flag, set once by any thread: what runs where it is `watching` ends, and nothing begins there."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    @property
    def is_set(self) -> bool:
        return bool(self._flag.value)

    def set(self) -> None:
        """Set the flag. Any thread and any signal handler may call this at any time."""
        self._flag.value = 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let runs of this thread check this flag, and no other. Raises RunStopped if it is set."""
        outer = watched_flag()
        _watch(self)
        try:
            check_not_stopped()
            yield
        finally:
            _watch(outer)


_HERE = threading.local()


def watched_flag() -> StopFlag | None:
    """The Stop that this thread watches, for others that work for it."""
    flag: StopFlag | None = getattr(_HERE, "stop", None)
    return flag


def _watch(stop: StopFlag | None) -> None:
    _HERE.stop = stop
    watch(ctypes.addressof(stop._flag) if stop else None)


def check_not_stopped() -> None:
    """Raises RunStopped if the flag that this thread watches is set."""
    if (stop := watched_flag()) and stop.is_set:
        raise RunStopped("stopped")


def stop_this_thread() -> None:
    """Set the flag that this thread watches, if any. For signal handlers."""
    if stop := watched_flag():
        stop.set()
