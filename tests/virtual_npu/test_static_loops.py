"""Static check: indices of which aircc makes bounds of a loop, and buffers that a core gets and sends in one
loop. What the comments say of the compilers was seen with mlir-air e972f294 and mlir-aie 7e00b579.
"""

from __future__ import annotations

import pytest

from tests.virtual_npu.static_texts import assert_clean, assert_fault, assert_warning, program

ROW = "memref<1x64xi32, 2>"
WHOLE = "memref<8x64xi32>"
SIZES = "[%c1, %c64] [%c64, %c1]"
TO_L3 = f"air.dma_memcpy_nd (%b[%i, %c0] {SIZES}, %out[] [] []) : ({WHOLE}, {ROW})"
FROM_L3 = f"air.dma_memcpy_nd (%in[] [] [], %a[%r, %c0] {SIZES}) : ({ROW}, {WHOLE})"
ON_CORE = f"memref.store %v, %out[%c0, %r] : {ROW}"
ALSO = f"memref.store %v, %in[%c0, %i] : {ROW}"


def looped(body: str, index: str = "s0", high: str = "%c8", step: str = "%c1") -> str:
    """A loop of a core over %i, of which %r is made; %in and %out are its buffers, %a and %b are in L3."""
    buffers = "".join(f"%{name} = memref.alloc() : {ROW}\n" for name in ("in", "out"))
    made = f"%r = affine.apply affine_map<()[s0] -> ({index})>()[%i]"
    loop = f"scf.for %i = %c0 to {high} step {step} {{\n{made}\n{body}\n}}"
    return program(f"%v = arith.constant 1 : i32\n{buffers}{loop}", args={"a": WHOLE, "b": WHOLE})


UNEVEN = {
    # one descriptor of two rows came of it, and the core waited for six more
    "a quotient, of the rows of L3": (
        looped(f"{FROM_L3}\n{ALSO}\n{TO_L3}", "s0 floordiv 4"),
        r"an index is 0, 0, 0, 0, 1, 1, \.\.\. in the 8 trips .* from 0 to 2, and it is 0, 1; split the loop",
    ),
    # a loop of no trips came of it, and the core had nothing left to do
    "a remainder on the core": (
        looped(f"{ON_CORE}\n{TO_L3}", "s0 mod 4"),
        r"an index is 0, 1, 2, 3, 0, 1, \.\.\. .* from 0 to 0, and it is never there; split the loop in two",
    ),
    "a bound that is no multiple of the step": (
        looped(f"{ON_CORE}\n{TO_L3}", "s0 * 5", step="%c3"),
        "an index is 0, 15, 30 in the 3 trips .* from 0 to 40, and it is 0, 14, 28; ",
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_index_that_even_steps_do_not_give(name: str) -> None:
    text, message = UNEVEN[name]
    assert_fault(text, "folded-index", message)


EVEN = {
    "even steps": looped(f"{FROM_L3}\n{TO_L3}", "s0 * 4 + 1"),
    "a remainder, and the variable itself": looped(f"{ON_CORE}\n{ALSO}\n{TO_L3}", "s0 mod 4"),
}


@pytest.mark.parametrize("name", EVEN)
def test_index_that_stays_as_it_is(name: str) -> None:
    assert_clean(EVEN[name])


COPY = f"%w = memref.load %in[%c0, %c1] : {ROW}\nmemref.store %w, %out[%c0, %c1] : {ROW}"
BACK = TO_L3.replace("%out", "%in")


def test_buffer_that_is_received_and_sent_in_one_loop() -> None:
    """The state of linear attention came before the one of the heads before was out."""
    message = (
        "in one loop, and has a pair of locks for each: the next trip's data may come while this one's are"
    )
    assert_warning(looped(f"{FROM_L3}\n{BACK}"), "in-place", message)


@pytest.mark.parametrize(
    "text",
    [
        looped(f"{FROM_L3}\n{BACK}", high="%c1"),
        looped(f"{FROM_L3}\n{COPY}\n{TO_L3}"),
    ],
    ids=["once", "by way of a copy"],
)
def test_buffer_that_no_next_trip_overtakes(text: str) -> None:
    assert_clean(text)
