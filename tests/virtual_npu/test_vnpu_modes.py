# ruff: noqa: E501 - MLIR has long lines
"""The rounding mode belongs to a core: no tile sees what another one set."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

SOURCE = """
#include <aie_api/aie.hpp>
extern "C" void even(int32_t on) {
  if (on) aie::set_rounding(aie::rounding_mode::conv_even);
}
extern "C" void narrow(float *x, bfloat16 *y) {
  for (int i = 0; i < 4; ++i) y[i] = bfloat16(x[i]);
}
"""

BODY = """
          %t = memref.alloc() : memref<4xf32, 2>
          %u = memref.alloc() : memref<4xbf16, 2>
          %on = arith.index_cast %tx : index to i32
          func.call @even(%on) : (i32) -> ()
          IN
          func.call @narrow(%t, %u) : (memref<4xf32, 2>, memref<4xbf16, 2>) -> ()
          air.dma_memcpy_nd (%hb[%tx, %c0] [%c1, %c4] [%c4, %c1], %u[] [] []) : (memref<2x4xbf16>, memref<4xbf16, 2>)"""


def function(name: str, get: str, put: str) -> str:
    body = BODY.replace("IN", get)
    return f"""
  func.func @{name}(%x: memref<4xf32>, %y: memref<2x4xbf16>) {{
    air.launch () in () args(%a=%x, %b=%y) : memref<4xf32>, memref<2x4xbf16> {{
      {put}
      air.segment @s args(%sa=%a, %sb=%b) : memref<4xf32>, memref<2x4xbf16> {{
        %c1s = arith.constant 1 : index
        %c2s = arith.constant 2 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c2s, %sy=%c1s) args(%ha=%sa, %hb=%sb) : memref<4xf32>, memref<2x4xbf16> {{
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c4 = arith.constant 4 : index
{body}
        }}
      }}
    }}
    return
  }}"""


DMA = "air.dma_memcpy_nd (%t[] [] [], %ha[] [] []) : (memref<4xf32, 2>, memref<4xf32>)"
GET = "air.channel.get @in[%tx, %ty] (%t[] [] []) : (memref<4xf32, 2>)"
PUT = "air.channel.put @in[] (%a[] [] []) : (memref<4xf32>)"


@pytest.fixture(scope="module")
def library(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "modes.cc").write_text(SOURCE)
    declarations = """
  func.func private @even(i32) attributes {link_with = "modes.o"}
  func.func private @narrow(memref<4xf32, 2>, memref<4xbf16, 2>) attributes {link_with = "modes.o"}
  air.channel @in [1, 1] {broadcast_shape = [2, 1]}"""
    text = declarations + function("alone", DMA, "") + function("turns", GET, PUT)
    return program(f"module {{{text}\n}}", kernel_dirs=(folder,))


@pytest.mark.parametrize("entry", ["alone", "turns"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_every_tile_starts_with_the_devices_default(library, run, entry, threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    x = np.array([1 + 2**-8 + 2**-9, -1 - 2**-9, 1 + 2**-9, 3], np.float32)
    even = x.astype(ml_dtypes.bfloat16)
    floor = np.array([1, -1 - 2**-7, 1, 3], np.float32).astype(ml_dtypes.bfloat16)
    for _ in range(2):
        _, y = run(library, entry, x, np.zeros((2, 4), ml_dtypes.bfloat16))
        np.testing.assert_array_equal(y[0], floor)  # tile 0 sets nothing
        np.testing.assert_array_equal(y[1], even)
