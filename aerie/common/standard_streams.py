"""The standard streams of a command: closed ones are opened, and failures of the output are told apart."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final, TextIO

FAILED: Final = 2

CLOSED: Final = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""How a closed stream is opened, on nothing: an input that is at its end, an output that refuses all that is
written to it, notes that go nowhere. Else a file opened later would get its number, and the output."""


class OutputError(OSError):
    """Standard output cannot be written. An OSError of another file is no OutputError."""


class Output(io.TextIOWrapper):
    """Standard output, whose failures are OutputErrors. BrokenPipeError stays what it is."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _as_output_error(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _as_output_error(error) from None


def begin() -> None:
    """Open the closed streams, and make failures of standard output OutputErrors. Call it before any open."""
    for number, flags in CLOSED:
        try:
            os.fstat(number)
        except OSError:
            _open_at(number, flags)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8", "replace")
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "replace")
    sys.stdout = _as_output(sys.stdout)


def _as_output(plain: TextIO | None) -> TextIO:
    """Standard output as an Output. None is what Python has where it was closed."""
    if plain is None:
        return Output(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "replace")
    if type(plain) is not io.TextIOWrapper:
        return plain
    is_interactive, is_unbuffered = plain.line_buffering, plain.write_through
    return Output(plain.buffer, plain.encoding, plain.errors, None, is_interactive, is_unbuffered)


def finish() -> None:
    """Flush standard output. Raises OutputError; a closed pipe (`head`) is no error."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        discard()


def report_output_error(error: OutputError) -> int:
    """Print that the output is lost and discard the rest. Returns the exit status."""
    discard()
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    print(
        f"error: standard output takes no more ({reason}), and the rest of it is lost; send it elsewhere, or "
        "free space there",
        file=sys.stderr,
    )
    return FAILED


def discard() -> None:
    """Python flushes standard output once more at exit: give it something that can be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_output_error(error: OSError) -> OSError:
    if isinstance(error, BrokenPipeError | OutputError):
        return error
    return OutputError(error.errno, error.strerror)


def _open_at(number: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
