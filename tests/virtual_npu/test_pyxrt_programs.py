"""The device with programs that virtual_npu built, in both memory modes."""

import ctypes
import signal

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.cancellation import RunStopped, StopFlag
from aerie.virtual_npu.pyxrt import batch as batch_module
from aerie.virtual_npu.pyxrt.batch import HostCopy, RunBatch, StepError, can_be_one
from tests.virtual_npu.air_texts import with_constants

TO_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE

TEXT = with_constants("""
module {
  air.channel @never [1, 1]
  func.func @add(%a: memref<64xf32>, %b: memref<64xf32>, %n: i32) {
    %f = arith.sitofp %n : i32 to f32
    scf.for %i = %c0 to %c64 step %c1 {
      %x = memref.load %a[%i] : memref<64xf32>
      %y = arith.addf %x, %f : f32
      memref.store %y, %b[%i] : memref<64xf32>
    }
    return
  }
  func.func @stuck(%a: memref<64xf32>) {
    air.channel.get @never[] (%a[] [] []) : (memref<64xf32>)
    return
  }
  func.func @endless(%a: memref<64xf32>, %n: i64) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %rounds = arith.index_cast %n : i64 to index
    scf.for %i = %c0 to %rounds step %c1 {
      air.herd @tile tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%x=%a) : memref<64xf32> {
        %zero = arith.constant 0 : index
        %more = arith.constant 1.0 : f32
        %own = memref.alloc() : memref<64xf32, 2>
        air.dma_memcpy_nd (%own[] [] [], %x[] [] []) : (memref<64xf32, 2>, memref<64xf32>)
        %old = memref.load %own[%zero] : memref<64xf32, 2>
        %new = arith.addf %old, %more : f32
        memref.store %new, %own[%zero] : memref<64xf32, 2>
        air.dma_memcpy_nd (%x[] [] [], %own[] [] []) : (memref<64xf32>, memref<64xf32, 2>)
        memref.dealloc %own : memref<64xf32, 2>
      }
    }
    return
  }
}
""")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyxrt") / "program.elf"
    virtual_npu.build(TEXT, path)
    return path


@pytest.fixture(params=["0", "1"], ids=["shared", "strict"])
def opened(request, monkeypatch, program):
    monkeypatch.setenv("VNPU_STRICT", request.param)
    device = pyxrt.device(0)
    elf = pyxrt.elf(str(program))
    return device, elf, pyxrt.hw_context(device, elf)


def test_a_program_runs(opened):
    device, _, context = opened
    kernel = pyxrt.ext.kernel(context, "main:add")
    a, b = (pyxrt.ext.bo(device, 256) for _ in range(2))
    np.frombuffer(a.map(), np.float32)[:] = np.arange(64)
    a.sync(TO_DEVICE)
    run = pyxrt.run(kernel)
    arguments: tuple[pyxrt.bo | int, ...] = (a, b, 5)
    for index, argument in enumerate(arguments):
        run.set_arg(index, argument)
    run.start()
    run.wait2()
    b.sync(FROM_DEVICE)
    np.testing.assert_array_equal(np.frombuffer(b.map(), np.float32), np.arange(64) + 5)


def test_a_deadlock_ends_in_error_with_the_reason(opened):
    device, _, context = opened
    kernel = pyxrt.ext.kernel(context, "main:stuck")
    a = pyxrt.ext.bo(device, 256)
    run = pyxrt.run(kernel)
    run.set_arg(0, a)
    run.start()
    assert run.wait() == pyxrt.ert_cmd_state.ERT_CMD_STATE_ERROR
    with pytest.raises(pyxrt.XrtError, match=r"(?s)run of 'main:stuck' ended in ERT_CMD_STATE_ERROR.*never"):
        run.wait2()


def test_a_wrong_name_lists_the_entries(opened):
    with pytest.raises(
        pyxrt.XrtError, match=r"no kernel 'main:sub' in this elf; it has: main:add, main:stuck, main:endless"
    ):
        pyxrt.ext.kernel(opened[2], "main:sub")


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "other.elf"
    path.write_text("not a shared object")
    with pytest.raises(pyxrt.XrtError, match=r"other.elf is not a program of the virtual NPU"):
        pyxrt.elf(str(path))


def bound_add(kernel, device, summand, source):
    """A run of main:add with its arguments, and its result buffer."""
    run, result = pyxrt.run(kernel), pyxrt.ext.bo(device, 256)
    for index, argument in enumerate((source, result, summand)):
        run.set_arg(index, argument)
    return run, result


def values(buffer):
    return np.frombuffer(buffer.map(), np.float32)


@pytest.fixture
def shared(monkeypatch, program):
    monkeypatch.setenv("VNPU_STRICT", "0")
    device, elf = pyxrt.device(0), pyxrt.elf(str(program))
    context = pyxrt.hw_context(device, elf)
    return device, context, pyxrt.ext.kernel(context, "main:add")


def test_a_batch_takes_its_steps_in_order(shared):
    device, _, add = shared
    source, copied = pyxrt.ext.bo(device, 256), pyxrt.ext.bo(device, 256)
    first, middle = bound_add(add, device, 2, source)
    second, result = bound_add(add, device, 3, copied)
    steps = [first, HostCopy(copied.address(), middle.address(), 256), second]
    assert can_be_one(steps)
    batch = RunBatch(steps)
    for start in (0, 10):
        values(source)[:] = start
        batch.execute()
        np.testing.assert_array_equal(values(result), np.full(64, start + 5, np.float32))
    assert (batch.nanoseconds > 0).all()


def test_what_was_started_comes_before_a_batch(shared):
    device, _, add = shared
    source = pyxrt.ext.bo(device, 256)
    early, middle = bound_add(add, device, 2, source)
    late, result = bound_add(add, device, 3, middle)
    early.start()
    RunBatch([late]).execute()
    np.testing.assert_array_equal(values(result), np.full(64, 5, np.float32))
    assert early.state() == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED


def test_a_batch_ends_where_a_run_fails(shared):
    device, context, add = shared
    source = pyxrt.ext.bo(device, 256)
    first, middle = bound_add(add, device, 2, source)
    stuck = pyxrt.run(pyxrt.ext.kernel(context, "main:stuck"))
    last, result = bound_add(add, device, 3, middle)
    with pytest.raises(pyxrt.XrtError, match=r"'main:stuck' takes 1 arguments and is started without 0"):
        RunBatch([first, stuck, last])
    stuck.set_arg(0, source)
    batch = RunBatch([first, stuck, last])
    for _ in range(2):
        message = r"(?s)run of 'main:stuck' ended in ERT_CMD_STATE_ERROR.*never"
        with pytest.raises(StepError, match=message) as caught:
            batch.execute()
        assert caught.value.number == 1
        assert values(middle).all()
        assert not values(result).any()


def test_strict_runs_are_no_batch(opened):
    device, _, context = opened
    source = pyxrt.ext.bo(device, 256)
    add = pyxrt.ext.kernel(context, "main:add")
    run, _ = bound_add(add, device, 2, source)
    assert can_be_one([run]) is not device.strict
    assert not can_be_one([HostCopy(source.address(), source.address(), 1)])
    assert not can_be_one([run, object()])


@pytest.mark.parametrize("fails", [False, True])
def test_the_interpreter_has_its_turn_in_a_long_batch(shared, monkeypatch, fails):
    """Slices of no time at all: a step each, with the same results and the same failure."""
    device, context, add = shared
    monkeypatch.setattr(batch_module, "SLICE_NS", -1)
    buffers = [pyxrt.ext.bo(device, 256)]
    runs = []
    for summand in (1, 2, 3):
        run, result = bound_add(add, device, summand, buffers[-1])
        runs.append(run)
        buffers.append(result)
    if fails:
        stuck = pyxrt.run(pyxrt.ext.kernel(context, "main:stuck"))
        stuck.set_arg(0, buffers[0])
        runs.insert(2, stuck)
    batch = RunBatch(runs)
    left = []
    real = batch._take_steps

    def take_steps(at, steps, ns):
        left.append(steps)
        return real(at, steps, ns)

    monkeypatch.setattr(batch, "_take_steps", take_steps)
    if not fails:
        batch.execute()
    else:
        with pytest.raises(StepError) as caught:
            batch.execute()
        assert caught.value.number == 2
    assert left == [len(runs), len(runs) - 1, len(runs) - 2]
    assert [float(values(buffer)[0]) for buffer in buffers] == [0, 1, 3, 0 if fails else 6]


def test_a_signal_ends_a_batch_between_its_steps(shared, monkeypatch):
    device, _, add = shared
    monkeypatch.setattr(batch_module, "SLICE_NS", -1)
    source = pyxrt.ext.bo(device, 256)
    first, middle = bound_add(add, device, 2, source)
    second, result = bound_add(add, device, 3, middle)
    batch = RunBatch([first, second])
    real = batch._take_steps

    def interrupted(at, steps, nanoseconds):
        if steps == 1:
            raise KeyboardInterrupt
        return real(at, steps, nanoseconds)

    monkeypatch.setattr(batch, "_take_steps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.execute()
    assert (values(middle)[0], values(result)[0]) == (2, 0)
    monkeypatch.setattr(batch, "_take_steps", real)
    batch.execute()
    assert values(result)[0] == 5


@pytest.mark.parametrize("batches", [False, True], ids=["one by one", "batch"])
def test_a_signal_ends_a_run(shared, batches):
    """What its handler raises comes through as it is, and the same runs can be made again."""
    device, context, add = shared
    source, counted = pyxrt.ext.bo(device, 256), pyxrt.ext.bo(device, 256)
    first, middle = bound_add(add, device, 2, source)
    endless = pyxrt.run(pyxrt.ext.kernel(context, "main:endless"))
    endless.set_arg(0, counted)
    last, result = bound_add(add, device, 3, middle)

    def execute(rounds):
        endless.set_arg(1, rounds)
        if batches:
            RunBatch([first, endless, last]).execute()
            return
        for run in (first, endless, last):
            run.start()
            run.wait2()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(10**15)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert values(middle)[0] == 2
    assert values(counted)[0] > 0
    assert not values(result).any()
    execute(1)
    assert values(result)[0] == 5


def test_a_stop_ends_a_batch_where_it_is_set(shared):
    """No run begins after it, and the same batch can be taken again."""
    device, _, add = shared
    stop, one = StopFlag(), np.ones(1, np.int32)
    source = pyxrt.ext.bo(device, 256)
    first, middle = bound_add(add, device, 2, source)
    second, result = bound_add(add, device, 3, middle)
    batch = RunBatch([first, HostCopy(ctypes.addressof(stop._flag), one.ctypes.data, 4), second])
    with pytest.raises(RunStopped), stop.watching():
        batch.execute()
    assert (values(middle)[0], values(result)[0]) == (2, 0)
    batch.execute()
    assert values(result)[0] == 5
