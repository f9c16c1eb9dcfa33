"""config.json and generation_config.json: what is read, what is refused."""

import json
import re

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.config import load_config
from aerie.engine.errors import ConfigError
from aerie.engine.rope import Llama3Scaling
from aerie.llama32_1b.synthetic.shape import SHAPES
from aerie.multi_launch_builder import shapes

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
    assert isinstance(config.rope_scaling, Llama3Scaling)
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


def test_the_token_by_which_a_draft_model_guesses_at_once(load):
    assert load(pard_token=511).draft_mask_id == 511
    assert load().draft_mask_id is None
    for wrong in (512, -1, "x", True):
        with pytest.raises(ConfigError, match=r"pard_token is .*, which is not a token of the vocabulary of"):
            load(pard_token=wrong)


def test_padding_is_an_end_token_or_anything(load):
    assert load(eos_token_id=[7, 8]).pad_token_id == 7
    assert load().pad_token_id == 0


@pytest.mark.parametrize(
    ("positions", "expected"), [(64, 64), (256, 128), (1024, 128), (1025, 1025), (2048, 2048), (131072, 2048)]
)
def test_default_prefill_length(load, positions, expected):
    assert load(max_position_embeddings=positions).default_seq_len == expected


def test_shape_for_the_builders(load):
    shape = load(num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5).shape
    assert (shape.emb_dim, shape.hidden_dim, shape.vocab_size) == (256, 512, 512)
    assert (shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.rms_norm_eps) == (4, 2, 32, 1e-5)


def test_shapes_that_builders_know_by_name_are_those_of_the_models():
    assert load_config(DEMO_FOLDER).shape == shapes.DEMO
    assert SHAPES["llama-3.2-1b"].shape == shapes.LLAMA_3_2_1B


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
            r"the architecture is MixtralForCausalLM \(model_type 'mixtral'\): it is a mixture of experts, "
            r"in which each token takes weights of its own; only Gemma3ForCausalLM.* and \w+ForCausalLM are "
            r"supported \(README\.md, Models that run\)$",
        ),
        (
            {"model_type": "arcee"},
            r"architecture is not named \(model_type 'arcee'\); only Gemma3ForCausalLM",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"},
            "the architecture is LlamaForSequenceClassification",
        ),
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "mistral"},
            r"the architecture is LlamaForCausalLM \(model_type 'mistral'\)",
        ),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; it must be a list"),
        (
            {"quantization_config": {"quant_method": "hqq", "bits": 4}},
            r"the checkpoint is quantised with hqq \(quantization_config\), which is not read; AWQ \(gemm\), "
            r"GPTQ, compressed-tensors \(pack-quantized\), MLX \(affine\) and bitsandbytes are read: fetch "
            "one of these, the unquantised checkpoint, or a GGUF file of the same model$",
        ),
        (
            {"quantization_config": {"bits": 4}},
            r"the checkpoint is quantised with an unknown tool \(quantization_config\), which is not read",
        ),
        (
            {"quantization": {"group_size": 64, "bits": 3}},
            r"the checkpoint is quantised with mlx \(quantization\), and bits is 3, where 4 or 8 is read; ",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "RoPE has partial_rotary_factor 0.5, which the rule 'default' knows nothing of",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "RoPE has factor 4.0, which the rule 'default' knows nothing of"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "mrope_section": [1, 2]}},
            r"RoPE has mrope_section \[1, 2\], which the rule 'llama3' knows nothing of; models whose",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
            r"rope_parameters has \['full_attention'\]; RoPE by kind of layer needs 'full_attention' and ",
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6},
                    "sliding_attention": {"rope_theta": 1e4},
                }
            },
            "layers of sliding attention have RoPE of their own, and those of a LlamaForCausalLM have",
        ),
        ({"rope_local_base_freq": 1e4}, "layers of sliding attention have RoPE of their own"),
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            "rope_theta is 10000.0 in one place and 1000000.0 in another; which of them",
        ),
        (
            {"original_max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            "original_max_position_embeddings is 4096 in one place and 8192 in another",
        ),
        ({"rope_scaling": {"rope_type": ["llama3"]}}, r"RoPE rule \['llama3'\] is not supported"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 4.0}},
            "RoPE rule 'ntk' is not supported; 'default', 'linear', 'llama3', 'yarn', 'dynamic' and",
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
        ({"rope_theta": 1e300}, r"rope_theta is 1e\+300; only numbers from 1e-15 to 1e\+15 are supported"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps is 1e-300; only numbers from 1e-15 to"),
        ({"rope_theta": 10**400}, "rope_theta is 10{400}; it must be a finite number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id '</s>' is not a token: it must be a whole number"),
        ({"eos_token_id": True}, "eos_token_id True is not a token"),
        ({"eos_token_id": 2.5}, "eos_token_id 2.5 is not a token"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; no more than 16777216 are supported"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; no more than 1048576 are supported"),
        ({"intermediate_size": 10**12}, "intermediate_size is 1000000000000; no more than 1048576"),
        ({"num_attention_heads": 10**12}, "num_attention_heads is 1000000000000; no more than 16384"),
        ({"head_dim": 10**12}, "head_dim is 1000000000000; no more than 1048576 are supported"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is 10{12}; no more than 1073741824"),
        ({"hidden_size": [1] * 9999}, r"hidden_size is \[1, 1, .* \.\.\.; it must be a whole number"),
        ({"hidden_size": float("nan")}, "hidden_size is nan; it must be a whole number"),
        (
            {"transformers_weights": "../model.safetensors"},
            "only transformers_weights 'model.safetensors' is",
        ),
    ],
)
def test_refused(load, changes, message):
    with pytest.raises(ConfigError, match=message):
        load(**changes)


@pytest.mark.parametrize(
    ("fact", "wanted"),
    [
        ({"attention_bias": True}, "only attention_bias False is supported"),
        ({"mlp_bias": True}, "only mlp_bias False is supported"),
        ({"qkv_bias": True}, "only qkv_bias False is supported"),
        ({"bias": 1}, "only bias False is supported"),
        ({"hidden_act": "gelu"}, "only hidden_act 'silu', 'swish' and 'gelu_pytorch_tanh' are supported"),
        ({"hidden_activation": "relu2"}, "only hidden_activation 'silu', 'swish' and 'gelu_pytorch"),
        ({"partial_rotary_factor": 0.5}, "only partial_rotary_factor 1.0 is supported"),
        ({"rotary_pct": 0.25}, "only rotary_pct 1.0 is supported"),
        ({"rotary_dim": 32}, "only rotary_dim 64 is supported"),
        ({"rope_interleaved": True}, "only rope_interleaved False is supported"),
        ({"no_rope_layers": [1, 0]}, "every layer of a LlamaForCausalLM has RoPE"),
        (
            {"no_rope_layer_interval": 4},
            "every layer of a LlamaForCausalLM has RoPE; only no_rope_layer_interval 0",
        ),
        ({"no_rope_layers": 4}, "it must be a list"),
        ({"use_qk_norm": True}, "only use_qk_norm False is supported"),
        ({"qk_layernorm": True}, "only qk_layernorm False is supported"),
        ({"attn_logit_softcapping": 50.0}, "only attn_logit_softcapping 0.0 is supported"),
        ({"clip_qkv": 8}, "only clip_qkv 0.0 is supported"),
        ({"query_pre_attn_scalar": 256}, "only query_pre_attn_scalar 64 is supported"),
        ({"attention_multiplier": 0.015625}, "only attention_multiplier 0.125 is supported"),
        ({"embedding_multiplier": 12}, "only embedding_multiplier 1.0 is supported"),
        ({"residual_multiplier": 0.22}, "only residual_multiplier 1.0 is supported"),
        ({"logits_scaling": 8.0}, "only logits_scaling 1.0 is supported"),
        ({"scale_depth": 1.4}, "no model with scale_depth is supported (README.md, Models"),
        ({"num_local_experts": 8}, "only num_local_experts 0 is supported"),
        ({"kv_lora_rank": 512}, "only kv_lora_rank 0 is supported"),
        ({"use_alibi": True}, "only use_alibi False is supported"),
        ({"use_parallel_residual": True}, "only use_parallel_residual False is supported"),
        ({"use_bidirectional_attention": True}, "only use_bidirectional_attention False is supported"),
        ({"attention_chunk_size": 1024}, "only attention_chunk_size 0 is supported"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "only 'full_attention' and 'sliding"),
        ({"layer_types": ["sliding_attention"]}, "and a LlamaForCausalLM has no windows"),
        ({"vision_config": {"depth": 32}}, "no model with vision_config is supported"),
        ({"is_encoder_decoder": True}, "only is_encoder_decoder False is supported"),
        ({"sliding_window": 0}, "it must be a whole number, 1 or more"),
    ],
    ids=lambda fact: next(iter(fact)) if isinstance(fact, dict) else "",
)
def test_a_fact_that_makes_another_model_is_refused_by_its_name(load, fact, wanted):
    (name,) = fact
    with pytest.raises(ConfigError, match=rf"config\.json: {name} (is|has) .*{re.escape(wanted)}"):
        load(**fact)


@pytest.mark.parametrize(
    ("name", "part", "hint"),
    [
        (
            "LlavaForConditionalGeneration",
            {"text_config": {"model_type": "llama"}},
            "of the kind llama, which runs",
        ),
        (
            "Qwen2_5_VLForConditionalGeneration",
            {"text_config": {"model_type": "qwen2_5_vl_text"}},
            "of the kind qwen2, which runs: fetch the model of text that it was made from; only",
        ),
        ("InternVLChatModel", {"llm_config": {"model_type": "qwen3"}}, "of the kind qwen3, which runs"),
        (
            "LlavaNextForConditionalGeneration",
            {"text_config": {"model_type": "mistral"}},
            "of the kind mistral, which runs: fetch the model of text that it was made from; only",
        ),
        ("Llama4ForConditionalGeneration", {"text_config": {"model_type": "llama4_text"}}, ""),
        ("SomeVLModel", {"text_config": 3}, ""),
        ("BertModel", {}, "it makes vectors of texts, and no answers"),
    ],
)
def test_what_to_take_in_place_of_a_model_that_reads_images(load, name, part, hint):
    with pytest.raises(ConfigError) as caught:
        load(architectures=[name], model_type="other", **part)
    assert hint in str(caught.value)
    assert ("its text part is" in str(caught.value)) is hint.startswith("of the kind")


def test_facts_that_say_what_llama_does_are_no_obstacle(load):
    """What configs of SmolLM2, of converters, and of transformers say besides."""
    harmless = {
        "is_llama_config": True,
        "rope_interleaved": False,
        "pretraining_tp": 1,
        "attention_bias": False,
        "qk_layernorm": None,
        "hidden_act": "swish",
        "partial_rotary_factor": 1,
        "rotary_dim": 64,
        "attention_multiplier": 0.125,
        "layer_types": ["full_attention"] * 2,
        "no_rope_layers": [1, 1],
        "rope_scaling": {"type": "default", "attention_factor": 1.0},
    }
    assert load(**harmless) == load()


LLAMA3_RULE = {"rope_type": "llama3", **LLAMA3}
STRETCHES = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": False,
}


@pytest.mark.parametrize(
    ("entries", "same"),
    [
        ({"rope_scaling": {"rope_type": "default", "factor": 1.0}}, {}),
        ({"rope_scaling": {"factor": 1}}, {}),
        ({"rope_scaling": {"type": "default", "factor": None, **STRETCHES}}, {}),
        ({"rope_scaling": {"type": "dynamic", "factor": 1.0}}, {}),
        ({"rope_scaling": {"type": "yarn", "factor": 1.0, "mscale": 1.0, **STRETCHES}}, {}),
        ({"rope_scaling": {"type": "yarn", "factor": 1.0, "attention_factor": 1.0}}, {}),
        ({"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1}}, {}),
        (
            {"rope_scaling": {**LLAMA3_RULE, "original_max_position_embeddings": None}},
            {"rope_scaling": {**LLAMA3_RULE, "original_max_position_embeddings": 2048}},
        ),
        ({"eos_token_id": [3, 512, -1, 10**30]}, {"eos_token_id": 3}),
        ({"eos_token_id": -1}, {}),
        ({"eos_token_id": []}, {}),
        ({"attention_chunk_size": 2048}, {}),
        ({"attention_chunk_size": 0}, {}),
        ({"transformers_weights": "model.safetensors"}, {}),
        ({"architectures": ["LlamaModel"]}, {}),
        ({"architectures": None, "auto_map": {"AutoModel": "x.X"}, "custom_pipelines": {}}, {}),
        ({"no_rope_layers": [], "layer_types": [], "sliding_window": None}, {}),
    ],
)
def test_an_entry_is_judged_by_its_effect(load, entries, same):
    """transformers computes the same with and without it."""
    assert load(**entries) == load(**same)
    assert load({"eos_token_id": 512}, **entries).eos_token_ids == ()


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"type": "yarn", "factor": 1.0, "attention_factor": 1.2},
            "RoPE has attention_factor 1.2, which the",
        ),
        ({"type": "yarn", "factor": 1.5, "low_freq_factor": 2.0}, "RoPE has low_freq_factor 2.0, which the"),
        (
            {"type": "dynamic", "factor": 1.5, "alpha": 1000.0},
            "RoPE has alpha 1000.0, which the rule 'dynamic'",
        ),
        (
            {"type": "linear", "factor": 4.0, "beta_fast": 32},
            "RoPE has beta_fast 32, which the rule 'linear'",
        ),
        ({"factor": 1.0, "short_factor": [2.0] * 32}, "RoPE has short_factor"),
    ],
)
def test_entries_of_rope_that_have_an_effect(load, rope, message):
    with pytest.raises(ConfigError, match=message):
        load(rope_scaling=rope)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 99999, "cannot read .*: it is nested too deep; fetch it again"),
        ('{"a":' * 99999, "cannot read .*: it is nested too deep; fetch it again"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "cannot read .*: Exceeds the limit .* fetch it again"),
        ("\xff\xfe", "cannot read .*: 'utf-8' codec can't decode byte .*; fetch it again"),
        ("null", "holds NoneType, not an object"),
    ],
    ids=["lists", "objects", "digits", "bytes", "null"],
)
def test_what_no_json_of_a_checkpoint_is(load, tmp_path, name, content, message):
    load({})
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path)


def test_a_file_of_any_size_is_not_read(load, tmp_path):
    load()
    with (tmp_path / "config.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        ConfigError, match="has 1099511627776 bytes, and no more than 16777216 are read of such"
    ):
        load_config(tmp_path)


def test_what_a_message_quotes_is_one_line_of_text(load):
    with pytest.raises(ConfigError) as refused:
        load(model_type="\x1b[2J\n", architectures=["a\nb\u202e", "c" * 9999])
    assert str(refused.value).isprintable()
    assert r"a\nb\u202e" in str(refused.value)
    assert len(str(refused.value)) < 2100


def test_mistral_is_a_llama_with_defaults_of_its_own(load):
    from transformers import MistralConfig

    theirs = MistralConfig(**MINIMAL | {"num_attention_heads": 8})
    ours = load(model_type="mistral", num_attention_heads=8)
    for name in ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.architecture == "MistralForCausalLM"
    assert ours.sliding_window == theirs.sliding_window == 4096
    assert (
        load(model_type="mistral", num_attention_heads=8, num_key_value_heads=None).num_key_value_heads == 8
    )
    assert load(architectures=["MistralForCausalLM"], num_key_value_heads=None).num_key_value_heads == 4
    assert load().architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("window", [None, 512, 4096, 96])
def test_the_context_goes_on_behind_the_window(load, window):
    config = load(
        architectures=["MistralForCausalLM"],
        num_key_value_heads=2,
        max_position_embeddings=512,
        sliding_window=window,
    )
    assert (config.context, config.context_entry) == (512, "max_position_embeddings")
    assert config.masks.windows == (window,)
    assert set(config.masks.of_layer) == {0}


def test_windows_are_named_for_every_layer(load):
    with pytest.raises(ConfigError, match=r"layer_types names 1 layers of \d+; which of the others have a"):
        load(model_type="mistral", sliding_window=8, layer_types=["sliding_attention"])


def test_a_family_without_windows_has_none(load):
    """As transformers' Llama, which does not read the entry."""
    assert load(sliding_window=8).masks.windows == (None,)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*config\.json; give --model a Hugging Face"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5')
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json: .*; fetch it again"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"config\.json holds list, not an object"):
        load_config(tmp_path)
