"""The errors of the runtime. A message gives the value, the limit, the consequence and what to do."""

from __future__ import annotations

from pathlib import Path

from aerie.common.errors import AerieError


class AerieRuntimeError(AerieError):
    """Base of all errors of this room. The message is one line that a user can act on."""


class BackendError(AerieRuntimeError):
    """The backend does not exist, or cannot work on this machine."""


class CompileError(AerieRuntimeError):
    """The toolchain did not compile a program. log: the file with all output of the tools."""

    def __init__(self, program: str, cause: str, log: Path | None = None) -> None:
        log_note = f"; full log: {log}" if log else ""
        super().__init__(f"program '{program}' was not compiled: {cause}{log_note}")
        self.program, self.cause, self.log = program, cause, log


class DiskFullError(AerieRuntimeError):
    """No space is left for an artifact. The artifacts that the cache has stay usable."""


class ArrayError(AerieRuntimeError):
    """An array does not fit its argument, or an argument must (or must not) be passed."""


class RunError(AerieRuntimeError):
    """A device, program or run failed. details: lines below the message, which is complete without them.

    lost: the device answers no process until it is reset, so further attempts are useless.
    """

    def __init__(self, headline: str, *details: str, lost: bool = False) -> None:
        super().__init__("\n  ".join((headline, *details)))
        self.headline, self.details, self.lost = headline, details, lost
