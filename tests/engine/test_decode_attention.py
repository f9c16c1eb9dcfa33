"""Decode attention in C++ and in numpy: against the formula in float64, and against each other."""

from __future__ import annotations

import functools
from threading import Event
from typing import Any

import numpy as np
import pytest

from aerie.cli.command_line import main
from aerie.common.errors import ToolchainError
from aerie.engine import native
from aerie.engine.attention import CacheAttention, NewKVRows, reference_attention
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.kv_cache import causal
from aerie.engine.native import KVPosition, NativeAttention, NativeLayer, native_attention, prepare_native
from aerie.engine.numerics import bf16
from aerie.virtual_npu.objects import load_host_code

CAPACITY = 300
Shape = tuple[int, int, int]
SHAPES: list[Shape] = [(4, 4, 32), (4, 2, 64), (6, 1, 96), (1, 1, 128), (7, 1, 160), (4, 1, 256), (32, 8, 64)]

PLAIN = {"native": "", "numpy": "host_code"}
"""AERIE_PLAIN for each form."""


@pytest.fixture(params=PLAIN)
def form(request, monkeypatch):
    """Both forms, one after the other."""
    monkeypatch.setenv("AERIE_PLAIN", PLAIN[request.param])
    assert isinstance(native_attention(), NativeAttention) is (request.param == "native")
    return request.param


def drawn(heads, kv_heads, head_dim, seed=0, scale=1.0) -> tuple[Any, Any, Any]:
    """A query, and keys and values of CAPACITY positions."""
    random = np.random.default_rng(seed)
    query = (scale * random.normal(size=heads * head_dim)).astype(bf16)
    keys, values = (random.normal(size=(kv_heads, CAPACITY, head_dim)).astype(bf16) for _ in range(2))
    return query, keys, values


def exact(query, keys, values, visible):
    """The formula, in float64."""
    kv_heads, _, head_dim = keys.shape
    query, keys, values = (
        array.astype(np.float64) for array in (query, keys[:, visible], values[:, visible])
    )
    scores = query.reshape(kv_heads, -1, head_dim) @ keys.transpose(0, 2, 1) / np.sqrt(head_dim)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ values).reshape(-1)


def decode_attention(query, keys, values, position, mask=causal):
    """As a decoded token at that position attends, in the form that serves it."""
    attention = CacheAttention([(keys, values)], query.size, [mask(position)])
    attention.set_position(position, [mask(position)])
    row = np.zeros(keys.shape[0] * keys.shape[2], bf16)
    _, attend = attention.layer_work(0, query, row, row)
    attend.run()
    return attention.out


def bits(array):
    return array.view(np.uint16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("position", [0, 1, 15, 16, 130, CAPACITY - 1])
def test_the_formula(form, shape: Shape, position):
    """To one rounding to bf16, and float32's own error."""
    query, keys, values = drawn(*shape, seed=position)
    expected = exact(query, keys, values, slice(0, position + 1))
    result = decode_attention(query, keys, values, position)
    assert result.dtype == bf16
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=2**-8, atol=2e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1000.0])
def test_flat_and_sharp_scores(form, scale):
    query, keys, values = drawn(4, 2, 64, scale=scale)
    expected = exact(query, keys, values, slice(0, CAPACITY))
    result = decode_attention(query, keys, values, CAPACITY - 1).astype(np.float64)
    np.testing.assert_allclose(result, expected, rtol=2**-8, atol=1e-4 * np.abs(values.astype(float)).max())


def test_both_forms_agree_to_the_order_of_summation():
    query, keys, values = drawn(32, 8, 64)
    seen = slice(0, CAPACITY)
    ours, reference = (
        decode_attention(query, keys, values, CAPACITY - 1),
        reference_attention(query, keys, values, seen),
    )
    apart = bits(ours).astype(np.int32) - bits(reference)
    assert np.abs(apart).max() <= 1
    assert (apart != 0).mean() < 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_threads_change_no_bit(shape: Shape, monkeypatch):
    results = []
    for threads in ("1", "2", "3", "16"):
        monkeypatch.setenv("VNPU_THREADS", threads)
        results.append(bits(decode_attention(*drawn(*shape), CAPACITY - 1)))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_what_is_not_seen_changes_nothing(form):
    """Not even where it is no number, nor where it shares a tile with what is seen."""
    query, keys, values = drawn(4, 2, 64)
    before = decode_attention(query, keys, values, 20).copy()
    keys[:, 21:], values[:, 21:] = np.nan, np.inf
    np.testing.assert_array_equal(bits(decode_attention(query, keys, values, 20)), bits(before))


def test_a_window(form):
    query, keys, values = drawn(4, 2, 64)
    window = slice(37, 101)
    result = decode_attention(query, keys, values, 100, mask=lambda position: window)
    moved = decode_attention(query, keys[:, 37:].copy(), values[:, 37:].copy(), 63)
    np.testing.assert_array_equal(bits(result), bits(moved))
    np.testing.assert_allclose(
        result.astype(np.float64), exact(query, keys, values, window), rtol=2**-8, atol=2e-6
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_that_lie_apart(form, shape: Shape):
    """As in pages of a pool: the bits of the same positions in a row, whatever lies between them."""
    query, keys, values = drawn(*shape)
    places = np.concatenate([np.arange(first, first + 16) for first in (48, 16, 96, 64, 0)])[:75]
    apart = decode_attention(query, keys, values, 99, mask=lambda position: places)
    near_keys, near_values = (array[:, places].copy() for array in (keys, values))
    run = decode_attention(query, near_keys, near_values, 74, mask=lambda position: slice(0, 75))
    np.testing.assert_array_equal(bits(apart), bits(run))


@pytest.mark.parametrize("place", [CAPACITY, -1])
def test_a_place_that_the_cache_does_not_have_is_no_read_beyond_it(place):
    query, keys, values = drawn(4, 2, 64)
    with pytest.raises(IndexError, match=f"in a cache of {CAPACITY}"):
        decode_attention(query, keys, values, 5, mask=lambda position: np.array([0, place]))


@pytest.mark.parametrize(("position", "rows"), [(CAPACITY, 1), (CAPACITY - 3, 4), (-1, 1)])
def test_rows_beyond_the_cache_are_not_kept(position, rows):
    new = NewKVRows([drawn(4, 2, 64)[1:]])
    for move in (
        lambda: new.set_position(position, rows),
        lambda: new.set_positions(position + np.arange(rows)),
    ):
        with pytest.raises(IndexError, match=rf"positions {position}\.\.{position + rows - 1} in a cache of"):
            move()


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_what_is_no_number_shows(form, broken):
    arrays = drawn(4, 2, 64)
    arrays[broken][..., 3] = np.nan
    with np.errstate(invalid="ignore"):
        assert np.isnan(decode_attention(*arrays, 40).astype(np.float32)).any()


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: (keys, np.arange(CAPACITY) % 2 == 0),
        lambda keys: (keys, slice(0, 100, 2)),
        lambda keys: (keys, slice(5, 5)),
        lambda keys: (np.asfortranarray(keys), slice(0, 10)),
        lambda keys: (keys[..., :48].copy(), slice(0, 10)),
    ],
    ids=["pattern", "steps", "nothing", "turned round", "half vectors"],
)
def test_what_the_native_form_leaves_to_numpy(change):
    keys = drawn(4, 2, 64)[1]
    attention = native_attention()
    assert attention
    assert attention.can_attend(keys, slice(0, 10))
    assert not attention.can_attend(*change(keys))


def test_what_numpy_serves_alone():
    query, keys, values = drawn(4, 2, 64)
    pattern = np.arange(CAPACITY) % 3 == 0
    result = decode_attention(query, keys, values, 99, mask=lambda position: pattern)
    np.testing.assert_allclose(
        result.astype(np.float64), exact(query, keys, values, pattern), rtol=2**-8, atol=2e-6
    )


def test_the_cache_is_not_copied(monkeypatch):
    """The addresses that C++ is given are the cache's own."""
    seen = []
    native_form = native_attention()
    monkeypatch.setattr(native_form, "timed", lambda function, layer: seen.append(layer))
    query, keys, values = drawn(4, 2, 64)
    decode_attention(query, keys, values, 6)
    (layer,) = seen
    assert (layer.query, layer.keys, layer.values) == tuple(
        array.ctypes.data for array in (query, keys, values)
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"key_rows": np.zeros(130, bf16)},
            r"key_rows is \(130,\) bfloat16; .* reads 128 elements of bf16 in a row",
        ),
        (
            {"value_rows": np.zeros(128, np.float16)},
            r"value_rows is \(128,\) float16; decode attention reads 128",
        ),
        ({"out": np.zeros(512, bf16)[::2]}, r"out is \(256,\) bfloat16; .* in a row"),
    ],
)
def test_arrays_that_c_would_leave_are_refused(wrong, message):
    query, keys, values = drawn(4, 2, 64)
    rows = {name: np.zeros(128, bf16) for name in ("key_rows", "value_rows")}
    arrays = {"query": query, "keys": keys, "values": values, "out": np.zeros(256, bf16), **rows}
    attention = native_attention()
    assert attention
    NativeLayer(attention, KVPosition(), 1, **arrays)
    with pytest.raises(ValueError, match=message):
        NativeLayer(attention, KVPosition(), 1, **(arrays | wrong))


def test_without_a_compiler_numpy_does_it(monkeypatch):
    def missing(*arguments, **named):
        raise ToolchainError("no C++ compiler: looked for c++. Install one")

    monkeypatch.setattr(native, "load_host_code", missing)
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    assert prepare_native() == (
        "decode attention: numpy, which is slower at long contexts, because C++ failed (no C++ compiler: "
        "looked for c++. Install one)"
    )
    assert native_attention() is None
    query, keys, values = drawn(4, 2, 64)
    expected = reference_attention(query, keys, values, slice(0, 10))
    np.testing.assert_array_equal(bits(decode_attention(query, keys, values, 9)), bits(expected))


def test_programs_are_compiled_meanwhile(monkeypatch):
    inside = Event()
    monkeypatch.setattr(native, "_load", lambda: "done" if inside.wait(60) else "nothing was done meanwhile")
    with native.preparing_native() as prepared:
        inside.set()
        assert prepared.result() == "done"


def test_ctrl_c_ends_the_compilation_and_the_next_call_compiles_again(monkeypatch):
    stopped = Event()

    def compiling(*arguments, **named):
        raise ToolchainError("c++ was killed" if stopped.wait(60) else "nobody stopped c++")

    monkeypatch.setattr(native, "load_host_code", compiling)
    monkeypatch.setattr(native, "stop_compilers", stopped.set)
    monkeypatch.setattr(native, "_load", functools.cache(native._load.__wrapped__))
    with pytest.raises(KeyboardInterrupt), native.preparing_native() as prepared:
        raise KeyboardInterrupt
    assert prepared.result().endswith("(c++ was killed)")
    assert native._load.cache_info().currsize == 0


def test_the_knob_is_printed(monkeypatch):
    assert prepare_native() == ""
    monkeypatch.setenv("AERIE_PLAIN", "host_code")
    assert prepare_native() == "decode attention: numpy (AERIE_PLAIN asks for it)"


def test_a_knob_that_makes_no_sense(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("AERIE_PLAIN", "fast")
    assert main(["compile", "--backend", "virtual", "--cache-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "error: AERIE_PLAIN='fast' cannot be used: give some of products, calls, buffers, host_code with "
        "commas between, or all; or unset it\n"
    )


SQUARE = 'extern "C" __attribute__((visibility("default"))) int square(int x) { return x * x; }'


@pytest.mark.parametrize("cached", [True, False])
def test_host_code_is_built_once(cached, monkeypatch, tmp_path):
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache") if cached else "off")
    if cached:  # a process that is killed would leave a temporary folder behind
        monkeypatch.setattr("tempfile.mkdtemp", _full)
    source = tmp_path / "square.cc"
    source.write_text(SQUARE)
    assert load_host_code(source).square(7) == 49
    if not cached:
        return
    (kept,) = (tmp_path / "cache").glob("*.so")
    made = kept.stat().st_ino
    assert load_host_code(source).square(8) == 64
    assert kept.stat().st_ino == made
    source.write_text(SQUARE.replace("x * x", "x + x"))
    assert load_host_code(source).square(7) == 14
    kept.unlink()  # it is mapped: another file must take its place
    kept.write_bytes(b"damaged")
    source.write_text(SQUARE)
    assert load_host_code(source).square(9) == 81


def test_host_code_that_does_not_compile(tmp_path):
    source = tmp_path / "wrong.cc"
    source.write_text("int f( {")
    with pytest.raises(ToolchainError, match=r"compiling wrong\.cc failed; .* says:\n.*wrong\.cc"):
        load_host_code(source)


def test_host_code_where_nothing_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("VNPU_CACHE", "off")
    monkeypatch.setattr("tempfile.mkdtemp", _full)
    with pytest.raises(
        ToolchainError, match=r"^cannot build decode_attention\.cc: .*No space left on device"
    ):
        load_host_code(native.SOURCE)


def _full(*arguments, **named):
    raise OSError(28, "No space left on device")


def test_a_model_decodes_the_same_with_both_forms(numpy_model, make_checkpoint, monkeypatch):
    """Logits of five tokens, as near to each other as the order of summation leaves them."""
    model = numpy_model(make_checkpoint())
    rows = {}
    for form, plain in PLAIN.items():
        monkeypatch.setenv("AERIE_PLAIN", plain)
        cache = model.new_cache(16)
        prefill(model, [0, 17, 300, 41], cache)
        rows[form] = np.stack(
            [next_token_logits(model, decode_step(model, token, cache)) for token in range(5)]
        )
    apart = np.abs(rows["native"] - rows["numpy"])
    assert apart.max() < 0.05 * rows["numpy"].std()
