"""KernelCache on the NPU's calls, with a stand-in for pyxrt: the order of calls, and every failure's message.

The stand-in proves plumbing. Nothing here has run on an NPU.
"""

import gc
import re
import shlex
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, f32
from aerie.runtime import ArrayError, Backend, HostWork, KernelCache, RunError
from aerie.runtime.npu.device import NpuAccess, check_command

SHAPE = (4, 8)
BYTES = 4 * 8 * 4


@pytest.fixture(autouse=True)
def own_lock(monkeypatch, tmp_path):
    monkeypatch.setenv("AERIE_NPU_LOCK", str(tmp_path / "aerie.lock"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("VNPU_STRICT", "1")  # the stand-in's device refuses what XRT would fault on


@pytest.fixture
def pyxrt(pyxrt_stand_in):
    return pyxrt_stand_in.PyxrtStandIn()


@pytest.fixture
def open_npu(tmp_path, toolchain, pyxrt, reports):
    """A KernelCache on the stand-in, as the backend npu has it."""

    def open_one():
        backend = Backend("npu", toolchain, pyxrt, "backend npu: for the test", NpuAccess())
        return KernelCache(tmp_path / "cache", backend, report=reports.append)

    return open_one


@pytest.fixture
def npu(open_npu, program):
    with open_npu() as cache:
        cache.compile_and_cache(program)
        yield cache


def called(pyxrt, *kinds):
    """The calls of some kinds, without what they were about."""
    return [call.split()[0] for call in pyxrt.calls if call.split()[0] in kinds]


# the order of calls


def test_calls_from_load_to_close(npu, pyxrt, arrays):
    npu.run("scale", **arrays)
    npu.run("scale", x=arrays["x"])
    del pyxrt.calls[pyxrt.calls.index("sync 128") :]
    assert pyxrt.calls == [
        "device 0",
        "elf scale",
        "hw_context scale",
        "kernel main:scale",
        *["bo 128", "map 128"] * 4,
    ]
    pyxrt.calls.clear()
    npu.run("scale", x=arrays["x"])
    assert pyxrt.calls == ["sync 128", "start main:scale", "wait main:scale", "sync 128"]
    pyxrt.calls.clear()
    npu.close()
    assert pyxrt.calls == [
        "~run main:scale",
        *["~bo 128"] * 4,
        "~kernel main:scale",
        "~hw_context scale",
        "~elf scale",
        "~device 0",
    ]


def test_recorded_calls_are_the_same_calls(npu, pyxrt, arrays):
    """Made one by one, with what the host reads and writes between them synchronised."""
    npu.preload("scale", w=arrays["w"])
    x = arrays["x"].copy()
    recording = npu.record()
    y = recording.run("scale", x=x)["y"]

    def double():
        pyxrt.calls.append("double")
        np.multiply(y, 2, out=x)

    recording.host("double", HostWork(double))
    again = recording.run("scale", x=x)["y"]
    recording()
    np.testing.assert_array_equal(again, arrays["x"] * arrays["w"] * 2 * arrays["w"])
    pyxrt.calls.clear()
    recording()
    once = ["sync 128", "start main:scale", "wait main:scale", "sync 128"]
    assert pyxrt.calls == [*once, "double", *once]


def test_the_first_run_binds_every_argument_in_order(npu, pyxrt, arrays):
    npu.preload("scale", w=arrays["w"])
    pyxrt.calls.clear()
    npu.run("scale", x=arrays["x"])
    bound = ["run main:scale", "set_arg 0", "set_arg 1", "set_arg 2", "set_arg 3"]
    assert pyxrt.calls == ["sync 128", *bound, "start main:scale", "wait main:scale", "sync 128"]


def test_results_are_right(npu, arrays):
    np.testing.assert_array_equal(npu.run("scale", **arrays)["y"], arrays["x"] * arrays["w"])


def test_neither_write_nor_read_of_a_buffer_is_called(npu, pyxrt, arrays):
    npu.run("scale", **arrays)  # the stand-in has neither
    assert not hasattr(pyxrt.ext.bo, "write")
    assert not hasattr(pyxrt.ext.bo, "read")


def test_release_at_the_end_of_the_interpreter(tmp_path):
    """In XRT's order although nobody closes, and the lock is free afterwards."""
    conftest = Path(__file__).with_name("conftest.py")
    stand_in = Path(__file__).parents[1] / "stand_ins" / "pyxrt_stand_in.py"
    script = textwrap.dedent(f"""
        import importlib.util, sys
        def load(name, path):
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
        from aerie import virtual_npu
        stand_ins = load("stand_ins", {str(conftest)!r})
        virtual_npu.Library = stand_ins.FakeLibrary
        pyxrt = load("stand_in", {str(stand_in)!r}).PyxrtStandIn()
        class Told(list):
            def append(self, call):
                if call.startswith("~"):
                    print(call.split()[0])
        import numpy as np
        from aerie.runtime import Backend, KernelCache
        from aerie.runtime.npu.device import NpuAccess
        backend = Backend("npu", stand_ins.FakeToolchain(), pyxrt, "", NpuAccess())
        cache = KernelCache({str(tmp_path / "cache")!r}, backend)
        cache.compile_and_cache(stand_ins.make_program())
        cache.run("scale", x=np.ones((4, 8), np.float32), w=np.ones((4, 8), np.float32))
        pyxrt.calls = Told()
        keeps_it_from_the_collector = [cache]
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == ["~run", *["~bo"] * 4, "~kernel", "~hw_context", "~elf", "~device"]
    assert not (tmp_path / "aerie.lock.owner").exists()


# failures at every step

STEPS = {
    "device": r"backend 'npu' could not open device 0: DRM_IOCTL.*err=-19.*the NPU is gone",
    "elf": r"backend 'npu' could not load 'scale' from .*scale-\w+\.elf: .*the NPU is gone",
    "hw_context": r"backend 'npu' could not load 'scale' from .*: .*the NPU is gone",
    "kernel": r"backend 'npu' could not load 'scale' from .*: .*the NPU is gone",
    "bo": r"program 'scale': no buffer object for x \(4x8 f32\): .*the NPU is gone",
    "sync": r"program 'scale': x \(4x8 f32\) cannot be synchronised: .*the NPU is gone",
    "run": r"program 'scale' failed on the NPU: .*the NPU is gone",
    "set_arg": r"program 'scale' failed on the NPU: .*the NPU is gone",
    "start": r"program 'scale' failed on the NPU: .*the NPU is gone",
    "wait": r"program 'scale' failed on the NPU: .*the NPU is gone",
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_device_lost_at_any_step(npu, pyxrt, pyxrt_stand_in, arrays, kind):
    pyxrt.fail(kind, pyxrt_stand_in.LOST)
    with pytest.raises(RunError, match=STEPS[kind]) as caught:
        npu.run("scale", **arrays)
    assert "\n" not in caught.value.headline
    assert caught.value.lost
    with pytest.raises(RunError, match="the NPU is gone"):
        npu.run("scale", **{name: arrays[name] for name in ("x", *npu.unfilled_weights("scale"))})
    npu.close()
    assert not any(pyxrt.alive.values())


@pytest.mark.parametrize("kind", STEPS)
def test_what_failed_once_is_released_and_can_be_repeated(npu, pyxrt, arrays, kind):
    """Also while the error is kept, as its traceback then is."""
    pyxrt.fail(kind, RuntimeError("xrt: no"))
    kept = []
    with pytest.raises(RunError, match="xrt: no") as caught:
        npu.run("scale", **arrays)
    assert not caught.value.lost
    kept.append(caught.value)
    npu.close()
    assert not any(pyxrt.alive.values()), pyxrt.alive
    np.testing.assert_array_equal(npu.run("scale", **arrays)["y"], arrays["x"] * arrays["w"])


@pytest.mark.parametrize("kind", ["elf", "hw_context", "kernel", "bo"])
def test_a_failed_load_lets_go_in_xrts_order(npu, pyxrt, arrays, kind):
    pyxrt.fail(kind, RuntimeError("xrt: no"), after=2 if kind == "bo" else 0)
    with pytest.raises(RunError):
        npu.run("scale", **arrays)
    npu.close()
    ends = [call.split()[0] for call in pyxrt.calls if call.startswith("~")]
    order = ["~bo", "~kernel", "~hw_context", "~elf", "~device"]
    assert ends == sorted(ends, key=order.index)
    assert ends[-1] == "~device"


@pytest.mark.parametrize(
    ("error", "reading"),
    [
        (
            "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-5): Input/output error",
            r"the NPU is wedged: .*modprobe",
        ),
        ("DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=5)", "power the machine off and on"),
        (
            "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22)",
            r"no context to give: it has 16 .*AERIE_NPU_CON",
        ),
        (
            "mmap failed (err=-11): Resource temporarily unavailable",
            r"locked memory is too low.*prlimit -lunlimited",
        ),
        ("alloc (err=-12): Cannot allocate memory", r"no memory left .*--seq-len"),
        ("open (err=-13): Permission denied", "join the group that owns /dev/accel/accel0"),
        ("No such device with index '0'", "the NPU is gone: the driver lost it or is not loaded"),
        ("Set hclock failed (err=-110)", "firmware does not answer"),
        ("No such kernel 'main:scael'", "no kernel of that name"),
        (
            "__init__(): incompatible constructor arguments.",
            "lacks a call of the ELF flow; `make doctor` shows which",
        ),
    ],
)
def test_known_messages_are_read(npu, pyxrt, arrays, error, reading):
    pyxrt.fail("hw_context", RuntimeError(error))
    with pytest.raises(RunError, match=re.escape(error) + ".*: .*" + reading) as caught:
        npu.run("scale", **arrays)
    assert caught.value.lost == ("modprobe" in str(caught.value))  # what only a reset mends


def test_no_memory_for_a_buffer_of_the_npu(npu, pyxrt, arrays):
    """pybind11 makes a MemoryError, without a text, of std::bad_alloc."""
    pyxrt.fail("bo", MemoryError())
    with pytest.raises(
        RunError, match=r"no buffer object for x .*: MemoryError: the machine has no memory left"
    ):
        npu.run("scale", **arrays)


def test_a_buffer_beyond_4_gib_is_refused(npu, variant, pyxrt):
    huge = ArgumentTable(
        [Argument("x", (1 << 30,), f32, Role.INPUT), Argument("y", (1, (1 << 30) + 1), f32, Role.OUTPUT)]
    )
    npu.compile_and_cache(variant(name="huge", arguments=huge))
    pyxrt.fail("bo", RuntimeError("xrt: exactly 4 GiB was asked for"))
    with pytest.raises(RunError, match="exactly 4 GiB was asked for"):
        npu.preload("huge")
    huge = ArgumentTable([huge[1]])
    npu.compile_and_cache(variant(name="huge", text="other", arguments=huge))
    with pytest.raises(
        RunError, match=r"y \(1x1073741825 f32\) takes 4294967300 bytes; .* at most 4294967296 .*split it"
    ):
        npu.preload("huge")
    assert called(pyxrt, "bo") == ["bo"]


# how runs end


def failing(npu, arrays, **keys):
    with pytest.raises(RunError) as caught:
        npu.run("scale", **arrays, **keys)
    return caught.value


@pytest.mark.parametrize(
    ("state", "name", "usually"),
    [
        (
            "TIMEOUT",
            r"ERT_CMD_STATE_TIMEOUT: the driver saw no progress .*XRT: Command failed .*ctx_pc = 0x0000F00D",
            "channel",
        ),
        ("ERROR", r"ERT_CMD_STATE_ERROR: the NPU's firmware refused", "an ELF made for another device"),
        ("ABORT", r"ERT_CMD_STATE_ABORT: the driver took it off", "another program hung"),
        ("NORESPONSE", r"ERT_CMD_STATE_NORESPONSE: .*could not be reset", "power the machine off and on"),
    ],
)
def test_a_bad_end_is_explained(npu, pyxrt, pyxrt_stand_in, arrays, state, name, usually):
    npu.run("scale", bo_key="L0", **arrays)
    pyxrt.fail("wait", getattr(pyxrt_stand_in, state))
    error = failing(npu, arrays, bo_key="L1")
    assert re.match(rf"program 'scale' on buffers 'L1' failed on the NPU: it ended in {name}", error.headline)
    details = dict(line.split(": ", 1) for line in error.details)
    assert usually in details["usually"]
    assert error.lost == (state == "NORESPONSE")  # from the others the driver recovers
    assert details["arguments"] == (
        "x (4x8 f32) input, w (4x8 f32) weight, tmp (4x8 f32) intermediate, y (4x8 f32) output"
    )
    assert details["the last program that completed"] == "program 'scale' on buffers 'L0'"
    assert str(error).splitlines() == [error.headline, *(f"  {line}" for line in error.details)]


def test_nothing_completed_before_the_first_failure(npu, pyxrt, pyxrt_stand_in, arrays):
    pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT)
    assert "the last program that completed: none since the NPU was opened" in failing(npu, arrays).details


def test_a_hang_is_distinguished_from_completion(
    monkeypatch, open_npu, program, pyxrt, pyxrt_stand_in, arrays
):
    monkeypatch.setenv("AERIE_NPU_TIMEOUT", "1")
    cache = open_npu()
    cache.compile_and_cache(program)
    pyxrt.fail("wait", pyxrt_stand_in.HANGS)
    error = failing(cache, arrays)
    assert "failed on the NPU: it hangs: not ended after 1 s, and the driver did not end it either" in str(
        error
    )
    assert error.lost
    assert len(called(pyxrt, "wait")) > 1  # in slices, between which Ctrl-C is seen
    assert not pyxrt.alive["hw_context"]  # the next call starts with a context of its own


def test_the_state_is_read_if_the_binding_reports_nothing(npu, pyxrt, arrays, monkeypatch):
    """Older bindings give None from wait."""
    real = pyxrt.run.wait
    monkeypatch.setattr(pyxrt.run, "wait", lambda run, ms: real(run, ms) and None)
    np.testing.assert_array_equal(npu.run("scale", **arrays)["y"], arrays["x"] * arrays["w"])
    pyxrt.fail("wait", 5)
    assert "ERT_CMD_STATE_ERROR" in failing(npu, {"x": arrays["x"]}).headline


@pytest.mark.parametrize("gives", [None, 8])
def test_a_wait2_that_does_not_raise_adds_nothing(npu, pyxrt, pyxrt_stand_in, arrays, monkeypatch, gives):
    monkeypatch.setattr(pyxrt.run, "wait2", lambda run: gives)
    pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT)
    assert failing(npu, arrays).headline.endswith("reset the context")


def test_weights_outlive_a_failed_run(npu, pyxrt, pyxrt_stand_in, arrays):
    npu.preload("scale", w=arrays["w"])
    pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT)
    failing(npu, {"x": arrays["x"]})
    assert called(pyxrt, "~run", "~kernel", "~hw_context", "~elf", "~bo") == [
        "~run", "~kernel", "~hw_context", "~elf"
    ]  # fmt: skip
    np.testing.assert_array_equal(npu.run("scale", x=arrays["x"])["y"], arrays["x"] * arrays["w"])


def test_ctrl_c_lets_the_device_finish(npu, pyxrt, arrays):
    pyxrt.fail("wait", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        npu.run("scale", **arrays)
    assert called(pyxrt, "wait") == ["wait", "wait"]
    np.testing.assert_array_equal(npu.run("scale", x=arrays["x"])["y"], arrays["x"] * arrays["w"])


def test_ctrl_c_twice_waits_no_longer(npu, pyxrt, arrays, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pyxrt.run, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        npu.run("scale", **arrays)
    assert not pyxrt.alive["hw_context"]


def test_the_command_for_the_virtual_npu_works(npu, pyxrt, pyxrt_stand_in, arrays, tmp_path):
    """With the text of a real program in place of the stand-in's."""
    pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT)
    line = next(line for line in failing(npu, arrays).details if "virtual NPU" in line)
    command = shlex.split(line.split(": ", 1)[1])
    kept = Path(command[4])
    assert kept.read_text() == "scale"
    golden = Path(__file__).parents[1] / "lit" / "kernels" / "eltwise_add.mlir"
    kept.write_text(golden.read_text())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "after the run" in done.stdout
    assert command == shlex.split(check_command(kept.with_suffix(".elf")))


# contexts


@pytest.fixture
def many(npu, variant):
    """Four programs: scale, and three more."""
    for name in "abc":
        npu.compile_and_cache(variant(name=name, text=name))
    return npu


def evicted(pyxrt):
    return [call.split()[1] for call in pyxrt.calls if call.startswith("~hw_context")]


def test_the_program_used_longest_ago_is_released_at_the_limit(
    monkeypatch, tmp_path, open_npu, program, variant, pyxrt, arrays
):
    monkeypatch.setenv("AERIE_NPU_CONTEXTS", "2")
    with open_npu() as npu:
        for name in "abc":
            npu.compile_and_cache(variant(name=name, text=name))
        npu.run("a", **arrays)
        npu.run("b", **arrays)
        npu.run("a", x=arrays["x"])
        npu.run("c", **arrays)
        assert evicted(pyxrt) == ["b"]
        assert pyxrt.alive["hw_context"] == 2
        result = npu.run("b", x=arrays["x"])["y"]  # its weights are still there
        np.testing.assert_array_equal(result, arrays["x"] * arrays["w"])
        assert evicted(pyxrt) == ["b", "a"]


def test_a_driver_without_contexts_makes_room(many, pyxrt, arrays):
    pyxrt.contexts = 2  # others have the rest
    for name in "abc":
        many.run(name, **arrays)
    assert evicted(pyxrt) == ["a"]
    np.testing.assert_array_equal(many.run("a", x=arrays["x"])["y"], arrays["x"] * arrays["w"])


def test_a_driver_without_any_context_is_explained(many, pyxrt, arrays):
    many.run("a", **arrays)
    pyxrt.contexts = 0
    with pytest.raises(RunError, match=r"could not load 'b' .*the driver has no context to give"):
        many.run("b", **arrays)
    assert evicted(pyxrt) == ["a"]


def test_other_failures_evict_no_program(many, pyxrt, arrays):
    many.run("a", **arrays)
    pyxrt.fail("hw_context", RuntimeError("xrt: damaged"))
    with pytest.raises(RunError, match="damaged"):
        many.run("b", **arrays)
    assert evicted(pyxrt) == []


def test_a_refused_array_leaves_the_npu_usable(npu, arrays):
    with pytest.raises(ArrayError):
        npu.run("scale", x=arrays["x"][:1], w=arrays["w"])
    assert npu.run("scale", **arrays)["y"].any()


def test_a_dropped_cache_frees_device_and_lock(open_npu, program, arrays, tmp_path, pyxrt):
    cache = open_npu()
    cache.compile_and_cache(program)
    cache.run("scale", **arrays)
    assert (tmp_path / "aerie.lock.owner").exists()
    dropped = weakref.ref(cache)
    del cache
    gc.collect()
    assert dropped() is None
    assert not any(pyxrt.alive.values())
    assert not (tmp_path / "aerie.lock.owner").exists()
