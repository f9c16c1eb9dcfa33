"""What decode keeps from token to token: recorded once, used as long as it holds, and never beyond."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aerie import load
from aerie.answers import Stream
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, prefill
from aerie.engine.forward_passes import ImmediateCalls, RowsPass, TokenPass
from aerie.engine.model import preload
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PoolFullError
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.runtime import RunError, select_backend
from aerie.runtime.buffers import BufferSet
from aerie.virtual_npu.pyxrt.batch import RunBatch, StepError

PROMPT = [0, 17, 300, 41]
TOKENS = [5, 77, 300, 5]


FAMILIES: dict[str, dict[str, Any]] = {
    "guide": {"seq_len": 128},
    "rows": {"seq_len": None, "variants": "8x512", "decode": "rows"},
}
PASSES = (TokenPass, RowsPass)


FAILED = {
    "guide": r"program 'o_gemv_ffn' on buffers 'o_gemv_ffn_L3' failed: lost",
    "rows": r"program 'cached_attn_ar8_cl512' on buffers 'cached_attn_ar8_cl512_kv\d+_L2' failed: lost",
}
"""What the seventh program of a token is."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def open_session(family):
    def open_one():
        options = RuntimeOptions(
            backend=select_backend("virtual"), cache_dir=default_cache_dir(), **FAMILIES[family]
        )
        return prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter())

    return open_one


of_guide = pytest.mark.parametrize("family", ["guide"], indirect=True)
"""Attention is the host's in that family alone."""


@pytest.fixture(scope="module")
def session(open_session):
    return open_session()


@pytest.fixture
def begun(session):
    """A model, and a KV cache with the prompt in it."""
    return session.model, begin(session.model)


def begin(model):
    cache = model.new_cache(len(PROMPT) + len(TOKENS))
    prefill(model, PROMPT, cache)
    return cache


def decoded(model, cache, tokens=TOKENS):
    return np.stack([decode_step(model, token, cache) for token in tokens]).view(np.uint16)


@pytest.fixture
def made(monkeypatch):
    """Every pass that is made and recorded."""
    passes = []

    def watch(kind):
        real = kind.__init__

        def init(token_pass, *arguments):
            real(token_pass, *arguments)
            passes.extend([token_pass] if token_pass._recording else [])

        monkeypatch.setattr(kind, "__init__", init)

    for kind in PASSES:
        watch(kind)
    return passes


def test_one_recording_and_one_native_call_per_token(begun, made, batches):
    decoded(*begun)
    assert len(made) == 1
    assert len(batches) == len(TOKENS)
    assert len(set(map(id, batches))) == 1


def test_another_prompt_has_another(session, made):
    first = decoded(session.model, begin(session.model))
    second = decoded(session.model, begin(session.model))
    np.testing.assert_array_equal(first, second)
    assert len(made) == 2


def test_two_answers_in_turn(session):
    """They share the programs' buffers, and each has its own KV cache."""
    model = session.model
    alone = decoded(model, begin(model))
    one, other = begin(model), begin(model)
    rows = []
    for token in TOKENS:
        rows.append(decode_step(model, token, one))
        decode_step(model, 99, other)
    np.testing.assert_array_equal(np.stack(rows).view(np.uint16), alone)


@of_guide
@pytest.mark.parametrize("first", [0, 1])
def test_what_a_token_sees_may_be_a_run_of_positions_or_a_list(begun, made, batches, first):
    """From token to token: with the same bits, by one recording."""
    model, cache = begun

    def mask(position):
        return slice(0, position + 1) if position % 2 == first else np.arange(position + 1)

    mixed = decoded(replace(model, mask=mask), cache)
    assert (len(made), len(batches)) == (1, len(TOKENS))
    np.testing.assert_array_equal(mixed, decoded(model, begin(model)))


@of_guide
def test_the_form_of_attention_may_change_between_tokens(begun, made, monkeypatch):
    model, cache = begun
    decode_step(model, 5, cache)
    monkeypatch.setenv("AERIE_PLAIN", "host_code")
    decode_step(model, 5, cache)
    decode_step(model, 5, cache)
    assert len(made) == 2


@of_guide
def test_a_full_cache_is_reported_before_anything_is_written(begun):
    model, cache = begun
    cache.advance([5] * (cache.capacity - cache.length))
    kept = [array.copy() for pair in cache.layers for array in pair]
    with pytest.raises(PoolFullError, match="has 0 of its 1 pages of 64 positions free, and 1 are needed"):
        decode_step(model, 5, cache)
    assert all(map(np.array_equal, kept, [array for pair in cache.layers for array in pair]))


def test_released_buffers_are_recorded_anew(open_session):
    session = open_session()
    cache = begin(session.model)
    expected = decoded(session.model, begin(session.model))
    rows = [decode_step(session.model, TOKENS[0], cache)]
    session.cache.close()
    list(preload(session.model, open_checkpoint(DEMO_FOLDER).weights))
    rows += [decode_step(session.model, token, cache) for token in TOKENS[1:]]
    np.testing.assert_array_equal(np.stack(rows).view(np.uint16), expected)


def test_a_token_that_failed_is_made_again(family, begun, monkeypatch):
    """What it wrote is overwritten."""
    model, cache = begun
    expected = decoded(model, begin(model))
    rows = [decode_step(model, TOKENS[0], cache)]
    real = RunBatch.execute

    def failing(batch):
        real(batch)
        raise StepError("lost", list(batch._calls)[7])

    monkeypatch.setattr(RunBatch, "execute", failing)
    with pytest.raises(RunError, match=FAILED[family]):
        decode_step(model, TOKENS[1], cache)
    monkeypatch.setattr(RunBatch, "execute", real)
    assert cache.length == len(PROMPT) + 1
    rows += [decode_step(model, token, cache) for token in TOKENS[1:]]
    np.testing.assert_array_equal(np.stack(rows).view(np.uint16), expected)


def test_little_python_lies_between_the_model_and_the_device(open_session, monkeypatch):
    """After a program has streamed its weights the caches are cold, and each Python function costs most."""
    depths, real = [], RunBatch.execute

    def execute(batch):
        frame: Any = sys._getframe()
        depth = 1
        while frame.f_code is not ImmediateCalls.run.__code__:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        real(batch)

    monkeypatch.setattr(RunBatch, "execute", execute)
    model = open_session().model
    begin(model)
    assert len(depths) == 3 * model.config.num_hidden_layers
    assert max(depths) <= 6


def test_few_frames_lie_between_a_stream_and_the_device(monkeypatch):
    """Of a token that is decoded: from whoever pulls it to what runs programs, both included."""
    depths, real = [], {each: each.execute for each in (RunBatch, BufferSet)}

    def watch(kind):
        def execute(runs):
            frame: Any = sys._getframe(1)
            depth = 1
            while frame.f_code is not Stream.__next__.__code__:
                frame, depth = frame.f_back, depth + 1
            depths.append(depth)
            return real[kind](runs)

        monkeypatch.setattr(kind, "execute", execute)

    with load("demo") as model, model.stream("Who are you?", 8) as stream:
        next(stream)
        for kind in real:
            watch(kind)
        next(stream)
        assert depths
        assert max(depths) <= 10  # with the caller of the stream, and what executes: 12


def test_kv_caches_are_freed_at_once(session):
    """They are large: no circle keeps one until the collector comes. A device's buffers are used again."""
    import gc
    import weakref

    gc.disable()
    try:
        cache = begin(session.model)
        decoded(session.model, cache)
        gone = weakref.ref(cache)
        layers, slots = weakref.ref(cache.layers[0][0]), cache.executor._cache.slots
        del cache
        assert gone() is None
        assert layers() is None
        assert begin(session.model).executor._cache.slots == slots
    finally:
        gc.enable()
