"""Static check: what vectors and divisions ask of a core, stack and alignment."""

from __future__ import annotations

from static_texts import assert_clean, assert_fault, assert_warning, program

QUOTIENT = program(
    "%b = memref.alloc() : memref<64xf32, 2>\n%v = memref.load %b[%c0] : memref<64xf32, 2>\n"
    "%r = arith.divf %v, %v : f32"
)


def test_a_division_of_scalars_takes_stack() -> None:
    message = (
        "a division of scalar floats takes about 1152 bytes of stack, and a core has 1024; multiply with"
    )
    assert_fault(QUOTIENT, "stack", message)
    assert_clean(QUOTIENT, stack_bytes=2048)


def test_the_host_may_divide() -> None:
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
