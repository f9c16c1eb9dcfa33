"""Recorded calls against the same calls made one by one; the programs are real ones."""

import ctypes
import time

import numpy as np
import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, ArgumentTableError, Role, f32
from aerie.multi_launch_builder.program import Program
from aerie.runtime import (
    AerieRuntimeError,
    ArrayError,
    HostCode,
    HostWork,
    KernelCache,
    Profiler,
    RunError,
    select_backend,
)
from aerie.runtime.calls import BETWEEN_PROGRAMS
from aerie.runtime.device import VirtualAccess
from aerie.virtual_npu.objects import load_host_code

WIDTH = 8
ROLES = {"x": Role.INPUT, "w": Role.WEIGHT, "tmp": Role.INTERMEDIATE, "y": Role.OUTPUT}

# y = x * w, tmp = x; waits for ever where x[0] is above 1000.
TEXT = """
module {
  air.channel @never [1, 1]
  func.func @NAME(%x: memref<8xf32>, %w: memref<8xf32>, %tmp: memref<8xf32>, %y: memref<8xf32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %limit = arith.constant 1000.0 : f32
    %first = memref.load %x[%c0] : memref<8xf32>
    %too_much = arith.cmpf ogt, %first, %limit : f32
    scf.if %too_much {
      air.channel.get @never[] (%tmp[] [] []) : (memref<8xf32>)
    }
    scf.for %i = %c0 to %c8 step %c1 {
      %a = memref.load %x[%i] : memref<8xf32>
      %b = memref.load %w[%i] : memref<8xf32>
      %c = arith.mulf %a, %b : f32
      memref.store %a, %tmp[%i] : memref<8xf32>
      memref.store %c, %y[%i] : memref<8xf32>
    }
    return
  }
}
"""

SHARING = {("L0", "y"): "middle", ("L1", "x"): "middle"}
X = np.arange(1, WIDTH + 1, dtype=np.float32)
WEIGHTS = {"L0": 2 * X, "L1": X - 3, "L2": np.sqrt(X)}


def program(name):
    table = ArgumentTable(Argument(key, (WIDTH,), f32, role) for key, role in ROLES.items())
    return Program(name, TEXT.replace("NAME", name), table, (name,), (), ())


FIRST, SECOND = program("first"), program("second")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture
def fake_library():
    """None: these programs are real."""


MODES = {
    "native": {},
    "apart": {"AERIE_PLAIN": "buffers"},
    "one by one": {"AERIE_PLAIN": "calls"},
    "strict": {"VNPU_STRICT": "1"},
    "strict apart": {"VNPU_STRICT": "1", "AERIE_PLAIN": "buffers"},
}


@pytest.fixture(params=MODES)
def mode(request, monkeypatch):
    for knob, value in MODES[request.param].items():
        monkeypatch.setenv(knob, value)
    return request.param


@pytest.fixture
def cache(artifacts):
    with KernelCache(artifacts, select_backend("virtual"), Profiler(), sharing=SHARING) as cache:
        cache.compile_all([FIRST, SECOND])
        for key, weights in WEIGHTS.items():
            cache.preload(FIRST if key == "L0" else SECOND, key, w=weights)
        yield cache


HOST_CODE = """
extern "C" __attribute__((visibility("default"))) int assign(float *const *arrays, void *, void *) {
  for (int i = 0; i < 8; ++i) arrays[0][i] = arrays[1][i];
  return 0;
}
"""


@pytest.fixture(scope="module")
def assign(tmp_path_factory):
    """assign(target, source) -> work that makes target = source, in numpy and in C."""
    source_file = tmp_path_factory.mktemp("host") / "assign.cc"
    source_file.write_text(HOST_CODE)
    function = load_host_code(source_file).assign
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address

    def work(target, source):
        arrays = (ctypes.c_void_p * 2)(target.ctypes.data, source.ctypes.data)
        code = HostCode(address, ctypes.addressof(arrays), (arrays, target, source))
        return HostWork(lambda: target.__setitem__(..., source), code)

    return work


class Steps:
    """Three calls with work of the host before the last, on arrays that stay: x goes in, `middle` between."""

    def __init__(self, assign):
        self.x, self.middle = X.copy(), np.zeros(WIDTH, np.float32)
        self.assign = assign

    def all(self, runner, host):
        y = runner.run(FIRST, bo_key="L0", copy=False, on_device=("y",), x=self.x)["y"]
        y = runner.run(SECOND, bo_key="L1", copy=False, x=y)["y"]
        host("hand on", self.assign(self.middle, y))
        return runner.run(SECOND, bo_key="L2", copy=False, outputs=("tmp", "y"), x=self.middle)

    def one_by_one(self, cache):
        def host(name, work):
            with cache.profiler.span(name):
                work.run()

        return {name: array.copy() for name, array in self.all(cache, host).items()}


@pytest.fixture
def steps(assign):
    return Steps(assign)


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_replay_is_what_the_calls_would_be(mode, cache, steps, batches):
    recording = cache.record()
    results = steps.all(recording, recording.host)
    for factor in (1, 3, -2):
        steps.x[...] = factor * X
        recording()
        found = {name: array.copy() for name, array in results.items()}
        expected = factor * X * WEIGHTS["L0"] * WEIGHTS["L1"]
        same(found, {"tmp": expected, "y": expected * WEIGHTS["L2"]})
        same(found, steps.one_by_one(cache))
    assert len(batches) == (3 if mode in ("native", "apart") else 0)


def test_nothing_runs_before_the_replay(cache, steps):
    recording = cache.record()
    steps.all(recording, recording.host)
    assert cache.profiler.programs == {}
    assert not steps.middle.any()


def test_the_profiler_counts_the_same(mode, cache, steps):
    steps.one_by_one(cache)
    recording = cache.record()
    steps.all(recording, recording.host)
    tables = []
    for make in (lambda: steps.one_by_one(cache), recording):
        cache.profiler.reset()
        make()
        programs, spans = cache.profiler.programs, cache.profiler.spans
        assert all(times.run > 0 for times in programs.values())
        moved = {name: (times.calls, times.bytes_moved) for name, times in programs.items()}
        tables.append(
            (moved, {name: times.calls for name, times in spans.items() if name != BETWEEN_PROGRAMS})
        )
    called, recorded = tables
    assert recorded == called
    assert called[1] == {"hand on": 1}


def test_the_whole_time_is_accounted_for(cache, steps):
    recording = cache.record()
    steps.all(recording, recording.host)
    recording()
    cache.profiler.reset()
    started = time.perf_counter()
    for _ in range(50):
        recording()
    spent = time.perf_counter() - started
    assert 0 < cache.profiler.total <= spent
    assert cache.profiler.spans[BETWEEN_PROGRAMS].calls == 50


@pytest.mark.parametrize("why", ["work without code", "strides", "another kind of run", "another device"])
def test_separate_calls_if_one_batch_is_impossible(cache, steps, batches, monkeypatch, why):
    wanted = steps.one_by_one(cache)
    if why == "work without code":
        steps.assign = lambda target, source: HostWork(lambda: target.__setitem__(..., source))
    elif why == "strides":
        steps.x = np.repeat(X, 2)[::2]
    elif why == "another device":
        monkeypatch.setattr(VirtualAccess, "supports_batches", False)
    else:
        monkeypatch.setattr(cache.backend.pyxrt, "run", type("Other", (cache.backend.pyxrt.run,), {}))
        cache.close()
        for key, weights in WEIGHTS.items():
            cache.preload(FIRST if key == "L0" else SECOND, key, w=weights)
    recording = cache.record()
    results = steps.all(recording, recording.host)
    recording()
    same(results, wanted)
    assert batches == []


def test_later_records_are_replayed_too(cache, assign, batches):
    x, out = X.copy(), np.zeros(WIDTH, np.float32)
    recording = cache.record()
    y = recording.run(FIRST, bo_key="L0", x=x)["y"]
    recording()
    recording.host("hand on", assign(out, y))
    recording()
    np.testing.assert_array_equal(out, X * WEIGHTS["L0"])
    assert len(batches) == 2


def test_a_weight_that_is_replaced_is_the_replays_too(mode, cache):
    recording = cache.record()
    y = recording.run("second", bo_key="L1", x=X)["y"]
    for factor in (1, 5):
        cache.preload(SECOND, "L1", w=factor * WEIGHTS["L1"])
        recording()
        np.testing.assert_array_equal(y, X * (factor * WEIGHTS["L1"]))


def test_an_input_that_is_filled_in_place(mode, cache):
    x = cache.buffer(FIRST, "L0", "x")
    recording = cache.record()
    y = recording.run(FIRST, bo_key="L0")["y"]
    for factor in (1, 4):
        x[...] = factor * X
        recording()
        np.testing.assert_array_equal(y, factor * X * WEIGHTS["L0"])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"x": X, "copy": True}, AerieRuntimeError, "a recorded call gives views, .*: leave copy out"),
        ({"x": X, "w": X}, ArrayError, r"on buffers 'L0': weight w is on the device already"),
        ({}, ArrayError, r"program 'first' on buffers 'L0' needs x \(8 f32\)"),
        ({"x": X[:4]}, ArrayError, r"input x \(8 f32\) was given 4 float32; pass shape \(8,\)"),
        ({"z": X}, ArgumentTableError, "z"),
        ({"x": X, "outputs": ["q"]}, ArgumentTableError, "q"),
    ],
)
def test_refusals_while_recording(cache, call, error, message):
    recording = cache.record()
    with pytest.raises(error, match=message):
        recording.run(FIRST, bo_key="L0", **call)
    recording()  # nothing was noted


def test_weights_must_be_there_before(cache):
    with pytest.raises(
        ArrayError, match="on buffers 'new': w would be written once and never again; preload"
    ):
        cache.record().run(FIRST, bo_key="new", x=X, w=X)
    with pytest.raises(ArrayError, match="on buffers 'new': w never written"):
        cache.record().run(FIRST, bo_key="new", x=X)


def test_released_buffers_are_not_touched(mode, cache, steps):
    recording = cache.record()
    steps.all(recording, recording.host)
    recording()
    assert recording.is_current
    cache.close()
    assert not recording.is_current
    with pytest.raises(
        AerieRuntimeError, match="the buffers of the replayed recording were released; record it again"
    ):
        recording()


def test_a_program_that_fails_ends_the_replay(mode, cache, steps):
    """As the call by itself fails, nothing after it runs, and the next replay is whole again."""
    recording = cache.record()
    results = steps.all(recording, recording.host)
    recording()
    before = {name: array.copy() for name, array in results.items()}
    middle = steps.middle.copy()
    cache.preload(FIRST, "L0", w=np.full(WIDTH, 2000, np.float32))  # L1 waits for ever
    with pytest.raises(RunError) as replayed:
        recording()
    np.testing.assert_array_equal(steps.middle, middle)
    with pytest.raises(RunError) as called:
        steps.one_by_one(cache)
    assert str(replayed.value) == str(called.value)
    assert "program 'second' on buffers 'L1' failed: run of 'main:second' ended in" in str(called.value)
    assert "never" in str(called.value)
    cache.preload(FIRST, "L0", w=WEIGHTS["L0"])
    recording()
    same(results, before)


def test_the_failure_has_the_completed_programs(cache, steps, monkeypatch):
    seen = []

    def explain(access, failure):
        seen.append(failure)
        return RunError("no")

    monkeypatch.setattr(VirtualAccess, "explain", explain)
    recording = cache.record()
    steps.all(recording, recording.host)
    recording()
    first, second, third = X + 1000, np.where(X == 1, 1000, X), np.where(X == 1, -300, X)
    for x, before in ((first, "L2"), (second, "L0"), (third, "L1")):
        steps.x[...] = x  # the first, second or third program waits for ever
        with pytest.raises(RunError):
            recording()
        assert f"'{before}'" in seen.pop().last_completed
