"""config.json and generation_config.json: what is read, what is refused."""

import json

import pytest

from aerie.llama32_1b.config import Llama3Scaling, load_config
from aerie.llama32_1b.errors import ConfigError

MINIMAL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def load(tmp_path):
    def load(generation=None, **changes):
        (tmp_path / "config.json").write_text(json.dumps({**MINIMAL, **changes}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return load_config(tmp_path)

    return load


def test_absent_entries_take_the_defaults_of_transformers(load):
    from transformers import LlamaConfig

    ours, theirs = load(), LlamaConfig(**MINIMAL)
    for name in ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.tie_word_embeddings is theirs.tie_word_embeddings is False
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"] == 10000.0
    assert ours.rope_scaling is None


def test_both_spellings_of_rope_read_the_same(load):
    old = load(rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    oldest = load(rope_theta=500000.0, rope_scaling={"type": "llama3", **LLAMA3})
    new = load(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3})
    assert old == oldest == new
    assert new.rope_theta == 500000.0
    assert new.rope_scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)


def test_what_transformers_saves_is_read(load, make_checkpoint):
    config = load_config(make_checkpoint())
    assert config.rope_theta == 500000.0
    assert config.rope_scaling.factor == 32.0
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 3}, None, (3,)),
        ({"eos_token_id": 3}, {"eos_token_id": [4, 5]}, (4, 5)),
        ({"eos_token_id": 3}, {"temperature": 0.6}, (3,)),
        ({}, {"eos_token_id": 0}, (0,)),
        ({}, None, ()),
    ],
)
def test_every_end_token_is_known(load, config, generation, expected):
    assert load(generation, **config).eos_token_ids == expected


def test_padding_is_an_end_token_or_anything(load):
    assert load(eos_token_id=[7, 8]).pad_token_id == 7
    assert load().pad_token_id == 0


@pytest.mark.parametrize(
    ("positions", "expected"), [(64, 64), (256, 128), (1024, 128), (1025, 1025), (2048, 2048), (131072, 2048)]
)
def test_default_prefill_length(load, positions, expected):
    assert load(max_position_embeddings=positions).default_seq_len() == expected


@pytest.mark.parametrize(
    ("positions", "tokens", "expected"),
    [
        (512, 128, 128),
        (512, 129, 512),
        (512, 600, 512),
        (131072, 2049, 4096),
        (131072, 5000, 8192),
        (3000, 2049, 3000),
        (131072, 1 << 30, 131072),
    ],
)
def test_prefill_length_for_a_longer_prompt(load, positions, tokens, expected):
    assert load(max_position_embeddings=positions).default_seq_len(tokens) == expected


def test_shape_for_the_builders(load):
    shape = load(num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5).shape
    assert (shape.emb_dim, shape.hidden_dim, shape.vocab_size) == (256, 512, 512)
    assert (shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.rms_norm_eps) == (4, 2, 32, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
            r"the architecture is MistralForCausalLM \(model_type 'mistral'\); only LlamaForCausalLM",
        ),
        ({"model_type": "qwen3"}, r"model_type 'qwen3'.*only LlamaForCausalLM is supported"),
        ({"attention_bias": True}, "attention_bias is True; only attention_bias False is supported"),
        ({"mlp_bias": True}, "mlp_bias is True; only mlp_bias False is supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only hidden_act 'silu' is supported"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            r"the checkpoint is quantised with gptq \(quantization_config\); only unquantised checkpoints "
            "are supported, in BF16, F16 or F32$",
        ),
        (
            {"quantization_config": {"bits": 4}},
            r"the checkpoint is quantised \(quantization_config\); only unquantised checkpoints are",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only partial_rotary_factor 1.0"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is not 1.0",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "RoPE rule 'yarn' is not supported; 'default' and",
        ),
        ({"rope_scaling": {"rope_type": "llama3"}}, "there is no factor; the checkpoint is incomplete"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor 1.0 must be above low_freq_factor 1.0",
        ),
        ({"rope_scaling": 4}, "rope_scaling is 4; it must be an object"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 33}, "head_dim is 33; RoPE turns pairs, so it must be even"),
        ({"hidden_size": "256"}, "hidden_size is '256'; it must be a whole number, 1 or more"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number, 1 or more"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; no more than 1000 are supported"),
        ({"vocab_size": True}, "vocab_size is True; it must be a whole number"),
        ({"vocab_size": None}, "there is no vocab_size; the checkpoint is incomplete"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a finite number above 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; it must be a finite number above 0"),
        ({"rope_theta": 10**400}, "rope_theta is 10{400}; it must be a finite number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"eos_token_id": 512}, "eos_token_id 512 is not a token of the vocabulary of 512"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id '</s>' is not a token of the vocabulary of 512"),
    ],
)
def test_refused(load, changes, message):
    with pytest.raises(ConfigError, match=message):
        load(**changes)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*config\.json; give --model a Hugging Face"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5')
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json: .*; fetch it again"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"config\.json holds list, not an object"):
        load_config(tmp_path)
