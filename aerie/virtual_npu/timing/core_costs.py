"""What the operations of a core cost in cycles: vector operations by their bytes, products by their
multiply-accumulates, C++ kernels by name and by the sizes of their arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xdsl.dialects import func
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, VectorType
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.effects import VIEWS
from aerie.device.transfers import element_bits
from aerie.virtual_npu.timing.parameters import Parameters


class CoreWork(NamedTuple):
    """Cycles of one core, and the multiply-accumulates in them."""

    cycles: float = 0.0
    macs: int = 0

    def __add__(self, other: tuple[object, ...]) -> CoreWork:
        assert isinstance(other, CoreWork)
        return CoreWork(self.cycles + other.cycles, self.macs + other.macs)

    def times(self, count: int) -> CoreWork:
        """The work of so many repetitions."""
        return CoreWork(self.cycles * count, self.macs * count)


FREE = re.compile(
    r"(arith\.(constant|index_cast.*)|affine\.(apply|min|max|yield)|index\..*|memref\.(alloc|dealloc|cast|get_global)"
    r"|vector\.(shape_cast|bitcast|broadcast|splat|extract|insert.*)|scf\.yield|func\.return|air\.wait_all"
    r"|.*_terminator|linalg\.yield|ub\.poison|arith\.extf)"
)
"""Operations that the compiler folds into others, or that only name a value."""

_SPECIAL = re.compile(r"math\.|arith\.(divf|remf|divsi|divui|remsi|remui)$|vector\.(multi_)?reduction$")
_MEMORY = re.compile(r"vector\.(transfer_read|transfer_write|load|store|maskedload|maskedstore)$")
_PRODUCTS = ("vector.contract", "linalg.matmul", "linalg.batch_matmul", "linalg.matvec", "linalg.vecmat")


def operation_work(op: Operation, parameters: Parameters) -> CoreWork:
    """The work of one operation without regions that a core executes."""
    if op.name in VIEWS or FREE.fullmatch(op.name):
        return CoreWork()
    if isinstance(op, func.CallOp):
        return call_work(op, parameters)
    if op.name in _PRODUCTS or (op.name == "linalg.generic" and _is_product(op)):
        return _product_work(op, parameters)
    if op.name.startswith("linalg."):
        return _linalg_work(op, parameters)
    return CoreWork(_cycles(op, parameters))


def _cycles(op: Operation, parameters: Parameters) -> float:
    widths = [nbytes for value in (*op.operands, *op.results) if (nbytes := _vector_bytes(value.type))]
    if not widths:
        return parameters.special_cycles if _SPECIAL.match(op.name) else parameters.scalar_cycles
    registers = math.ceil(max(widths) / parameters.vector_bytes)
    if _SPECIAL.match(op.name):
        return registers * parameters.special_cycles
    return registers * (
        parameters.vector_memory_cycles if _MEMORY.match(op.name) else parameters.vector_arithmetic_cycles
    )


def _vector_bytes(type_: Attribute) -> int:
    if not isinstance(type_, VectorType) or not isinstance(type_.element_type, FixedBitwidthType):
        return 0
    return math.prod(type_.get_shape()) * type_.element_type.bitwidth // 8


# ---- products ----


class _Operand(NamedTuple):
    """A buffer or vector. inner: its last extent."""

    elements: int
    bits: int
    inner: int


def _operands(op: Operation) -> list[_Operand]:
    found = []
    for value in op.operands:
        type_ = value.type
        if isinstance(type_, MemRefType | VectorType) and isinstance(type_.element_type, FixedBitwidthType):
            shape = type_.get_shape()
            elements, inner = abs(math.prod(shape)), max(1, shape[-1] if shape else 1)
            found.append(_Operand(elements, type_.element_type.bitwidth, inner))
    return found


def product_macs(a: int, b: int, c: int) -> int:
    """The multiply-accumulates of (m, k) by (k, n) into (m, n), from the three sizes m k, k n and m n."""
    return math.isqrt(a * b * c)


def _product_work(op: Operation, parameters: Parameters) -> CoreWork:
    sizes = _operands(op)
    if len(sizes) < 3:
        return CoreWork(_cycles(op, parameters))
    a, b, c = sizes[:3]
    macs = product_macs(a.elements, b.elements, c.elements)
    return CoreWork(macs / _rate(a.bits, (a.elements, b.elements, c.elements), parameters), macs)


def _rate(bits: int, sizes: Sequence[int], parameters: Parameters) -> float:
    """Multiply-accumulates in a cycle. A 4x8x8 block goes through the native unit, larger ones through block
    floats (mlir-air's `--bf16-emulation`); f32 takes three passes of bf16."""
    if bits <= 8:
        return parameters.int8_macs
    if bits > 16:
        return parameters.native_macs / 3
    return parameters.native_macs if min(sizes) <= 32 else parameters.bfp16_macs


def _is_product(op: Operation) -> bool:
    """Whether the body of a generic operation multiplies and adds over a reduction."""
    names = [inner.name for region in op.regions for block in region.blocks for inner in block.ops]
    kinds = str(op.properties.get("iterator_types", op.attributes.get("iterator_types", "")))
    return "reduction" in kinds and bool({"arith.mulf", "arith.muli"} & set(names))


def _linalg_work(op: Operation, parameters: Parameters) -> CoreWork:
    sizes = _operands(op)
    nbytes = max((size.elements * size.bits // 8 for size in sizes), default=0)
    inside = [inner for region in op.regions for block in region.blocks for inner in block.ops]
    counted = [inner for inner in inside if not FREE.fullmatch(inner.name)]
    special = sum(_SPECIAL.match(inner.name) is not None for inner in counted)
    plain = (len(counted) - special) * parameters.vector_arithmetic_cycles
    each = plain + len(sizes) * parameters.vector_memory_cycles + special * parameters.special_cycles
    return CoreWork(math.ceil(nbytes / parameters.vector_bytes) * each)


# ---- C++ kernels ----


class _Call(NamedTuple):
    sizes: list[_Operand]
    parameters: Parameters

    def vectors(self, operand: int) -> int:
        """The vectors of 16 elements of an argument: those that a kernel of 16 lanes handles at once."""
        return math.ceil(self.sizes[operand].elements / 16)

    def mixed(self, operand: int, plain: float, special: float) -> CoreWork:
        """So many plain and special operations for each vector of an argument."""
        each = plain * self.parameters.kernel_op_cycles + special * self.parameters.special_cycles
        return CoreWork(self.vectors(operand) * each)


def _product(call: _Call) -> CoreWork:
    a, b, c = (size.elements for size in call.sizes[:3])
    macs = product_macs(a, b, c)
    return CoreWork(macs / _rate(call.sizes[0].bits, (a, b, c), call.parameters), macs)


def _native_product(call: _Call) -> CoreWork:
    a, b, c = (size.elements for size in call.sizes[:3])
    macs = product_macs(a, b, c)
    return CoreWork(macs / call.parameters.native_macs, macs)


def _matvec(call: _Call) -> CoreWork:
    """A load of the weight, one of x and a product for each vector of 32; a sum over lanes for each row."""
    weights, out = call.sizes[0], call.sizes[-1]
    plain = math.ceil(weights.elements / 32) * 3 * call.parameters.kernel_op_cycles
    sums = out.elements * call.parameters.special_cycles
    return CoreWork(plain + sums, weights.elements)


BLOCK_WEIGHTS = 32 * 256
"""Weights of one packed block, whatever their bits (kernel_builder/weight_blocks.py)."""


def _blocks(call: _Call) -> CoreWork:
    """16 bodies of 140 bundles for a block of 4 bits (mlir-air q4_k.h); 8 bits are taken for as dear."""
    blocks = call.sizes[0].elements // call.sizes[0].inner
    return CoreWork(blocks * 16 * 140.0, blocks * BLOCK_WEIGHTS)


def _unpacked(call: _Call) -> CoreWork:
    """1409 cycles for the weights of a block of 4 bits (mlir-air DFlashFeasibility); 8 bits are taken for as
    dear. The last buffer holds the weights of one call, which may be a part of its blocks."""
    return CoreWork(call.sizes[-1].elements * 1409 / BLOCK_WEIGHTS)


def _nothing(call: _Call) -> CoreWork:  # noqa: ARG001 - all costs take a call
    return CoreWork()


_Cost = Callable[[_Call], CoreWork]

KERNEL_COSTS: tuple[tuple[str, str, int, _Cost], ...] = (
    ("round_to_even", "sets a register", 0, _nothing),
    ("attn_(scores|added_scores|own_scores|seen_scores)", "q k^T", 3, _product),
    ("attn_values", "p v", 3, _product),
    ("attn_seen_values", "softmax, then p v", 4, lambda call: _product(call) + call.mixed(0, 7, 1)),
    (
        "attn_softmax",
        "maximum, exponent, sum; rescales acc",
        4,
        lambda c: c.mixed(0, 7, 1) + c.mixed(3, 3, 0),
    ),
    ("attn_causal_mask", "a comparison and a choice", 1, lambda call: call.mixed(0, 3, 0)),
    ("attn_(init|store)", "one pass over acc", 1, lambda call: call.mixed(0, 3, 0)),
    ("attn_merge", "two accumulators into one", 3, lambda call: call.mixed(2, 6, 0)),
    ("silu_and_mul", "exponent, inverse, seven products", 1, lambda call: call.mixed(0, 22, 2)),
    (".*gelu", "exponent, inverse, a polynomial", 1, lambda call: call.mixed(0, 24, 2)),
    ("rope", "four products of halves", 3, lambda call: call.mixed(2, 8, 0)),
    ("matvec_vectorized|matvec_piece", "rows times x", 3, _matvec),
    ("matvec_blocks", "4 or 8 bit blocks times x", 1, _blocks),
    ("unpack_blocks", "4 or 8 bit blocks to bf16", 2, _unpacked),
    ("transpose_blocks", "2 loads, shuffles, stores for an 8x8 block", 1, lambda c: c.mixed(0, 1.5, 0)),
    ("(.*_)?(matmul|gemm|mm)_4x8x8", "a b by mmul 4x8x8", 3, _native_product),
    ("(.*_)?(matmul|gemm|mm)_", "a b", 3, _product),
)
"""Name of a kernel, what it does, the least number of buffers it takes, and its work."""

_DEFAULT_OPERATIONS = 5
"""Of each vector of the largest buffer, for a kernel of which only the sizes are known."""


def call_work(op: func.CallOp, parameters: Parameters) -> CoreWork:
    """The work of one call of a C++ kernel."""
    call = _Call(_operands(op), parameters)
    start = CoreWork(parameters.call_cycles)
    for pattern, _, buffers, cost in KERNEL_COSTS:
        if re.match(pattern, op.callee.root_reference.data) and len(call.sizes) >= buffers:
            return start + cost(call)
    if not call.sizes:
        return start
    largest = max(range(len(call.sizes)), key=lambda i: call.sizes[i].elements)
    return start + call.mixed(largest, _DEFAULT_OPERATIONS, 0)


def buffer_bytes(type_: Attribute) -> int:
    """Bytes of a whole buffer; 0 where its type leaves that open."""
    bits = element_bits(type_)
    if bits is None or not isinstance(type_, MemRefType):
        return 0
    return abs(math.prod(type_.get_shape())) * bits // 8
