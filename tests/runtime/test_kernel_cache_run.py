"""Running through KernelCache: by name, by position, and what is refused."""

import gc
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, ArgumentTableError, Role, f32
from aerie.runtime import AerieRuntimeError, ArrayError, RunError, RunStopped, StopFlag
from aerie.runtime.buffers import BufferSet
from aerie.runtime.device import OpenDevice

ZEROS = np.zeros((4, 8), np.float32)


class Writes:
    """Counts the slots that are written, on top of the real method."""

    def __init__(self, monkeypatch):
        self.slots: list[Any] = []
        real = BufferSet.write

        def write(buffers, slot, array):
            self.slots.append(slot)
            real(buffers, slot, array)

        monkeypatch.setattr(BufferSet, "write", write)


@pytest.fixture
def writes(monkeypatch):
    return Writes(monkeypatch)


def test_run_by_name(cache, program, arrays):
    results = cache.run(program, **arrays)
    assert list(results) == ["y"]
    np.testing.assert_array_equal(results["y"], arrays["x"] * arrays["w"])


def test_any_argument_can_be_an_output(cache, arrays):
    results = cache.run("scale", outputs=("tmp", "y"), **arrays)
    np.testing.assert_array_equal(results["tmp"], arrays["x"])
    assert cache.run("scale", outputs=(), x=arrays["x"]) == {}


def test_weights_are_written_once_per_key(cache, arrays, writes):
    x, w = arrays["x"], arrays["w"]
    cache.preload("scale", "L0", w=w)
    cache.preload("scale", bo_key="L1", w=2 * w)
    writes.slots.clear()
    for factor in (1, 3):
        np.testing.assert_array_equal(cache.run("scale", bo_key="L0", x=factor * x)["y"], factor * x * w)
        np.testing.assert_array_equal(cache.run("scale", bo_key="L1", x=factor * x)["y"], factor * x * 2 * w)
    assert writes.slots == [0, 0, 0, 0]


def test_results_are_owned_unless_views_are_requested(cache, arrays):
    x = arrays["x"]
    owned = cache.run("scale", **arrays)["y"]
    view = cache.run("scale", x=x, copy=False)["y"]
    before = owned.copy()
    cache.run("scale", x=2 * x)
    np.testing.assert_array_equal(owned, before)
    np.testing.assert_array_equal(view, 2 * before)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


def test_preload_replaces_a_weight(cache, arrays):
    cache.run("scale", **arrays)
    cache.preload("scale", w=ZEROS)
    assert not cache.run("scale", x=arrays["x"])["y"].any()


def test_buffer_is_filled_in_place(cache, arrays):
    x, w = arrays["x"], arrays["w"]
    cache.buffer("scale", "L0", "w")[...] = w
    in_place = cache.buffer("scale", "L0", "x")
    for factor in (1, 2):
        in_place[...] = factor * x
        np.testing.assert_array_equal(cache.run("scale", bo_key="L0")["y"], factor * x * w)
    cache.buffer("scale", "L0", "w")[...] = 0
    assert not cache.run("scale", bo_key="L0")["y"].any()


def test_an_array_may_have_any_strides(cache, arrays):
    x = np.asfortranarray(arrays["x"])
    np.testing.assert_array_equal(cache.run("scale", x=x, w=arrays["w"])["y"], x * arrays["w"])


def test_the_set_without_a_key_is_the_one_named_like_the_program(cache, arrays):
    cache.run("scale", **arrays)
    assert cache.run("scale", bo_key="scale", x=arrays["x"])["y"].any()


def test_load_and_run_keeps_the_contract(cache, arrays, writes):
    x, w = arrays["x"], arrays["w"]
    sets = {"static_input_indices": {1}, "intermediate_indices": {2, 3}, "bo_key": "L0"}
    first = cache.load_and_run("scale", x, w, ZEROS, ZEROS, output_indices=[3], **sets)
    assert writes.slots == [0, 1, 2, 3]
    assert [result.size for result in first] == [0, 0, 0, 32]
    np.testing.assert_array_equal(first[3], x * w)
    empty = np.empty(0, np.float32)
    later = cache.load_and_run("scale", 2 * x, empty, empty, empty, output_indices=[2, 3], **sets)
    assert writes.slots == [0, 1, 2, 3, 0]
    assert [result.dtype for result in later] == [np.float32] * 4
    np.testing.assert_array_equal(later[2], 2 * x)
    np.testing.assert_array_equal(later[3], 2 * x * w)


def test_load_and_run_writes_all_and_reads_the_last_by_default(cache, arrays, writes):
    for factor in (1, 2):
        result = cache.load_and_run("scale", arrays["x"], factor * arrays["w"], ZEROS, ZEROS)
        np.testing.assert_array_equal(result[3], factor * arrays["x"] * arrays["w"])
    assert writes.slots == [0, 1, 2, 3] * 2


def test_load_and_run_skips_what_preload_wrote(cache, arrays, writes):
    cache.preload("scale", "L0", w=arrays["w"])
    result = cache.load_and_run(
        "scale", arrays["x"], ZEROS, ZEROS, ZEROS, static_input_indices={1}, bo_key="L0"
    )
    np.testing.assert_array_equal(result[3], arrays["x"] * arrays["w"])


X = ZEROS


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.run("scale", x=ZEROS[:2], w=X),
            r"input x \(4x8 f32\) was given 2x8 float32; pass shape \(4, 8\) and dtype float32",
        ),
        (
            lambda c: c.run("scale", bo_key="L7", x=X, w=X.astype(ml_dtypes.bfloat16)),
            r"program 'scale' on buffers 'L7': weight w \(4x8 f32\) was given 4x8 bfloat16; pass shape",
        ),
        (
            lambda c: c.run("scale", w=X),
            r"program 'scale' needs x \(4x8 f32\); an input is passed in every call",
        ),
        (
            lambda c: c.run("scale", x=X),
            "program 'scale': w never written; pass them in the first call, or preload",
        ),
        (
            lambda c: [c.run("scale", x=X, w=X) for _ in range(2)],
            "program 'scale': weight w is on the device already and would not be written again; leave it out",
        ),
        (
            lambda c: c.run("scale", x=X, w=X, tmp=X),
            "tmp is an intermediate, which the program overwrites; leave it",
        ),
        (
            lambda c: c.preload("scale", x=X),
            "program 'scale': x is an input; only weights and tables are preloaded",
        ),
        (
            lambda c: c.buffer("scale", None, "y"),
            "program 'scale': y is an output, which the program overwrites",
        ),
        (
            lambda c: c.load_and_run("scale", X, X),
            "program 'scale' takes 4 arrays and got 2; pass one per argument",
        ),
        (
            lambda c: c.load_and_run("scale", X, X, X, X, output_indices=[4]),
            "program 'scale' has no slot 4; its 4 slots count from 0",
        ),
    ],
)
def test_refused(cache, call, message):
    with pytest.raises(ArrayError, match=message):
        call(cache)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.run("scale", x=X, w=X, weigt=X),
        lambda c: c.run("scale", x=X, w=X, outputs=["weigt"]),
        lambda c: c.buffer("scale", None, "weigt"),
    ],
)
def test_unknown_argument(cache, call):
    with pytest.raises(ArgumentTableError, match="no argument named 'weigt'; there are: x, w, tmp, y"):
        call(cache)


def test_unknown_program(cache, open_cache):
    with pytest.raises(
        AerieRuntimeError, match=r"no program 'scael' in this cache \(scale\); call compile_and"
    ):
        cache.run("scael", x=X)
    with pytest.raises(AerieRuntimeError, match=r"no program 'scale' in this cache \(none yet\)"):
        open_cache().run("scale", x=X)


def test_a_refused_call_leaves_the_set_usable(cache, arrays):
    with pytest.raises(ArrayError):
        cache.run("scale", x=ZEROS[:2], w=arrays["w"])
    assert cache.run("scale", **arrays)["y"].any()


def test_a_failing_run_names_the_program_and_can_be_repeated(cache, arrays, fake_library):
    fake_library.fail = ValueError("channel @c: nobody puts")
    with pytest.raises(RunError, match=r"program 'scale' on buffers 'L0' failed: .*channel @c: nobody puts"):
        cache.run("scale", bo_key="L0", **arrays)
    fake_library.fail = None
    np.testing.assert_array_equal(
        cache.run("scale", bo_key="L0", x=arrays["x"])["y"], arrays["x"] * arrays["w"]
    )


def test_ctrl_c_leaves_a_cache_that_runs_on(cache, arrays, fake_library):
    fake_library.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cache.run("scale", **arrays)
    fake_library.fail = None
    np.testing.assert_array_equal(cache.run("scale", x=arrays["x"])["y"], arrays["x"] * arrays["w"])


def test_a_stop_that_is_set_lets_no_run_begin(cache, arrays):
    """On whatever device: it is asked before each."""
    stop, made = StopFlag(), []

    def run_twice():
        made.append(cache.run("scale", **arrays)["y"])
        stop.set()
        made.append(cache.run("scale", x=2 * arrays["x"])["y"])

    with pytest.raises(RunStopped), stop.watching():
        run_twice()
    assert len(made) == 1
    np.testing.assert_array_equal(cache.run("scale", x=arrays["x"])["y"], made[0])


def test_close_releases_and_the_cache_starts_anew(cache, arrays):
    cache.run("scale", **arrays)
    cache.close()
    gc.collect()
    with pytest.raises(ArrayError, match="w never written"):
        cache.run("scale", x=arrays["x"])
    cache.preload("scale", w=arrays["w"])
    assert cache.run("scale", x=arrays["x"])["y"].any()


def test_another_program_of_the_same_name_gets_its_own_buffers(cache, variant, arrays):
    cache.run("scale", **arrays)
    cache.compile_and_cache(variant(text="scale, but different"))
    with pytest.raises(ArrayError, match="w never written"):
        cache.run("scale", x=arrays["x"])


def test_the_same_program_compiled_again_keeps_its_buffers(cache, program, arrays):
    cache.run("scale", **arrays)
    cache.compile_and_cache(program)
    np.testing.assert_array_equal(cache.run("scale", x=arrays["x"])["y"], arrays["x"] * arrays["w"])


def test_a_program_that_cannot_be_loaded(cache, open_cache, program):
    artifact = cache.compile_and_cache(program)
    with open_cache() as other:
        other.compile_and_cache(program)
        artifact.path.unlink()
        with pytest.raises(
            RunError, match=r"backend 'virtual' could not load 'scale' from .*: there is no file"
        ):
            other.run("scale", x=X)


def test_a_device_that_cannot_be_opened(cache, arrays, monkeypatch):
    def device(index):
        raise OSError("no /dev/accel/accel0")

    monkeypatch.setattr(cache.backend.pyxrt, "device", device)
    with pytest.raises(RunError, match="backend 'virtual' could not open device 0: no /dev/accel/accel0"):
        cache.run("scale", **arrays)


def test_a_pyxrt_without_the_elf_flow(cache, arrays, monkeypatch):
    monkeypatch.delattr(cache.backend.pyxrt, "ext")
    with pytest.raises(
        RunError, match=r"backend 'virtual' could not load 'scale' from .*: .* no attribute 'ext'"
    ):
        cache.run("scale", **arrays)


def test_no_memory_for_a_buffer(cache, variant):
    huge = ArgumentTable([Argument("x", (1 << 60,), f32, Role.INPUT)])
    cache.compile_and_cache(variant(name="huge", arguments=huge))
    with pytest.raises(
        RunError, match=r"program 'huge': no buffer object for x .*: no memory for a buffer object"
    ):
        cache.run("huge", x=X)


def test_the_overhead_of_a_call_is_small(cache, arrays):
    cache.preload("scale", w=arrays["w"])
    x = arrays["x"]
    best = 1.0
    for _ in range(200):
        started = time.thread_time()
        cache.run("scale", x=x)
        best = min(best, time.thread_time() - started)
    assert best < 300e-6  # CPU seconds; ten times what it takes, numpy's stand-in program included


def test_a_dropped_cache_releases_in_xrts_order(open_cache, program, arrays, monkeypatch):
    gc.collect()  # caches of other tests that errors kept
    closed = []
    for owner in (BufferSet, OpenDevice):
        monkeypatch.setattr(owner, "close", lambda self: closed.append(type(self)))
    cache = open_cache()
    cache.compile_and_cache(program)
    cache.run(program, **arrays)
    del cache
    gc.collect()
    assert closed == [BufferSet, OpenDevice]
