# ruff: noqa: E501 - MLIR has long lines
"""L2 buffers that point to L3 (virtual_npu.codegen.passes.elide_l2_copies), and those that must not."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.air_texts import with_constants

RELAY, LENT = "vnpu::RelayBuffer ", "vnpu::Written{"

# Three points of a launch send the same x, rows of 32 of which 8 are taken, through L2 to two tiles, in another order.
TEMPLATE = """
air.channel @in [1]
air.channel @l1 [1, 1] {broadcast_shape = [2, 1]}
air.channel @out [2, 1]
func.func @f(%x: memref<8x32xf32>, %y: memref<3x2x64xf32>) {
  air.launch (%p) in (%ps=%c3) args(%a=%x, %b=%y) : memref<8x32xf32>, memref<3x2x64xf32> {
    <puts>
    scf.for %t = %c0 to %c2 step %c1 {
      air.channel.get @out[%t, %c0] (%b[%p, %t, %c0] [%c1, %c1, %c64] [%c128, %c64, %c1]) : (memref<3x2x64xf32>)
    }
    air.segment @s {
      %l2 = memref.alloc() : memref<8x8xf32, 1>
      air.channel.get @in[%c0] (%l2<into>) : (memref<8x8xf32, 1>)
      air.channel.put @l1[%c0, %c0] (%l2<from>) : (memref<8x8xf32, 1>)
      air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) {
        %in = memref.alloc() : memref<64xf32, 2>
        air.channel.get @l1[%tx, %ty] (%in[] [] []) : (memref<64xf32, 2>)
        air.channel.put @out[%tx, %ty] (%in[] [] []) : (memref<64xf32, 2>)
        memref.dealloc %in : memref<64xf32, 2>
      }
      memref.dealloc %l2 : memref<8x8xf32, 1>
    }
  }
  return
}"""
ROWS = "air.channel.put @in[%c0] (%a[%c0, %c8] [%c8, %c8] [%c32, %c1]) : (memref<8x32xf32>)"
COLUMNS = "air.channel.put @in[%c0] (%a[%c8, %c0] [%c8, %c8] [%c1, %c32]) : (memref<8x32xf32>)"
DENSE = "air.channel.put @in[%c0] (%a[%c32] [%c64] [%c1]) : (memref<8x32xf32>)"
HALVES = """scf.for %i = %c0 to %c8 step %c4 {
      air.channel.put @in[%c0] (%a[%i, %c8] [%c4, %c8] [%c32, %c1]) : (memref<8x32xf32>)
    }"""
X = np.arange(256, dtype=np.float32).reshape(8, 32)
TAKEN = {
    ROWS: X[:, 8:16],
    COLUMNS: X[:8, 8:16].T,
    DENSE: X.reshape(-1)[32:96].reshape(8, 8),
    HALVES: X[:, 8:16],
}
TURNED = "[%c0, %c0] [%c8, %c8] [%c1, %c8]"
AROUND = "[%c0, %c0] [%c16, %c4] [%c4, %c1]"
"""In an order that goes on where a row of L2 ends, by steps that go around its end."""


def text(puts: str = ROWS, into: str = "[] [] []", out: str = TURNED) -> str:
    return with_constants(TEMPLATE.replace("<puts>", puts).replace("<into>", into).replace("<from>", out))


def emitted(source: str, options: BuildOptions | None = None) -> str:
    return virtual_npu.emit(source, options=options or BuildOptions()).text


def result(program, run, source, options=None, x=X):
    return run(program(source, (), options), "f", x, np.zeros((3, 2, 64), np.float32))[1]


@pytest.mark.parametrize("puts", TAKEN, ids=["rows", "columns", "dense", "halves"])
@pytest.mark.parametrize("out", [TURNED, AROUND, "[] [] []"], ids=["turned", "around", "as it lies"])
def test_a_buffer_that_passes_blocks_on_gives_the_same(program, run, puts, out):
    source = text(puts, out=out)
    assert RELAY in emitted(source)
    assert LENT in emitted(source)
    taken = TAKEN[puts].T if out is TURNED else TAKEN[puts]
    np.testing.assert_array_equal(result(program, run, source), np.broadcast_to(taken.ravel(), (3, 2, 64)))


@pytest.mark.parametrize(
    "options", [BuildOptions(fast=False), BuildOptions(checks=True)], ids=["slow", "checks"]
)
def test_nothing_is_relayed_in_slow_or_checked_builds(program, run, options):
    assert RELAY not in emitted(text(), options)
    np.testing.assert_array_equal(result(program, run, text(), options), result(program, run, text()))


def test_a_buffer_that_is_filled_in_part_takes_copies(program, run):
    source = text(into="[%c0, %c0] [%c8, %c8] [%c8, %c1]")
    assert RELAY not in emitted(source)
    np.testing.assert_array_equal(result(program, run, source), result(program, run, text()))


def test_what_the_launch_writes_is_not_lent():
    source = text(ROWS.replace("%a[", "%b[").replace("8x32", "3x2x64"))
    assert LENT not in emitted(source)


def test_results_over_what_is_read(program, monkeypatch):
    """x is given to y's memory: a later point of the launch reads what an earlier one wrote, fast or not.

    By one thread: several take points of a launch in no order.
    """
    monkeypatch.setenv("VNPU_THREADS", "1")
    memory = [np.arange(384, dtype=np.float32) for _ in range(2)]
    for fast, both in zip((True, False), memory, strict=True):
        program(text(), (), BuildOptions(fast=fast)).run("f", [both.ctypes.data] * 2)
    np.testing.assert_array_equal(memory[0], memory[1])
    assert not np.array_equal(memory[0][128:256], memory[0][256:])


def test_a_launch_keeps_blocks_for_itself_alone(program, run):
    """Its points get one block of what they read; the next launch finds what is there then."""
    source = text()
    for x in (X, X + 1000, X):
        np.testing.assert_array_equal(
            result(program, run, source, x=x), np.broadcast_to(x[:, 8:16].T.ravel(), (3, 2, 64))
        )
