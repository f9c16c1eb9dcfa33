"""What vectors and divisions ask of a core beyond being lowered: alignment, and stack."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Operation

from virtual_npu.static.indices import is_regular, multiple
from virtual_npu.static.patterns import element_bits, space_of
from virtual_npu.static.report import Fault, Finding
from virtual_npu.static.rules.lowering import on_cores
from virtual_npu.static.scopes import Program, place_of
from virtual_npu.static.sources import AIE_API, XRT_BACKEND

DIVISION_STACK = 1152
"""Bytes of stack that a scalar division of floats takes, about (mlir-air xrt.py)."""
VECTOR_ACCESSES = (128, 256, 512)
"""Bits of the native vector loads and stores, each aligned to its own width."""


def demands(program: Program) -> Iterator[Finding]:
    """Divisions that need more stack than there is, and vectors at offsets that are not aligned."""
    for op in on_cores(program.module):
        yield from _division(program, op)
        yield from _alignment(op)


def _division(program: Program, op: Operation) -> Iterator[Fault]:
    if not isinstance(op, arith.DivfOp) or isinstance(op.operands[0].type, VectorType):
        return
    if program.stack_bytes < DIVISION_STACK:
        message = (
            f"a division of scalar floats takes about {DIVISION_STACK} bytes of stack, and a core has "
            f"{program.stack_bytes}; multiply with a reciprocal, or compile and check with --stack-size 2048"
        )
        yield Fault("stack", place_of(op), message, XRT_BACKEND, op)


def _alignment(op: Operation) -> Iterator[Fault]:
    """Vector loads and stores of a native width at an offset that is no multiple of it."""
    if isinstance(op, vector.LoadOp | vector.StoreOp):
        base, kind = op.base, (op.result if isinstance(op, vector.LoadOp) else op.vector).type
    elif isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        base, kind = op.source, (op.result if isinstance(op, vector.TransferReadOp) else op.vector).type
    else:
        return
    bits = element_bits(base.type)
    if not isinstance(base.type, MemRefType) or not isinstance(kind, VectorType) or not bits:
        return
    width, strides = prod(kind.get_shape()) * bits, base.type.get_strides()
    if space_of(base.type) != 2 or width not in VECTOR_ACCESSES or strides is None:
        return
    odd = [
        step * stride * bits
        for step, stride in zip(map(multiple, op.indices), strides, strict=False)
        if stride is not None and step * stride * bits % width
    ]
    if odd and all(map(is_regular, op.indices)):
        message = (
            f"{width} bits at steps of {odd[0] // 8} bytes; native loads and stores of {width} bits are "
            f"aligned to {width // 8} bytes, so the compiler has to shift"
        )
        yield Fault("vector-alignment", place_of(op), message, AIE_API, op, certain=False)
