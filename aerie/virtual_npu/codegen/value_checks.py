"""Checks of what an operation is given and makes (include/vnpu/values.h), in builds with checks only."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import Operation, SSAValue

from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, after_emitter
from aerie.virtual_npu.cpp_quoting import string_literal


def check_shift(body: Body, op: Operation) -> None:
    """Emit a check that a number is shifted by fewer bits than it has; more is undefined."""
    amount, width = op.operands[1], _bits(op.operands[0])
    known = body.number(amount)
    if body.checked and not (known is not None and 0 <= known < width):
        body.emit_line(f"vnpu::check_shift({body.site(op)}, {body.text(amount)}, {width});")


def check_fits(body: Body, op: Operation) -> None:
    """Emit a check that a float fits the integer type that it is converted to."""
    if not body.checked:
        return
    bits, unsigned = _bits(op.results[0]), op.name == "arith.fptoui"
    low, high = (0, 1 << bits) if unsigned else (-(1 << bits - 1), 1 << bits - 1)
    name = string_literal(f"{'an unsigned' if unsigned else 'a signed'} integer of {bits} bits")
    range_ = f"{float(low).hex()}, {float(high).hex()}"
    body.emit_line(f"vnpu::check_fit({body.site(op)}, {body.text(op.operands[0])}, {range_}, {name});")


_COMPUTED = frozenset([
    *(f"arith.{name}" for name in ("addf", "subf", "mulf", "divf", "remf", "truncf", "sitofp", "uitofp")),
    *(f"vector.{name}" for name in ("fma", "reduction", "multi_reduction", "contract", "outerproduct")),
])  # fmt: skip


@after_emitter
def report_not_finite(body: Body, op: Operation) -> None:
    """Emit a report of a result that is not finite although its operands are."""
    if not body.checked or not (op.name in _COMPUTED or op.name.startswith("math.")):
        return
    for result in op.results:
        if types.is_float(types.element(result.type)):
            texts = ", ".join(body.texts([result, *op.operands]))
            body.emit_line(f"vnpu::check_finite({body.site(op)}, {texts});")


def _bits(value: SSAValue) -> int:
    element = types.element(value.type)
    if isinstance(element, IndexType):
        return 64
    assert isinstance(element, IntegerType)
    return int(element.width.data)
