"""The standard streams of a command's process: streams that the caller closed, and failures of standard
output."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final, TextIO

FAILED: Final = 2

CLOSED: Final = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""How a closed stream is opened, on /dev/null: an input at its end, an output that refuses writes, notes that
are dropped. Otherwise the next opened file would get its number, and the output."""


class OutputError(OSError):
    """Writing to standard output failed. An OSError of a file is not one."""


class StandardOutput(io.TextIOWrapper):
    """Standard output whose failures are OutputErrors. BrokenPipeError stays as it is."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _to_output_error(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _to_output_error(error) from None


def open_standard_streams() -> None:
    """Open closed streams, and make failures of standard output OutputErrors. Call it before anything else is
    opened."""
    for number, flags in CLOSED:
        try:
            os.fstat(number)
        except OSError:
            _open_at(number, flags)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8", "replace")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "replace")
    sys.stdout = _with_output_errors(sys.stdout)


def _with_output_errors(plain: TextIO | None) -> TextIO:
    """Standard output as a StandardOutput. Python has None if it was closed."""
    if plain is None:
        return StandardOutput(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "replace")
    if type(plain) is not io.TextIOWrapper:
        return plain
    is_interactive, is_unbuffered = plain.line_buffering, plain.write_through
    return StandardOutput(plain.buffer, plain.encoding, plain.errors, None, is_interactive, is_unbuffered)


def flush_standard_output() -> None:
    """Flush standard output. Raises OutputError; a reader that closed it early (`head`) is no error."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_pending_output()


def report_lost_output(error: OutputError) -> int:
    """Print that the output is lost, and return the exit status. Pending output is dropped."""
    discard_pending_output()
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    print(
        f"error: standard output takes no more ({reason}), and the rest of it is lost; send it elsewhere, or "
        "free space there",
        file=sys.stderr,
    )
    return FAILED


def discard_pending_output() -> None:
    """Replace standard output, as Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _to_output_error(error: OSError) -> OSError:
    if isinstance(error, BrokenPipeError | OutputError):
        return error
    return OutputError(error.errno, error.strerror)


def _open_at(number: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
