"""The end of the context: what each policy drops, and that a model goes on as transformers' own would with
its cache cut and its keys turned back and forth in float32.

Random models of 64 positions. Each test also asserts that something was dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aerie import load
from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.context_end import AttentionSink, ShiftContext, StopAtEnd, context_end, split_at_drops
from aerie.engine.errors import PromptTooLongError
from aerie.engine.forward import decode_step, prefill
from aerie.engine.generate import FinishReason
from aerie.engine.kv_cache import causal
from aerie.engine.numerics import apply_rope
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.variant_set import VariantSet
from aerie.multi_launch_builder import Variant
from aerie.runtime import select_backend

POSITIONS = 64
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 300,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
OF_THE_DEMO = {"hidden_size": 256, "intermediate_size": 768, "head_dim": 64}
"""Sizes with which a Llama has the demo's programs, which other tests build."""
FAMILIES = ("Llama", "Qwen2", "Qwen3", "SmolLM3", "Lfm2")
ENTRIES: dict[str, dict[str, Any]] = {
    "SmolLM3": {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "Lfm2": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
        "pad_token_id": 0,
    },
}
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, 300, 190)]
CUTS = [(190,), (63, 2, 64, 61), (64, 1, 1, 124), (5, 17, 168), (190 - 66, *[1] * 66)]


@pytest.fixture(scope="module")
def open_session(make_checkpoint):
    opened = {}

    def open_one(family="Llama", end="shift", decode="rows", variants="8,32x512", seq_len=None, **changes):
        key = family, end, decode, variants, seq_len, *changes.items()
        if key not in opened:
            folder = make_checkpoint(**SMALL | ENTRIES.get(family, {}) | changes, family=family)
            backend = select_backend("virtual")
            if seq_len:
                variants = None
            options = RuntimeOptions(
                seq_len, backend, default_cache_dir(), variants=variants, decode=decode, context_end=end
            )
            session: Any = prepare_runtime(open_checkpoint(folder), options, Reporter())
            session.folder = folder
            opened[key] = session
        return opened[key]

    return open_one


def bits(rows):
    return np.ascontiguousarray(rows).view(np.uint16).tobytes()


def held(cache):
    """The bits of all that a cache holds, keys before RoPE and rows of states too."""
    arrays = [*(array for layer in cache.layers for array in layer), *cache.keys_before_rope]
    arrays += cache.pool.states
    return b"".join(bits(array[:, : cache.length]) for array in arrays)


def read(model, cuts, tokens=TOKENS):
    """The rows of tokens, cut so, and their cache; a cut of one token is decoded."""
    cache, rows, left = model.new_cache(1), [], list(tokens)
    for cut in cuts:
        own, left = left[:cut], left[cut:]
        rows.append(decode_step(model, own[0], cache)[None] if cut == 1 else prefill(model, own, cache))
    assert not left
    return np.concatenate(rows), cache


@pytest.mark.parametrize("end", ["shift:9", "sink:20"])
@pytest.mark.parametrize("family", FAMILIES)
def test_however_a_sequence_is_cut_in_rows(family, end, open_session):
    model = open_session(family, end).model
    rows, cache = read(model, CUTS[0])
    assert cache.dropped_tokens > POSITIONS
    for cut in CUTS[1:]:
        others, other = read(model, cut)
        assert bits(others) == bits(rows)
        assert held(other) == held(cache)
        assert (other.token_ids, other.dropped_tokens) == (cache.token_ids, cache.dropped_tokens)


def edited(folder, dtype, policy, tokens):
    """transformers' logits after every token, its cache cut and its keys turned in float32, with 4-D masks.

    policy: ("shift", keep) or ("sink", window).
    """
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    name, number = policy
    kind = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="eager").eval()
    kinds = getattr(model.config, "layer_types", ())
    cache, length, logits, left, cuts = DynamicCache(config=model.config), 0, [], list(tokens), 0

    def turn(keys, positions, sign):
        cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), positions[None])
        half = keys.shape[-1] // 2
        across = torch.cat([-keys[..., half:], keys[..., :half]], -1)
        return keys * cos[:, None] + sign * across * sin[:, None]

    with torch.no_grad():
        while left:
            if length == POSITIONS:
                first = 4 if name == "sink" else number
                past_it = POSITIONS - number + 1 if name == "sink" else first + (POSITIONS - first) // 2
                stay = torch.cat([torch.arange(first), torch.arange(past_it, POSITIONS)])
                for layer in cache.layers:
                    if not hasattr(layer, "keys"):
                        continue  # a short convolution goes on from the state that it has
                    bare = turn(layer.keys[:, :, stay].float(), stay, -1)
                    layer.keys = turn(bare, torch.arange(len(stay)), 1).to(kind)
                    layer.values = layer.values[:, :, stay]
                length, cuts = len(stay), cuts + 1
            own, left = left[: POSITIONS - length], left[POSITIONS - length :]
            places = torch.arange(length, length + len(own))
            seen = torch.arange(length + len(own))[None] <= places[:, None]
            if name == "sink":
                near = places[:, None] - torch.arange(length + len(own))[None] < number
                seen &= near | (torch.arange(length + len(own)) < 4)[None]
            mask = torch.where(seen, 0.0, torch.finfo(kind).min).to(kind)[None, None]
            masks = {"full_attention": mask, "conv": None} if "conv" in kinds else mask
            made = model(
                torch.tensor([own]), attention_mask=masks, position_ids=places[None], past_key_values=cache
            )
            logits.append(made.logits[0].float().numpy())
            length += len(own)
    assert cuts > 1
    return np.concatenate(logits)


@pytest.mark.parametrize(("end", "policy"), [("shift", ("shift", 4)), ("sink:20", ("sink", 20))])
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Lfm2"])
def test_against_transformers_with_its_cache_edited(family, end, policy, open_session, against):
    """The bounds of against_transformers.check, for what was read and what was decoded apart."""
    session = open_session(family, end, "guide")
    ours = against.our_logits(session.model, TOKENS[:100], TOKENS[100:])
    exact, theirs = (edited(session.folder, dtype, policy, TOKENS) for dtype in ("float32", "bfloat16"))
    assert exact.std() > 1
    for part in (slice(100), slice(100, None)):
        error, allowed = (np.abs(logits[part] - exact[part]).mean() for logits in (ours, theirs))
        assert error < 1.15 * allowed
    p, q = against.softmax(exact), against.softmax(ours)
    assert (p * np.log(p / q)).sum(-1).max() < 0.05


@pytest.mark.parametrize("decode", ["guide", "rows"])
@pytest.mark.parametrize("end", ["shift", "sink"])
def test_answers_do_not_depend_on_the_one_before(end, decode, open_session):
    """A long prompt after others that began alike; what came after dropped tokens is not used again."""
    session = open_session("Llama", end, decode, **OF_THE_DEMO)
    session.requests.clear_prefix_cache()
    first = session.generate(TOKENS[:50], 40, Sampler())
    answer = list(first)
    assert len(answer) == 40
    assert first.finish_reason is FinishReason.LENGTH
    prompt = [*TOKENS[:50], *answer, *TOKENS[:80]]
    second = session.generate(prompt, 30, Sampler())
    again = list(second)
    assert second.cached_tokens == 4
    session.requests.clear_prefix_cache()
    alone = session.generate(prompt, 30, Sampler())
    assert list(alone) == again
    assert alone.cached_tokens == 0


def test_growth_from_context_to_context(open_session):
    """Of 600 positions: attention reads a window of 512, then of 1024, and then tokens are dropped."""
    tokens = [int(token) for token in np.random.default_rng(1).integers(3, 300, 700)]
    model = open_session("Qwen3", "shift", variants="8,128x512,1024", max_position_embeddings=600).model
    grown, whole = model.new_cache(1), model.new_cache(1)
    for first in range(0, 700, 100):
        rows = prefill(model, tokens[first : first + 100], grown, last_only=True)
        assert grown.executor._cache.contexts == (512 if first < 500 or first >= 600 else 1024,)
    assert bits(rows) == bits(prefill(model, tokens, whole, last_only=True))
    assert held(grown) == held(whole)
    assert grown.dropped_tokens == 298


@pytest.mark.parametrize("at", [1, 9, 16])
def test_a_step_that_fails_leaves_what_goes_on_to_the_same(at, open_session):
    """Before tokens are dropped and after: what is left to read is what the cache has not seen."""
    model = open_session(**OF_THE_DEMO).model
    rows, cache = read(model, [190])
    other = model.new_cache(1)

    def fail(program, done):
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefill(model, TOKENS, other, fail)
    assert (other.dropped_tokens > 0) == (at > 12)
    assert bits(prefill(model, TOKENS[other.tokens_seen :], other, last_only=True)[-1]) == bits(rows[-1])
    assert held(other) == held(cache)


def test_the_six_programs_decode_past_the_end(open_session):
    six, blocks = open_session(decode="guide", seq_len=64), open_session(decode="guide")
    answers = [list(session.generate(TOKENS[:50], 60, Sampler())) for session in (six, blocks)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 60
    with pytest.raises(PromptTooLongError, match="65 tokens long and the model has 64 positions"):
        six.generate(TOKENS[:65], 1, Sampler())


def test_keys_are_turned_as_the_kernel_turns_them(open_session):
    model = open_session("Qwen3").model
    _, cache = read(model, [63], TOKENS[:63])
    for (keys, _), keys_before_rope in zip(cache.layers, cache.keys_before_rope, strict=True):
        assert bits(apply_rope(keys_before_rope[:, :63], model.rope.layer(0)[:63])) == bits(keys[:, :63])


def test_without_a_policy_nothing_is_kept_beside_the_cache(open_session):
    session = open_session(end="stop")
    assert session.model.new_cache(1).keys_before_rope == []
    with pytest.raises(PromptTooLongError, match="65 tokens long and the model has 64 positions"):
        session.generate(TOKENS[:65], 1, Sampler())
    generation = session.generate(TOKENS[:60], 60, Sampler(logit_bias={1: -100, 2: -100}))
    assert len(list(generation)) == 5
    assert generation.finish_reason is FinishReason.CONTEXT
    assert generation.finish_text.endswith("context of 64 positions (--context-end, CONTEXT_END)")


BLOCKS = VariantSet(0, (Variant(8, 512),))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("stop", StopAtEnd()),
        ("shift", ShiftContext(4)),
        ("shift:0", ShiftContext(0)),
        ("shift:62", ShiftContext(62)),
        ("sink", AttentionSink(32)),
        ("sink:60", AttentionSink(60)),
    ],
)
def test_policies_by_name(text, made):
    end = context_end(text, BLOCKS, POSITIONS)
    assert end == made
    if not end.drops:
        assert [*split_at_drops(end, 64, 100, 3)] == [(3, 100)]
        with pytest.raises(IndexError, match="a cache of 64 positions is full, and nothing of it is dropped"):
            end.dropped_positions(64)
    else:
        cuts = [*split_at_drops(end, 64, 100, 3)]
        assert sum(count for _, count in cuts) == 100
        assert all(before + count == 64 for before, count in cuts[:-1])


def test_a_mask_that_is_causal_is_known_as_such():
    """So the executor makes it of all rows at once (mutant mask-forgets-the-past)."""
    assert StopAtEnd().mask is ShiftContext().mask is causal


def test_what_a_sink_drops_is_what_nobody_sees_any_more():
    end = AttentionSink(20)
    seen = np.zeros(80, bool)
    seen[end.mask(64)] = True
    assert [n for n in range(64) if not seen[n]] == [*end.dropped_positions(64)]
    assert [np.arange(80)[end.mask(n)].size for n in (3, 23, 24, 63)] == [4, 24, 24, 24]


@pytest.mark.parametrize("text", ["slide", "stop:3", "", "SHIFT"])
def test_a_name_that_is_none_is_refused_with_the_list(text):
    with pytest.raises(UserError, match=rf"context-end is '{text}' .*; give stop, shift or sink, with a num"):
        context_end(text, BLOCKS, POSITIONS)


@pytest.mark.parametrize(
    ("text", "limits", "reach"),
    [
        ("shift:63", "0 to 62", 0),
        ("sink:0", "1 to 60", 0),
        ("sink:61", "1 to 60", 0),
        ("shift:x", "0 to 62", 0),
        ("shift:60", "0 to 59", 3),
        ("sink:3", "4 to 60", 3),
    ],
)
def test_a_number_that_leaves_nothing_is_refused(text, limits, reach):
    behind = f", and the last {reach} stay, which short convolutions read" if reach else ""
    with pytest.raises(
        UserError, match=rf"'{text}' .*must be from {limits}: .* must be left to drop{behind}; give another$"
    ):
        context_end(text, BLOCKS, POSITIONS, reach)


@pytest.mark.parametrize("text", ["shift:59", "sink:4"])
def test_what_a_convolution_reads_stays(text):
    """The least that is left behind what is dropped."""
    end = context_end(text, BLOCKS, POSITIONS, 3)
    assert POSITIONS - end.dropped_positions(POSITIONS).stop >= 3


def test_programs_that_it_cannot_be_had_with():
    with pytest.raises(
        UserError, match=r"sink cannot be used with seq_len=64 \(SEQ_LEN\): they show a token"
    ):
        context_end("sink", VariantSet(64), POSITIONS)
    with pytest.raises(UserError, match="as many rows as positions and compute it anew; add one of fewer"):
        context_end("shift", VariantSet(0, (Variant(512, 512),)), POSITIONS)


def test_from_python():
    with pytest.raises(UserError, match="context-end is 'slide'"):
        load("demo", context_end="slide")
