"""Decides whether an exception is one request's error or all requests'.

Requests share forward passes only. What fails in a pass fails them all. All other work belongs to one
request: sampling, grammar, drafts, text, callbacks. Any exception there, of any class, ends that request
only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aerie.common.errors import UserError
from aerie.engine.errors import RequestError
from aerie.runtime import RunStopped

FATAL_EXCEPTIONS = (KeyboardInterrupt, SystemExit, GeneratorExit, RunStopped)
"""Exceptions that a caller or user asked for. They are no error of a request."""


@contextmanager
def isolate_request_errors() -> Iterator[None]:
    """A context for work of one request. Its exceptions become a UserError: unchanged, or as the cause of a
    RequestError, also pyo3's panics and MemoryError."""
    try:
        yield
    except (UserError, *FATAL_EXCEPTIONS):
        raise
    except BaseException as error:
        raise caused_by(error) from error


def caused_by(error: BaseException) -> RequestError:
    """The RequestError with this cause."""
    failed = RequestError(error)
    failed.__cause__ = error
    return failed
