"""Which part of a buffer an operation uses, with all inside it: first and last element, over all tiles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aerie.air_dialect import parse
from aerie.air_dialect.ops import HerdOp
from aerie.virtual_npu.codegen.effects import operand_effects
from aerie.virtual_npu.codegen.memory import uses_of

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


def the_herd() -> HerdOp:
    return next(op for op in parse(HERD).walk() if isinstance(op, HerdOp))


def test_accesses_of_all_tiles_are_taken_together() -> None:
    herd = the_herd()
    (memref,) = herd.kernel_operands
    assert {(value, writes): span for value, writes, span in operand_effects(herd)} == {
        (memref, False): (0, 40),
        (memref, True): (16, 40),
    }


def test_a_use_has_the_first_element_and_the_last() -> None:
    """What comes later waits for it, even where the two meet in one element alone."""
    body: Any = SimpleNamespace(memref=lambda _: SimpleNamespace(pointer="m", footprint="64", copies=1))
    assert sorted(uses_of(body, the_herd())) == ["vnpu::reads(m, 41)", "vnpu::writes(m + 16, 25)"]
