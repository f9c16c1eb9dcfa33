"""The errors of the virtual NPU. A message gives the value, the limit, the consequence, and what to do."""

from __future__ import annotations

from typing import Any

from aerie.common.errors import ProgramError


class VnpuUsageError(ProgramError):
    """A wrong command line."""

    kind = "usage"


class OptionError(ProgramError):
    """An option of a build or a run has a wrong value, or contradicts another option."""

    kind = "option"


class UnsupportedOpError(ProgramError):
    """The program has an operation, or an assembly form of one, that the virtual NPU does not execute."""

    kind = "unsupported"


class UnsupportedTypeError(UnsupportedOpError):
    """A type without C++ in the virtual NPU. The message does not name an operation yet."""


class VnpuArgumentError(ProgramError):
    """The arguments do not fit the entry."""

    kind = "arguments"


class VirtualNpuRuntimeError(ProgramError):
    """The program failed while it ran: an access outside its buffer, a division by zero, ..."""

    kind = "error"
    """What failed, in one word: one of `ERROR_KINDS`."""
    record: dict[str, Any] | None = None
    """The stats and trace that the run recorded before it failed."""


class VirtualNpuDeadlock(VirtualNpuRuntimeError):  # noqa: N818 - the name says it all
    """No tile and no engine of the program can make progress. The message lists what each waits for."""

    kind = "deadlock"


class ScheduleError(VirtualNpuRuntimeError):
    """The results depend on the order in which engines and tiles take turns."""

    kind = "schedule"


class GarbageError(VirtualNpuRuntimeError):
    """The results depend on what memory held before the program wrote it."""

    kind = "garbage"


class SanitizerError(VirtualNpuRuntimeError):
    """AddressSanitizer or UndefinedBehaviorSanitizer ended the run; the message ends with its report."""

    kind = "sanitizer"


class CrashError(VirtualNpuRuntimeError):
    """A signal ended the process that ran the program."""

    kind = "crash"


ERROR_KINDS = (
    "error", "deadlock", "race", "uninitialised", "outside", "freed", "mismatch", "leak",
    "misaligned", "lock", "offset",
)  # fmt: skip
"""The kinds of run errors, in the order of `Failure::Kind` in include/vnpu/base.h, which counts from 1."""

STOPPED = len(ERROR_KINDS) + 1
"""The `Failure::Kind` of a run that the handler of a signal, or a StopFlag, ended."""


def run_error(kind: int, message: str, record: dict[str, Any] | None = None) -> VirtualNpuRuntimeError:
    """The error for a run that ended with a `Failure::Kind`."""
    name = ERROR_KINDS[kind - 1]
    error = VirtualNpuDeadlock(message) if name == "deadlock" else VirtualNpuRuntimeError(message)
    error.kind = name
    error.record = record
    return error
