"""Ctrl-C in a command's own process: print one word and exit with 130, whatever is running.

A command imports this first, as all other imports take time. Commands that have something to save, such as an
answer, handle Ctrl-C themselves; the rest ends here.
"""

from __future__ import annotations

import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import TracebackType

INTERRUPTED_STATUS = 130
"""128 + SIGINT, as in a shell."""


def report_interrupt() -> int:
    """Print "stopped", and return the exit status."""
    print("stopped", file=sys.stderr, flush=True)
    return INTERRUPTED_STATUS


def ignore_interrupts() -> None:
    """Let Ctrl-C end the process silently from here on: the command is done."""
    import signal  # takes longer than all else here

    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handle Ctrl-C during an import."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    os._exit(report_interrupt())


def _unraisable(arguments: UnraisableHookArgs) -> None:
    """Handle Ctrl-C in a finaliser, where Python cannot raise: interrupt the main thread again."""
    if issubclass(arguments.exc_type, KeyboardInterrupt):
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(arguments)


if sys.excepthook is sys.__excepthook__ and sys.unraisablehook is sys.__unraisablehook__:
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
