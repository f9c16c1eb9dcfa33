"""Vectors of i4: made from bytes, widened, narrowed, and packed again; anything else is refused."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu

TEXT = """\
func.func @nibbles(%packed: memref<16xi8>, %unsigned: memref<32xi8>, %signed: memref<32xi32>, %again: memref<16xi8>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0 : i8
  %bytes = vector.transfer_read %packed[%c0], %zero {in_bounds = [true]} : memref<16xi8>, vector<16xi8>
  %lanes = vector.bitcast %bytes : vector<16xi8> to vector<32xi4>
  %wide = arith.extui %lanes : vector<32xi4> to vector<32xi8>
  vector.transfer_write %wide, %unsigned[%c0] {in_bounds = [true]} : vector<32xi8>, memref<32xi8>
  %sign = arith.extsi %lanes : vector<32xi4> to vector<32xi32>
  vector.transfer_write %sign, %signed[%c0] {in_bounds = [true]} : vector<32xi32>, memref<32xi32>
  %low = arith.trunci %sign : vector<32xi32> to vector<32xi4>
  %back = vector.bitcast %low : vector<32xi4> to vector<16xi8>
  vector.transfer_write %back, %again[%c0] {in_bounds = [true]} : vector<16xi8>, memref<16xi8>
  return
}
"""  # noqa: E501


def test_lanes_of_4_bits_keep_their_bits() -> None:
    packed = np.arange(16, dtype=np.uint8).view(np.int8) * 17 + 3
    zeros = np.zeros(32, np.int8), np.zeros(32, np.int32), np.zeros(16, np.int8)
    _, unsigned, signed, again = virtual_npu.Program.from_text(TEXT).run(packed, *zeros).outputs
    raw = packed.view(np.uint8)
    lanes = np.stack([raw & 15, raw >> 4], 1).ravel().astype(np.int32)
    assert np.array_equal(unsigned, lanes)
    assert np.array_equal(signed, np.where(lanes > 7, lanes - 16, lanes))
    assert np.array_equal(again, packed)


def test_arithmetic_on_4_bits_is_refused() -> None:
    text = TEXT.replace("  %wide =", "  %sum = arith.addi %lanes, %lanes : vector<32xi4>\n  %wide =")
    with pytest.raises(virtual_npu.UnsupportedOpError, match=r"line 6: arith.addi: type i4 is not supported"):
        assert virtual_npu.Program.from_text(text).library
