"""Buffers that several sets share: what one program made is where the next one reads it."""

import gc
import re

import numpy as np
import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, f32, i32
from aerie.runtime import ArrayError, Profiler

X = np.arange(32, dtype=np.float32).reshape(4, 8)
W = np.full((4, 8), 2, np.float32)

# y of `scale` on first is x of `scale` on second; their weights are one.
SHARING = {
    ("first", "y"): "middle",
    ("second", "x"): "middle",
    ("first", "w"): "weights",
    ("second", "w"): "weights",
}


@pytest.fixture(params=["", "buffers"], ids=["shared", "apart"])
def knob(request, monkeypatch):
    monkeypatch.setenv("AERIE_PLAIN", request.param)
    return request.param


@pytest.fixture
def sharing_cache(open_cache, program):
    with open_cache(profiler=Profiler(), sharing=SHARING) as cache:
        cache.compile_and_cache(program)
        yield cache


def pass_through(cache, **first):
    """Both calls, the first one's result left on the device; what the second one made."""
    middle = cache.run("scale", bo_key="first", copy=False, on_device=("y",), **first)["y"]
    return cache.run("scale", bo_key="second", copy=False, x=middle)["y"]


def test_the_next_program_reads_what_the_first_made(strict, sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    np.testing.assert_array_equal(pass_through(sharing_cache, x=X), 4 * X)
    np.testing.assert_array_equal(pass_through(sharing_cache, x=X + 1), 4 * (X + 1))


def test_what_is_filled_in_place_through_one_set_reaches_the_other(strict, monkeypatch, sharing_cache):
    monkeypatch.delenv("AERIE_PLAIN", raising=False)
    sharing_cache.preload("scale", "first", w=W)
    np.testing.assert_array_equal(pass_through(sharing_cache, x=X), 4 * X)
    for factor in (3, 5):
        sharing_cache.buffer("scale", "first", "w")[...] = factor
        found = sharing_cache.run("scale", bo_key="second", x=X)["y"]
        np.testing.assert_array_equal(found, factor * X)


def test_nothing_of_it_passes_through_the_host(knob, sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    if knob == "buffers":
        sharing_cache.preload("scale", "second", w=W)
    sharing_cache.run("scale", bo_key="first", x=X)
    sharing_cache.run("scale", bo_key="second", x=X)
    sharing_cache.profiler.reset()
    pass_through(sharing_cache, x=X)
    transfers = {"": 2, "buffers": 4}[knob]  # x in and y out; without sharing also what is between them
    assert sharing_cache.profiler.bytes_moved == transfers * X.nbytes


def test_both_ways_give_the_same(knob, strict, sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    sharing_cache.preload("scale", "second", w=W)
    np.testing.assert_array_equal(pass_through(sharing_cache, x=X), 4 * X)


def test_an_array_of_the_hosts_is_copied_as_ever(sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    pass_through(sharing_cache, x=X)
    np.testing.assert_array_equal(sharing_cache.run("scale", bo_key="second", x=10 * X)["y"], 20 * X)


def test_a_result_left_on_the_device_is_read_where_nobody_shares_it(strict, sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    result = sharing_cache.run("scale", bo_key="second", copy=False, on_device=("y",), x=X)["y"]
    np.testing.assert_array_equal(result, 2 * X)


def test_only_what_is_named_stays_on_the_device(strict, sharing_cache):
    """The set `first` shares the buffer of y; its host reads y, and leaves tmp."""
    sharing_cache.preload("scale", "first", w=W)
    result = sharing_cache.run("scale", bo_key="first", copy=False, on_device=("tmp",), x=X)["y"]
    np.testing.assert_array_equal(result, 2 * X)


def test_a_shared_weight_that_is_filled_in_place_reaches_both(strict, sharing_cache):
    sharing_cache.buffer("scale", "first", "w")[...] = W
    np.testing.assert_array_equal(sharing_cache.run("scale", bo_key="second", x=X)["y"], 2 * X)
    np.testing.assert_array_equal(sharing_cache.run("scale", bo_key="first", x=X)["y"], 2 * X)


def test_a_shared_buffer_goes_with_its_last_set(sharing_cache):
    sharing_cache.preload("scale", "first", w=W)
    sharing_cache.close()
    gc.collect()
    with pytest.raises(ArrayError, match="w never written"):
        sharing_cache.run("scale", bo_key="second", x=X)


@pytest.mark.parametrize(("shape", "dtype"), [((8, 8), f32), ((4, 8), i32)])
def test_shapes_and_dtypes_that_differ_are_refused(open_cache, variant, program, shape, dtype):
    x = Argument("x", shape, dtype, Role.INPUT)
    wide = ArgumentTable([x, *list(program.arguments)[1:]])
    with open_cache(sharing=SHARING) as cache:
        cache.compile_and_cache(program)
        cache.compile_and_cache(variant(name="wide", arguments=wide))
        cache.preload("scale", "first", w=W)
        with pytest.raises(
            ArrayError,
            match=rf"program 'wide' on buffers 'second': {re.escape(str(x))} cannot share buffer 'middle' "
            r"with y \(4x8 f32\) of program 'scale' on buffers 'first': shapes and dtypes differ; mend the "
            "table",
        ):
            cache.run("wide", bo_key="second", x=np.zeros(shape, dtype.numpy))


def test_a_weight_shares_with_weights_alone(open_cache, program):
    with open_cache(sharing={("first", "w"): "mixed", ("second", "x"): "mixed"}) as cache:
        cache.compile_and_cache(program)
        cache.preload("scale", "first", w=W)
        with pytest.raises(
            ArrayError,
            match=r"program 'scale' on buffers 'second': x \(4x8 f32\) cannot share buffer 'mixed' with "
            r"w \(4x8 f32\) of program 'scale' on buffers 'first': input and weight differ in when they are",
        ):
            cache.run("scale", bo_key="second", x=X)


def test_a_shared_weight_is_filled_once(knob, strict, sharing_cache):
    """By a function that is given the buffer, the second set's too where nothing is shared."""
    filled = []

    def fill(view):
        filled.append(view.shape)
        view[...] = W

    for bo_key in ("first", "second"):
        missing = sharing_cache.unfilled_weights("scale", bo_key=bo_key)
        sharing_cache.preload("scale", bo_key, **dict.fromkeys(missing, fill))
        assert sharing_cache.unfilled_weights("scale", bo_key=bo_key) == []
    assert filled == [(4, 8)] * {"": 1, "buffers": 2}[knob]
    np.testing.assert_array_equal(pass_through(sharing_cache, x=X), 4 * X)


def test_a_weight_that_could_not_be_filled_is_not_taken_for_one(sharing_cache):
    def fail(view):
        view[0] = 1
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        sharing_cache.preload("scale", "first", w=fail)
    assert sharing_cache.unfilled_weights("scale", bo_key="second") == ["w"]
    with pytest.raises(ArrayError, match="w never written"):
        sharing_cache.run("scale", bo_key="first", x=X)
