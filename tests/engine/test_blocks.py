"""Prompts cut into blocks: the same bits however they are cut, and programs compiled when they are needed.

On the demo and on a random Qwen3, whose programs by prompt length are the reference. Each test also asserts
that what it is about happened: several steps, a cache that grew, a program that was compiled late.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from aerie import load
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.errors import NoVariantError, PromptTooLongError
from aerie.engine.forward import decode_step, prefill, prefill_call_count
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PoolFullError
from aerie.engine.page_pool import KVCache
from aerie.engine.planner import VariantCall
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.variant_set import VariantSet
from aerie.multi_launch_builder import Variant
from aerie.runtime import RunError, RunStopped, StopFlag, select_backend
from aerie.verify.random_model import in_another_family, random_checkpoint, random_model_config

TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 1500, 100)]


@pytest.fixture(scope="module", params=["demo", "qwen3"])
def open_session(request):
    with ExitStack() as stack:
        checkpoint = open_checkpoint(DEMO_FOLDER)
        if request.param == "qwen3":
            other = in_another_family(random_model_config(checkpoint.config))
            checkpoint = stack.enter_context(random_checkpoint(other, Reporter()))

        def open_one(seq_len=None, variants=None, decode="guide"):
            backend = select_backend("virtual")
            options = RuntimeOptions(seq_len, backend, default_cache_dir(), variants=variants, decode=decode)
            return prepare_runtime(checkpoint, options, Reporter())

        yield open_one


def bits(rows):
    return np.ascontiguousarray(rows).view(np.uint16).tobytes()


def held(cache):
    """The bits of all that a cache holds."""
    return b"".join(bits(array[:, : cache.length]) for layer in cache.layers for array in layer)


@pytest.fixture(scope="module")
def whole(open_session):
    """The rows of TOKENS, and what their cache holds, in one pass without a past."""
    model = open_session(seq_len=128).model
    cache = model.new_cache(128)
    rows = prefill(model, TOKENS, cache)
    return rows, held(cache)


@pytest.fixture(scope="module")
def blocks(open_session):
    """A session of blocks, and the same in the decode path rows."""
    return {decode: open_session(variants="8,32,128x512", decode=decode) for decode in ("guide", "rows")}


def test_one_block(blocks, whole):
    model = blocks["guide"].model
    cache = model.new_cache(1)
    assert bits(prefill(model, TOKENS, cache)) == bits(whole[0])
    assert held(cache) == whole[1]


@pytest.mark.parametrize("cuts", [(13, 7, 1, 40, 39), (99, 1), (8, 8, 84), (1, 1, 98)])
def test_however_a_prompt_is_cut(blocks, whole, cuts):
    model, progress = blocks["guide"].model, []
    cache = model.new_cache(1)
    for cut in cuts:
        first = cache.length
        row = prefill(model, TOKENS[first : first + cut], cache, lambda *step: progress.append(step), True)
        assert bits(row) == bits(whole[0][cache.length - 1])
    assert held(cache) == whole[1]
    assert len(progress) > 3 * model.config.num_hidden_layers


def test_as_many_programs_run_as_were_foreseen(blocks):
    """Two blocks; the first of them needs neither attention nor FFN of the last layer."""
    model, progress = blocks["guide"].model, []
    prefill(
        model, TOKENS * 2, model.new_cache(1), lambda name, number: progress.append(number), last_only=True
    )
    assert (
        progress[-1]
        == len(progress)
        == prefill_call_count(model, 200)
        == 2 * 3 * model.config.num_hidden_layers - 2
    )


def test_one_token_at_a_time_in_the_family_rows(blocks, whole):
    model = blocks["rows"].model
    cache = model.new_cache(1)
    rows = np.stack([decode_step(model, token, cache) for token in TOKENS])
    assert bits(rows) == bits(whole[0])
    assert held(cache) == whole[1]


def test_the_host_attends_in_guide_alone(blocks, monkeypatch):
    """To decode; a prompt, and a token of the decode path rows, meet the cache on the device."""

    def refused(*arguments):
        raise AssertionError("attention on the host")

    monkeypatch.setattr("aerie.engine.forward_passes.CacheAttention", refused)
    for decode, session in blocks.items():
        cache = session.model.new_cache(1)
        prefill(session.model, TOKENS[:40], cache)
        if decode == "rows":
            decode_step(session.model, 5, cache)
        else:
            with pytest.raises(AssertionError, match="attention on the host"):
                decode_step(session.model, 5, cache)


def test_after_going_back(blocks, whole):
    """What was beyond the length is stale, and is not looked at, be it NaN."""
    model = blocks["guide"].model
    cache = model.new_cache(1)
    prefill(model, [7] * 90, cache)
    cache.length = 0
    prefill(model, TOKENS[:50], cache)
    prefill(model, [9] * 30, cache)
    cache.length = 50
    for keys, values in cache.layers:
        keys[:, 50:] = values[:, 50:] = np.nan
    assert bits(prefill(model, TOKENS[50:], cache)) == bits(whole[0][50:])
    assert held(cache) == whole[1]


def test_a_step_that_fails_leaves_the_cache_as_it_was(blocks, whole, monkeypatch):
    model = blocks["guide"].model
    cache = model.new_cache(1)
    prefill(model, TOKENS[:60], cache)

    def fail(program, done):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefill(model, [5] * 140, cache, fail)
    assert cache.length == 60
    assert bits(prefill(model, TOKENS[60:], cache)) == bits(whole[0][60:])


@pytest.mark.parametrize("after", [1, 8, 11])
def test_a_prefill_that_is_stopped_runs_no_further_program(blocks, whole, after):
    """Once so many of its programs have run, before and in its second step; the cache is as before."""
    model, stop, ran = blocks["rows"].model, StopFlag(), []
    cache = model.new_cache(1)
    prefill(model, TOKENS[:60], cache)

    def watch(program, done):
        ran.append(program)
        if done == after:
            stop.set()

    with pytest.raises(RunStopped), stop.watching():
        prefill(model, [5] * 140, cache, watch)
    assert len(ran) == after
    assert cache.length == 60
    with pytest.raises(RunStopped), stop.watching():
        decode_step(model, 5, cache)
    assert bits(prefill(model, TOKENS[60:], cache)) == bits(whole[0][60:])


def test_ar_equal_to_cl_computes_all_anew(open_session, whole):
    model, progress = open_session(seq_len=128).model, []
    cache = model.new_cache(128)
    prefill(model, TOKENS[:60], cache)
    row = prefill(model, TOKENS[60:], cache, lambda *step: progress.append(step))
    assert bits(row) == bits(whole[0][60:])
    assert held(cache) == whole[1]
    assert len(progress) == 3 * model.config.num_hidden_layers


def test_more_than_there_are_positions_is_refused_before_anything_is_computed(blocks):
    model, progress = blocks["guide"].model, []
    cache = model.new_cache(1)
    with pytest.raises(PromptTooLongError, match="600 tokens long and the model has 512 positions"):
        prefill(model, [5] * 600, cache, lambda *step: progress.append(step))
    with pytest.raises(NoVariantError, match="the largest context of the variants"):
        model.variant_set.plan(600, 0)
    with pytest.raises(PoolFullError, match="0 of its 8 pages of 64 positions free, and 1 are needed"):
        cache.reserve(513)
    assert (progress, cache.length) == ([], 0)


def test_programs_are_compiled_when_a_prompt_first_needs_them(open_session):
    session = open_session(variants="8,16x512")
    assert "rms_gemms_rope_ar8" in session.model.programs
    assert "rms_gemms_rope_ar16" not in session.model.programs
    session.ensure_programs([5] * 12)
    assert "rms_gemms_rope_ar16" in session.model.programs


def test_the_room_of_a_cache_on_the_device_is_used_again(blocks):
    model = blocks["guide"].model
    cache = model.new_cache(1)
    prefill(model, TOKENS, cache)
    slot = cache.executor._cache.slots
    del cache
    cache = model.new_cache(1)
    prefill(model, TOKENS, cache)
    assert cache.executor._cache.slots == slot


def test_a_cache_cannot_go_forward_without_tokens(blocks):
    cache = KVCache(blocks["guide"].model.config, 8)
    cache.advance([1, 2, 3])
    with pytest.raises(IndexError, match="a cache of 3 positions cannot go back to 4"):
        cache.length = 4


VARIANTS = tuple(Variant(rows, 512) for rows in (8, 32, 128))


def test_the_last_layer_computes_what_is_wanted():
    blocks = VariantSet(0, VARIANTS)
    (step,) = blocks.plan(100, 20)
    assert step == VariantCall(128, 512, 20, 20, 100, 0, 20)
    assert blocks.tail_call(step, range(99, 100)) == VariantCall(8, 512, 119, 20, 1, 0, 119)
    assert blocks.tail_call(step, range(100)) is None
    assert blocks.tail_call(step._replace(variant=32), range(31, 32)) is None
    assert [*blocks.programs_for_calls([step], last_only=True)] == [
        "rms_gemms_rope_ar128",
        "cached_attn_ar128_cl512",
        "o_ffn_ar128",
        "cached_attn_ar8_cl512",
        "o_ffn_ar8",
    ]


def test_what_fails_on_a_device_goes_on_on_another(open_session, whole):
    """The cache is on the host."""
    first, second = open_session(variants="8,128x512"), open_session(variants="8,128x512")
    cache = first.model.new_cache(1)
    prefill(first.model, TOKENS[:60], cache)
    first.fallback = lambda: (second.cache, second.model)
    model = first.recover(RunError("lost"), "here")
    assert bits(prefill(model, TOKENS[60:], cache)) == bits(whole[0][60:])
    assert held(cache) == whole[1]


@pytest.mark.parametrize("decode", ["guide", "rows"])
def test_a_prompt_that_goes_on_is_not_computed_again(blocks, decode):
    """And answers as if nothing had been before it: in guide, decoded tokens are read anew."""
    session = blocks[decode]
    first = session.generate(TOKENS[:60], 8, Sampler())
    answer = list(first)
    prompt = [*TOKENS[:60], *answer, 5, 6, 7]
    second = session.generate(prompt, 8, Sampler())
    again = list(second)
    assert second.cached_tokens == (60 if decode == "guide" else 60 + len(answer) - 1)
    session.requests.clear_prefix_cache()
    alone = session.generate(prompt, 8, Sampler())
    assert list(alone) == again
    assert alone.cached_tokens == 0


def test_two_answers_at_once_have_caches_of_their_own(blocks):
    session = blocks["guide"]
    expected = list(session.generate(TOKENS[:30], 5, Sampler()))
    streams = [iter(session.generate(TOKENS[:30], 5, Sampler())) for _ in range(2)]
    outputs = list(zip(*streams, strict=True))
    assert outputs == list(zip(expected, expected, strict=True))


@pytest.mark.parametrize(
    "given", [{"variants": "8x512"}, {"decode": "rows"}], ids=lambda given: next(iter(given))
)
def test_one_prompt_length_and_variants_are_not_asked_for_at_once(open_session, given):
    with pytest.raises(UserError, match=r"one prompt length, and --\w+ .* of variants; give one of the two"):
        open_session(seq_len=128, **given)


def test_a_family_of_decode_that_there_is_not():
    with pytest.raises(UserError, match="decode is 'columns'; give 'guide' or 'rows'"):
        load("demo", decode="columns")


def test_variants_that_no_prompt_can_be_read_by(open_session):
    with pytest.raises(UserError, match=r"'1x512' has no variant of several tokens, .*; add one, as 8x512"):
        open_session(variants="1x512")
