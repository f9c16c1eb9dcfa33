"""A program that does not end can be stopped, and leaves nothing running.

From the command line its process ends; in a Python program the handlers of signals run meanwhile, and what
they raise ends the run, and so does a Stop that is set. How soon is not measured here: these programs would
take years.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import child_process
from aerie.virtual_npu.cancellation import RunStopped, StopFlag, stop_this_thread
from aerie.virtual_npu.errors import VirtualNpuRuntimeError

FOREVER = """
func.func @f(%x: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant 1000000000000 : index
  %v = arith.constant 1.0 : f32
  scf.for %i = %c0 to %n step %c1 {
    %a = memref.load %x[%c0] : memref<4xf32>
    %b = arith.addf %a, %v : f32
    memref.store %b, %x[%c0] : memref<4xf32>
  }
  return
}
"""


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def until(condition) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    ("number", "status", "output"),
    [(signal.SIGINT, 130, "stopped\n"), (signal.SIGTERM, 143, "stopped\n"), (signal.SIGKILL, -9, "")],
)
def test_signals(tmp_path, monkeypatch, number, status, output):
    monkeypatch.setenv("VNPU_OPT", "0")
    (tmp_path / "p.mlir").write_text(FOREVER)
    words = ["run", "p.mlir", "--zeros", "--no-checks"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "aerie.virtual_npu", *words],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: children(process.pid))
        (child,) = children(process.pid)
        # Once the shared object is mapped, the program runs or is about to.
        until(lambda: os.environ["VNPU_CACHE"] in Path(f"/proc/{child}/maps").read_text())
        time.sleep(0.2)
        process.send_signal(number)
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, printed) == (status, output)
    until(lambda: not is_running(child))


def test_code_that_does_not_see_ctrl_c_is_ended_with_a_hint(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(child_process, "_terminated", [])
    monkeypatch.setattr(os, "kill", lambda *words: ended.append(words))
    assert child_process._report_signal(signal.SIGTERM) == 143
    assert capsys.readouterr().err == "stopped\n"
    child_process._terminate(1234)
    assert ended == [(1234, signal.SIGTERM)]
    assert child_process._report_signal(signal.SIGTERM) == 130
    printed = capsys.readouterr().err
    assert printed.startswith(
        "stopped; for 3 s it did not say where it stands: external C++ does not, nor does a"
    )


COUNTING = """
func.func @herds(%x: memref<2xf64>, %rounds: memref<1xindex>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %n = memref.load %rounds[%c0] : memref<1xindex>
  scf.for %round = %c0 to %n step %c1 {
    air.herd @tiles tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%all=%x) : memref<2xf64> {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %more = arith.constant 1.0 : f64
      %own = memref.alloc() : memref<1xf64, 2>
      air.dma_memcpy_nd (%own[] [] [], %all[%tx] [%one] [%one]) : (memref<1xf64, 2>, memref<2xf64>)
      %old = memref.load %own[%zero] : memref<1xf64, 2>
      %new = arith.addf %old, %more : f64
      memref.store %new, %own[%zero] : memref<1xf64, 2>
      air.dma_memcpy_nd (%all[%tx] [%one] [%one], %own[] [] []) : (memref<2xf64>, memref<1xf64, 2>)
      memref.dealloc %own : memref<1xf64, 2>
    }
  }
  return
}
air.channel @ones [2]
func.func @channels(%x: memref<2xf64>, %rounds: memref<1xindex>) {
  %c1 = arith.constant 1 : index
  air.launch (%i) in (%s=%c1) args(%all=%x, %times=%rounds) : memref<2xf64>, memref<1xindex> {
    %c0 = arith.constant 0 : index
    %n = memref.load %times[%c0] : memref<1xindex>
    air.segment @s args(%sums=%all, %m=%n) : memref<2xf64>, index {
      %one = arith.constant 1 : index
      %two = arith.constant 2 : index
      air.herd @give tile (%tx, %ty) in (%sx=%two, %sy=%one) args(%k=%m) : index {
        %zero = arith.constant 0 : index
        %step = arith.constant 1 : index
        %more = arith.constant 1.0 : f64
        %own = memref.alloc() : memref<1xf64, 2>
        memref.store %more, %own[%zero] : memref<1xf64, 2>
        scf.for %round = %zero to %k step %step {
          air.channel.put @ones[%tx] (%own[] [] []) : (memref<1xf64, 2>)
        }
        memref.dealloc %own : memref<1xf64, 2>
      }
      air.herd @take tile (%tx, %ty) in (%sx=%two, %sy=%one) args(%k=%m, %to=%sums) : index, memref<2xf64> {
        %zero = arith.constant 0 : index
        %step = arith.constant 1 : index
        %own = memref.alloc() : memref<1xf64, 2>
        %sum = memref.alloc() : memref<1xf64, 2>
        %nothing = arith.constant 0.0 : f64
        memref.store %nothing, %sum[%zero] : memref<1xf64, 2>
        scf.for %round = %zero to %k step %step {
          air.channel.get @ones[%tx] (%own[] [] []) : (memref<1xf64, 2>)
          %more = memref.load %own[%zero] : memref<1xf64, 2>
          %old = memref.load %sum[%zero] : memref<1xf64, 2>
          %new = arith.addf %old, %more : f64
          memref.store %new, %sum[%zero] : memref<1xf64, 2>
          air.dma_memcpy_nd (%to[%tx] [%step] [%step], %sum[] [] []) : (memref<2xf64>, memref<1xf64, 2>)
        }
        memref.dealloc %own : memref<1xf64, 2>
        memref.dealloc %sum : memref<1xf64, 2>
      }
    }
  }
  return
}
"""
"""Both add 1 to every element in each of so many rounds."""

YEARS = 10**15
"""Rounds."""


class StopError(Exception):
    """What a handler raises."""


@pytest.fixture
def alarm(monkeypatch):
    """alarm(handler): call it every 30 ms, in the main thread, until the test ends."""

    def start(handler):
        before = signal.signal(signal.SIGALRM, lambda number, frame: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
        ended.append(before)

    ended: list[Any] = []
    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    for before in ended:
        signal.signal(signal.SIGALRM, before)


def start(library, entry, rounds):
    """Run an entry on zeros; the array that it counts in, which can be seen meanwhile."""
    counts, asked = np.zeros(2), np.array([rounds])
    return counts, lambda: library.run(entry, [counts.ctypes.data, asked.ctypes.data])


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("checks", [False, True], ids=["plain", "checks"])
@pytest.mark.parametrize("entry", ["herds", "channels"])
def test_a_handler_runs_in_a_run_and_ends_it_by_raising(program, alarm, monkeypatch, entry, checks, threads):
    """The run goes on after a handler that does not raise; after one that does, no thread of it does."""
    monkeypatch.setenv("VNPU_THREADS", threads)
    library = program(COUNTING, options=virtual_npu.BuildOptions(checks=checks))
    counts, run = start(library, entry, YEARS)
    seen = []

    def handler():
        seen.append(counts.sum())
        if len(seen) == 4:
            raise StopError("the handler's own")

    alarm(handler)
    with pytest.raises(StopError, match="the handler's own"):
        run()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen == sorted(seen)
    if entry == "channels" or not checks:  # else they are all issued before the first of them begins
        assert seen[-1] > seen[0]
    left = counts.copy()
    time.sleep(0.05)
    assert (counts == left).all()

    again, run = start(library, entry, 3)
    run()
    assert (again == 3).all()


def test_a_run_in_another_thread_continues(program, alarm, monkeypatch):
    """Python runs handlers in the main thread alone: what they raise is for what runs there."""
    library = program(COUNTING)
    counts, run = start(library, "herds", 200_000)
    endless, run_endlessly = start(library, "herds", YEARS)
    other = threading.Thread(target=run)

    def handler():
        if not other.is_alive():
            signal.setitimer(signal.ITIMER_REAL, 0)  # once: another alarm would end what comes after the run
            raise StopError

    other.start()
    alarm(handler)
    with pytest.raises(StopError):
        run_endlessly()
    assert (counts == 200_000).all()
    assert (endless > 0).all()


def test_a_failure_is_reported_although_handlers_run(program, alarm, run):
    """Signals that end nothing do not hide what fails."""
    text = COUNTING.replace("air.channel.get @ones[%tx]", "air.channel.get @ones[%zero]")
    alarm(lambda: None)
    with pytest.raises(VirtualNpuRuntimeError, match="@ones"):
        run(program(text), "channels", np.zeros(2), np.array([3]))


POINTS = (1, 3, 1, 1)
SETTING = (
    "func.func @f(%counts: memref<12xi32>, %sets: memref<4xi32>, %flag: memref<1xi32>) {"
    + "".join(
        f"""
  air.launch @l{number} (%i, %j) in (%si=%c1, %sj=%c{points}) args(%a=%counts, %b=%sets, %c=%flag)
      : memref<12xi32>, memref<4xi32>, memref<1xi32> {{
    air.segment @s{number} args(%d=%a, %e=%b, %f=%c, %k=%j)
        : memref<12xi32>, memref<4xi32>, memref<1xi32>, index {{
      %n = arith.constant 1 : index
      air.herd @h{number} tile (%tx, %ty) in (%sx=%n, %sy=%n) args(%to=%d, %from=%e, %stop=%f, %point=%k)
          : memref<12xi32>, memref<4xi32>, memref<1xi32>, index {{
        %zero = arith.constant 0 : index
        %one = arith.constant 1 : index
        %launch = arith.constant {number} : index
        %first = arith.constant {3 * number} : index
        %place = arith.addi %first, %point : index
        %more = arith.constant 1 : i32
        %own = memref.alloc() : memref<1xi32, 2>
        air.dma_memcpy_nd (%own[] [] [], %to[%place] [%one] [%one]) : (memref<1xi32, 2>, memref<12xi32>)
        %old = memref.load %own[%zero] : memref<1xi32, 2>
        %new = arith.addi %old, %more : i32
        memref.store %new, %own[%zero] : memref<1xi32, 2>
        air.dma_memcpy_nd (%to[%place] [%one] [%one], %own[] [] []) : (memref<12xi32>, memref<1xi32, 2>)
        air.dma_memcpy_nd (%own[] [] [], %from[%launch] [%one] [%one]) : (memref<1xi32, 2>, memref<4xi32>)
        air.dma_memcpy_nd (%stop[] [] [], %own[] [] []) : (memref<1xi32>, memref<1xi32, 2>)
        memref.dealloc %own : memref<1xi32, 2>
      }}
    }}
  }}"""
        for number, points in enumerate(POINTS)
    )
    + "\n  return\n}\n"
)
"""Launches that count how often each of their points ran, and copy an element of %sets into the flag."""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("setting", range(len(POINTS)))
def test_after_the_launch_in_which_a_stop_is_set_none_runs(program, monkeypatch, setting, threads):
    """Nor, on one thread, a point of that launch; then the same call runs them all."""
    monkeypatch.setenv("VNPU_THREADS", threads)
    library, stop = program(SETTING), StopFlag()
    counts, sets = np.zeros((4, 3), np.int32), np.zeros(4, np.int32)
    pointers = [counts.ctypes.data, sets.ctypes.data, ctypes.addressof(stop._flag)]
    call, sets[setting] = library.call("f", pointers), 1
    is_last = setting == len(POINTS) - 1  # then nothing is left to be stopped
    with nullcontext() if is_last else pytest.raises(RunStopped), stop.watching():
        call()
    ran = counts.sum(axis=1).tolist()
    assert ran[:setting] == [*POINTS[:setting]]
    assert 1 <= ran[setting] <= (1 if threads == "1" else POINTS[setting])
    assert not any(ran[setting + 1 :])
    counts[:] = 0
    call()
    assert counts.tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("checks", [False, True], ids=["plain", "checks"])
@pytest.mark.parametrize("entry", ["herds", "channels"])
def test_a_stop_ends_what_another_thread_runs(program, monkeypatch, entry, checks):
    monkeypatch.setenv("VNPU_THREADS", "2")
    library = program(COUNTING, options=virtual_npu.BuildOptions(checks=checks))
    stop, ended = StopFlag(), []
    counts, run = start(library, entry, YEARS)

    def watched():
        try:
            with stop.watching():
                run()
        except RunStopped:
            ended.append("stopped")

    other = threading.Thread(target=watched)
    other.start()
    if not checks:  # where they are all issued before the first of them begins
        until(counts.any)
    stop.set()
    other.join(60)
    assert ended == ["stopped"]
    again, run = start(library, entry, 3)
    run()
    assert (again == 3).all()


def test_a_stop_is_of_the_thread_and_the_part_that_watch_it(program):
    """A call that begins under one that is set does nothing; around it, beside it and after it all run."""
    library, outer, inner = program(COUNTING), StopFlag(), StopFlag()
    counts, run = start(library, "herds", 1)

    def inside():
        run()
        stop_this_thread()
        assert inner.is_set
        other = threading.Thread(target=run)
        other.start()
        other.join()
        assert (counts == 2).all()
        run()

    stop_this_thread()  # nothing is watched
    with outer.watching():
        with pytest.raises(RunStopped), inner.watching():
            inside()
        run()
        assert not outer.is_set
    with pytest.raises(RunStopped), inner.watching():
        raise AssertionError("entered")
    run()
    assert (counts == 4).all()


def test_a_handler_that_sets_the_stop_ends_the_run(program, alarm):
    """As a handler does that has to return."""
    library, stop = program(COUNTING), StopFlag()
    counts, run = start(library, "herds", YEARS)
    alarm(stop_this_thread)
    with pytest.raises(RunStopped), stop.watching():
        run()
    assert (counts > 0).all()
