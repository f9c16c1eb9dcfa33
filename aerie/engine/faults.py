"""Whose fault an exception is, where many answers share a model: decided here, and nowhere else.

Answers share the passes through the weights, and nothing else. What fails in a pass fails them all. All other
work is one answer's own: how it draws, its form, its guesses, its text, what it calls. Whatever that raises,
of any class, is the fault of that answer, which ends alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aerie.common.errors import UserError
from aerie.engine.errors import AnswerError
from aerie.runtime import RunStopped

ENDS_ALL = (KeyboardInterrupt, SystemExit, GeneratorExit, RunStopped)
"""What somebody asked for, and is no fault."""


@contextmanager
def of_one_answer() -> Iterator[None]:
    """Within this is work of one answer. What it raises comes out as a UserError: as it is, or as the cause
    of an AnswerError, pyo3's panics and the end of memory too."""
    try:
        yield
    except (UserError, *ENDS_ALL):
        raise
    except BaseException as error:
        raise caused_by(error) from error


def caused_by(error: BaseException) -> AnswerError:
    """That an answer failed in work of its own, by this."""
    failed = AnswerError(error)
    failed.__cause__ = error
    return failed
