"""A program may take its process with it: an external kernel can write anywhere.

So that there is a message then, the command runs in a child process, and its parent looks how that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from virtual_npu.commands.reporting import print_error
from virtual_npu.errors import CrashError

CRASHED = 1


def watch() -> None:
    """Go on in a child process. The parent passes signals on, and ends as the child does."""
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        end_with_parent()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else _ended_by(os.WTERMSIG(status)))


def end_with_parent() -> None:
    """Not even a parent that is killed leaves this process running."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _ended_by(number: int) -> int:
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        print("stopped", file=sys.stderr)
        return 128 + number
    name = signal.Signals(number).name
    memory = "; the system may have been out of memory" if number == signal.SIGKILL else ""
    print_error(
        CrashError(
            f"the program crashed ({name}){memory}: an external kernel may have left its buffers; run it "
            "with --sanitize to see where"
        ),
        "--json" in sys.argv,
    )
    return CRASHED
