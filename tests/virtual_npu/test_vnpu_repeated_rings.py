# ruff: noqa: E501 - MLIR has long lines
"""A memtile passes blocks on as often as they come (virtual_npu.codegen.passes.repeat_memtile_transfers)."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie import vnpu
from aerie.virtual_npu.toolchain import ir_at_stage
from tests.virtual_npu.air_texts import with_constants

# Two members of a bundle, each with a memtile buffer of its own: the launch sends 3 and 5 blocks of 16, and two cores take them.
TEXT = """
module {
  air.channel @a [2]
  air.channel @b [2]
  air.channel @out [2]
  func.func @f(%x: memref<2x5x16xf32>, %y: memref<2x5x16xf32>) {
    air.launch () in () args(%m=%x, %n=%y) : memref<2x5x16xf32>, memref<2x5x16xf32> {
      scf.for %i = %c0 to %c3 step %c1 {
        air.channel.put @a[%c0] (%m[%c0, %i, %c0] [%c1, %c1, %c16] [%c80, %c16, %c1]) : (memref<2x5x16xf32>)
        air.channel.get @out[%c0] (%n[%c0, %i, %c0] [%c1, %c1, %c16] [%c80, %c16, %c1]) : (memref<2x5x16xf32>)
      }
      scf.for %i = %c0 to %c5 step %c1 {
        air.channel.put @a[%c1] (%m[%c1, %i, %c0] [%c1, %c1, %c16] [%c80, %c16, %c1]) : (memref<2x5x16xf32>)
        air.channel.get @out[%c1] (%n[%c1, %i, %c0] [%c1, %c1, %c16] [%c80, %c16, %c1]) : (memref<2x5x16xf32>)
      }
      air.segment @s {
        %l2 = memref.alloc() : memref<16xf32, 1>
        %l2_1 = memref.alloc() : memref<16xf32, 1>
        air.channel.get @a[%c0] (%l2[] [] []) : (memref<16xf32, 1>)
        air.channel.put @b[%c0] (%l2[] [] []) : (memref<16xf32, 1>)
        scf.for %t = %c0 to %c4 step %c1 {
          air.channel.get @a[%c1] (%l2_1[] [] []) : (memref<16xf32, 1>)
          air.channel.put @b[%c1] (%l2_1[] [] []) : (memref<16xf32, 1>)
        }
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) {
          %l1 = memref.alloc() : memref<16xf32, 2>
          %is_second = arith.cmpi eq, %tx, %c1 : index
          %end = arith.select %is_second, %c5, %c3 : index
          scf.for %t = %c0 to %end step %c1 {
            air.channel.get @b[%tx] (%l1[] [] []) : (memref<16xf32, 2>)
            air.channel.put @out[%tx] (%l1[] [] []) : (memref<16xf32, 2>)
          }
          memref.dealloc %l1 : memref<16xf32, 2>
        }
        memref.dealloc %l2 : memref<16xf32, 1>
        memref.dealloc %l2_1 : memref<16xf32, 1>
      }
    }
    return
  }
}
"""
X = np.arange(160, dtype=np.float32).reshape(2, 5, 16)


def test_each_member_of_a_bundle_repeats_as_often_as_its_own_ends_ask():
    # A ring without a loop, of 3 blocks; and a loop of 4 in the text, although both ends want 5.
    (_, y) = vnpu.run(with_constants(TEXT), X, np.zeros_like(X)).outputs
    np.testing.assert_array_equal(y[0, :3], X[0, :3])
    np.testing.assert_array_equal(y[1], X[1])
    assert not y[0, 3:].any()


def test_a_ring_whose_ends_do_not_agree_is_left_as_it_is():
    text = TEXT.replace("arith.select %is_second, %c5, %c3", "arith.select %is_second, %c5, %c2")
    with pytest.raises(vnpu.VirtualNpuDeadlock):
        vnpu.run(with_constants(text), X, np.zeros_like(X))


@pytest.mark.parametrize(("part", "trips"), [("[%c0] [%c8] [%c1]", 10), ("[%t] [%c8] [%c1]", 4)])
def test_a_loop_that_does_the_same_each_time_gets_the_trips_of_both_ends(part, trips):
    text = with_constants(TEXT.replace("%l2_1[] [] []", f"%l2_1{part}"))
    (end,) = re.findall(
        r"scf.for %t = %\w+ to (%\w+) [^\n]*\n *air.channel.get @a", ir_at_stage(text, "inlined")
    )
    assert f"{end} = arith.constant {trips} : index" in ir_at_stage(text, "inlined")
