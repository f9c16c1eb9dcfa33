"""Ctrl-C as a request to stop at the next token, so that nothing is torn out of a running program."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
