"""Whose fault an exception is, where many answers share a model: decided here, and nowhere else.

Answers share the passes through the weights, and nothing else. What fails in a pass fails them all. All other
work is one answer's own: how it draws, its form, its guesses, its text, what it calls. Whatever that raises,
of any class, is the fault of that answer, which ends alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aerie.common.errors import UserError
from aerie.engine.errors import RequestError
from aerie.runtime import RunStopped

FATAL_EXCEPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit, RunStopped)
"""What somebody asked for, and is no fault."""


@contextmanager
def isolate_request_errors() -> Iterator[None]:
    """Within this is work of one answer. What it raises comes out as a UserError: as it is, or as the cause
    of an RequestError, pyo3's panics and the end of memory too."""
    try:
        yield
    except (UserError, *FATAL_EXCEPTIONS):
        raise
    except BaseException as error:
        raise caused_by(error) from error


def caused_by(error: BaseException) -> RequestError:
    """That an answer failed in work of its own, by this."""
    failed = RequestError(error)
    failed.__cause__ = error
    return failed
