"""The errors of the virtual NPU. Each message says what was given, what holds, and what to do."""

from __future__ import annotations

import re
from typing import Any

from aerie.air_dialect.common import AerieError


class VirtualNpuError(AerieError):
    """Anything that keeps a program from being built or run."""

    kind = "input"
    """What is wrong, in one word, for machines."""


class UsageError(VirtualNpuError):
    """A command line that makes no sense."""

    kind = "usage"


class ParseError(VirtualNpuError):
    """Text that is no valid AIR module; the message begins with file, line and column."""

    kind = "parse"


class KnobError(VirtualNpuError):
    """An environment variable of the virtual NPU has a value that makes no sense."""

    kind = "knob"


class OptionError(VirtualNpuError):
    """An option of a build or a run has a value that makes no sense, or does not go with the others."""

    kind = "option"


class UnsupportedOpError(VirtualNpuError):
    """The program has an operation, or a form of one, that the virtual NPU does not execute."""

    kind = "unsupported"


class UnsupportedTypeError(UnsupportedOpError):
    """A type that the virtual NPU has no C++ for; the message does not name an operation yet."""


class ToolchainError(VirtualNpuError):
    """No C++ compiler, or the compiler refused the generated code or an external kernel."""

    kind = "toolchain"

    @staticmethod
    def of_system(what: object, error: OSError) -> ToolchainError:
        """The system refused a file or a folder that building `what` takes."""
        return ToolchainError(
            f"cannot build {what}: {error}. Free space, or choose another folder: AERIE_CACHE names the one "
            "that built programs are kept in, and VNPU_CACHE=off keeps none"
        )


class UndefinedError(ToolchainError):
    """The linker found functions nowhere; the message has its own lines."""

    def names(self, symbol: str) -> bool:
        """Whether the linker's lines name a function."""
        return re.search(rf"\b{re.escape(symbol)}\b", str(self)) is not None


class KernelSourceError(VirtualNpuError):
    """The source of an external kernel was not found."""

    kind = "kernel_source"


class ResourceError(VirtualNpuError):
    """A program wants more of the device than there is."""

    kind = "resources"


class ArgumentError(VirtualNpuError):
    """The arguments given to an entry do not fit it."""

    kind = "arguments"


class VirtualNpuRuntimeError(VirtualNpuError):
    """The program failed while it ran: an access outside its buffer, a division by zero, ..."""

    kind = "error"
    """What failed, in one word: one of `FAULTS`."""
    record: dict[str, Any] | None = None
    """What the run was asked to record, until it failed."""


class VirtualNpuDeadlock(VirtualNpuRuntimeError):  # noqa: N818 - the name says it all
    """No tile and no engine of the program can make progress; the message lists who waits for what."""

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


FAULTS = (
    "error", "deadlock", "race", "uninitialised", "outside", "freed", "mismatch", "leak",
    "misaligned", "lock", "offset",
)  # fmt: skip
"""What can go wrong in a run, in the order of `Failure::Kind` in include/vnpu/base.h, which counts from 1."""

STOPPED = len(FAULTS) + 1
"""The `Failure::Kind` of a run that the handler of a signal, or a Stop, ended."""


def run_error(kind: int, message: str, record: dict[str, Any] | None = None) -> VirtualNpuRuntimeError:
    """The error for a run that ended with a `Failure::Kind`."""
    name = FAULTS[kind - 1]
    error = VirtualNpuDeadlock(message) if name == "deadlock" else VirtualNpuRuntimeError(message)
    error.kind = name
    error.record = record
    return error
