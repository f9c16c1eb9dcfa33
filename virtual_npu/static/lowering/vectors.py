"""Vectors as such: from memory and back, in other shapes, reduced, multiplied as matrices, carried along."""

from __future__ import annotations

from virtual_npu.static.lowering import evidence as by
from virtual_npu.static.lowering.rows import ALL, direct, refused, split, wrong

READ, WRITE = "vector.transfer_read", "vector.transfer_write"
LOADS = "vector.load vector.store"
RUN = "one run of memory, made flat"
EXTREMES = ("maximumf", "minimumf", "maxnumf", "minnumf")

MEMORY = (
    direct(f"{READ} {WRITE}", "16 32 64 x bf16 i16", by.DECODE, by.SOFTMAX, by.ATTENTION, by.PEANO, note=RUN),
    direct(f"{READ} {WRITE}", "16 32 64 x f32 i32", by.DECODE, by.GEMM_F32, by.PEANO, note=RUN),
    direct(f"{READ} {WRITE}", "32 64 x i8", by.MATMUL_I8, by.PEANO, note=RUN),
    direct(LOADS, "16 32 x bf16 i16", by.PEANO),
    direct(LOADS, "16 32 x f32 i32", by.PEANO),
    direct(READ, "x", by.TEST_SPLAT, details=("of one element to all lanes",)),
    wrong(
        f"{READ} {WRITE} {LOADS}", "x", by.VECTOR_TO_VECTOR,
        note="a block that is no single run of its memref is taken for one",
        instead="read or write one row of it at a time", details=("strided",),
    ),
    refused(
        READ, "x", by.TO_AIEVEC, note="AIE has no masked loads",
        instead="read all lanes and choose with arith.select", details=("masked",), architectures=ALL,
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
    split("vector.reduction", "16 32 x bf16", by.REDUCE_MAX, by.DECODE, by.SOFTMAX, details=EXTREMES),
    split("vector.reduction", "16 x i32", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    split("vector.reduction", "32 x i16", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    split("vector.reduction", "64 x i8", by.TEST_REDUCE, details=("add", "minsi", "maxsi")),
    refused(
        "vector.reduction", "any x f32", by.TO_AIEVEC, by.TO_LLVM, by.TEST_EMULATION,
        note="f32 vectors are summed 16 lanes at a time, and their largest or smallest lane is not found",
        instead="sum 16 lanes; find the largest in bf16", details=("add", *EXTREMES),
    ),
)  # fmt: skip

_BF16 = "bf16 by bf16 into f32"
SMALL = tuple(f"{size} {_BF16}" for size in ("4x8x8", "8x8x4", "4x8x4"))
PRODUCTS = (
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
        instead="hold B as (k, n), or turn its blocks in a C++ function first, "
        "as kernels_cc/transpose_blocks.cc does",
        details=(f"8x8x8 {_BF16} b transposed",),
    ),
    wrong(
        "vector.contract", "any x f32", by.TO_AIEVEC,
        note="the lowering does not look at the layout, and takes the second matrix as rows of k",
        instead="give it A (m, k), B (k, n) and C (m, n)",
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

ROWS = (*MEMORY, *SHAPES, *REDUCTIONS, *PRODUCTS, *CARRIED)
"""The first row that matches a form is the one about it."""
