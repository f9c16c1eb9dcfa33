"""Arithmetic on floats: what the cores' compiler makes of vectors and scalars of bf16 and f32.

The unit multiplies bf16 and sums f32. A product of two bf16 numbers is exact in f32, so factors that come
straight from a widening lose nothing; a product of other f32 vectors has no lowering on AIE2P.
"""

from __future__ import annotations

from virtual_npu.static.lowering import evidence as by
from virtual_npu.static.lowering.rows import AIE2, ALL, direct, emulated, refused, scalar, split, wrong

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
    refused("arith.addf", "8 x f32", by.WIDTHS, note=FEWER, instead="use 16 lanes", architectures=ALL),
    wrong(
        "arith.subf", "16 x f32", by.TO_AIEVEC,
        note=SIGN, instead="widen both, or neither", details=("less bf16 widened",),
    ),
    scalar("arith.addf arith.mulf", "f32", by.DECODE, by.PEANO, note=LIBRARY),
    scalar("arith.subf", "f32", by.PEANO, note=LIBRARY),
    scalar("arith.addf", "bf16", by.PLAIN_RMS_NORM, by.PEANO, note=ONE_LANE),
    scalar("arith.subf arith.mulf", "bf16", by.PEANO, note=ONE_LANE),
    direct("arith.negf", "16 x bf16 f32", by.TEST_NEG, by.TO_AIEVEC),
)  # fmt: skip

PRODUCTS = (
    direct("arith.mulf", "16 x bf16", by.RMS_NORM, by.DECODE, by.MULADD, by.TO_LLVM, note=FUSED),
    split("arith.mulf", "32 x bf16", by.DECODE, by.SOFTMAX, by.TO_AIEVEC, note=HALVES),
    direct("arith.mulf", "64 x bf16", by.MUL, by.PEANO),
    direct("arith.mulf", "16 x f32", by.TO_AIEVEC, by.TO_LLVM, details=(WIDENED,)),
    emulated(
        "arith.mulf", "any x f32", by.RMS_NORM, by.AXPY, by.TO_LLVM, by.XDNA,
        note="arith.mulf of f32 vectors is not legalized", instead=TO_BF16, details=UNLIKE,
    ),
    direct("vector.fma", "16 x f32", by.DECODE, by.TEST_FMA, by.TO_LLVM, details=(WIDENED,)),
    emulated(
        "vector.fma", "any x f32", by.DECODE, by.TO_AIEVEC,
        note=FMA, instead="widen them just before it, or give aircc --bf16-emulation",
        details=UNLIKE, architectures=ALL,
    ),
    direct("vector.fma", "16 x bf16", by.FMA, by.TEST_FMA, note=ONCE),
    split("vector.fma", "32 x bf16", by.FMA, by.TEST_FMA, note=HALVES),
)  # fmt: skip

QUOTIENTS = (
    refused(
        "arith.divf", "any x bf16", by.OPS, by.DECODE, by.TEST_EMULATION,
        note="the backend of the core cannot legalize G_FDIV of bf16 vectors", instead="divide in f32",
        details=("", "of 1"), architectures=ALL,
    ),
    refused(
        "arith.divf", "any x f32", by.XDNA,
        note="only AIE2P divides vectors", instead="divide scalars, or multiply with a reciprocal",
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
        note="convert-vector-to-aievec has no f32 max or min", instead=TO_BF16, architectures=ALL,
    ),
    direct(NUMBERS, "f32 bf16", by.RELU, by.PEANO, note="a comparison and a choice"),
    direct("arith.cmpf arith.select", "f32 bf16", by.PEANO),
    direct("arith.cmpf arith.select", "16 32 x bf16", by.SELECT),
    emulated(
        "arith.cmpf", "any x f32", by.XDNA, by.TEST_EMULATION,
        note="aievec.cmp of f32 vectors is not legalized", instead=TO_BF16,
    ),
)  # fmt: skip

CONVERSIONS = (
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
    refused("math.exp", "any x f32", by.XDNA, note=_EXP, instead="convert to bf16 before it"),
    refused("math.exp", "f32", by.XDNA, note=_EXP, instead="convert to bf16 before it"),
    direct("math.tanh", "16 32 x bf16", by.TANH, by.TEST_TANH, note="the core's own"),
    refused(
        "math.tanh", "any x bf16", by.XDNA, by.GELU,
        note="only AIE2P has a tanh", instead="call a C++ function", architectures=AIE2,
    ),
    refused("math.tanh", "any x f32", by.GELU, note=_TANH, instead="use vectors of 16 bf16"),
    refused("math.tanh", "f32 bf16", by.GELU, note=_TANH, instead="use vectors of 16 bf16"),
    direct("math.rsqrt", "f32", by.INVSQRT, by.RMS_NORM, by.TEST_RSQRT, note="the core's own"),
    scalar("math.rsqrt", "any x f32", by.RSQRT, by.TEST_RSQRT, note="the core's own, for every lane"),
    refused("math.rsqrt", "any x bf16", by.TO_AIEVEC, note=_RSQRT, instead="widen to f32"),
    refused("math.rsqrt", "bf16", by.PLAIN_RMS_NORM, note=_RSQRT, instead="widen to f32"),
)  # fmt: skip

ROWS = (*SUMS, *PRODUCTS, *QUOTIENTS, *CHOICES, *CONVERSIONS, *FUNCTIONS)
"""The first row that matches a form is the one about it."""
