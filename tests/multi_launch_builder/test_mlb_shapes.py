"""Model shapes: checked, and the nearest legal one named."""

from __future__ import annotations

import dataclasses
import re

import pytest

from aerie.air_dialect import parse
from aerie.device import NPU2, check
from aerie.kernel_builder import attention, gemm_tiles
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.kernels import all_kernels, cached_attention, flash_attention, gemv
from aerie.multi_launch_builder import (
    ModelShape,
    UnsupportedShapeError,
    build_programs,
    padded_vocab_size,
    round_up_seq_len,
)
from aerie.multi_launch_builder.programs import MAX_TAIL_ROWS
from aerie.multi_launch_builder.shape_limits import check_seq_len, check_shape, rules
from aerie.multi_launch_builder.shapes import DEMO, LLAMA_3_2_1B, LM_HEAD_ROWS, SEQ_LEN_STEP
from aerie.multi_launch_builder.variants import MASK_WORD

DELTA = {
    "conv_taps": 4,
    "delta_key_heads": 2,
    "delta_value_heads": 4,
    "delta_key_dim": 64,
    "delta_value_dim": 64,
}
AT_MOST = {
    "head_dim": lambda most: {"head_dim": most},
    "rotary_dim": lambda most: {"rotary_dim": most},
    "emb_dim": lambda most: {"emb_dim": most},
    "hidden_dim": lambda most: {"hidden_dim": most},
    "n_heads * head_dim": lambda most: {"n_heads": most // 32},
}
"""What to change of a shape whose heads are 32 wide, so that the size of a rule is at its limit."""


@pytest.mark.parametrize("shape", [DEMO, LLAMA_3_2_1B])
def test_known_shapes_are_legal(shape):
    check_shape(shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"emb_dim": 100}, "emb_dim=100 is not a positive multiple of 64 (a GEMV reads its row"),
        ({"emb_dim": 100}, "the nearest legal value is 128"),
        ({"hidden_dim": 770}, "hidden_dim=770 is not a positive multiple of 64"),
        ({"hidden_dim": 770}, "the nearest legal value is 768"),
        ({"head_dim": 80}, "head_dim=80 is not a positive multiple of 32 (RoPE turns 16 pairs"),
        (
            {"n_heads": 3, "n_kv_heads": 3, "head_dim": 32},
            "n_heads * head_dim=96 is not a positive multiple of 64",
        ),
        ({"head_dim": 320}, "head_dim=320 is more than 288 (attention holds K and V tiles"),
        ({"emb_dim": 12288}, "emb_dim=12288 is more than 10560 (RMSNorm holds a row three times"),
        ({"hidden_dim": 53248}, "hidden_dim=53248 is more than 31360 (a core holds all of x"),
        (
            {"hidden_dim": 64 * 397},
            "hidden_dim=25408 does not divide into tiles so that a GEMM is one launch",
        ),
        ({"hidden_dim": 64 * 397}, "at most 255 blocks in each direction; the nearest legal value is 25344"),
        ({"n_heads": 514, "n_kv_heads": 257, "head_dim": 32}, "n_heads * head_dim=16448 does not divide"),
        ({"n_heads": 514, "n_kv_heads": 514, "head_dim": 32}, "the nearest legal value is 16384"),
        (
            {"n_heads": 771, "n_kv_heads": 257, "head_dim": 32, "emb_dim": 64},
            "n_heads * head_dim=24672 is not a positive multiple of 64",
        ),
        (
            {"n_heads": 514 * 2, "n_kv_heads": 257, "head_dim": 32},
            "n_heads * head_dim=32896 is more than 31360",
        ),
        ({"n_kv_heads": 3}, "n_kv_heads=3 does not divide n_heads=4"),
        ({"n_kv_heads": 3}, "the nearest legal n_kv_heads is 2"),
        (
            {"qkv_bias": True, "n_heads": 407, "n_kv_heads": 407, "head_dim": 64},
            "n_heads * head_dim=26048 divides into shares of 6512 for the cores that add its bias, and "
            "a core holds 6336; legal is what 8 cores share, up to 50688",
        ),
        (
            {"conv_taps": -1},
            "conv_taps=-1 is negative; a convolution reads its own row at least; 0 stands for",
        ),
        (
            {"conv_taps": 3, "n_heads": 8},
            "n_heads * head_dim=512 is not emb_dim=256, and layers with a short convolution share the output",
        ),
        (
            {**DELTA, "delta_key_dim": 24},
            "delta_key_dim=24 is not a positive multiple of 16 (a core takes 16 elements at a time); the "
            "nearest legal value is 32",
        ),
        (
            {**DELTA, "delta_value_heads": 3},
            "delta_key_heads=2 does not divide delta_value_heads=3, so the value heads cannot share them",
        ),
        (
            {**DELTA, "delta_value_dim": 32},
            "delta_value_heads * delta_value_dim=128 is not n_heads * head_dim=256, and layers with linear",
        ),
        (
            {**DELTA, "delta_key_dim": 512},
            "delta_key_dim=512 and delta_value_dim=64 take ",
        ),
        (
            {**DELTA, "conv_taps": 1000},
            "queries, keys and values of linear attention are 512 wide, which leaves 64 for each core of a",
        ),
        (
            {"conv_taps": 1000},
            "emb_dim=256 divides into shares of 32 for the cores of a convolution of 1000 taps, and a core "
            "holds 0; legal is what 8 cores share, up to 0",
        ),
        ({"vocab_size": 0}, "vocab_size=0 is not positive"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0 is not positive"),
    ],
)
def test_an_unsupported_shape_names_the_nearest_legal_one(change, words):
    with pytest.raises(UnsupportedShapeError, match=re.escape(words)):
        check_shape(dataclasses.replace(DEMO, **change))


@pytest.mark.parametrize(
    ("field", "most", "step", "kernel", "parameters"),
    [
        ("emb_dim", 10560, 64, "rms_norm", lambda size: {"rows": 8, "cols": size}),
        ("hidden_dim", 31360, 64, "gemm", lambda size: {"m": 64, "k": 64, "n": size}),
        ("hidden_dim", 31360, 128, "gemv", lambda size: {"m": 64, "k": size}),
        (
            "head_dim",
            288,
            32,
            "flash_attention",
            lambda size: {"lq": 64, "lk": 64, "n_heads": 1, "n_kv_heads": 1, "head_dim": size},
        ),
    ],
)
def test_the_limits_are_those_of_the_kernels(field, most, step, kernel, parameters):
    check_shape(dataclasses.replace(DEMO, **{field: most}))
    all_kernels()[kernel].build(**parameters(most))
    with pytest.raises(IllegalShapeError):
        all_kernels()[kernel].build(**parameters(most + step))


def test_numbers_that_tables_need_without_a_kernel_are_those_of_the_kernels():
    heads = range(attention.MMUL_BLOCK, flash_attention.max_head_dim() + 1, attention.MMUL_BLOCK)
    assert max(attention.kv_rows(head) for head in heads) == SEQ_LEN_STEP
    assert all(SEQ_LEN_STEP % attention.kv_rows(head) == 0 for head in heads)
    assert LM_HEAD_ROWS % (gemv.TILE_M * NPU2.columns) == 0
    assert gemm_tiles.MMUL_BLOCK * NPU2.columns * NPU2.rows == LM_HEAD_ROWS
    assert gemm_tiles.MAX_ROWS == MAX_TAIL_ROWS
    assert cached_attention.WORD == MASK_WORD


def test_limits_are_those_of_the_device():
    """A core with half the memory holds shorter rows, and narrower heads."""
    small = dataclasses.replace(NPU2, l1_bytes=NPU2.l1_bytes // 2)
    narrow = dataclasses.replace(DEMO, head_dim=32, n_heads=2, n_kv_heads=1)
    for rule, smaller in zip(rules(), rules(small), strict=True):
        assert smaller.max < rule.max
        with pytest.raises(UnsupportedShapeError, match=re.escape(f"is more than {smaller.max}")):
            check_shape(dataclasses.replace(narrow, **AT_MOST[rule.name](rule.max)), small)


@pytest.mark.parametrize(("seq_len", "nearest"), [(0, 64), (-5, 64), (100, 128), (129, 128), (31, 64)])
def test_an_unsupported_length_names_the_nearest_legal_one(seq_len, nearest):
    words = f"seq_len={seq_len} is not a positive multiple of 64 .*the nearest legal value is {nearest}"
    with pytest.raises(UnsupportedShapeError, match=words):
        check_seq_len(seq_len)


@pytest.mark.parametrize(
    ("seq_len", "nearest"), [(64 * 257, 64 * 256), (64 * 1021, 64 * 1020), (131072, 65280)]
)
def test_a_length_of_more_blocks_than_a_launch_has(seq_len, nearest):
    words = f"seq_len={seq_len} does not divide into tiles .* the nearest legal value is {nearest}$"
    with pytest.raises(UnsupportedShapeError, match=words):
        check_seq_len(seq_len)
    check_seq_len(nearest)


def model_shape(emb_dim, n_heads, n_kv_heads, head_dim, hidden_dim, vocab_size):
    return ModelShape(emb_dim, n_heads, n_kv_heads, head_dim, hidden_dim, vocab_size, 1e-5)


def granite_shape(*sizes):
    """The last one is what scores are multiplied with."""
    return dataclasses.replace(model_shape(*sizes[:-1]), attention_scale=sizes[-1], residual_scale=0.22)


def olmo2_shape(*sizes):
    places = {"norm_before": False, "norm_after": True, "qk_norm": True, "qk_norm_spans_heads": True}
    return dataclasses.replace(model_shape(*sizes), **places, norm_round_once=True)


def lfm2_shape(*sizes):
    return dataclasses.replace(model_shape(*sizes), qk_norm=True, conv_taps=3)


PUBLISHED = {
    "LFM2-350M": lfm2_shape(1024, 16, 8, 64, 4608, 65536),
    "LFM2-700M": lfm2_shape(1536, 24, 8, 64, 6912, 65536),
    "LFM2-1.2B": lfm2_shape(2048, 32, 8, 64, 8192, 65536),
    "LFM2-2.6B": lfm2_shape(2048, 32, 8, 64, 10752, 65536),
    "Llama-3.2-3B": model_shape(3072, 24, 8, 128, 8192, 128256),
    "Llama-3.1-8B": model_shape(4096, 32, 8, 128, 14336, 128256),
    "Llama-3.1-70B": model_shape(8192, 64, 8, 128, 28672, 128256),
    "Llama-2-7B": model_shape(4096, 32, 32, 128, 11008, 32000),
    "Llama-2-13B": model_shape(5120, 40, 40, 128, 13824, 32000),
    "Mistral-7B": model_shape(4096, 32, 8, 128, 14336, 32768),
    "Mistral-Nemo-12B": model_shape(5120, 32, 8, 128, 14336, 131072),
    "Ministral-8B": model_shape(4096, 32, 8, 128, 12288, 131072),
    "Ministral-3-3B": model_shape(3072, 32, 8, 128, 9216, 131072),
    "Ministral-3-14B": model_shape(5120, 32, 8, 128, 16384, 131072),
    "TinyLlama-1.1B": model_shape(2048, 32, 4, 64, 5632, 32000),
    "SmolLM2-135M": model_shape(576, 9, 3, 64, 1536, 49152),
    "SmolLM2-360M": model_shape(960, 15, 5, 64, 2560, 49152),
    "Granite-3.0-2B": granite_shape(2048, 32, 8, 64, 8192, 49155, 0.015625),
    "Granite-3.0-8B": granite_shape(4096, 32, 8, 128, 12800, 49155, 0.0078125),
    "Granite-4.2-3B": dataclasses.replace(
        model_shape(2560, 40, 8, 64, 8192, 100352), attention_scale=0.015625
    ),
    "Phi-3-mini": model_shape(3072, 32, 32, 96, 8192, 32064),
    "Phi-4-mini": dataclasses.replace(model_shape(3072, 24, 8, 128, 8192, 200064), rotary_dim=96),
    "Phi-4": model_shape(5120, 40, 10, 128, 17920, 100352),
    "SmolLM3-3B": model_shape(2048, 16, 4, 128, 11008, 128256),
    "SmolLM2-1.7B": model_shape(2048, 32, 32, 64, 8192, 49152),
    "OLMo-2-1B": olmo2_shape(2048, 16, 16, 128, 8192, 100352),
    "OLMo-2-7B": olmo2_shape(4096, 32, 32, 128, 11008, 100352),
    "OLMo-2-32B": olmo2_shape(5120, 40, 8, 128, 27648, 100352),
    "Qwen2.5-0.5B": dataclasses.replace(model_shape(896, 14, 2, 64, 4864, 151936), qkv_bias=True),
    "Qwen2.5-7B": dataclasses.replace(model_shape(3584, 28, 4, 128, 18944, 152064), qkv_bias=True),
    "Qwen2.5-72B": dataclasses.replace(model_shape(8192, 64, 8, 128, 29568, 152064), qkv_bias=True),
    "Qwen3-0.6B": dataclasses.replace(model_shape(1024, 16, 8, 128, 3072, 151936), qk_norm=True),
    "Qwen3-1.7B": dataclasses.replace(model_shape(2048, 16, 8, 128, 6144, 151936), qk_norm=True),
    "Qwen3-8B": dataclasses.replace(model_shape(4096, 32, 8, 128, 12288, 151936), qk_norm=True),
    "Qwen3-32B": dataclasses.replace(model_shape(5120, 64, 8, 128, 25600, 151936), qk_norm=True),
}
"""Sizes from the config.json files of these models."""
BUILT = (
    "LFM2-350M",
    "LFM2-2.6B",
    "Llama-2-13B",
    "Llama-3.1-70B",
    "Mistral-Nemo-12B",
    "SmolLM2-135M",
    "SmolLM2-360M",
    "Granite-3.0-8B",
    "Granite-4.2-3B",
    "Phi-3-mini",
    "Phi-4-mini",
    "Phi-4",
    "SmolLM3-3B",
    "OLMo-2-1B",
    "OLMo-2-32B",
    "Qwen2.5-0.5B",
    "Qwen2.5-7B",
    "Qwen2.5-72B",
    "Qwen3-0.6B",
    "Qwen3-32B",
)
"""Of each kind of layer the narrowest and the widest, and those whose heads or hidden sizes are odd: to build
one takes seconds."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "SmolLM2-135M" else pytest.mark.slow) for name in BUILT],
)
def test_programs_of_published_models_fit_the_device(name):
    for program in build_programs(PUBLISHED[name], 2048).values():
        check(parse(program.text)).raise_faults()


@pytest.mark.parametrize(("tokens", "length"), [(0, 64), (1, 64), (64, 64), (65, 128), (2000, 2048)])
def test_the_smallest_compiled_length_that_holds_a_prompt(tokens, length):
    assert round_up_seq_len(tokens) == length
    check_seq_len(length)


@pytest.mark.parametrize(("vocab", "padded"), [(1, 2048), (2048, 2048), (2049, 4096), (128256, 129024)])
def test_the_vocabulary_is_padded_to_whole_partitions(vocab, padded):
    assert padded_vocab_size(dataclasses.replace(DEMO, vocab_size=vocab)) == padded


def test_an_unknown_program():
    with pytest.raises(
        ValueError, match="no program named 'o_fn'; there are: rms_gemms_rope, flash_attn, o_ffn"
    ):
        build_programs(DEMO, 128, only=["o_fn"])
