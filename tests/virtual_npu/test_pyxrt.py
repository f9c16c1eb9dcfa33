"""The device with pyxrt's API, over a stand-in for the loaded program."""

import ctypes
import gc
import re
import threading
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.pyxrt import XrtError, ert_cmd_state
from aerie.virtual_npu.pyxrt.objects import FROM_DEVICE, TO_DEVICE
from aerie.virtual_npu.pyxrt.runs import itemsize

N = 16


@dataclass(frozen=True)
class FakeArgument:
    shape: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class FakeEntry:
    arguments: tuple[FakeArgument, ...]
    has_scratchpad: bool = False


class FakeLibrary:
    """`double` writes 2 * argument 0 to argument 1; `fill` writes its scalar argument 1 to argument 0."""

    release = threading.Event()
    log: list[str] = []  # noqa: RUF012

    def __init__(self, path):
        two = (FakeArgument((4, 4)), FakeArgument((N,)))
        self.entries = {
            "double": FakeEntry(two),
            "fail": FakeEntry(()),
            "slow": FakeEntry(()),
            "stop": FakeEntry(()),
            "fill": FakeEntry((FakeArgument((N,)), FakeArgument((), "i32"))),
        }

    def call(self, entry, pointers):
        return lambda: self._run(entry, pointers)

    def _run(self, entry, pointers):
        self.log.append(entry)
        if entry == "fail":
            raise ValueError("channel @c: nobody puts")
        if entry == "stop":
            raise KeyboardInterrupt
        if entry == "slow":
            assert self.release.wait(120)
        if entry == "fill":
            floats_at(pointers[0])[:] = ctypes.c_int32.from_address(pointers[1]).value
        if entry == "double":
            source, target = (floats_at(pointer) for pointer in pointers)
            target[:] = 2 * source


def floats_at(pointer):
    return np.ctypeslib.as_array((ctypes.c_float * N).from_address(pointer))


@pytest.fixture(params=["", "1"], ids=["shared", "strict"])
def strict(request, monkeypatch):
    monkeypatch.setenv("VNPU_STRICT", request.param)
    return bool(request.param)


@pytest.fixture(autouse=True)
def fake_library(monkeypatch):
    monkeypatch.setattr(virtual_npu, "Library", FakeLibrary)
    FakeLibrary.release.clear()
    FakeLibrary.log.clear()


class Session:
    """Everything a caller has to keep alive."""

    def __init__(self, tmp_path, entry="double"):
        path = tmp_path / "program.so"
        path.write_bytes(b"")
        self.device = pyxrt.device(0)
        self.elf = pyxrt.elf(str(path))
        self.context = pyxrt.hw_context(self.device, self.elf)
        self.kernel = pyxrt.ext.kernel(self.context, f"main:{entry}")

    def bo(self, nbytes=4 * N):
        return pyxrt.ext.bo(self.device, nbytes)

    def run(self, *buffers):
        run = pyxrt.run(self.kernel)
        for index, buffer in enumerate(buffers):
            run.set_arg(index, buffer)
        return run


@pytest.fixture
def session(tmp_path, strict):
    return Session(tmp_path)


@pytest.fixture
def strict_session(tmp_path, monkeypatch):
    monkeypatch.setenv("VNPU_STRICT", "1")
    return Session(tmp_path)


def start_and_wait(run):
    run.start()
    run.wait2()


def floats(buffer):
    return np.frombuffer(buffer.map(), dtype=np.float32)


def test_the_documented_call_sequence(session):
    x, y = session.bo(), session.bo()
    floats(x)[:] = np.arange(N)
    x.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
    run = session.run(x, y)
    assert run.state() == ert_cmd_state.ERT_CMD_STATE_NEW
    run.start()
    assert run.wait2() is None
    assert run.state() == ert_cmd_state.ERT_CMD_STATE_COMPLETED
    y.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
    np.testing.assert_array_equal(floats(y), 2.0 * np.arange(N))


def test_a_scalar_argument(tmp_path, strict):
    session = Session(tmp_path, "fill")
    x = session.bo()
    run = session.run(x, -7)
    run.start()
    run.wait2()
    x.sync(FROM_DEVICE)
    assert (floats(x) == -7).all()


def test_bytes_of_types():
    sizes = {"bf16": 2, "f32": 4, "i8": 1, "ui16": 2, "i1": 1, "i64": 8, "index": 8, "f64": 8}
    assert {dtype: itemsize(dtype) for dtype in sizes} == sizes


def test_a_file_that_is_no_program(tmp_path, monkeypatch):
    def refuse(path):
        raise virtual_npu.ProgramError(f"{path} is not a program")

    monkeypatch.setattr(virtual_npu, "Library", refuse)
    (tmp_path / "x.elf").write_text("")
    with pytest.raises(XrtError, match=r"x.elf is not a program"):
        pyxrt.elf(str(tmp_path / "x.elf"))


def test_a_run_is_started_again_and_a_kernel_called(session):
    x, y = session.bo(), session.bo()
    run = session.kernel(x, y)
    assert run.wait() == ert_cmd_state.ERT_CMD_STATE_COMPLETED
    run.start()
    assert run.wait(1000) == ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert FakeLibrary.log == ["double", "double"]


def test_forgotten_sync_to_device_reads_nan(strict_session):
    x, y = strict_session.bo(), strict_session.bo()
    floats(x)[:] = 1
    run = strict_session.run(x, y)
    run.start()
    run.wait2()
    y.sync(FROM_DEVICE)
    assert np.isnan(floats(y)).all()


def test_forgotten_sync_from_device_reads_old_bytes(strict_session):
    x, y = strict_session.bo(), strict_session.bo()
    floats(x)[:] = 1
    x.sync(TO_DEVICE)
    run = strict_session.run(x, y)
    run.start()
    run.wait2()
    assert (floats(y) == 0).all()
    y.sync(FROM_DEVICE, 8, 4)
    np.testing.assert_array_equal(floats(y)[:4], [0, 2, 2, 0])


def test_without_strict_nothing_is_copied(tmp_path, monkeypatch):
    monkeypatch.delenv("VNPU_STRICT", raising=False)
    buffer = Session(tmp_path).bo()
    floats(buffer)[:] = 3
    np.testing.assert_array_equal(floats_at(buffer.address()), floats(buffer))


def test_buffers_are_page_aligned_sized_and_zero(session):
    buffer = session.bo(100)
    assert buffer.address() % 4096 == 0
    assert buffer.size() == 100
    assert bytes(buffer.map()) == bytes(100)


def test_a_large_buffer_costs_nothing_until_touched(tmp_path, monkeypatch):
    monkeypatch.delenv("VNPU_STRICT", raising=False)
    buffer = Session(tmp_path).bo(4 << 30)
    buffer.map()[-1] = 7
    assert buffer.map()[-1] == 7


def test_sub_buffer_shares_memory_with_its_parent(session):
    whole = session.bo(4096)
    part = pyxrt.bo(whole, 64, 128)
    part.map()[0] = 9
    part.sync(TO_DEVICE)
    whole.map()[128] = 0
    part.sync(FROM_DEVICE)
    assert part.size() == 64
    assert part.address() == whole.address() + 128
    assert whole.map()[128] == (9 if session.device.strict else 0)


def test_a_sub_buffer_keeps_its_parent(strict_session):
    part = pyxrt.bo(strict_session.bo(4096), 64, 0)
    gc.collect()
    assert bytes(part.map()) == bytes(64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.bo(0), "a buffer object of 0 bytes is empty"),
        (
            lambda s: pyxrt.ext.bo(s.context, 64),
            "ext.bo wants (pyxrt.device, size), not a HwContext",
        ),
        (lambda s: s.bo(1 << 62), f"no memory for a buffer object of {1 << 62} bytes"),
        (
            lambda s: pyxrt.bo(s.device, 64),
            "for a new buffer of the ELF flow call pyxrt.ext.bo(device, size)",
        ),
        (
            lambda s: pyxrt.bo(s.bo(256), 64, 100),
            "offset 100 is not on a 64-byte boundary.*use offset 64 or 128",
        ),
        (
            lambda s: pyxrt.bo(s.bo(256), 256, 64),
            "sub-buffer of 256 bytes at offset 64 leaves",
        ),
        (
            lambda s: s.bo(64).sync(TO_DEVICE, 65),
            "sync of 65 bytes at offset 0 leaves .* of 64 bytes",
        ),
        (lambda s: s.bo(64).sync(TO_DEVICE, 4, -4), "sync of 4 bytes at offset -4 leaves"),
        (lambda s: s.bo(64).sync(pyxrt.xclBOSyncDirection(2)), "GMIO_TO_AIE.* is not one of the NPU's"),
        (lambda s: pyxrt.device(-1), "there is no device -1"),
        (lambda s: pyxrt.device(1), "there is no device 1; the virtual NPU has device 0 alone: VNPU_D"),
        (lambda s: pyxrt.elf("/nowhere/x.so"), "there is no file '/nowhere/x.so'; build the program first"),
        (lambda s: pyxrt.hw_context(s.elf, s.device), r"hw_context wants .* not \(Elf, Device\)"),
        (
            lambda s: pyxrt.ext.kernel(s.device, "main:x"),
            "kernel wants (pyxrt.hw_context, name), not a Device",
        ),
        (
            lambda s: pyxrt.ext.kernel(s.context, "double"),
            "no kernel 'double' in this elf; it has: main:double, main:fail, main:slow",
        ),
        (
            lambda s: pyxrt.ext.kernel(s.context, "main:doble"),
            "Write 'main:double'.*with a timeout",
        ),
        (lambda s: pyxrt.run(s.context), "run wants a pyxrt.kernel, not a HwContext"),
        (
            lambda s: s.run().set_arg(2, s.bo()),
            "'main:double' has no argument 2; it takes 2, from 0",
        ),
        (
            lambda s: s.run().set_arg(0, 5),
            r"\(4x4 f32\) is not a scalar integer and cannot be 5",
        ),
        (lambda s: s.run().set_arg(0, "x"), r"argument 0 .* cannot be a str; pass a pyxrt.ext.bo"),
        (
            lambda s: s.run(s.bo(60)),
            r"64 bytes and the buffer 60; make it ext.bo\(device, 64\)",
        ),
        (
            lambda s: s.run(s.bo()).start(),
            "is started without 1; call set_arg for each",
        ),
        (
            lambda s: s.run().wait(),
            r"never started; call start\(\) first",
        ),
    ],
)
def test_refused(session, make, message):
    with pytest.raises(XrtError) as caught:
        make(session)
    assert re.search(message, str(caught.value)) or message in str(caught.value)


def test_only_strict_refuses_a_larger_buffer(session):
    larger = session.bo(128)
    if session.device.strict:
        with pytest.raises(XrtError, match="has 64 bytes and the buffer 128"):
            session.run(larger, larger)
    else:
        session.run(larger, larger).start()


def test_start_and_set_arg_while_running(session):
    x = session.bo()
    run = session.run(x, x)
    run.start()
    with pytest.raises(XrtError, match=r"start\(\) while the run of 'main:double' is under way; wait"):
        run.start()
    with pytest.raises(XrtError, match=r"set_arg\(\) while the run of 'main:double' is under way"):
        run.set_arg(0, x)
    run.wait2()


def test_runs_are_carried_out_in_start_order(tmp_path, strict):
    session = Session(tmp_path, "fail")
    x = session.bo()
    first = pyxrt.run(session.kernel)
    double = pyxrt.ext.kernel(session.context, "main:double")
    first.start()
    double(x, x).wait2()
    assert FakeLibrary.log == ["fail", "double"]
    assert first.state() == ert_cmd_state.ERT_CMD_STATE_ERROR


def test_a_failing_run_has_a_reason_and_can_be_restarted(tmp_path, strict):
    session = Session(tmp_path, "fail")
    run = pyxrt.run(session.kernel)
    for _ in range(2):
        run.start()
        assert run.wait() == ert_cmd_state.ERT_CMD_STATE_ERROR
        with pytest.raises(XrtError, match="ended in ERT_CMD_STATE_ERROR: channel @c: nobody puts"):
            run.wait2()


def test_timeout_and_polling(tmp_path, strict):
    session = Session(tmp_path, "slow")
    run = pyxrt.run(session.kernel)
    run.start()
    assert run.wait(10) == ert_cmd_state.ERT_CMD_STATE_TIMEOUT
    assert run.state() == ert_cmd_state.ERT_CMD_STATE_QUEUED
    FakeLibrary.release.set()
    assert run.wait() == ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert FakeLibrary.log == ["slow"]


def test_ctrl_c_leaves_a_run_that_can_be_started_again(tmp_path, strict):
    session = Session(tmp_path, "stop")
    run = pyxrt.run(session.kernel)
    run.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait2()
    assert run.state() == ert_cmd_state.ERT_CMD_STATE_ABORT
    with pytest.raises(XrtError, match="ended in ERT_CMD_STATE_ABORT: interrupted"):
        run.wait2()
    run.start()


def test_strict_keeps_nothing_alive(strict_session):
    s = strict_session
    x = s.bo()
    view = floats(x)
    run = s.run(x, x)
    del x
    assert np.isnan(view).all()
    run.start()
    with pytest.raises(XrtError, match=r"the buffer of argument 0 .* was destroyed before"):
        run.wait2()


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        (
            "context",
            "the hw_context of kernel 'main:double' was destroyed while .* destroy buffers",
        ),
        ("kernel", "the kernel 'main:double' was destroyed before its run; keep it alive"),
        ("device", "the device was destroyed before its hw_context"),
        ("elf", "the elf was destroyed before its hw_context"),
    ],
)
def test_strict_destroy_order(strict_session, dropped, message):
    x = strict_session.bo()
    run = strict_session.run(x, x)
    setattr(strict_session, dropped, None)
    with pytest.raises(XrtError, match=message):
        start_and_wait(run)


def test_runlist(session):
    x, y = session.bo(), session.bo()
    floats(x)[:] = 1
    x.sync(TO_DEVICE)
    runs = pyxrt.runlist(session.context)
    keep = [session.run(x, y), session.run(y, x)]
    for run in keep:
        runs.add(run)
    with pytest.raises(XrtError, match="belongs to a runlist; execute the list instead"):
        keep[0].start()
    runs.execute()
    runs.wait()
    runs.execute()
    runs.wait(timedelta(seconds=20))
    x.sync(FROM_DEVICE)
    assert (floats(x) == 16).all()


def test_runlist_refusals(tmp_path, strict):
    session, other = Session(tmp_path, "slow"), Session(tmp_path, "fail")
    slow, fail = pyxrt.run(session.kernel), pyxrt.run(other.kernel)
    slow_list, fail_list = pyxrt.runlist(session.context), pyxrt.runlist(other.context)
    with pytest.raises(XrtError, match="is of another hw_context than the runlist"):
        slow_list.add(fail)
    with pytest.raises(XrtError, match="runlist without runs; add one first"):
        slow_list.execute()
    slow_list.add(slow)
    slow_list.execute()
    with pytest.raises(XrtError, match=r"run 0 of the list \('main:slow'\) has not ended within 0:00:00.01"):
        slow_list.wait(timedelta(milliseconds=10))
    FakeLibrary.release.set()
    slow_list.wait()
    fail_list.add(fail)
    fail_list.execute()
    with pytest.raises(XrtError, match="run 0 of the list failed: channel @c: nobody puts"):
        fail_list.wait()
