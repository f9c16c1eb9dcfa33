"""Prefill and decode against transformers, with the programs computed in numpy.

What runs here is the driver: padding, positions, layer order, the KV cache, decode attention, the LM
head's partitions. That the programs compute what their argument tables say is tested where they are.
"""

import numpy as np
import pytest

from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.kv_cache import write_rows
from aerie.engine.numerics import bf16, rms_norm, widen
from aerie.engine.page_manager import PoolFullError
from aerie.engine.page_pool import KVCache
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone

SHAPES = {
    "small": {},
    "untied, one KV head per head": {"tie_word_embeddings": False, "num_key_value_heads": 4},
    "wide, one KV head, odd vocabulary": {
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "vocab_size": 777,
        "num_hidden_layers": 3,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "seed": 3,
    },
    "float32, sharded": {"dtype": "float32", "shard": "900KB", "seed": 5},
}
PROMPT = [0, 17, 300, 41, 9, 250, 2, 88, 131]  # with an end token inside: it is not padding


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def folder(request, make_checkpoint):
    return make_checkpoint(**request.param)


def reference(folder, dtype):
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="eager")
    return model.eval()


def reference_logits(folder, dtype, token_ids):
    import torch

    with torch.no_grad():
        return reference(folder, dtype)(torch.tensor([token_ids])).logits[0].float().numpy()


def greedy_reference(folder, count):
    import torch

    prompt = torch.tensor([PROMPT])
    tokens = reference(folder, "bfloat16").generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tokens[0].tolist()[len(PROMPT) :]


def ours(model, prompt, fed):
    """Logits after the last prompt token and after each token of `fed`, and the cache."""
    cache = model.new_cache(len(prompt) + len(fed))
    rows = [next_token_logits(model, prefill(model, prompt, cache)[-1])]
    rows += [next_token_logits(model, decode_step(model, token, cache)) for token in fed]
    return np.stack(rows), cache


def test_logits_are_those_of_transformers(folder, numpy_model):
    """Prefill and decode, teacher-forced: as near to exact arithmetic as transformers' own bf16 is."""
    fed = [5, 77, 301, 12, 400, 66]
    logits, cache = ours(numpy_model(folder), PROMPT, fed)
    exact = reference_logits(folder, "float32", PROMPT + fed)[len(PROMPT) - 1 :]
    theirs = reference_logits(folder, "bfloat16", PROMPT + fed)[len(PROMPT) - 1 :]
    assert cache.length == len(PROMPT) + len(fed)
    our_error, their_error = np.abs(logits - exact), np.abs(theirs - exact)
    assert our_error.mean() < 1.3 * their_error.mean()
    assert our_error.max() < 2 * their_error.max() < 0.5 * exact.std()
    assert (logits.argmax(-1) == exact.argmax(-1)).mean() > 0.8


def test_every_position_of_the_prompt(folder, numpy_model):
    model = numpy_model(folder)
    hidden = prefill(model, PROMPT, model.new_cache(len(PROMPT)))
    assert hidden.shape == (len(PROMPT), model.config.hidden_size)
    logits = np.stack([next_token_logits(model, row) for row in hidden])
    exact = reference_logits(folder, "float32", PROMPT)
    assert np.abs(logits - exact).max() < 0.2 * exact.std()


def test_greedy_text_is_that_of_transformers(folder, numpy_model):
    """Token for token, until two logits are nearer than bf16 can tell."""
    model = numpy_model(folder)
    generation = generate_alone(model, PROMPT, 24, Sampler())
    tokens = list(generation)
    theirs = greedy_reference(folder, 24)
    first = next((i for i, pair in enumerate(zip(tokens, theirs, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        assert tokens == theirs
    else:
        logits = reference_logits(folder, "float32", PROMPT + tokens[:first])[-1]
        assert abs(logits[tokens[first]] - logits[theirs[first]]) < 0.05 * logits.std()


def test_padding_changes_no_bit(folder, numpy_model):
    """The same prompt padded to 64 and to 192: rows, cache, and what is decoded after it."""
    results = []
    for seq_len in (64, 192):
        model = numpy_model(folder, seq_len)
        cache = model.new_cache(len(PROMPT) + 1)
        hidden = prefill(model, PROMPT, cache)
        keys, values = cache.layers[model.config.num_hidden_layers - 1]
        results.append((hidden, keys.copy(), values.copy(), decode_step(model, 5, cache)))
    for short, long in zip(*results, strict=True):
        np.testing.assert_array_equal(short, long)


def test_a_full_prompt_needs_no_padding(numpy_model, make_checkpoint):
    model = numpy_model(make_checkpoint(), 64)
    whole = [*PROMPT, *range(10, 65)]
    assert len(whole) == 64
    padded = prefill(numpy_model(make_checkpoint(), 128), whole, model.new_cache(64))
    np.testing.assert_array_equal(prefill(model, whole, model.new_cache(64)), padded)


def test_prompt_of_a_model_with_fewer_positions_than_are_compiled(numpy_model, make_checkpoint):
    model = numpy_model(make_checkpoint(max_position_embeddings=16), 64)
    assert len(prefill(model, [*range(16)], model.new_cache(16))) == 16
    with pytest.raises(PromptTooLongError, match=r"17 tokens long and the model has 16 positions"):
        prefill(model, [*range(17)], model.new_cache(17))


def test_decode_agrees_with_prefill(folder, numpy_model):
    """A token fed by decode gives the row that prefill gives for it, but for the order of sums."""
    model = numpy_model(folder)
    logits, _ = ours(model, PROMPT[:4], PROMPT[4:])
    whole, _ = ours(model, PROMPT, [])
    assert np.abs(logits[-1] - whole[0]).max() < 0.05 * whole.std()


def test_each_layer_has_its_own_buffers(numpy_model, make_checkpoint):
    model = numpy_model(make_checkpoint())
    ours(model, PROMPT, [5])
    layers = range(2)
    assert model.runner.calls == [
        *(
            (name, key)
            for n in layers
            for name, key in (
                ("rms_gemms_rope", f"rms_gemms_rope_L{n}"),
                ("flash_attn", "flash_attn"),
                ("o_ffn", f"o_ffn_L{n}"),
            )
        ),
        ("lm_head_gemv", "lm_head_gemv"),
        *((name, f"{name}_L{n}") for n in layers for name in ("rms_gemv_rope", "o_gemv_ffn")),
        ("lm_head_gemv", "lm_head_gemv"),
    ]


def test_host_operations_are_timed(numpy_model, make_checkpoint):
    import dataclasses
    from contextlib import nullcontext

    named = []

    def timer(name):
        named.append(name)
        return nullcontext()

    model = dataclasses.replace(numpy_model(make_checkpoint()), host_timer=timer)
    list(generate_alone(model, PROMPT, 2, Sampler()))
    expected = {"embedding", "KV cache write", "decode attention", "final RMSNorm", "sampling"}
    assert set(named) == expected


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], PromptError, "the prompt is empty; there is nothing to continue"),
        (
            [1] * 65,
            PromptTooLongError,
            r"65 tokens long and --seq-len \(SEQ_LEN\) has programs compiled for at most 64; "
            "shorten it, give 128, or leave --seq-len out",
        ),
        ([1, 512], PromptError, "the prompt holds token 512 and the model's vocabulary ends at 511"),
        ([1, -1], PromptError, "the prompt holds token -1"),
    ],
)
def test_prompts_that_cannot_be_run(numpy_model, make_checkpoint, prompt, error, message):
    model = numpy_model(make_checkpoint())
    with pytest.raises(error, match=message):
        prefill(model, prompt, model.new_cache(32))
    assert model.runner.calls == []


def test_prefill_goes_on_from_what_the_cache_holds(numpy_model, make_checkpoint):
    model = numpy_model(make_checkpoint())
    cache = model.new_cache(32)
    prefill(model, [1, 2], cache)
    rows = prefill(model, [3, 4], cache)
    np.testing.assert_array_equal(rows, prefill(model, [1, 2, 3, 4], model.new_cache(32))[2:])
    assert cache.token_ids == [1, 2, 3, 4]


def test_cache_layout_and_limit(numpy_model, make_checkpoint):
    config = numpy_model(make_checkpoint()).config
    cache = KVCache(config, 8)
    rows = np.arange(3 * 128).reshape(3, 128).astype(bf16)
    write_rows(cache.layers[1], cache.pool_positions(4, 3), rows, -rows)
    keys, values = cache.layers[1]
    assert keys.shape == values.shape == (2, 64, 64)  # whole pages
    np.testing.assert_array_equal(keys[1, 5], rows[1, 64:])
    np.testing.assert_array_equal(values[0, 6], -rows[2, :64])
    assert not cache.layers[0][0].any()
    with pytest.raises(PoolFullError, match="has 0 of its 1 pages of 64 positions free, and 1 are needed"):
        cache.reserve(65)


def test_cache_is_no_larger_than_the_context(numpy_model, make_checkpoint):
    model = numpy_model(make_checkpoint())
    assert model.new_cache(40).capacity == 64
    assert model.new_cache(100000).capacity == 256


def test_widening_is_exact():
    every = np.arange(1 << 16, dtype=np.uint16).view(bf16)
    np.testing.assert_array_equal(widen(every), every.astype(np.float32))


def test_host_rms_norm_rounds_once():
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(3, 64)).astype(bf16), random.normal(size=64).astype(bf16)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.astype(np.float64)
    np.testing.assert_allclose(rms_norm(x, weight, 1e-5).astype(np.float64), exact, rtol=2**-8)
