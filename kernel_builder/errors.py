"""The errors of this room: what was given, the limit, what follows, what to do instead."""

from __future__ import annotations


class KernelBuilderError(Exception):
    """Base of all errors raised here on purpose."""


class DslError(KernelBuilderError):
    """A kernel was written in a way that cannot become a legal program."""


class IllegalShapeError(KernelBuilderError, ValueError):
    """A shape or tile size that a kernel cannot serve; the message names a legal one."""
