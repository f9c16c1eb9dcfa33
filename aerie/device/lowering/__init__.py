"""Which forms the compiler of the cores lowers, form by form, each with the file of upstream that says so.

aircc hands a core's operations to mlir-aie (`convert-vector-to-aievec`, `convert-aievec-to-llvm`) and Peano.
They take some operations at some vector widths, take others apart, and fail on the rest, late and far from
the text. What is known of that is written down here, as data: `TABLE`. It is about AIE2P; of AIE2 it has what
is recorded to fail. Everything was read, nothing measured: none of us has had the board.
"""

from __future__ import annotations

from aerie.device.lowering.forms import forms_of
from aerie.device.lowering.rows import Form, Row, Verdict, distance
from aerie.device.lowering.table import TABLE

__all__ = ["TABLE", "Form", "Row", "Verdict", "find", "forms_of", "nearest"]


def find(form: Form, architecture: str) -> Row | None:
    """What is known of a form; None where there is no evidence either way."""
    return next((row for row in TABLE if row.matches(form, architecture)), None)


def nearest(form: Form, architecture: str) -> Row | None:
    """The row about the same operation that comes closest and lowers, None where there is none."""
    rows = [row for row in TABLE if form.op in row.ops and architecture in row.architectures]
    return min((row for row in rows if row.verdict.lowers), key=lambda row: distance(form, row), default=None)
