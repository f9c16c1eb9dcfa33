"""The keys of a terminal for a chat alone.

Ctrl-C goes to a whole process group. A `make` that gets one ends in an error when its command has ended,
whatever the command made of the key. So a chat that was started in another process's group has one of its own
meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def own_keys() -> Iterator[None]:
    """Within this, Ctrl-C on the terminal of standard input reaches this process and no other.

    Ctrl-Z stops the group that started it too, as ever, and `fg` continues both. Nothing changes where
    standard input is no terminal, where another group has it, and where this process leads its group, as a
    shell's commands do. Only for the main thread.
    """
    started_in = os.getpgrp()
    if started_in == os.getpid() or not _has_terminal(started_in):
        yield
        return
    keys = _Keys(started_in)
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


class _Keys:
    """Who has the terminal: a group of this process alone, or the one that it was started in.

    What cannot be had, since that group has ended meanwhile, is left as it is.
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
        """Stop with the group that it was started in, which is what `fg` continues."""
        self.give_back()
        again = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, again)
