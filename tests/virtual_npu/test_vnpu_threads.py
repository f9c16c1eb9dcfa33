"""Parallel loops: whoever shares them, and however long they take, every index is run once and in time."""

import numpy as np
import pytest
from air_texts import with_constants

from aerie import virtual_npu

SHORT, LONG = 400, 3
"""Rounds of the program, one loop over eight tiles each; in the long ones a waiting thread goes to sleep."""

PROGRAM = with_constants("""
func.func @count(%counts: memref<8xf64>, %rounds: memref<1xindex>, %steps: memref<1xindex>) {
  %n = memref.load %rounds[%c0] : memref<1xindex>
  %m = memref.load %steps[%c0] : memref<1xindex>
  scf.for %round = %c0 to %n step %c1 {
    air.herd @tiles tile (%tx, %ty) in (%sx=%c8, %sy=%c1)
        args(%all=%counts, %times=%m) : memref<8xf64>, index {
      %more = arith.constant 1.0 : f64
      %own = memref.alloc() : memref<1xf64, 2>
      air.dma_memcpy_nd (%own[] [] [], %all[%tx] [%c1] [%c1]) : (memref<1xf64, 2>, memref<8xf64>)
      scf.for %step = %c0 to %times step %c1 {
        %old = memref.load %own[%c0] : memref<1xf64, 2>
        %new = arith.addf %old, %more : f64
        memref.store %new, %own[%c0] : memref<1xf64, 2>
      }
      air.dma_memcpy_nd (%all[%tx] [%c1] [%c1], %own[] [] []) : (memref<8xf64>, memref<1xf64, 2>)
      memref.dealloc %own : memref<1xf64, 2>
    }
  }
  return
}
""")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("threads") / "count.so"
    virtual_npu.build(PROGRAM, path)
    return virtual_npu.Library(path)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
@pytest.mark.parametrize(("rounds", "steps"), [(SHORT, 1), (LONG, 500_000)], ids=["short", "long"])
def test_every_tile_runs_once_in_every_loop(library, monkeypatch, threads, rounds, steps):
    monkeypatch.setenv("VNPU_THREADS", threads)
    counts, sizes = np.zeros(8), [np.array([n], np.int64) for n in (rounds, steps)]
    pointers = [array.ctypes.data for array in (counts, *sizes)]
    for call in range(1, 4):
        library.run("count", pointers)
        np.testing.assert_array_equal(counts, call * rounds * steps)
