"""Make a chat the foreground process group of its terminal.

Ctrl-C goes to a whole process group. A `make` that receives it fails after its command has ended, whatever
the command did. So a chat that was started in another process's group gets its own group while it runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def terminal_foreground() -> Iterator[None]:
    """Within this context, Ctrl-C on the terminal of standard input reaches this process only.

    Ctrl-Z still stops the starting group too, and `fg` continues both. Does nothing if standard input is no
    terminal, another group has it, or this process leads its group, as commands of a shell do. Main thread
    only.
    """
    started_in = os.getpgrp()
    if started_in == os.getpid() or not _has_terminal(started_in):
        yield
        return
    keys = _Foreground(started_in)
    before = {
        signal.SIGTTOU: signal.signal(signal.SIGTTOU, signal.SIG_IGN),  # sent to who takes the terminal back
        signal.SIGTSTP: signal.signal(signal.SIGTSTP, lambda *_: keys.suspend()),
        signal.SIGCONT: signal.signal(signal.SIGCONT, lambda *_: keys.take()),
    }
    try:
        keys.take()
        yield
    finally:
        keys.give_back()
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal(group: int) -> bool:
    try:
        return os.tcgetpgrp(0) == group
    except OSError:
        return False


class _Foreground:
    """Gives the terminal to a group of this process alone, or back to the starting group.

    Calls that fail because that group has ended are ignored.
    """

    def __init__(self, started_in: int) -> None:
        self._started_in = started_in

    def take(self) -> None:
        if _has_terminal(self._started_in):  # else it goes on in the background
            with suppress(OSError):
                os.setpgid(0, 0)
                os.tcsetpgrp(0, os.getpgrp())

    def give_back(self) -> None:
        with suppress(OSError):
            if _has_terminal(os.getpgrp()):
                os.tcsetpgrp(0, self._started_in)
            os.setpgid(0, self._started_in)

    def suspend(self) -> None:
        """Stop together with the starting group, which `fg` continues."""
        self.give_back()
        again = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, again)
