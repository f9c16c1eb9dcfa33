"""The puts and gets in the text of a body, for the report of a deadlock: who could still do what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from xdsl.dialects.arith import CmpiOp
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Operation, OpResult, SSAValue

from air_dialect.ops import ChannelTransferOp, HierarchyOp
from virtual_npu.codegen import affine_text
from virtual_npu.codegen.body import attribute, line_of, quotable
from virtual_npu.codegen.intervals import interval

MOST_DIMENSIONS = 4
"""`Port::kMaxRank` in include/vnpu/base.h."""

_OPERATORS = {
    "arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.andi": "&", "arith.ori": "|",
    "arith.xori": "^", "index.add": "+", "index.sub": "-", "index.mul": "*",
}  # fmt: skip
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
"""By the number of an arith.cmpi predicate. Coordinates are not negative, so the sign makes no difference."""


def ports_of(op: Operation, within: bool = False) -> list[str]:
    """C++ text of a `vnpu::Port` for every put and get that the body of an operation has itself.

    within: also for those of what it starts.
    """
    if within:
        return [_port(op, inner) for inner in op.walk() if isinstance(inner, ChannelTransferOp)]
    return [_port(op, transfer) for transfer in _own_transfers(op)]


def _own_transfers(op: Operation) -> Iterator[ChannelTransferOp]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if isinstance(inner, ChannelTransferOp):
                    yield inner
                elif not isinstance(inner, HierarchyOp):
                    yield from _own_transfers(inner)


def _port(op: Operation, transfer: ChannelTransferOp) -> str:
    indices = ", ".join(_index(op, value) for value in transfer.indices[:MOST_DIMENSIONS])
    is_put = str(transfer.name == "air.channel.put").lower()
    return f'{{"@{quotable(transfer.chan_name)}", {line_of(transfer)}, {is_put}, {{{indices}}}}}'


def _index(op: Operation, value: SSAValue) -> str:
    """C++ text of a `vnpu::Port::Index`: whether the index is fixed, and the function that gives it."""
    text = _text(op, value)
    if text is None:
        return "{}"
    is_fixed = not re.search(r"\b[xy]\b", text)
    function = f"[](vnpu::i64 x, vnpu::i64 y) -> vnpu::i64 {{ (void)x, (void)y; return {text}; }}"
    return f"{{{str(is_fixed).lower()}, {function}}}"


def _text(op: Operation, value: SSAValue) -> str | None:
    """C++ text of an index in terms of x and y of the point that executes; None where it takes more."""
    if isinstance(op, HierarchyOp) and value in op.ids:
        return "x" if value is op.ids[0] else "y"
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return str(found[0])
    if not isinstance(value, OpResult):
        return None
    operands = [_text(op, operand) for operand in value.op.operands]
    known = [operand for operand in operands if operand is not None]
    return _of_result(value.op, known) if len(known) == len(operands) else None


def _of_result(op: Operation, operands: Sequence[str]) -> str | None:
    map_ = attribute(op, "map")
    if op.name == "affine.apply" and isinstance(map_, AffineMapAttr):
        return f"({affine_text.results(map_.data, operands)[0]})"
    if op.name in _OPERATORS:
        return f"({operands[0]} {_OPERATORS[op.name]} {operands[1]})"
    if isinstance(op, CmpiOp):
        return f"({operands[0]} {_COMPARISONS[op.predicate.value.data]} {operands[1]})"
    if op.name == "arith.select":
        return f"({operands[0]} ? {operands[1]} : {operands[2]})"
    divides = {"arith.remui": "%", "arith.remsi": "%", "arith.divui": "/", "arith.divsi": "/"}
    if op.name in divides and operands[1].isdigit() and operands[1] != "0":
        return f"({operands[0]} {divides[op.name]} {operands[1]})"
    return operands[0] if op.name.startswith("arith.index_cast") else None
