"""Ctrl-C in a command's own process: print one word and exit with 130, whatever is running.

A command imports this first, as all other imports take time. Commands that have something to save, such as an
answer, handle Ctrl-C themselves; the rest ends here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes longer to import than all else here
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType, TracebackType
    from typing import NoReturn

INTERRUPTED_STATUS = 130
"""128 + SIGINT, as in a shell."""


def report_interrupt() -> int:
    """Print "stopped", and return the exit status."""
    print("stopped", file=sys.stderr, flush=True)
    return INTERRUPTED_STATUS


def exit_interrupted() -> NoReturn:
    """End the process with the exit status, after what is registered with atexit.

    Python itself would end by the signal where Ctrl-C came within `exec` or `eval`, as of a dataclass that is
    being made, even though KeyboardInterrupt was handled: shells would see another status.
    """
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or nobody reads it any more
            continue
    os._exit(INTERRUPTED_STATUS)


def ignore_interrupts() -> None:
    """Let Ctrl-C end the process silently from here on: the command is done."""
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def on_interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python does; within an import end the process.

    C modules turn an exception of what they import into an ImportError of their own: numpy does so.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(report_interrupt())
        frame = frame.f_back
    _signal.default_int_handler(signum, None)


def always_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on, wherever it comes."""
    if _signal.getsignal(_signal.SIGINT) is on_interrupt:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


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
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, on_interrupt)
