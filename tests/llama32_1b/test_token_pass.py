"""What decode keeps from token to token: recorded once, used as long as it holds, and never beyond."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.forward import decode_step, prefill
from aerie.engine.model import preload
from aerie.engine.numerics import bf16, widen
from aerie.engine.passes import AtOnce, RowPass, TokenPass
from aerie.engine.progress import Reporter
from aerie.engine.session import prepare_runtime
from aerie.runtime import RunError, select_backend
from aerie.virtual_npu.pyxrt.batch import RunBatch, StepError

PROMPT = [0, 17, 300, 41]
TOKENS = [5, 77, 300, 5]


FAMILIES = {"guide": {"seq_len": 128}, "rows": {"seq_len": None, "variants": "8x512", "decode": "rows"}}
PASSES = (TokenPass, RowPass)


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
    """Every pass of a token that is made."""
    passes = []

    def watch(kind):
        real = kind.__init__

        def init(token_pass, *arguments):
            passes.append(token_pass)
            real(token_pass, *arguments)

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
def test_a_mask_that_only_numpy_serves_is_recorded_anew(begun, made, batches, first):
    """From token to token, and with what every token would have by itself."""
    model, cache = begun

    def mask(position):
        as_run = slice(0, position + 1)
        return as_run if position % 2 == first else np.arange(cache.capacity) <= position

    mixed = decoded(replace(model, mask=mask), cache)
    assert len(made) == len(TOKENS)
    assert len(batches) == len(TOKENS) // 2
    plain = decoded(model, begin(model))
    ours, theirs = (widen(rows.view(bf16)) for rows in (mixed, plain))
    apart = np.abs(ours - theirs).sum() / np.abs(theirs).sum()
    assert apart < 2**-8  # the order of sums in half of the tokens' attention: less than a rounding to bf16


@of_guide
def test_the_form_of_attention_may_change_between_tokens(begun, made, monkeypatch):
    model, cache = begun
    decode_step(model, 5, cache)
    monkeypatch.setenv("AERIE_PLAIN", "host_code")
    decode_step(model, 5, cache)
    decode_step(model, 5, cache)
    assert len(made) == 2


@of_guide
def test_a_full_cache_is_told_before_anything_is_written(begun):
    model, cache = begun
    decoded(model, cache)
    kept = [array.copy() for pair in cache.layers for array in pair]
    with pytest.raises(IndexError, match=r"positions 8\.\.8 in a cache of 8"):
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
        frame, depth = sys._getframe(), 1
        while frame.f_code is not AtOnce.run.__code__:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        real(batch)

    monkeypatch.setattr(RunBatch, "execute", execute)
    model = open_session().model
    begin(model)
    assert len(depths) == 3 * model.config.num_hidden_layers
    assert max(depths) <= 6


def test_kv_caches_are_freed_at_once(family, session):
    """They are large: no circle keeps one until the collector comes. A device's buffers are used again."""
    import gc
    import weakref

    gc.disable()
    try:
        cache = begin(session.model)
        decoded(session.model, cache)
        gone = weakref.ref(cache)
        layers, slot = weakref.ref(cache.layers[0][0]), cache.slot
        del cache
        assert gone() is None
        assert layers() is None if family == "guide" else session.model.new_cache(1).slot == slot
    finally:
        gc.enable()
