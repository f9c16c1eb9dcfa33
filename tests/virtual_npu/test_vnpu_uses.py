"""Which part of a buffer an operation uses, with all inside it: first and last element, over all tiles."""

from __future__ import annotations

from aerie.air_dialect import parse
from aerie.air_dialect.ops import HerdOp
from aerie.virtual_npu.codegen.effects import operand_effects

HERD = """
func.func @f(%m: memref<64xf32, 2>) {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  air.herd @h tile (%x, %y) in (%sx=%c2, %sy=%c1) args(%n=%m) : memref<64xf32, 2> {
    %c0 = arith.constant 0 : index
    %c1_0 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %c40 = arith.constant 40 : index
    %first = arith.muli %x, %c16 : index
    scf.for %i = %c0 to %c8 step %c1_0 {
      %at = arith.addi %first, %i : index
      %v = memref.load %n[%at] : memref<64xf32, 2>
      memref.store %v, %n[%c40] : memref<64xf32, 2>
    }
    %w = memref.load %n[%c40] : memref<64xf32, 2>
    memref.store %w, %n[%c16] : memref<64xf32, 2>
  }
  return
}
"""


def test_accesses_of_all_tiles_are_taken_together() -> None:
    herd = next(op for op in parse(HERD).walk() if isinstance(op, HerdOp))
    (memref,) = herd.kernel_operands
    assert {(value, writes): span for value, writes, span in operand_effects(herd)} == {
        (memref, False): (0, 40),
        (memref, True): (16, 40),
    }
