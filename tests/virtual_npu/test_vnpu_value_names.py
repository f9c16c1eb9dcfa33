"""Messages name values as the text does, and by the names of MLIR's locations where MLIR made the name up."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import vnpu

TEXT = """\
#loc = loc("k.py":1:2)
#loc3 = loc("acc"(#loc))
#loc4 = loc(#loc4)
module {
  func.func @main(%arg0: memref<4xf32> loc("x"(#loc)), %n_2: index) {
    VALUE
    %v = memref.load NAME[%n_2] : memref<4xf32, 2>
    return
  }
}
"""


def failure(value: str, name: str, text: str = TEXT) -> str:
    with pytest.raises(vnpu.VirtualNpuRuntimeError) as caught:
        vnpu.run(
            text.replace("VALUE", value).replace("NAME", name), np.zeros(4, np.float32), np.array(0, np.int64)
        )
    return str(caught.value)


ALLOC = "= memref.alloc() : memref<4xf32, 2>"


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (f"%0 {ALLOC}", "%0", "%0"),
        (f"%buffer_7 {ALLOC}", "%buffer_7", "%buffer_7"),
        (f'%0 {ALLOC} loc("sum"(#loc))', "%0", "%sum"),
        (f"%alloc_1 {ALLOC} loc(#loc3)", "%alloc_1", "%acc"),
        (f'%0 {ALLOC} loc("a sum")', "%0", '%"a sum"'),
        (f'%mine {ALLOC} loc("sum"(#loc))', "%mine", "%mine"),
        (f"%0 {ALLOC} loc(#loc)", "%0", "%0"),
        (f"%0 {ALLOC} loc(#loc4)", "%0", "%0"),
        (f'%0 {ALLOC} loc("k.py":3:4)', "%0", "%0"),
        (f'%0 {ALLOC} loc(fused<"CSE">["k.py":3:4, #loc3])', "%0", "%acc"),
        (f'%0 {ALLOC} loc(fused["k.py":3:4, "sum"("k.py":5:6), "other"])', "%0", "%sum"),
        (f"%0 {ALLOC} loc(fused[#loc, #loc4])", "%0", "%0"),
        (f'%0 {ALLOC} loc(callsite("f"("k.py":3:4) at "k.py":5:6))', "%0", "%0"),
        (
            '%0 = "memref.alloc"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<4xf32, 2>',
            "%0",
            "%0",
        ),
    ],
)
def test_a_buffer_is_named_as_in_the_text_or_by_its_location(value, name, shown):
    assert f"reads element [0] of {shown} (memref<4xf32, 2>, allocated at line 6)" in failure(value, name)


def test_an_argument_is_named_by_its_location():
    text = TEXT.replace(
        "%v = memref.load NAME[%n_2] : memref<4xf32, 2>", "%v = memref.load %arg0[%c9] : memref<4xf32>"
    )
    message = failure("%c9 = arith.constant 9 : index", "", text)
    assert "index 9 of dimension 0 is outside memref<4xf32> %x" in message
