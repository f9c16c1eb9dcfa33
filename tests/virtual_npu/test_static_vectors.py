"""Static check: vector and float operations that the compiler of the cores is known not to lower."""

from __future__ import annotations

import pytest
from static_texts import assert_clean, assert_fault, assert_warning, program

from virtual_npu.static import NPU1


def on_core(op: str, element: str, lanes: int = 16, result: str = "") -> str:
    """A herd that applies one operation to a vector that it loads: `op` names the loaded value %v."""
    vector = f"vector<{lanes}x{element}>"
    return program(
        f"%b = memref.alloc() : memref<64x{element}, 2>\n"
        f"%v = vector.load %b[%c0] : memref<64x{element}, 2>, {vector}\n"
        f"%r = {op} : {result or vector}"
    )


def scalar(op: str) -> str:
    return program(
        "%b = memref.alloc() : memref<64xf32, 2>\n%v = memref.load %b[%c0] : memref<64xf32, 2>\n"
        f"%r = {op} : f32"
    )


CLEAN = {
    "max of bf16": on_core("arith.maximumf %v, %v", "bf16"),
    "product of bf16": on_core("arith.mulf %v, %v", "bf16"),
    "sum of 16 f32": on_core("arith.addf %v, %v", "f32"),
    "sum of 16 i32": on_core("arith.addi %v, %v", "i32"),
    "quotient of f32": on_core("arith.divf %v, %v", "f32"),
    "exp of bf16": on_core("math.exp %v", "bf16"),
    "tanh of bf16": on_core("math.tanh %v", "bf16"),
    "max of scalars": scalar("arith.maximumf %v, %v"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_lowered(name: str) -> None:
    assert_clean(CLEAN[name])


FAULTS = {
    "sum of 8 f32": (
        on_core("arith.addf %v, %v", "f32", 8),
        "vector",
        "arith.addf: .* vector<8xf32>: the backend of the core cannot legalize <8 x s32> G_FADD; use 16",
    ),
    "sum of 8 i32": (
        on_core("arith.addi %v, %v", "i32", 8),
        "vector",
        "vector<8xi32>: .*<8 x s32> G_ADD; use 16 lanes .mlir-air python/air/api/types.py",
    ),
    "quotient of bf16": (
        on_core("arith.divf %v, %v", "bf16"),
        "vector",
        "cannot legalize G_FDIV of bf16 vectors; divide in f32 .mlir-air python/air/api/ops.py",
    ),
    "exp of f32": (on_core("math.exp %v", "f32"), "vector", "cannot legalize G_FEXP of f32; convert to bf16"),
    "exp of a scalar": (scalar("math.exp %v"), "vector", "math.exp: .* f32: .*G_FEXP of f32"),
    "quotient of scalars": (
        scalar("arith.divf %v, %v"),
        "stack",
        "a division of scalar floats takes about 1152 bytes of stack, and a core has 1024; multiply with",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_lowered(name: str) -> None:
    text, kind, message = FAULTS[name]
    assert_fault(text, kind, message)


def test_what_aie2_lacks() -> None:
    tanh, quotient = on_core("math.tanh %v", "bf16"), on_core("arith.divf %v, %v", "f32")
    assert_fault(tanh, "vector", "only AIE2P has a tanh; call a C.. function", device=NPU1)
    assert_fault(quotient, "vector", "only AIE2P divides vectors; divide scalars", device=NPU1)


def test_what_is_recorded_of_aie2p_only() -> None:
    assert_clean(on_core("math.exp %v", "f32"), device=NPU1)
    assert_clean(on_core("arith.mulf %v, %v", "f32"), device=NPU1)


def test_more_stack_allows_a_division() -> None:
    assert_clean(scalar("arith.divf %v, %v"), stack_bytes=2048)


EMULATED = {
    "max": (
        "arith.maximumf %v, %v",
        "",
        "convert-vector-to-aievec has no f32 max; convert to bf16",
    ),
    "product": ("arith.mulf %v, %v", "", "arith.mulf of f32 vectors is not legalized"),
    "comparison": ("arith.cmpf olt, %v, %v", "vector<16xf32>", "aievec.cmp of f32 vectors is not legalized"),
    "multiply-add": (
        "vector.fma %v, %v, %v",
        "",
        "only where both factors come straight from arith.extf of bf16",
    ),
}


@pytest.mark.parametrize("name", EMULATED)
def test_f32_vectors_need_emulation(name: str) -> None:
    op, result, message = EMULATED[name]
    assert_warning(on_core(op, "f32", result=result), "vector", message)
    assert_clean(on_core(op, "f32", result=result), bf16_emulation=True)


def test_a_multiply_add_of_widened_factors() -> None:
    text = program(
        "%b = memref.alloc() : memref<64xbf16, 2>\n"
        "%v = vector.load %b[%c0] : memref<64xbf16, 2>, vector<16xbf16>\n"
        "%w = arith.extf %v : vector<16xbf16> to vector<16xf32>\n"
        "%z = arith.constant dense<0.0> : vector<16xf32>\n"
        "%r = vector.fma %w, %w, %z : vector<16xf32>"
    )
    assert_clean(text)


def test_the_host_may_do_what_a_core_cannot() -> None:
    assert_clean(program(function="%x = arith.constant 1.0 : f32\n%r = arith.divf %x, %x : f32"))


def at(index: str) -> str:
    return program(
        "%b = memref.alloc() : memref<256xbf16, 2>\nscf.for %i = %c0 to %c8 step %c1 {\n"
        f"%o = affine.apply affine_map<(d0) -> ({index})>(%i)\n"
        "%v = vector.load %b[%o] : memref<256xbf16, 2>, vector<16xbf16>\n"
        "vector.store %v, %b[%o] : memref<256xbf16, 2>, vector<16xbf16>\n}"
    )


def test_vectors_are_aligned_to_their_width() -> None:
    assert_clean(at("d0 * 16"))
    text = program(
        "%b = memref.alloc() : memref<256xbf16, 2>\n"
        "%v = vector.load %b[%c8] : memref<256xbf16, 2>, vector<16xbf16>"
    )
    message = (
        "vector.load: .* 256 bits at steps of 16 bytes; native loads and stores of 256 bits are aligned to 32"
    )
    assert_warning(text, "vector-alignment", message)


def test_an_alignment_that_cannot_be_told_is_not_complained_about() -> None:
    text = program(
        "%b = memref.alloc() : memref<256xbf16, 2>\n%n = memref.alloc() : memref<1xindex, 2>\n"
        "%o = memref.load %n[%c0] : memref<1xindex, 2>\n"
        "%v = vector.load %b[%o] : memref<256xbf16, 2>, vector<16xbf16>"
    )
    assert_clean(text)
