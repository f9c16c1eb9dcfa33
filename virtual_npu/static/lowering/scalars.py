"""Integers, indices, memory and control flow on a core: what goes through MLIR's own passes to LLVM."""

from __future__ import annotations

from functools import partial

from virtual_npu.static.lowering import evidence as by
from virtual_npu.static.lowering.rows import ALL, direct, refused, scalar, split

INTEGERS = "index i1 i8 i16 i32"
BITS = "arith.andi arith.ori arith.xori"
DIVISIONS = "arith.divsi arith.divui arith.remsi arith.remui arith.floordivsi arith.ceildivsi"
ONE_LANE = "a vector of which one lane is used"
LIBRARY = "a routine of Peano's library, out of line"
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
        instead="use 16 lanes", architectures=ALL,
    ),
    direct(BITS, "16 x i32", by.AND, by.OR, by.XOR),
    refused(
        "arith.muli", "any x i8 i16 i32", by.TO_LLVM, note="AIE2P's lowering multiplies vectors of bf16 only",
        instead="multiply blocks with vector.contract, or call a C++ function",
    ),
)  # fmt: skip

NARROWER, WIDER = ("to i8", "to i16"), ("to i16", "to i32")
CONVERSIONS = (
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

MEMORY = (
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

ROWS = (*ARITHMETIC, *CONVERSIONS, *CONTROL, *MEMORY, *LINALG)
"""The first row that matches a form is the one about it."""
