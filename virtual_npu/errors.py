"""The errors of the virtual NPU. Each message says what was given, what holds, and what to do."""

from __future__ import annotations


class VirtualNpuError(Exception):
    """Anything that keeps a program from being built or run."""


class KnobError(VirtualNpuError):
    """An environment variable of the virtual NPU has a value that makes no sense."""


class UnsupportedOpError(VirtualNpuError):
    """The program has an operation, or a form of one, that the virtual NPU does not execute."""


class ToolchainError(VirtualNpuError):
    """No C++ compiler, or the compiler refused the generated code or an external kernel."""


class KernelSourceError(VirtualNpuError):
    """The source of an external kernel was not found."""


class ArgumentError(VirtualNpuError):
    """The arguments given to an entry do not fit it."""


class VirtualNpuRuntimeError(VirtualNpuError):
    """The program failed while it ran: an access outside its buffer, a division by zero, ..."""


class VirtualNpuDeadlock(VirtualNpuRuntimeError):  # noqa: N818 - the name says it all
    """No tile and no engine of the program can make progress; the message lists who waits for what."""
