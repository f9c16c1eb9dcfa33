"""Checked runs stay linear in their events, and their reports do not depend on the number of threads."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import arrays
from benchmarks.checks_scale import apart, points, transfers

CHECKS = virtual_npu.BuildOptions(checks=True)


@pytest.mark.parametrize("make", [transfers, apart], ids=["in turn", "apart"])
def test_transfers_take_time_in_proportion_to_their_number(program, make):
    """By what the program computes: in the square of their number, these would take very long."""
    library = program(make(50_000), options=CHECKS)
    (entry,) = library.entries.values()
    x, y = arrays.random_arrays(entry, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    arrays.run_entry(library, entry, [x, y])
    assert np.array_equal(y, x + 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 20


def test_points_of_an_asynchronous_launch_give_what_a_convolution_gives(program):
    library = program(points(6), options=CHECKS)
    (entry,) = library.entries.values()
    x, w, y = arrays.random_arrays(entry, 1)
    arrays.run_entry(library, entry, [x, w, y])
    expected = np.zeros((6, 32, 4, 16), np.float64)
    for u in range(3):
        for v in range(3):
            expected += np.einsum("ijm,gmc->ijgc", x[u : u + 6, v : v + 32], w[:, u, v])
    assert np.allclose(y.reshape(expected.shape), expected, atol=1e-4)


RACE = """
module {
  func.func @race(%x: memref<64xi32>) {
    %n = arith.constant 8 : index
    %t = air.launch ORDER (%i) in (%s=%n) args(%a=%x) : memref<64xi32> {
      air.segment @s args(%b=%a, %j=%i) : memref<64xi32>, index {
        %c1 = arith.constant 1 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%c=%b, %k=%j) : memref<64xi32>, index {
          %c0 = arith.constant 0 : index
          %c1_0 = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %c9 = arith.constant 9 : index
          %c55 = arith.constant 55 : index
          %at = arith.muli %k, %c8 : index
          %first = arith.minui %at, %c55 : index
          %zero = arith.constant 0 : i32
          %l = memref.alloc() : memref<9xi32, 2>
          linalg.fill ins(%zero : i32) outs(%l : memref<9xi32, 2>)
          air.dma_memcpy_nd (%c[%first] [%c9] [%c1_0], %l[] [] []) : (memref<64xi32>, memref<9xi32, 2>)
          memref.dealloc %l : memref<9xi32, 2>
        }
      }
    }
    return
  }
}
"""


@pytest.mark.parametrize("order", ["async", ""], ids=["asynchronous", "waited for"])
def test_a_race_of_two_launch_points_reads_the_same_on_any_number_of_threads(monkeypatch, order):
    text = RACE.replace("ORDER", order).replace("%t = ", "%t = " if order else "")
    program = virtual_npu.Program.from_text(text)
    messages = set()
    for threads in (1, 2, 4) * 3:
        monkeypatch.setenv("VNPU_THREADS", str(threads))
        with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
            program.run(np.zeros(64, np.int32))
        assert caught.value.kind == "race"
        messages.add(str(caught.value))
    (message,) = messages
    assert "in herd @h (0, 0) of launch (1): data race: this writes element 8 of %x" in message
    assert "in herd @h (0, 0) of launch (0) writes" in message


ORDERED = """
module {
  func.func @ordered(%x: memref<64xi32>) {
    %n = arith.constant 4 : index
    %t = air.launch async (%i) in (%s=%n) args(%a=%x) : memref<64xi32> {
      BODY
    }
    %u = air.launch async TOKEN (%i) in (%s=%n) args(%a=%x) : memref<64xi32> {
      BODY
    }
    air.wait_all [%t, %u]
    return
  }
}
""".replace(
    "BODY",
    """air.segment @s args(%b=%a, %j=%i) : memref<64xi32>, index {
        %c1 = arith.constant 1 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%c=%b, %k=%j) : memref<64xi32>, index {
          %c1_0 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %first = arith.muli %k, %c16 : index
          %l = memref.alloc() : memref<16xi32, 2>
          air.dma_memcpy_nd (%l[] [] [], %c[%first] [%c16] [%c1_0]) : (memref<16xi32, 2>, memref<64xi32>)
          air.dma_memcpy_nd (%c[%first] [%c16] [%c1_0], %l[] [] []) : (memref<64xi32>, memref<16xi32, 2>)
          memref.dealloc %l : memref<16xi32, 2>
        }
      }""",
)


def test_a_launch_comes_after_another_one_by_its_token_alone():
    x = np.arange(64, dtype=np.int32)
    ordered = virtual_npu.Program.from_text(ORDERED.replace("TOKEN", "[%t]"))
    assert np.array_equal(ordered.run(x).outputs[0], x)
    with pytest.raises(
        virtual_npu.VirtualNpuRuntimeError, match=r"of launch \(0\): data race: this reads element 0"
    ) as caught:
        virtual_npu.Program.from_text(ORDERED.replace("TOKEN", "")).run(x)
    assert caught.value.kind == "race"


STOPS = """
module {
  air.channel @in []
  func.func @stops(%x: memref<64xi32>) {
    air.launch () in () args(%a=%x) : memref<64xi32> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %many = arith.constant 2000 : index
      scf.for %i = %c0 to %many step %c1 {
        %c64 = arith.constant 64 : index
        %c2 = arith.constant 2 : index
        %part = arith.remui %i, %c2 : index
        air.channel.put @in[] (%a[%part] [%c1] [%c1]) : (memref<64xi32>)
      }
    }
    return
  }
}
"""


def test_a_deadlock_of_many_operations_is_reported(program):
    library = program(STOPS, options=CHECKS)
    x = np.zeros(64, np.int32)
    with pytest.raises(
        virtual_npu.VirtualNpuDeadlock, match=r"put @in\[0\] \(2 put so far, 2 in flight\): no get makes room"
    ):
        library.run("stops", [x.ctypes.data])
