"""Errors of programs that cannot be built for a device."""

from __future__ import annotations

from aerie.common.errors import ProgramError


class ParseError(ProgramError):
    """Text that is no valid AIR module; the message begins with file, line and column."""

    kind = "parse"


class KernelSourceError(ProgramError):
    """The source of an external kernel was not found."""

    kind = "kernel_source"


class ResourceError(ProgramError):
    """A program needs more of the device than there is."""

    kind = "resources"
