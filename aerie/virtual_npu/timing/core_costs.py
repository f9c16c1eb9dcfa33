"""What the operations of a core cost: vector operations by their bytes, products by their
multiply-accumulates, C++ kernels by name and by the sizes of their arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from xdsl.dialects import func
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, VectorType
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.effects import VIEWS
from aerie.device.transfers import element_bits
from aerie.virtual_npu.timing.costs import NOTHING, Cost, cost, total

VECTOR_BYTES = 64
"""One load, store or vector operation handles so many: 512-bit registers of AIE2P (mlir-aie device model)."""


class CoreWork(NamedTuple):
    """What one core takes, and the multiply-accumulates in it."""

    cost: Cost = NOTHING
    macs: int = 0

    def __add__(self, other: tuple[object, ...]) -> CoreWork:
        assert isinstance(other, CoreWork)
        return CoreWork(total(self.cost, other.cost), self.macs + other.macs)

    def times(self, count: int) -> CoreWork:
        """The work of so many repetitions."""
        return CoreWork(tuple(each * count for each in self.cost), self.macs * count)


FREE = re.compile(
    r"(arith\.(constant|index_cast.*)|affine\.(apply|min|max|yield)|index\..*|memref\.(alloc|dealloc|cast|get_global)"
    r"|vector\.(shape_cast|bitcast|broadcast|splat|extract|insert.*)|scf\.yield|func\.return|air\.wait_all"
    r"|.*_terminator|linalg\.yield|ub\.poison|arith\.extf)"
)
"""Operations that the compiler folds into others, or that only name a value."""

_SPECIAL = re.compile(r"math\.|arith\.(divf|remf|divsi|divui|remsi|remui)$|vector\.(multi_)?reduction$")
_MEMORY = re.compile(r"vector\.(transfer_read|transfer_write|load|store|maskedload|maskedstore)$")
_PRODUCTS = ("vector.contract", "linalg.matmul", "linalg.batch_matmul", "linalg.matvec", "linalg.vecmat")


def operation_work(op: Operation) -> CoreWork:
    """The work of one operation without regions that a core executes."""
    if op.name in VIEWS or FREE.fullmatch(op.name):
        return CoreWork()
    if isinstance(op, func.CallOp):
        return call_work(op)
    if op.name in _PRODUCTS or (op.name == "linalg.generic" and _is_product(op)):
        return _product_work(op)
    if op.name.startswith("linalg."):
        return _linalg_work(op)
    return CoreWork(_cost(op))


def _cost(op: Operation) -> Cost:
    widths = [nbytes for value in (*op.operands, *op.results) if (nbytes := _vector_bytes(value.type))]
    if not widths:
        return cost(special_cycles=1) if _SPECIAL.match(op.name) else cost(scalar_cycles=1)
    registers = math.ceil(max(widths) / VECTOR_BYTES)
    if _SPECIAL.match(op.name):
        return cost(special_cycles=registers)
    if _MEMORY.match(op.name):
        return cost(vector_memory_cycles=registers)
    return cost(vector_arithmetic_cycles=registers)


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


def _product_work(op: Operation) -> CoreWork:
    sizes = _operands(op)
    if len(sizes) < 3:
        return CoreWork(_cost(op))
    a, b, c = (size.elements for size in sizes[:3])
    macs = product_macs(a, b, c)
    return CoreWork(_text_product_cost(macs, sizes[0].bits, min(a, b, c)), macs)


def _text_product_cost(macs: int, bits: int, smallest: int) -> Cost:
    """What so many multiply-accumulates take in a loop of the text, whose loads and stores count by
    themselves. A 4x8x8 block goes through the native unit, larger ones through block floats (mlir-air's
    `--bf16-emulation`); f32 takes three passes of bf16. smallest: elements of the smallest of the blocks."""
    if bits <= 8:
        return cost(int8_macs=macs)
    if bits > 16:
        return cost(native_macs=3 * macs)
    return cost(native_macs=macs) if smallest <= 32 else cost(text_product_macs=macs)


def _is_product(op: Operation) -> bool:
    """Whether the body of a generic operation multiplies and adds over a reduction."""
    names = [inner.name for region in op.regions for block in region.blocks for inner in block.ops]
    kinds = str(op.properties.get("iterator_types", op.attributes.get("iterator_types", "")))
    return "reduction" in kinds and bool({"arith.mulf", "arith.muli"} & set(names))


def _linalg_work(op: Operation) -> CoreWork:
    sizes = _operands(op)
    nbytes = max((size.elements * size.bits // 8 for size in sizes), default=0)
    inside = [inner for region in op.regions for block in region.blocks for inner in block.ops]
    counted = [inner for inner in inside if not FREE.fullmatch(inner.name)]
    special = sum(_SPECIAL.match(inner.name) is not None for inner in counted)
    each = cost(
        vector_arithmetic_cycles=len(counted) - special,
        vector_memory_cycles=len(sizes),
        special_cycles=special,
    )
    return CoreWork(each).times(math.ceil(nbytes / VECTOR_BYTES))


# ---- C++ kernels ----


class _Call(NamedTuple):
    sizes: list[_Operand]

    def vectors(self, operand: int) -> int:
        """The vectors of 16 elements of an argument: those that a kernel of 16 lanes handles at once."""
        return math.ceil(self.sizes[operand].elements / 16)

    def mixed(self, operand: int, plain: float, special: float) -> CoreWork:
        """So many plain and special operations for each vector of an argument."""
        return CoreWork(cost(kernel_op_cycles=plain, special_cycles=special)).times(self.vectors(operand))


def _product(call: _Call, block_rows: int = 8) -> CoreWork:
    """A C++ product: it holds 2x2 blocks of sums, multiplies all of k into them, and writes them back."""
    a, b, c = (size.elements for size in call.sizes[:3])
    macs = product_macs(a, b, c)
    m, n = macs // b, macs // a
    held = math.ceil(m / (2 * block_rows)) * math.ceil(n / 16)
    bits = call.sizes[0].bits
    price = "int8_macs" if bits <= 8 else "native_macs" if block_rows < 8 or bits > 16 else "bfp16_macs"
    passes = 3 if bits > 16 else 1
    return CoreWork(cost(product_block_cycles=held, **{price: passes * macs}), macs)


def _native_product(call: _Call) -> CoreWork:
    return _product(call, block_rows=4)


def _transposed_product(call: _Call) -> CoreWork:
    """A product whose inner loop also transposes the blocks of b that it loads."""
    a, b, c = (size.elements for size in call.sizes[:3])
    pairs = math.ceil(product_macs(a, b, c) // b / 16)
    return _product(call) + call.mixed(1, 1.5, 0).times(pairs)


def _softmax(call: _Call) -> CoreWork:
    """mlir-air attn_npu2.cc: per 16 scores the maximum (1), less the row's maximum (3), its bounds (1), exp2
    with two conversions (4), the sum (1.5); per row two sums over lanes and two factors to spread."""
    rows = call.sizes[-1].elements
    return call.mixed(0, 10.5, 1) + CoreWork(cost(special_cycles=2, kernel_op_cycles=8)).times(rows)


def _rescaled(call: _Call) -> CoreWork:
    return call.mixed(1, 2, 0) + CoreWork(cost(kernel_op_cycles=4)).times(call.sizes[0].elements)


def _matvec(call: _Call) -> CoreWork:
    """A load of the weight, one of x and a product for each vector of 32; a sum over lanes for each row."""
    weights, out = call.sizes[0], call.sizes[-1]
    plain = math.ceil(weights.elements / 32) * 3
    return CoreWork(cost(kernel_op_cycles=plain, special_cycles=out.elements), weights.elements)


BLOCK_WEIGHTS = 32 * 256
"""Weights of one packed block, whatever their bits (kernel_builder/weight_blocks.py)."""


def _blocks(call: _Call) -> CoreWork:
    """16 bodies of 140 bundles for a block of 4 bits (mlir-air q4_k.h); 8 bits are taken for as dear."""
    blocks = call.sizes[0].elements // call.sizes[0].inner
    return CoreWork(cost(blocks * 16 * 140.0), blocks * BLOCK_WEIGHTS)


def _unpacked(call: _Call) -> CoreWork:
    """1409 cycles for the weights of a block of 4 bits (mlir-air DFlashFeasibility); 8 bits are taken for as
    dear. The last buffer holds the weights of one call, which may be a part of its blocks."""
    return CoreWork(cost(call.sizes[-1].elements * 1409 / BLOCK_WEIGHTS))


def _cleared(call: _Call) -> CoreWork:
    return CoreWork(cost(call.sizes[0].elements * call.sizes[0].bits / 8 * 583 / 8192))


def _nothing(call: _Call) -> CoreWork:  # noqa: ARG001 - all costs take a call
    return CoreWork()


_Work = Callable[[_Call], CoreWork]

KERNEL_COSTS: tuple[tuple[str, str, int, _Work], ...] = (
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
    (".*zero_", "583 cycles for 8192 bytes (trace of vegah/Npu-Embeddings)", 1, _cleared),
    ("narrow_f32_bf16", "a load, a conversion, a store", 2, lambda call: call.mixed(0, 2, 0)),
    ("transpose_blocks", "2 loads, shuffles, stores for an 8x8 block", 1, lambda c: c.mixed(0, 1.5, 0)),
    ("fused_softmax", "two passes for 32 elements at once; two sums over lanes for each row", 4, _softmax),
    ("mul_r_gp", "a product for each 32 elements; each row's factor is spread over them", 2, _rescaled),
    ("copy_tile|add_gp_g", "one pass", 2, lambda call: call.mixed(0, 2, 0)),
    ("apply_causal_mask", "one pass over a block of stores", 1, lambda call: call.mixed(0, 0.5, 0)),
    (
        "matmul_transposed_b",
        "a b^T; b is transposed again for each two rows of blocks",
        3,
        _transposed_product,
    ),
    ("(.*_)?(matmul|gemm|mm)_4x8x8", "a b by mmul 4x8x8", 3, _native_product),
    ("(.*_)?(matmul|gemm|mm)_", "a b", 3, _product),
)
"""Name of a kernel, what it does, the least number of buffers it takes, and its work."""

_DEFAULT_OPERATIONS = 5
"""Of each vector of the largest buffer, for a kernel of which only the sizes are known."""


def call_work(op: func.CallOp) -> CoreWork:
    """The work of one call of a C++ kernel."""
    call = _Call(_operands(op))
    start = CoreWork(cost(call_cycles=1))
    for pattern, _, buffers, work in KERNEL_COSTS:
        if re.match(pattern, op.callee.root_reference.data) and len(call.sizes) >= buffers:
            return start + work(call)
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
