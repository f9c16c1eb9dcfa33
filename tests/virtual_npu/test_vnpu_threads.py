"""Parallel loops: whoever shares them, and however long they take, every index is run once and in time.

And the team of threads behind them: one for all native code of a process.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.air_texts import with_constants

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
func.func @beyond(%counts: memref<8xf64>, %past: memref<1xindex>) {
  %n = memref.load %past[%c0] : memref<1xindex>
  air.herd @tiles tile (%tx, %ty) in (%sx=%c8, %sy=%c1) args(%all=%counts, %far=%n) : memref<8xf64>, index {
    %own = memref.alloc() : memref<1xf64, 2>
    %at = arith.addi %tx, %far : index
    air.dma_memcpy_nd (%own[] [] [], %all[%at] [%c1] [%c1]) : (memref<1xf64, 2>, memref<8xf64>)
    memref.dealloc %own : memref<1xf64, 2>
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


def count(library, rounds=SHORT):
    """Has the tiles count on zeros; each should come to `rounds`."""
    counts, sizes = np.zeros(8), [np.array([n], np.int64) for n in (rounds, 1)]
    library.run("count", [array.ctypes.data for array in (counts, *sizes)])
    return counts


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_after_a_failure_the_threads_work_on(library, monkeypatch, threads):
    """The message is of the lowest tile that fails, whoever met it first."""
    monkeypatch.setenv("VNPU_THREADS", threads)
    counts, past = np.zeros(8), np.array([6], np.int64)
    for _ in range(20):
        with pytest.raises(
            virtual_npu.VirtualNpuRuntimeError, match=r"\(2, 0\).*elements 8 to 8 of a buffer"
        ):
            library.run("beyond", [counts.ctypes.data, past.ctypes.data])
        np.testing.assert_array_equal(count(library, 3), 3)


def test_two_at_once_come_to_the_same(library, monkeypatch):
    """A team is at work for one at a time; the other one goes on alone."""
    monkeypatch.setenv("VNPU_THREADS", "2")
    with ThreadPoolExecutor(2) as pool:
        for counts in pool.map(lambda _: count(library, 20), range(40)):
            np.testing.assert_array_equal(counts, 20)


def test_waiting_threads_sleep(library, monkeypatch):
    """What they poll for between two runs would take a core each."""
    monkeypatch.setenv("VNPU_THREADS", "4")
    count(library)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.2  # one that polls takes 0.3, three more


IN_A_PROCESS = """
import os, sys
import numpy as np
from aerie import virtual_npu
from aerie.engine.attention import CacheAttention
from aerie.engine.numerics import bf16
from aerie.virtual_npu import thread_team

thread_team.limit_threads(64)

def threads():
    return len(os.listdir("/proc/self/task"))

def count(library):
    counts, sizes = np.zeros(8), [np.array([n], np.int64) for n in (50, 1)]
    library.run("count", [array.ctypes.data for array in (counts, *sizes)])
    return set(counts.tolist())

def attend():
    keys = np.ones((2, 2048, 64), bf16)
    attention = CacheAttention([(keys, keys)], 1024, [slice(0, 2048)])
    attention.set_position(2047, [slice(0, 2048)])
    attention.layer_work(0, *(np.ones(size, bf16) for size in (1024, 128, 128)))[1].run()
    return set(attention.out.astype(float).tolist())

before = threads()
first, second = (virtual_npu.Library(path) for path in sys.argv[1:])
print(count(first), count(second), attend(), threads() - before, flush=True)
child = os.fork()
line = f"{'parent' if child else 'child'} {count(first)} {count(second)} {attend()}\\n"
os.write(1, line.encode())
if child == 0:
    os._exit(threads() - 1)
print("threads of the child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux shows them")
def test_one_team_for_all_native_code(library, tmp_path):
    """Two programs and decode attention, with three threads, start two; a child of a fork starts its own."""
    copy = tmp_path / "other.so"
    copy.write_bytes(library.path.read_bytes())
    environment = {**os.environ, "VNPU_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(library.path), str(copy)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == [
        "child {50.0} {50.0} {1.0}",
        "parent {50.0} {50.0} {1.0}",
        "threads of the child: 2",
        "{50.0} {50.0} {1.0} 2",
    ], done.stderr
