"""What a checkpoint of block diffusion says of its blocks and its mask token, in each family's words."""

from __future__ import annotations

import json

import pytest

from aerie.engine.config import load_config
from aerie.engine.diffusion import MAX_BLOCK_SIZE
from aerie.engine.errors import ConfigError
from aerie.engine.families import FAMILIES
from aerie.engine.model_family import DiffusionConfig
from aerie.engine.page_manager import PAGE_SIZE
from aerie.llama32_1b.synthetic.shape import TINY, in_family, with_vocabulary
from aerie.verify.random_model import in_another_family, random_model_config

SIZES = {
    "vocab_size": 151936,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
SDAR_4B_CHAT = {
    "architectures": ["SDARForCausalLM"],
    "attention_bias": False,
    "attn_implementation": "flex_attention",
    "bos_token_id": 151643,
    "debug": False,
    "eos_token_id": 151643,
    "block_size": 4,
    "mask_token_id": 151669,
    "ep_size": 1,
    "fuse_cross_entropy": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_window_layers": 36,
    "model_type": "sdar",
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "use_deepep": False,
    "use_sliding_window": False,
}
"""As JetAstra/SDAR has it in training/model, without sizes."""


@pytest.fixture
def load(tmp_path):
    """load(model_type, file=content, ...) of tokenizer files, with other entries of config.json first."""

    def load(model_type, changes=None, **files):
        (tmp_path / "config.json").write_text(
            json.dumps({**SIZES, "model_type": model_type, **(changes or {})})
        )
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return load_config(tmp_path).diffusion

    return load


def decoder(number, text):
    return {"added_tokens_decoder": {str(number): {"content": text, "special": True}}}


def test_the_published_sdar(load):
    assert load("sdar", SDAR_4B_CHAT) == DiffusionConfig(4, 151669, shifted=False, sub_block=None)
    assert load("sdar", {**SDAR_4B_CHAT, "block_size": 64}).block_size == 64


def test_bd3lm_of_qwen(load):
    """Neither block nor mask token is in config.json: 32, and what the tokenizer says."""
    kind = {"architectures": ["A2DQwen3LMHeadModel"]}
    ours = load("a2d-qwen3", kind, tokenizer_config=decoder(151669, "<|mask|>"))
    assert ours == DiffusionConfig(32, 151669)
    coder = {"architectures": ["A2DQwen2LMHeadModel"]}
    ours = load("a2d-qwen2", coder, tokenizer_config=decoder(151665, "<|mask|>"))
    assert ours == DiffusionConfig(32, 151665)


def test_the_published_fast_dllm_v2(load):
    kind = {"architectures": ["Fast_dLLM_QwenForCausalLM"], "bd_size": 32}
    ours = load("Fast_dLLM_Qwen", kind, added_tokens={"|<MASK>|": 151665})
    assert ours == DiffusionConfig(32, 151665, shifted=True, sub_block=8)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_other_families_have_no_blocks(model_type, load):
    assert load(model_type, {"block_size": 4, "mask_token_id": 7}) is None


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer": {"added_tokens": [{"id": 9, "content": "<|mask|>"}]}},
        {"tokenizer_config": decoder(9, "<|mask|>")},
        {"tokenizer_config": {**decoder(9, "<hole>"), "mask_token": "<hole>"}},
        {"tokenizer_config": {**decoder(9, "<hole>"), "mask_token": {"content": "<hole>"}}},
        {"tokenizer_config": {**decoder(9, "<|mask|>"), "mask_token": "<not listed>"}},
        {"added_tokens": {"<|mask|>": 9}, "tokenizer_config": decoder(8, "other")},
    ],
)
def test_where_the_mask_token_is_found(files, load):
    assert load("a2d-qwen3", **files).mask_token_id == 9
    assert load("a2d-qwen3", {"mask_token_id": 10}, **files).mask_token_id == 10


@pytest.mark.parametrize("family", [kind for kind, family in FAMILIES.items() if family.diffusion])
def test_a_mask_token_that_nothing_says(family, load):
    diffusion = FAMILIES[family].diffusion
    assert diffusion
    text = diffusion.mask_token
    message = f"config.json: there is no mask_token_id, and the tokenizer has no token '{text}'"
    for files in ({}, {"tokenizer": {"added_tokens": []}, "tokenizer_config": {"mask_token": "<lost>"}}):
        with pytest.raises(ConfigError) as caught:
            load(family, **files)
        assert message in str(caught.value)
        assert str(caught.value).endswith("add mask_token_id")


@pytest.mark.parametrize("token", [151936, -1, True, "<|mask|>", 1.5])
def test_a_mask_token_outside_the_vocabulary(token, load):
    with pytest.raises(ConfigError, match=r"config\.json: the mask token is .*the vocabulary of 151936; no"):
        load("sdar", {"mask_token_id": token})


def test_a_mask_token_that_the_embeddings_lack(load):
    """A tokenizer to which a token was added, and a model that has no row for it."""
    with pytest.raises(ConfigError, match=r"added_tokens\.json: the mask token is 151936, which is not a"):
        load("a2d-qwen3", added_tokens={"<|mask|>": 151936})


@pytest.mark.parametrize("size", [3, 12, 48, 65, 128])
def test_a_block_that_does_not_divide_a_page(size, load):
    assert MAX_BLOCK_SIZE == PAGE_SIZE
    with pytest.raises(
        ConfigError, match=f"config.json: block_size is {size}; a page of keys and values has"
    ):
        load("sdar", {"mask_token_id": 7, "block_size": size})


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_block_that_is_no_multiple_of_its_parts(size, load):
    assert load("sdar", {"mask_token_id": 7, "block_size": size}).block_size == size
    with pytest.raises(
        ConfigError, match=f"bd_size is {size}; models of this family .* in parts of 8 tokens"
    ):
        load("Fast_dLLM_Qwen", {"mask_token_id": 7, "bd_size": size})


@pytest.mark.parametrize("size", [0, "4", 4.0, True])
def test_a_block_size_that_is_no_count(size, load):
    with pytest.raises(ConfigError, match=r"block_size is .*must be a whole number, 1 or more"):
        load("sdar", {"mask_token_id": 7, "block_size": size})


def test_random_models_keep_their_blocks():
    """Of another vocabulary or family: the mask token is a token of it, and there is none without blocks."""
    sdar = in_family(TINY, FAMILIES["sdar"])
    assert sdar.diffusion == DiffusionConfig(4, TINY.vocab_size - 1)
    assert in_family(sdar, FAMILIES["sdar"]) is sdar
    assert with_vocabulary(sdar, 600).diffusion == DiffusionConfig(4, 599)
    drawn = random_model_config(sdar)
    assert drawn.diffusion
    assert drawn.diffusion.mask_token_id < drawn.vocab_size
    assert in_another_family(sdar).diffusion is None
    assert in_another_family(TINY).family is FAMILIES["qwen3"]
