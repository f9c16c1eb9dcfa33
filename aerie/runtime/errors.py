"""What the runtime refuses or reports: what was given, the limit, the consequence, what to do."""

from __future__ import annotations

from pathlib import Path

from aerie.common.errors import AerieError


class AerieRuntimeError(AerieError):
    """Base of all errors of this room. The message is one line that a user can act on."""


class BackendError(AerieRuntimeError):
    """A backend that does not exist, or cannot work on this machine."""


class CompileError(AerieRuntimeError):
    """A program that its toolchain did not compile. `log` is the file with all the tools' output."""

    def __init__(self, program: str, cause: str, log: Path | None = None) -> None:
        kept = f"; full log: {log}" if log else ""
        super().__init__(f"program '{program}' was not compiled: {cause}{kept}")
        self.program, self.cause, self.log = program, cause, log


class DiskFullError(AerieRuntimeError):
    """No space left for an artifact. What the cache holds already stays usable."""


class ArrayError(AerieRuntimeError):
    """An array that does not fit its argument, or an argument that must (or must not) be given."""


class RunError(AerieRuntimeError):
    """A device, program or run that failed. `details` are lines below the message, which stands by itself.

    lost: the device answers no process until it is reset, so nothing else need be tried on it.
    """

    def __init__(self, headline: str, *details: str, lost: bool = False) -> None:
        super().__init__("\n  ".join((headline, *details)))
        self.headline, self.details, self.lost = headline, details, lost
