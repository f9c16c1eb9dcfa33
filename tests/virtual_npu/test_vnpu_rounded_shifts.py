"""Shift, clamp and truncation, which a core does as one operation that rounds."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import vnpu

TEXT = """
func.func @f(%x: memref<64xi32>, %y: memref<64xi32>) {
  %c1 = arith.constant 1 : index
  air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%a=%x, %b=%y) : memref<64xi32>, memref<64xi32> {
    %in = memref.alloc() : memref<64xi32, 2>
    %out = memref.alloc() : memref<64xi32, 2>
    air.dma_memcpy_nd (%in[] [] [], %a[] [] []) : (memref<64xi32, 2>, memref<64xi32>)
    %first = arith.constant 0 : index
    %one = arith.constant 1 : index
    %last = arith.constant 64 : index
    %bits = arith.constant BITS : i32
    %low = arith.constant LOW : i32
    %high = arith.constant HIGH : i32
    scf.for %i = %first to %last step %one {
      %v = memref.load %in[%i] : memref<64xi32, 2>
      CHAIN
      memref.store %w, %out[%i] : memref<64xi32, 2>
    }
    air.dma_memcpy_nd (%b[] [] [], %out[] [] []) : (memref<64xi32>, memref<64xi32, 2>)
    memref.dealloc %in : memref<64xi32, 2>
    memref.dealloc %out : memref<64xi32, 2>
  }
  return
}"""
SHIFT = "%s = arith.shrsi %v, %bits : i32\n"
CLAMP = "%l = arith.maxsi %s, %low : i32\n%c = arith.minsi %l, %high : i32\n"
TURNED = "%l = arith.minsi %s, %high : i32\n%c = arith.maxsi %l, %low : i32\n"
CUT = "%t = arith.trunci %c : i32 to iWIDTH\n%w = arith.extsi %t : iWIDTH to i32\n"
X = np.concatenate([np.arange(-24, 25), np.arange(8) * 700 - 2800, [2**31 - 1, -(2**31)], np.arange(5)])


def shifted(chain: str, bits: int, low: int, high: int, width: int = 8) -> np.ndarray:
    text = TEXT.replace("CHAIN", chain).replace("BITS", str(bits)).replace("WIDTH", str(width))
    text = text.replace("LOW", str(low)).replace("HIGH", str(high))
    return vnpu.run(text, X.astype(np.int32), np.zeros(64, np.int32)).outputs[1]


@pytest.mark.parametrize(
    ("chain", "bits", "low", "high", "width"),
    [
        (SHIFT + CLAMP + CUT, 4, -128, 127, 8),
        (SHIFT + TURNED + CUT.replace("extsi", "extui"), 2, 0, 255, 8),
        (SHIFT + CLAMP + CUT, 0, -32768, 32767, 16),
    ],
)
def test_a_core_rounds_halves_up(chain: str, bits: int, low: int, high: int, width: int) -> None:
    half = (1 << bits) >> 1
    wanted = np.clip((X.astype(np.int64) + half) >> bits, low, high)
    assert np.array_equal(shifted(chain, bits, low, high, width), wanted)


def test_other_shifts_round_down() -> None:
    kept = CUT.replace("%c", "%s")
    wanted = (X >> 4).astype(np.int8).astype(np.int32)
    assert np.array_equal(shifted(SHIFT + kept, 4, 0, 0), wanted)
    wanted = np.clip(X >> 4, -100, 100)
    assert np.array_equal(shifted(SHIFT + CLAMP + CUT, 4, -100, 100), wanted)
