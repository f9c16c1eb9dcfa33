"""The errors of the virtual NPU. Each message says what was given, what holds, and what to do."""

from __future__ import annotations


class VirtualNpuError(Exception):
    """Anything that keeps a program from being built or run."""


class KnobError(VirtualNpuError):
    """An environment variable of the virtual NPU has a value that makes no sense."""


class OptionError(VirtualNpuError):
    """An option of a build or a run has a value that makes no sense, or does not go with the others."""


class UnsupportedOpError(VirtualNpuError):
    """The program has an operation, or a form of one, that the virtual NPU does not execute."""


class UnsupportedTypeError(UnsupportedOpError):
    """A type that the virtual NPU has no C++ for; the message does not name an operation yet."""


class ToolchainError(VirtualNpuError):
    """No C++ compiler, or the compiler refused the generated code or an external kernel."""


class KernelSourceError(VirtualNpuError):
    """The source of an external kernel was not found."""


class ResourceError(VirtualNpuError):
    """A program wants more of the device than there is."""


class ArgumentError(VirtualNpuError):
    """The arguments given to an entry do not fit it."""


class VirtualNpuRuntimeError(VirtualNpuError):
    """The program failed while it ran: an access outside its buffer, a division by zero, ..."""

    kind = "error"
    """What failed, in one word: one of `FAULTS`."""


class VirtualNpuDeadlock(VirtualNpuRuntimeError):  # noqa: N818 - the name says it all
    """No tile and no engine of the program can make progress; the message lists who waits for what."""

    kind = "deadlock"


FAULTS = ("error", "deadlock", "race", "uninitialised", "outside", "freed", "mismatch", "leak")
"""What can go wrong in a run, in the order of `Failure::Kind` in include/vnpu/base.h, which counts from 1."""


def run_error(kind: int, message: str) -> VirtualNpuRuntimeError:
    """The error for a run that ended with a `Failure::Kind`."""
    name = FAULTS[kind - 1]
    error = VirtualNpuDeadlock(message) if name == "deadlock" else VirtualNpuRuntimeError(message)
    error.kind = name
    return error
