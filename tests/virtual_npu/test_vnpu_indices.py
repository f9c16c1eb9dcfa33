"""Indices in generated C++ and in the static check: both read them with the table of air_dialect.indices."""

from __future__ import annotations

import re

import pytest

from aerie.virtual_npu import BuildOptions
from aerie.virtual_npu.toolchain import emit
from tests.virtual_npu.air_texts import with_constants
from tests.virtual_npu.static_texts import assert_fault, program


def generated(body: str) -> str:
    """The C++ of a function with an argument %x: memref<4x8xf32> and some constants."""
    text = f"""func.func @f(%x: memref<4x8xf32>, %n: index) {{
      %c2 = index.constant 2
      %v = arith.constant 1.0 : f32
      {body}
      return
    }}"""
    return emit(with_constants(text)).text


@pytest.mark.parametrize(
    "index",
    [
        "%i = index.add %c1, %c2",
        "%t, %i = air.execute -> (index) { %s = arith.addi %c1, %c2 : index\n"
        "air.execute_terminator %s : index }",
        "%i = arith.maxsi %c1, %two : index\n",
        "%i = affine.max affine_map<(d) -> (d + 1, 3)>(%c2)",
        "%i, %j = affine.delinearize_index %c29 into (4, 8) : index, index",
    ],
    ids=lambda index: index.partition("=")[2].split()[0],
)
def test_a_known_index_is_a_number_in_cpp(index: str) -> None:
    """Also inside of a herd that captures it, where it is no parameter."""
    body = f"""%two = arith.constant 3 : index
      {index}
      air.herd @h tile (%a, %b) in (%sx=%c1, %sy=%c1) args(%k=%i, %y=%x) : index, memref<4x8xf32> {{
        %l1 = memref.alloc() : memref<8xf32, 2>
        air.dma_memcpy_nd (%l1[] [] [], %y[%k, %c0] [%c1, %c8] [%c8, %c1])
            : (memref<8xf32, 2>, memref<4x8xf32>)
        memref.dealloc %l1 : memref<8xf32, 2>
      }}"""
    text = generated(body)
    assert "3 * 8" in text or ", 24, " in text, text
    assert "vnpu::i64 v_k" not in text


def test_a_number_that_does_not_fit_is_left_to_the_machine() -> None:
    """It stood in the C++ as it was, and went on as 300 where it should have been 44."""
    text = generated(
        "%wide = arith.constant 300 : i32\n%byte = arith.trunci %wide : i32 to i8\n"
        "%i = arith.index_cast %byte : i8 to index\nmemref.store %v, %x[%c1, %i] : memref<4x8xf32>"
    )
    assert "byte = vnpu::cast<int8_t>(int32_t(int32_t(300)));" in text
    assert "300]" not in text


@pytest.mark.parametrize(
    ("step", "index", "bounds"),
    [("1", "%j", ".between(2, 28)"), ("%n", "%j", ""), ("1", "%far", "")],
    ids=["constant bounds", "a step known at run time", "an index that was loaded"],
)
def test_loops_with_checks_know_what_they_touch(step: str, index: str, bounds: str) -> None:
    """From element 0 * 8 + 2 to 3 * 8 + 4: one test before the loops takes the place of one per access."""
    stride = "?" if step == "%n" else "8"
    view = f"memref<4x8xf32, strided<[{stride}, 1]>>"
    text = f"""func.func @f(%x: memref<4x8xf32>, %at: memref<8xindex>, %n: index) {{
      %y = memref.subview %x[0, 0] [4, 8] [{step}, 1] : memref<4x8xf32> to {view}
      affine.for %i = 0 to 4 {{
        affine.for %j = 2 to 5 {{
          %far = memref.load %at[%j] : memref<8xindex>
          %v = memref.load %y[%i, {index}] : {view}
          memref.store %v, %y[%i, {index}] : {view}
        }}
      }}
      return
    }}"""
    code = emit(text, options=BuildOptions(checks=True)).text
    (of_y,) = re.findall(r"vnpu::part\(v_y, [^)]*\)(\.between\([^)]*\))?", code)
    assert of_y == bounds


@pytest.mark.parametrize(
    "index", ["index.mul %x, %c3", "arith.muli %x, %three : index"], ids=["index.mul", "through air.execute"]
)
def test_the_static_check_reads_offsets_like_everybody(index: str) -> None:
    """Each was an offset of which nothing was known, and a warning at most."""
    herd = f"""
      %t, %three = air.execute -> (index) {{
        air.execute_terminator %c3 : index
      }}
      %at = {index}
      %l1 = memref.alloc() : memref<8xbf16, 2>
      air.dma_memcpy_nd (%l1[] [] [], %a[%at] [%c8] [%c1]) : (memref<8xbf16, 2>, memref<64x64xbf16>)
    """
    assert_fault(program(herd, tiles="%c2, %c1"), "alignment", "an offset that may be no multiple of 4 bytes")
