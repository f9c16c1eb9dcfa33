"""What is known of the forms, as rows: arithmetic on floats, vectors as such, integers and control flow.

The unit of a core multiplies bf16 and sums f32. A product of two bf16 numbers is exact in f32, so factors
that come straight from a widening lose nothing; a product of other f32 vectors has no lowering on AIE2P.
"""

from __future__ import annotations

from functools import partial

from aerie.device.lowering import evidence as by
from aerie.device.lowering.rule import (
    AIE2,
    ALL,
    LoweringRule,
    direct,
    emulated,
    refused,
    scalar,
    split,
    wrong,
)

# ---- arithmetic on floats, of vectors and scalars ----

HALVES = "16 lanes at a time"
LIBRARY = "a routine of Peano's library, out of line"
ONE_LANE = "a vector of which one lane is used"
ONCE = "made in f32 and rounded once"
FUSED = f"{ONCE}; a sum that takes it in is fused with it, and not rounded in between"
TO_BF16 = "convert to bf16 before it, or give aircc --bf16-emulation"
WIDENED = "factors widened from bf16"
UNLIKE = ("", "one factor widened from bf16", WIDENED)
SIGN = "an f32 vector less one that was widened from bf16 comes out with the other sign"
FMA = (
    "a multiply-add of f32 vectors is lowered only for 16 lanes, and only where both factors come straight "
    "from arith.extf of bf16"
)
FEWER = "the backend of the core cannot legalize <8 x s32> G_FADD"
EXTREMES = "arith.maximumf arith.minimumf"
NUMBERS = f"{EXTREMES} arith.maxnumf arith.minnumf"

SUMS = (
    direct("arith.addf arith.subf", "16 x bf16", by.ELTWISE_ADD, by.SUB, by.TEST_ADD, by.TEST_SUB, note=ONCE),
    split("arith.addf arith.subf", "32 x bf16", by.ADD, by.SUB, by.SOFTMAX, by.TO_AIEVEC, note=HALVES),
    direct("arith.addf arith.subf", "16 x f32", by.ELTWISE_ADD, by.DECODE, by.TEST_ADD, by.TEST_SUB),
    split("arith.addf arith.subf", "32 x f32", by.SOFTMAX, by.TO_AIEVEC, note=HALVES),
    refused("arith.addf", "8 x f32", by.WIDTHS, note=FEWER, alternative="use 16 lanes", architectures=ALL),
    wrong(
        "arith.subf", "16 x f32", by.TO_AIEVEC,
        note=SIGN, alternative="widen both, or neither", details=("less bf16 widened",),
    ),
    scalar("arith.addf arith.mulf", "f32", by.DECODE, by.PEANO, note=LIBRARY),
    scalar("arith.subf", "f32", by.PEANO, note=LIBRARY),
    scalar("arith.addf", "bf16", by.PLAIN_RMS_NORM, by.PEANO, note=ONE_LANE),
    scalar("arith.subf arith.mulf", "bf16", by.PEANO, note=ONE_LANE),
    direct("arith.negf", "16 x bf16 f32", by.TEST_NEG, by.TO_AIEVEC),
)  # fmt: skip

FLOAT_PRODUCTS = (
    direct("arith.mulf", "16 x bf16", by.RMS_NORM, by.DECODE, by.MULADD, by.TO_LLVM, note=FUSED),
    split("arith.mulf", "32 x bf16", by.DECODE, by.SOFTMAX, by.TO_AIEVEC, note=HALVES),
    direct("arith.mulf", "64 x bf16", by.MUL, by.PEANO),
    direct("arith.mulf", "16 x f32", by.TO_AIEVEC, by.TO_LLVM, details=(WIDENED,)),
    emulated(
        "arith.mulf", "any x f32", by.RMS_NORM, by.AXPY, by.TO_LLVM, by.XDNA,
        note="arith.mulf of f32 vectors is not legalized", alternative=TO_BF16, details=UNLIKE,
    ),
    direct("vector.fma", "16 x f32", by.DECODE, by.TEST_FMA, by.TO_LLVM, details=(WIDENED,)),
    emulated(
        "vector.fma", "any x f32", by.DECODE, by.TO_AIEVEC,
        note=FMA, alternative="widen them just before it, or give aircc --bf16-emulation",
        details=UNLIKE, architectures=ALL,
    ),
    direct("vector.fma", "16 x bf16", by.FMA, by.TEST_FMA, note=ONCE),
    split("vector.fma", "32 x bf16", by.FMA, by.TEST_FMA, note=HALVES),
)  # fmt: skip

QUOTIENTS = (
    refused(
        "arith.divf", "any x bf16", by.OPS, by.DECODE, by.TEST_EMULATION,
        note="the backend of the core cannot legalize G_FDIV of bf16 vectors", alternative="divide in f32",
        details=("", "of 1"), architectures=ALL,
    ),
    refused(
        "arith.divf", "any x f32", by.XDNA,
        note="only AIE2P divides vectors", alternative="divide scalars, or multiply with a reciprocal",
        details=("", "of 1"), architectures=AIE2,
    ),
    direct("arith.divf", "16 32 x f32", by.RECIPROCAL, by.TEST_INV, note="the core's own", details=("of 1",)),
    scalar("arith.divf", "16 32 x f32", by.DIV, by.TO_LLVM, note="a call for every lane; see `stack`"),
    direct("arith.divf", "f32", by.DECODE, by.TEST_INV, note="the core's own", details=("of 1",)),
    scalar(
        "arith.divf", "f32 bf16", by.RMS_NORM, by.PLAIN_RMS_NORM, by.PEANO,
        note=f"{LIBRARY}; see `stack`", details=("", "of 1"),
    ),
)  # fmt: skip

CHOICES = (
    direct(EXTREMES, "32 x bf16", by.MAX, by.SOFTMAX, by.TO_LLVM),
    split(NUMBERS, "16 x bf16", by.DECODE, by.RELU, by.CORE_PASSES, note="a comparison and a choice"),
    emulated(
        EXTREMES, "any x f32", by.RELU, by.TO_LLVM, by.TEST_EMULATION,
        note="convert-vector-to-aievec has no f32 max or min", alternative=TO_BF16, architectures=ALL,
    ),
    direct(NUMBERS, "f32 bf16", by.RELU, by.PEANO, note="a comparison and a choice"),
    direct("arith.cmpf arith.select", "f32 bf16", by.PEANO),
    direct("arith.cmpf arith.select", "16 32 x bf16", by.SELECT),
    emulated(
        "arith.cmpf", "any x f32", by.XDNA, by.TEST_EMULATION,
        note="aievec.cmp of f32 vectors is not legalized", alternative=TO_BF16,
    ),
)  # fmt: skip

FLOAT_CONVERSIONS = (
    direct(
        "arith.extf", "16 32 64 x bf16", by.DECODE, by.SOFTMAX, by.ATTENTION, by.TEST_CONVERT,
        details=("to f32",),
    ),
    direct(
        "arith.truncf", "16 32 x f32", by.DECODE, by.SOFTMAX, by.TEST_CONVERT, by.TEST_SRS,
        details=("to bf16",),
    ),
    split(
        "arith.truncf", "64 x f32", by.ATTENTION, by.GEMM, by.TO_LLVM,
        note="32 lanes at a time", details=("to bf16",),
    ),
    split("arith.extf", "bf16", by.PLAIN_RMS_NORM, by.SOFTMAX, by.PEANO, note="a shift", details=("to f32",)),
    split("arith.truncf", "f32", by.RMS_NORM, by.DECODE, by.PEANO, note=ONE_LANE, details=("to bf16",)),
    scalar("arith.sitofp", "16 x i32", by.SITOFP, details=("to f32",)),
    scalar("arith.fptosi", "16 x f32", by.FPTOSI, details=("to i32",)),
    scalar("arith.sitofp arith.uitofp", "i32", by.PEANO, note=LIBRARY, details=("to f32",)),
    scalar("arith.fptosi arith.fptoui", "f32", by.PEANO, note=LIBRARY, details=("to i32",)),
)  # fmt: skip

_EXP = "the backend of the core cannot legalize G_FEXP of f32"
_TANH = "the backend of the core cannot legalize G_FTANH"
_RSQRT = "AIE2P has no rsqrt of bf16"
FUNCTIONS = (
    direct("math.exp", "16 32 x bf16", by.EXP, by.SOFTMAX, by.TEST_EXP, note="exp2 of a bf16 product"),
    refused("math.exp", "any x f32", by.XDNA, note=_EXP, alternative="convert to bf16 before it"),
    refused("math.exp", "f32", by.XDNA, note=_EXP, alternative="convert to bf16 before it"),
    direct("math.tanh", "16 32 x bf16", by.TANH, by.TEST_TANH, note="the core's own"),
    refused(
        "math.tanh", "any x bf16", by.XDNA, by.GELU,
        note="only AIE2P has a tanh", alternative="call a C++ function", architectures=AIE2,
    ),
    refused("math.tanh", "any x f32", by.GELU, note=_TANH, alternative="use vectors of 16 bf16"),
    refused("math.tanh", "f32 bf16", by.GELU, note=_TANH, alternative="use vectors of 16 bf16"),
    direct("math.rsqrt", "f32", by.INVSQRT, by.RMS_NORM, by.TEST_RSQRT, note="the core's own"),
    scalar("math.rsqrt", "any x f32", by.RSQRT, by.TEST_RSQRT, note="the core's own, for every lane"),
    refused("math.rsqrt", "any x bf16", by.TO_AIEVEC, note=_RSQRT, alternative="widen to f32"),
    refused("math.rsqrt", "bf16", by.PLAIN_RMS_NORM, note=_RSQRT, alternative="widen to f32"),
)  # fmt: skip

# ---- vectors from memory and back, in other shapes, reduced, multiplied as matrices, carried along ----

READ, WRITE = "vector.transfer_read", "vector.transfer_write"
LOADS = "vector.load vector.store"
RUN = "one run of memory, made flat"
LARGEST = ("maximumf", "minimumf", "maxnumf", "minnumf")

TRANSFERS = (
    direct(f"{READ} {WRITE}", "16 32 64 x bf16 i16", by.DECODE, by.SOFTMAX, by.ATTENTION, by.PEANO, note=RUN),
    direct(f"{READ} {WRITE}", "16 32 64 x f32 i32", by.DECODE, by.GEMM_F32, by.PEANO, note=RUN),
    direct(f"{READ} {WRITE}", "32 64 x i8", by.MATMUL_I8, by.PEANO, note=RUN),
    direct(LOADS, "16 32 x bf16 i16", by.PEANO),
    direct(LOADS, "16 32 x f32 i32", by.PEANO),
    direct(READ, "x", by.TEST_SPLAT, details=("of one element to all lanes",)),
    wrong(
        f"{READ} {WRITE} {LOADS}", "x", by.VECTOR_TO_VECTOR,
        note="a block that is no single run of its memref is taken for one",
        alternative="read or write one row of it at a time", details=("strided",),
    ),
    refused(
        READ, "x", by.TO_AIEVEC, note="AIE has no masked loads",
        alternative="read all lanes and choose with arith.select", details=("masked",), architectures=ALL,
    ),
)  # fmt: skip

SHAPES = (
    direct("arith.constant", "16 32 64 x bf16 f32", by.DECODE, by.SOFTMAX, by.ATTENTION, by.GEMM_F32),
    direct("arith.constant", "16 32 64 x i8 i16 i32", by.PEANO),
    direct("vector.broadcast", "16 32 x bf16 i16", by.RMS_NORM, by.DECODE, by.SOFTMAX, by.TEST_BROADCAST),
    direct("vector.broadcast", "16 32 x f32 i32", by.RMS_NORM, by.SOFTMAX, by.TEST_BROADCAST),
    direct(
        "vector.shape_cast", "16 32 64 x bf16 f32 i8 i16 i32", by.ATTENTION, by.TO_AIEVEC,
        note="no instruction, between one dimension and several",
    ),
)  # fmt: skip

REDUCTIONS = (
    split(
        "vector.reduction", "16 x f32", by.RMS_NORM, by.DECODE, by.TEST_REDUCE,
        note="4 times a shift and a sum", details=("add",),
    ),
    split(
        "vector.reduction", "16 32 x bf16", by.REDUCE_ADD, by.SOFTMAX, by.TEST_REDUCE,
        note="shifts and sums, in f32", details=("add",),
    ),
    split("vector.reduction", "16 32 x bf16", by.REDUCE_MAX, by.DECODE, by.SOFTMAX, details=LARGEST),
    split("vector.reduction", "16 x i32", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    split("vector.reduction", "32 x i16", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    split("vector.reduction", "64 x i8", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    refused(
        "vector.reduction", "any x f32", by.TO_AIEVEC, by.TO_LLVM, by.TEST_EMULATION,
        note="f32 vectors are summed 16 lanes at a time, and their largest or smallest lane is not found",
        alternative="sum 16 lanes; find the largest in bf16", details=("add", *LARGEST),
    ),
)  # fmt: skip

_BF16 = "bf16 by bf16 into f32"
SMALL = tuple(f"{size} {_BF16}" for size in ("4x8x8", "8x8x4", "4x8x4"))
CONTRACTIONS = (
    direct(
        "vector.contract", "64 x f32", by.ATTENTION, by.GEMM, by.GEMM_F32, by.TEST_MATMUL,
        note="in block floats, 8 numbers to an exponent: see NUMERICS=bfp16", details=(f"8x8x8 {_BF16}",),
    ),
    split(
        "vector.contract", "16 32 x f32", by.TEST_MATMUL,
        note="4x8x8 in block floats, 8x8x4 and 4x8x4 as multiply-adds of bf16", details=SMALL,
    ),
    direct("vector.contract", "64 x i32", by.MATMUL_I8, details=("8x8x8 i8 by i8 into i32",)),
    direct("vector.contract", "64 x i32 i64", by.GEMM_I16, details=tuple(
        f"8x2x8 i16 by i16 into {total}" for total in ("i32", "i64")
    )),
    refused(
        "vector.contract", "any x f32", by.VECTOR_TO_VECTOR, by.TO_AIEVEC,
        note="the second matrix is transposed first, and a transposition of 1024 bits is not lowered",
        alternative="hold B as (k, n), or turn its blocks in a C++ function first, "
        "as kernels_cc/transpose_blocks.cc does",
        details=(f"8x8x8 {_BF16} b transposed",),
    ),
    wrong(
        "vector.contract", "any x f32", by.TO_AIEVEC,
        note="the lowering does not look at the layout, and takes the second matrix as rows of k",
        alternative="give it A (m, k), B (k, n) and C (m, n)",
        details=tuple(f"{product} in another layout" for product in (f"8x8x8 {_BF16}", *SMALL)),
    ),
)  # fmt: skip

CARRIED = (
    direct(
        "scf.for", "64 x f32", by.ATTENTION, by.GEMM, by.FLATTEN, details=("carried",),
        note="as upstream's GEMMs; mlir-air records loops that carry vectors as compiled wrong inside of a "
        "double-buffered loop (pull request 1662)",
    ),
    direct(
        "scf.for", "32 x bf16", by.SOFTMAX, by.CARRIED_ISSUE,
        note="issue 1591 saw it lose what is carried", details=("carried",),
    ),
    direct("scf.for", "32 x i32", by.BOTTLENECK, details=("carried", "carried, not flat")),
    direct("scf.for", "index i32 f32", by.ATTENTION, by.PEANO, details=("carried",)),
)  # fmt: skip

# ---- integers, indices, memory and control flow: what goes through MLIR's own passes to LLVM ----

INTEGERS = "index i1 i8 i16 i32"
BITS = "arith.andi arith.ori arith.xori"
DIVISIONS = "arith.divsi arith.divui arith.remsi arith.remui arith.floordivsi arith.ceildivsi"
LOOPS = "loops over single elements"
on_all = partial(direct, architectures=ALL)

ARITHMETIC = (
    on_all("arith.addi arith.muli", INTEGERS, by.DECODE, by.BRANCHES, by.PEANO),
    on_all("arith.cmpi", INTEGERS, by.BOTTLENECK, by.PEANO),
    on_all("arith.subi arith.select", INTEGERS, by.PEANO),
    on_all(f"{BITS} arith.shli arith.shrsi arith.shrui", INTEGERS, by.SHIFTS, by.PEANO),
    split("arith.maxsi arith.minsi", "i8 i16 i32", by.SHIFTS, by.TO_AIEVEC, note=ONE_LANE),
    scalar(DIVISIONS, INTEGERS, by.PEANO, note=LIBRARY, architectures=ALL),
    direct("arith.addi arith.subi", "16 x i32", by.BOTTLENECK, by.PEANO),
    direct("arith.addi arith.subi", "32 x i16", by.PEANO),
    direct("arith.addi arith.subi", "64 x i8", by.PEANO),
    refused(
        "arith.addi", "8 x i32", by.WIDTHS, note="the backend of the core cannot legalize <8 x s32> G_ADD",
        alternative="use 16 lanes", architectures=ALL,
    ),
    direct(BITS, "16 x i32", by.AND, by.OR, by.XOR),
    refused(
        "arith.muli", "any x i8 i16 i32", by.TO_LLVM, note="AIE2P's lowering multiplies vectors of bf16 only",
        alternative="multiply blocks with vector.contract, or call a C++ function",
    ),
)  # fmt: skip

NARROWER, WIDER = ("to i8", "to i16"), ("to i16", "to i32")
INTEGER_CONVERSIONS = (
    direct("arith.extsi arith.extui", "32 x i8 i16", by.TEST_CONVERT, details=WIDER),
    direct("arith.extsi arith.extui", "64 x i8", by.BOTTLENECK, details=("to i32",)),
    direct("arith.trunci", "32 x i16 i32", by.TEST_CONVERT, details=NARROWER),
    on_all(
        "arith.extsi arith.extui arith.trunci", INTEGERS, by.TEST_CONVERT, by.PEANO,
        details=("to i8", "to i16", "to i32"),
    ),
    on_all(
        "arith.index_cast arith.index_castui", "index i32", by.DECODE, by.PEANO,
        note="no instruction", details=("to i32", "to index"),
    ),
)  # fmt: skip

CONTROL = (
    on_all("scf.for scf.if", "", by.BRANCHES, by.DECODE),
    on_all("affine.if", "", by.FLASH),
    on_all("scf.index_switch", "", by.SHARED),
    on_all("affine.apply affine.for affine.min affine.max", "", by.ATTENTION, by.CORE_PASSES),
    on_all("func.call", "", by.DECODE, note="memrefs become plain pointers"),
    on_all("func.call", "i32", by.DECODE, details=("passed",)),
    on_all("arith.constant", f"{INTEGERS} bf16 f32", by.DECODE, by.RMS_NORM),
    on_all("ub.poison", f"{INTEGERS} bf16 f32", by.ATTENTION),
)  # fmt: skip

BUFFERS = (
    on_all("memref.alloc memref.dealloc", "", by.DECODE, by.ATTENTION, note="a buffer of the core"),
    on_all("memref.subview memref.collapse_shape", "", by.DECODE, by.ATTENTION),
    on_all("memref.expand_shape memref.cast memref.reinterpret_cast", "", by.CORE_PASSES),
    on_all("memref.extract_strided_metadata", "", by.CORE_PASSES),
    on_all("memref.load affine.load", f"bf16 f32 {INTEGERS}", by.INVSQRT, by.PEANO),
    on_all("memref.store affine.store", "", by.INVSQRT, by.DECODE),
)  # fmt: skip

NAMED = "generic matmul batch_matmul matvec vecmat add sub mul copy transpose"
LINALG = (
    scalar("linalg.fill", f"{INTEGERS} bf16 f32", by.DECODE, by.LINALG, note=LOOPS, architectures=ALL),
    scalar(
        " ".join(f"linalg.{name}" for name in NAMED.split()), "", by.LINALG,
        note=f"{LOOPS}, or a call with --lower-linalg-to-func", architectures=ALL,
    ),
    scalar("linalg.index", "index", by.LINALG, architectures=ALL),
)  # fmt: skip

TABLE: tuple[LoweringRule, ...] = (
    *SUMS, *FLOAT_PRODUCTS, *QUOTIENTS, *CHOICES, *FLOAT_CONVERSIONS, *FUNCTIONS,
    *TRANSFERS, *SHAPES, *REDUCTIONS, *CONTRACTIONS, *CARRIED,
    *ARITHMETIC, *INTEGER_CONVERSIONS, *CONTROL, *BUFFERS, *LINALG,
)  # fmt: skip
"""The first row that matches a form is the one about it."""
