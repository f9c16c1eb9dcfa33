"""Vector and float operations that the compiler of the cores is known not to lower.

A table of what mlir-air's own programs and AMD's Triton for these devices record as failing; what is not
recorded is not refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.dialects import arith, vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Attribute, Operation, SSAValue

from air_dialect.ops import HerdOp
from virtual_npu.static.indices import is_regular, multiple
from virtual_npu.static.patterns import element_bits, space_of
from virtual_npu.static.report import Fault, Finding
from virtual_npu.static.scopes import Program, place_of
from virtual_npu.static.sources import AIE_API, VECTOR_TABLE, VECTOR_WIDTHS, XRT_BACKEND
from virtual_npu.static.values import parents

ALL, AIE2, AIE2P = ("aie2", "aie2p"), ("aie2",), ("aie2p",)
DIVISION_STACK = 1152
"""Bytes of stack that a scalar division of floats takes, about (mlir-air xrt.py)."""
VECTOR_ACCESSES = (128, 256, 512)
"""Bits of the native vector loads and stores, each aligned to its own width."""


@dataclass(frozen=True)
class Form:
    """A form of an operation that is not lowered.

    lanes: 0 for vectors of any length, None for scalars too. emulated: lowered after all where aircc gets
    `--bf16-emulation`, so only a warning.
    """

    name: str
    element: str
    lanes: int | None
    why: str
    instead: str
    source: str
    architectures: tuple[str, ...] = ALL
    emulated: bool = False

    def matches(self, op: Operation, architecture: str) -> bool:
        """Whether an operation has this form."""
        if op.name != self.name or architecture not in self.architectures or not op.operands:
            return False
        type_ = op.operands[0].type
        if not isinstance(type_, VectorType):
            return self.lanes is None and str(type_) == self.element
        return str(type_.element_type) == self.element and self.lanes in (None, 0, prod(type_.get_shape()))


_SCALARS = "divide scalars, or multiply with a reciprocal"
_RELU = "mlir-air programming_examples/relu/relu.py"
_TO_BF16 = "convert to bf16 before it"
_OPS = "mlir-air python/air/api/ops.py"
_LEGALIZE = "the backend of the core cannot legalize"


def _emulated(name: str, why: str, source: str, architectures: tuple[str, ...]) -> Form:
    """A form of f32 vectors that is lowered only with `--bf16-emulation`."""
    instead = f"{_TO_BF16}, or give aircc --bf16-emulation"
    return Form(name, "f32", 0, why, instead, source, architectures, emulated=True)


FORMS = (
    _emulated("arith.maximumf", "convert-vector-to-aievec has no f32 max", _RELU, ALL),
    _emulated("arith.mulf", "arith.mulf of f32 vectors is not legalized", VECTOR_TABLE, AIE2P),
    _emulated("arith.cmpf", "aievec.cmp of f32 vectors is not legalized", VECTOR_TABLE, AIE2P),
    Form("arith.addf", "f32", 8, f"{_LEGALIZE} <8 x s32> G_FADD", "use 16 lanes", VECTOR_WIDTHS),
    Form("arith.addi", "i32", 8, f"{_LEGALIZE} <8 x s32> G_ADD", "use 16 lanes", VECTOR_WIDTHS),
    Form("arith.divf", "bf16", 0, f"{_LEGALIZE} G_FDIV of bf16 vectors", "divide in f32", _OPS),
    Form("arith.divf", "f32", 0, "only AIE2P divides vectors", _SCALARS, VECTOR_TABLE, AIE2),
    Form("math.exp", "f32", None, f"{_LEGALIZE} G_FEXP of f32", _TO_BF16, VECTOR_TABLE, AIE2P),
    Form("math.tanh", "bf16", 0, "only AIE2P has a tanh", "call a C++ function", VECTOR_TABLE, AIE2),
)


def forms(program: Program) -> Iterator[Finding]:
    """Operations on the cores that have one of the forms above, or need more stack than there is."""
    for op in _on_cores(program):
        for form in FORMS:
            if form.matches(op, program.device.architecture):
                yield from _form(program, op, form)
        yield from _fused(program, op)
        yield from _division(program, op)
        yield from _alignment(op)


def _on_cores(program: Program) -> Iterator[Operation]:
    for herd in program.module.walk():
        if isinstance(herd, HerdOp) and not any(isinstance(parent, HerdOp) for parent in parents(herd)):
            yield from herd.walk()


def _form(program: Program, op: Operation, form: Form) -> Iterator[Fault]:
    if form.emulated and program.options.bf16_emulation:
        return
    message = f"{op.operands[0].type}: {form.why}; {form.instead}"
    yield Fault("vector", place_of(op), message, form.source, op, certain=not form.emulated)


def _fused(program: Program, op: Operation) -> Iterator[Fault]:
    """f32 fused multiply-adds are lowered only where both factors are widened bf16."""
    if not isinstance(op, vector.FMAOp) or program.options.bf16_emulation:
        return
    if str(_element(op.lhs)) == "f32" and not (_widened(op.lhs) and _widened(op.rhs)):
        message = (
            f"{op.lhs.type}: a multiply-add of f32 vectors is lowered only where both factors come straight "
            "from arith.extf of bf16; widen them just before it, or give aircc --bf16-emulation"
        )
        source = "mlir-air programming_examples/attention_decode"
        yield Fault("vector", place_of(op), message, source, op, certain=False)


def _element(value: SSAValue) -> Attribute:
    return value.type.element_type if isinstance(value.type, VectorType) else value.type


def _widened(value: SSAValue) -> bool:
    return isinstance(value.owner, arith.ExtFOp) and str(_element(value.owner.operands[0])) == "bf16"


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
