"""The static form in numpy against a dynamic one: PyTorch in float32, with a cache that grows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from aerie.common.errors import UserError
from aerie.engine.families import FAMILIES
from aerie.engine.rope import inverse_frequencies
from aerie.engine.static_form import StaticWeights, masks, static_sizes, step
from aerie.engine.weights import layer_shapes
from aerie.llama32_1b.synthetic.shape import TINY, in_family
from aerie.multi_launch_builder.static_step import StaticSizes

BOUND = 1e-5
"""The seed's, of logits and of keys and values."""
CONFIG = replace(
    in_family(TINY, FAMILIES["sdar"]),
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_scaling=None,
)
MASK_TOKEN = 95


def sizes_of(layers, block=4, max_len=32, batch=1):
    return StaticSizes(layers, batch, block, max_len, CONFIG.num_key_value_heads, CONFIG.head_dim)


def random_weights(config, layers, seed=0):
    """Normed rows keep elements about 1; what is added to the residual is smaller, so that 28 layers do."""
    rng = np.random.default_rng(seed)

    def tensor(name, shape):
        if len(shape) == 1:
            return (rng.normal(0, 0.5, shape) if name[0] == "b" else rng.normal(1, 0.1, shape)).astype("f4")
        spread = (0.3 if name in ("wo", "w_down") else 1.0) / math.sqrt(shape[1])
        return rng.normal(0, spread, shape).astype(np.float32)

    shapes = layer_shapes(config)
    return StaticWeights(
        [{name: tensor(name, shape) for name, shape in shapes.items()} for _ in range(layers)],
        tensor("final_norm", (config.hidden_size,)),
        tensor("lm_head", (config.vocab_size, config.hidden_size)),
    )


class Dynamic:
    """The model in PyTorch, with a cache that grows: a block sees what has been committed, and itself."""

    def __init__(self, config, weights):
        self.config, self.head = config, torch.tensor(weights.lm_head)
        self.final = torch.tensor(weights.final_norm)
        self.layers = [{k: torch.tensor(v) for k, v in of.items()} for of in weights.layers]
        self.cache: list[Any] = [None] * len(self.layers)

    def norm(self, x, weight):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def heads(self, of, name, x):
        made = torch.nn.functional.linear(x, of[f"w{name}"], of.get(f"b{name}"))
        split = made.view(len(x), -1, self.config.head_dim).transpose(0, 1)
        return self.norm(split, of[f"{name}_norm"]) if f"{name}_norm" in of else split

    @staticmethod
    def turned(x, angles):
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def __call__(self, x, start, commit, seen=None):
        """Logits of x, (rows, hidden) at positions from start on; seen: (rows, rows), where not all are."""
        x = torch.tensor(x)
        half = torch.arange(0, self.config.head_dim, 2) / self.config.head_dim
        angles = (start + torch.arange(len(x)))[:, None] * self.config.rope_theta**-half
        for number, of in enumerate(self.layers):
            normed = self.norm(x, of["attn_norm"])
            q, k, v = (self.heads(of, name, normed) for name in "qkv")
            q, k = self.turned(q, angles), self.turned(k, angles)
            if self.cache[number] is not None:
                k, v = (torch.cat(pair, 1) for pair in zip(self.cache[number], (k, v), strict=True))
            if commit:
                self.cache[number] = k, v
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
            x = x + mixed.transpose(0, 1).flatten(1) @ of["wo"].T
            normed = self.norm(x, of["ffn_norm"])
            gate = torch.nn.functional.silu(normed @ of["w_gate"].T)
            x = x + (gate * (normed @ of["w_up"].T)) @ of["w_down"].T
        return (self.norm(x, self.final) @ self.head.T).numpy()


class Static:
    """The static form with the cache that it has made so far, which begins with zeros."""

    def __init__(self, config, weights, sizes):
        self.config, self.weights, self.sizes = config, weights, sizes
        self.cache = np.zeros(sizes.kv_cache, np.float32)

    def rope_rows(self, starts):
        positions = np.array(starts)[:, None] + np.arange(self.sizes.block)
        frequencies = inverse_frequencies(self.config.head_dim, self.config.rope_theta, None)
        angles = positions[..., None].astype(np.float32) * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)

    def __call__(self, x, starts, commit):
        """Logits of x, [batch, block, hidden]; the cache goes on only where it is committed."""
        chosen = masks(self.sizes, starts, commit).arrays()
        logits, updated = step(
            self.config, self.weights, x, self.rope_rows(starts), kv_cache=self.cache, **chosen
        )
        before, self.cache = self.cache, updated
        written = np.zeros(self.cache.shape, bool)
        for sequence, start in enumerate(starts if commit else ()):
            written[:, :, sequence, :, start : start + self.sizes.block] = True
        assert np.array_equal(updated[~written], before[~written])
        return logits


def block_of(rng, config, sizes):
    return rng.normal(0, 1, (sizes.batch, sizes.block, config.hidden_size)).astype(np.float32)


def assert_close(ours, theirs):
    assert np.abs(ours - theirs).max() < BOUND
    assert np.abs(theirs).max() > 1  # there is something to be close to


@pytest.mark.parametrize("layers", [1, 2, 4, 28])
@pytest.mark.parametrize("family", ["sdar", "Fast_dLLM_Qwen"])  # norms of heads; biases
def test_blocks_as_the_dynamic_form_has_them(layers, family):
    """Each block is iterated twice, on what changes, and committed; then the next one sees it."""
    config = replace(CONFIG, family=FAMILIES[family])
    weights, sizes = random_weights(config, layers), sizes_of(layers, max_len=16)
    static, dynamic = Static(config, weights, sizes), Dynamic(config, weights)
    rng = np.random.default_rng(layers)
    for start in range(0, 16, sizes.block):
        for commit in (False, False, True):
            x = block_of(rng, config, sizes)
            assert_close(static(x, [start], commit)[0], dynamic(x[0], start, commit))
    keys, values = (torch.stack(each).numpy() for each in zip(*dynamic.cache, strict=True))
    assert np.abs(static.cache[:, :, 0] - np.stack([keys, values], axis=1)).max() < BOUND


@pytest.mark.parametrize("block", [2, 8, 32])
def test_committed_blocks_are_what_the_staircase_mask_shows(block):
    """One pass over all blocks, each position seeing its block and those before it, gives the same logits."""
    weights, sizes = random_weights(CONFIG, 2), sizes_of(2, block, max_len=64)
    static, dynamic = Static(CONFIG, weights, sizes), Dynamic(CONFIG, weights)
    x = np.concatenate([block_of(np.random.default_rng(i), CONFIG, sizes)[0] for i in range(64 // block)])
    of = torch.arange(64) // block
    whole = dynamic(x, 0, False, seen=of[:, None] >= of[None])
    for start in range(0, 64, block):
        rows = slice(start, start + block)
        assert_close(static(x[None, rows], [start], True)[0], whole[rows])


def test_sequences_of_a_batch_stand_at_places_of_their_own():
    weights, sizes = random_weights(CONFIG, 2), sizes_of(2, batch=2)
    both, rng = Static(CONFIG, weights, sizes), np.random.default_rng(3)
    alone = [Dynamic(CONFIG, weights) for _ in range(2)]
    for starts in ([0, 0], [4, 4], [8, 8]):
        x = block_of(rng, CONFIG, sizes)
        made = both(x, starts, True)
        for logits, each, rows, start in zip(made, alone, x, starts, strict=True):
            assert_close(logits, each(rows, start, True))
    x = block_of(rng, CONFIG, sizes)
    alone[1].cache = [tuple(part[:, :4] for part in pair) for pair in alone[1].cache]
    made = both(x, [12, 4], False)
    for logits, each, rows, start in zip(made, alone, x, [12, 4], strict=True):
        assert_close(logits, each(rows, start, False))


def test_five_tokens():
    """A prompt of six tokens, four of them a block, then five tokens, one a pass, the surest first."""
    weights, sizes = random_weights(CONFIG, 4), sizes_of(4)
    table = np.random.default_rng(9).normal(0, 1, (CONFIG.vocab_size, CONFIG.hidden_size)).astype(np.float32)
    prompt = [5, 17, 3, 60, 41, 8]

    def generate(forward):
        ids = list(prompt)
        passes: list[Any] = []
        forward(table[ids[:4]], 0, True)
        for start in (4, 8):
            block = (ids[start:] + 4 * [MASK_TOKEN])[:4]
            while MASK_TOKEN in block and len(passes) < 5:
                logits = forward(table[block], start, False)
                logits[:, MASK_TOKEN] = -np.inf
                holes = [i for i, token in enumerate(block) if token == MASK_TOKEN]
                place = max(holes, key=lambda i: logits[i].max())
                block[place] = int(logits[place].argmax())
                passes.append(logits[:, :MASK_TOKEN])
            if MASK_TOKEN not in block:
                forward(table[block], start, True)
            ids[start:] = block
        return ids, np.stack(passes)

    static, dynamic = Static(CONFIG, weights, sizes), Dynamic(CONFIG, weights)
    ours, our_logits = generate(lambda x, start, commit: static(x[None], [start], commit)[0])
    theirs, their_logits = generate(dynamic)
    assert ours == theirs
    assert len(our_logits) == 5 == sum(token != MASK_TOKEN for token in ours[6:])
    assert_close(our_logits, their_logits)


def test_iteration_leaves_the_cache_and_commit_writes_the_block_alone():
    weights, sizes = random_weights(CONFIG, 2), sizes_of(2)
    static, rng = Static(CONFIG, weights, sizes), np.random.default_rng(4)
    static.cache = rng.normal(0, 1, sizes.kv_cache).astype(np.float32)  # stale beyond the start
    static.cache[..., 0] = -0.0
    before = static.cache.copy()
    iterated = static(block_of(rng, CONFIG, sizes), [8], False)
    assert np.array_equal(static.cache, before)  # -0 equals 0
    static.cache[..., 8:, :] = 7.0
    x = block_of(rng, CONFIG, sizes)
    again = static(x, [8], True)
    assert np.array_equal(static.cache[..., :8, :], before[..., :8, :])
    assert (static.cache[..., 12:, :] == 7).all()
    assert not (static.cache[..., 8:12, :] == 7).any()
    static.cache[..., 8:, :] = 0
    assert np.array_equal(static(x, [8], False), again)  # whatever lies beyond the start is not seen
    assert not np.array_equal(iterated, again)


def test_faults_are_seen():
    """A staircase shifted by a block, and a commit that is skipped, are far beyond the bound."""
    weights, sizes = random_weights(CONFIG, 2), sizes_of(2)
    first, second = (block_of(np.random.default_rng(i), CONFIG, sizes) for i in range(2))
    dynamic = Dynamic(CONFIG, weights)
    dynamic(first[0], 0, True)
    whole = dynamic(second[0], 4, False)

    def wrong(commit, seen_until):
        static = Static(CONFIG, weights, sizes)
        static(first, [0], commit)
        chosen = masks(sizes, [seen_until], False).arrays()
        arrays = {"embeddings": second, "rope_rows": static.rope_rows([4]), "kv_cache": static.cache}
        return step(CONFIG, weights, **arrays, **chosen)[0][0]

    assert np.abs(wrong(True, 4) - whole).max() < BOUND
    for fault in (wrong(False, 4), wrong(True, 0), wrong(True, 8)):
        assert np.abs(fault - whole).max() > 1000 * BOUND


def test_the_cache_of_the_seeds_example_is_235_megabytes():
    """28 layers, 8 heads of 128, 2048 positions in bf16: the seed says 117 MB, which is keys alone."""
    sizes = StaticSizes(28, 1, 4, 2048, 8, 128)
    assert sizes.cache_bytes() == 234_881_024 == 224 << 20
    assert sizes.cache_bytes() // 2 == 117_440_512


@pytest.mark.parametrize("start", [6, 32, -4])
def test_starts_that_are_refused(start):
    with pytest.raises(UserError) as error:
        masks(sizes_of(1), [start], False)
    assert str(error.value) == (
        f"no block begins at position {start}: blocks of 4 tokens in a cache of 32 positions begin at "
        "multiples of 4 up to 28; where the cache is full, export with a larger --max-len"
    )


def test_a_start_for_each_sequence():
    with pytest.raises(UserError) as error:
        masks(sizes_of(1), [4, 8], False)
    assert str(error.value) == "2 starts for a static form of 1 sequences (batch); give one for each"


@pytest.mark.parametrize(
    "change", [{"layers_without_rope": frozenset([1])}, {"activation": "gelu_pytorch_tanh"}], ids=str
)
def test_models_that_have_no_static_form(change):
    message = "has layers without RoPE, factors of its own or another activation than SiLU, and the static"
    with pytest.raises(UserError, match=message):
        static_sizes(replace(TINY, **change), 2, 1, 4, 64)
