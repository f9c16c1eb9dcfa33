"""Ctrl-C in a command's own process: one word and exit code 130, whatever is under way.

Importing it is the first thing that a command does, as all other imports take time. Commands that have
something to keep, such as an answer, see to it themselves; what nobody else took ends here.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import TracebackType

STOPPED = 130
"""128 + SIGINT, as a shell has it."""


def report_interrupt() -> int:
    """Say so, and give the exit status."""
    print("stopped", file=sys.stderr, flush=True)
    return STOPPED


def finish() -> None:
    """The command is done: from here on Ctrl-C ends the process without a word."""
    import signal  # takes longer than all else here

    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Before there was anyone to take it: in an import."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    os._exit(report_interrupt())


def _unraisable(arguments: UnraisableHookArgs) -> None:
    """In a finaliser, where Python can raise nothing: it comes again outside of it."""
    if issubclass(arguments.exc_type, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(arguments)


if sys.excepthook is sys.__excepthook__ and sys.unraisablehook is sys.__unraisablehook__:
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
