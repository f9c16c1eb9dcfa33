"""Which forms the compiler of the cores lowers, form by form, each with the file of upstream that says so.

aircc hands a core's operations to mlir-aie (`convert-vector-to-aievec`, `convert-aievec-to-llvm`) and Peano.
They take some operations at some vector widths, take others apart, and fail on the rest, late and far from
the text. What is known of that is written down here, as data: `TABLE`. It is about AIE2P; of AIE2 it has what
is recorded to fail. Everything was read, nothing measured: none of us has had the board.
"""

from __future__ import annotations

from aerie.device.lowering.op_forms import forms_of
from aerie.device.lowering.rule import LoweringRule, LoweringVerdict, OpForm, distance
from aerie.device.lowering.table import TABLE

__all__ = ["TABLE", "LoweringRule", "LoweringVerdict", "OpForm", "find", "forms_of", "nearest"]


def find_rule(form: OpForm, architecture: str) -> LoweringRule | None:
    """What is known of a form; None where there is no evidence either way."""
    return next((rule for rule in TABLE if rule.matches(form, architecture)), None)


def nearest_lowered_rule(form: OpForm, architecture: str) -> LoweringRule | None:
    """The row about the same operation that comes closest and lowers, None where there is none."""
    rows = [rule for rule in TABLE if form.op in rule.ops and architecture in rule.architectures]
    return min(
        (rule for rule in rows if rule.verdict.lowers), key=lambda rule: distance(form, rule), default=None
    )
