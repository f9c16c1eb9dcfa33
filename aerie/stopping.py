"""Ctrl-C in a command's own process: one word and exit code 130, whatever is under way, imports too.

Commands that have something to keep, such as an answer, see to it themselves; what nobody else took ends here.
"""

from __future__ import annotations

import _thread
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOPPED: Final = 130
"""128 + SIGINT, as a shell has it."""


def begin() -> None:
    """Have a Ctrl-C that comes within a finaliser, where Python can raise nothing, come again outside of it."""
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _again


def _again(told: UnraisableHookArgs) -> None:
    if issubclass(told.exc_type, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(told)


def tell() -> int:
    """Say so, and give the exit status."""
    print("stopped", file=sys.stderr)
    return STOPPED


def finish() -> None:
    """The command is done: from here on Ctrl-C ends the process without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
