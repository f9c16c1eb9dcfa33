"""Every family: random small shapes against transformers' own class, and what its config.json may say.

A family is a row of FAMILY_ROWS. Programs run in numpy here, and on the virtual NPU in the slow tests below
and, of unusual shapes, in test_model_shapes.py.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.cli.arguments import default_cache_dir
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import ConfigError, WeightsError
from aerie.engine.families import FAMILIES, SOME_THAT_RUN
from aerie.engine.model_family import Multipliers
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.rope import LongRopeScaling
from aerie.engine.weights import Weights, stored_shapes
from aerie.runtime import select_backend
from tests.verify.family_faults import FAMILY_FAULTS


def published(model_type, architecture):
    return {"model_type": model_type, "architectures": [architecture], "mask_token_id": 255}


FAMILY_ROWS = {
    "a2d-qwen2": {"family": "Qwen2", "entries": published("a2d-qwen2", "A2DQwen2LMHeadModel")},
    "a2d-qwen3": {"family": "Qwen3", "entries": published("a2d-qwen3", "A2DQwen3LMHeadModel")},
    "Fast_dLLM_Qwen": {
        "family": "Qwen2",
        "entries": published("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM"),
    },
    "gemma3_text": {
        "family": "Gemma3",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 64,
        "query_pre_attn_scalar": 168,
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
    },
    "granite": {
        "family": "Granite",
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.09,
        "residual_multiplier": 0.22,
        "logits_scaling": 1.7,
    },
    "granitemoehybrid": {
        "family": "GraniteMoeHybrid",
        "layer_types": ["full_attention"] * 3,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "rope",
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.09,
        "residual_multiplier": 0.22,
        "logits_scaling": 1.7,
    },
    "lfm2": {
        "family": "Lfm2",
        "layer_types": ["conv", "full_attention", "conv"],
        "pad_token_id": 0,
    },
    "llama": {"family": "Llama"},
    "ministral": {
        "family": "Ministral",
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 64,
    },
    "ministral3": {"family": "Ministral3", "pad_token_id": 0},
    "mistral": {"family": "Mistral", "sliding_window": 64},
    "olmo2": {"family": "Olmo2", "pad_token_id": 0},
    "olmo3": {
        "family": "Olmo3",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 64,
        "pad_token_id": 0,
    },
    "phi3": {"family": "Phi3", "pad_token_id": 0},
    "qwen2": {"family": "Qwen2"},
    "qwen3": {"family": "Qwen3"},
    "qwen3_5_text": {"family": "Qwen3_5", "pad_token_id": 0},
    "smollm3": {"family": "SmolLM3", "no_rope_layer_interval": 2, "pad_token_id": 0},
    "sdar": {"family": "Qwen3", "entries": published("sdar", "SDARForCausalLM")},
}
"""By model_type: how transformers' classes begin, and what this family's config has besides. entries: what
config.json says of a model that comes with code of its own, whose layers are those of that class."""
RULES = (
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)
SHAPES_EACH = 4
NEEDED = {
    "granitemoehybrid": {
        "layer_types": ["full_attention"] * 4,
        "num_local_experts": 0,
        "position_embedding_type": "rope",
        "shared_intermediate_size": 512,
    }
}
"""Entries without which a family's model would be one that is refused."""
MINIMAL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
}


def random_shape(model_type, number):
    """Whatever the kernels take, drawn by the family and a number; small."""
    draw = np.random.default_rng([*model_type.encode(), number])
    heads = int(draw.choice([2, 4, 8]))
    shape = {
        **FAMILY_ROWS[model_type],
        "hidden_size": 64 * int(draw.integers(1, 6)),
        "intermediate_size": 64 * int(draw.integers(1, 9)),
        "num_hidden_layers": int(draw.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // int(draw.choice([1, 2, heads])),
        "head_dim": int(draw.choice([32, 64, 96])),
        "vocab_size": int(draw.integers(300, 900)),
        "max_position_embeddings": 512,
        "rms_norm_eps": float(draw.choice([1e-6, 1e-5])),
        "tie_word_embeddings": bool(draw.integers(2)),
        "rope_parameters": RULES[number % len(RULES)],
        "seed": number,
    }
    return CHANGED.get(model_type, lambda shape, _: shape)(shape, number)


def with_partial_rotary(shape, number):
    """transformers takes a head for hidden_size / num_attention_heads where it counts longrope's factors."""
    heads = min(shape["num_attention_heads"], 4)
    head_dim, part = ((64, 0.5), (128, 0.75), (96, 1.0))[number % 3]
    rope = {"rope_theta": 1e4, "partial_rotary_factor": part, "rope_type": "default"}
    pairs = int(head_dim * part) // 2
    if number % 2:
        factors = {"short_factor": [1.0 + 0.01 * i for i in range(pairs)], "long_factor": [2.0] * pairs}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": 64, **factors}
    return shape | {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // (1 + number % 2),
        "head_dim": head_dim,
        "original_max_position_embeddings": 64,
        "rope_parameters": rope,
    }


def with_two_bases(shape, number):
    """RoPE by kind of layer."""
    local = {"rope_type": "default", "rope_theta": 1e4}
    ropes = {"full_attention": shape["rope_parameters"], "sliding_attention": local}
    return with_kinds(shape, number) | {"rope_parameters": ropes}


def with_wide_heads(shape, number):
    return with_two_bases(shape, number) | {"head_dim": (64, 256, 96)[number % 3]}


def with_kinds(shape, _):
    """A list of kinds as long as there are layers."""
    return shape | {"layer_types": shape["layer_types"][: shape["num_hidden_layers"]]}


def with_growing_queries(shape, number):
    """Stretched RoPE, up to the length from which queries would grow."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": (1e4, 1e6)[number % 2],
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": (1.0, 0.7)[number % 2],
    }
    return shape | {"rope_parameters": rope}


def with_convolutions(shape, number):
    """Heads as wide as the model, kinds of layers in turn, and an FFN whose width is rounded in some."""
    layers, head_dim = 2 + number % 3, (32, 64)[number % 2]
    kinds = [("conv", "full_attention", "conv")[(layer + number) % 3] for layer in range(layers)]
    return shape | {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "hidden_size": shape["num_attention_heads"] * head_dim,
        "head_dim": head_dim,
        "norm_eps": shape["rms_norm_eps"],
        "block_auto_adjust_ff_dim": bool(number % 2),
        "block_ffn_dim_multiplier": 1.0 + 0.3 * (number % 3),
    }


def with_linear_attention(shape, number):
    """Values as wide as the queries, cut into as many heads or more, that share fewer keys."""
    head_dim, part = ((64, 0.5), (128, 0.25), (96, 1.0), (64, 1.0))[number % 4]
    query_heads, layers = min(shape["num_attention_heads"], 4), (2, 3, 3, 2)[number % 4]
    value_heads = query_heads * head_dim // 32
    kinds = ("linear_attention", "full_attention", "linear_attention")
    return shape | {
        "num_hidden_layers": layers,
        "layer_types": [kinds[(layer + number) % 3] for layer in range(layers)],
        "num_attention_heads": query_heads,
        "num_key_value_heads": query_heads // (1 + number % 2),
        "head_dim": head_dim,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": part},
        "linear_num_value_heads": value_heads,
        "linear_num_key_heads": value_heads // (1, 2)[number % 2],
        "linear_value_head_dim": 32,
        "linear_key_head_dim": (16, 48, 32, 64)[number % 4],
        "linear_conv_kernel_dim": (4, 3)[number % 2],
    }


def of_granite_4(shape, number):
    """Without RoPE in one of three. Its FFN's width has another name."""
    position = {"position_embedding_type": None} if number % 3 == 2 else {}
    width = {"shared_intermediate_size": shape["intermediate_size"]}
    return with_kinds(shape, number) | width | position | {"logits_scaling": shape["hidden_size"] / 160}


CHANGED = {
    "granitemoehybrid": of_granite_4,
    "gemma3_text": with_wide_heads,
    "lfm2": with_convolutions,
    "ministral": with_kinds,
    "ministral3": with_growing_queries,
    "olmo3": with_two_bases,
    "phi3": with_partial_rotary,
    "qwen3_5_text": with_linear_attention,
}
"""What a family's random shapes have otherwise."""
CASES = [(family, number) for family in FAMILY_ROWS for number in range(SHAPES_EACH)]


WITH_THE_SAME_LAYERS = {
    "gemma3": "gemma3_text",
    "ministral": "llama",
    "ministral3": "llama",
    "mistral": "llama",
    "olmo3": "olmo2",
    "qwen3_5": "qwen3_5_text",
}


def test_every_family_has_a_row():
    assert set(FAMILY_ROWS) == set(FAMILIES)


@pytest.mark.parametrize(("family", "number"), CASES)
def test_random_shapes_in_numpy(family, number, make_checkpoint, numpy_model, against):
    folder = make_checkpoint(**random_shape(family, number))
    model = numpy_model(folder)
    assert model.config.family is FAMILIES[family]
    against.check(model, folder, 23, 8)


def layers_of(family):
    """The family whose layers a family has."""
    layers = FAMILY_ROWS[family]["family"].lower()
    return WITH_THE_SAME_LAYERS.get(layers, layers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [family for family in FAMILY_ROWS if layers_of(family) not in FAMILY_FAULTS]
)
def test_random_shapes_on_the_virtual_npu(family, make_checkpoint, against):
    """Families with the same layers have one shape, and so one set of programs to build. Those with faults of
    their own are held to transformers step by step (test_verify_family_faults.py)."""
    shape = random_shape(layers_of(family), 0)
    if shape["family"] != FAMILY_ROWS[family]["family"] or "entries" in FAMILY_ROWS[family]:
        shape = CHANGED.get(family, lambda shape, _: shape)(shape | FAMILY_ROWS[family], 0)
    folder = make_checkpoint(**shape)
    checkpoint = open_checkpoint(folder)
    # Models that fill in blocks run here as their classes in transformers do: a position sees none after it.
    one_by_one = replace(checkpoint, config=replace(checkpoint.config, diffusion=None))
    seq_len = None if checkpoint.config.delta else 64
    options = RuntimeOptions(seq_len, select_backend("virtual"), default_cache_dir())
    model = prepare_runtime(one_by_one, options, Reporter()).model
    against.check(model, folder, 23, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_entries_take_the_defaults_of_transformers(family, tmp_path):
    import transformers

    sizes = {
        **MINIMAL,
        **NEEDED.get(family, {}),
        "num_hidden_layers": 4,  # of which linear attention leaves one to attention
    }
    (tmp_path / "config.json").write_text(
        json.dumps({**sizes, "model_type": family, **FAMILY_ROWS[family].get("entries", {})})
    )
    ours = load_config(tmp_path)
    theirs = getattr(transformers, f"{FAMILY_ROWS[family]['family']}ForCausalLM").config_class(**sizes)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    for name in ("num_key_value_heads", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rms_norm_eps == getattr(theirs, ours.family.norm_eps_entry)
    ropes = theirs.rope_parameters
    assert ours.rope_theta == ropes.get("full_attention", ropes)["rope_theta"]
    assert ours.local_rope_theta == ropes.get("sliding_attention", {}).get("rope_theta")
    assert ours.activation == getattr(theirs, "hidden_activation", "silu")
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)
    if ours.family.has_multipliers:
        assert ours.multipliers == Multipliers(attention=theirs.attention_multiplier)
    turned = getattr(theirs, "no_rope_layers", None) or [1] * theirs.num_hidden_layers
    assert ours.layers_without_rope == {layer for layer, each in enumerate(turned) if not each}
    if ours.local_rope_theta is not None:
        kinds = enumerate(theirs.layer_types)
        assert ours.layers_with_window == {layer for layer, kind in kinds if kind == "sliding_attention"}
    if ours.delta:
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
        assert ours.delta == tuple(getattr(theirs, f"linear_{name}") for name in names)
        assert ours.conv_taps == theirs.linear_conv_kernel_dim
        assert ours.partial_rotary_factor == ropes["partial_rotary_factor"]
        assert [layer in ours.layers_with_conv for layer in range(4)] == [True, True, True, False]
        assert theirs.layer_types == [*["linear_attention"] * 3, "full_attention"]
    assert hasattr(transformers, ours.architecture)


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_those_of_transformers(family, make_checkpoint):
    """No more and no less, by name and shape."""
    import transformers

    folder = make_checkpoint(**random_shape(family, 0))
    config = load_config(folder)
    theirs = getattr(transformers, config.architecture).from_pretrained(folder).state_dict()
    if config.tie_word_embeddings:
        del theirs["lm_head.weight"]
    assert stored_shapes(config) == {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    Weights(folder, config)


QWENS = ("qwen2", "qwen3")


@pytest.fixture
def qwen(tmp_path):
    def load(family, **changes):
        sizes = {**MINIMAL, "num_key_value_heads": 8, "max_position_embeddings": 512}
        (tmp_path / "config.json").write_text(json.dumps({**sizes, "model_type": family, **changes}))
        return load_config(tmp_path)

    return load


@pytest.mark.parametrize("family", [*QWENS, "smollm3"])
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 96},
        {"sliding_window": 96, "use_sliding_window": False, "max_window_layers": 0},
        {"sliding_window": 96, "use_sliding_window": True},
        {"sliding_window": 96, "use_sliding_window": True, "max_window_layers": 2},
        {"sliding_window": 96, "use_sliding_window": True, "max_window_layers": 1},
        {"sliding_window": 96, "use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": 4096, "use_sliding_window": True, "num_hidden_layers": 4},
        {
            "sliding_window": 96,
            "use_sliding_window": True,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {
            "sliding_window": 96,
            "use_sliding_window": True,
            "max_window_layers": 0,
            "layer_types": ["full_attention", "full_attention"],
        },
    ],
)
def test_windows_of_qwen(family, changes, qwen):
    """Each layer has the window that transformers gives it, and the context goes on behind it."""
    import transformers

    config = qwen(family, **changes)
    theirs = getattr(transformers, f"{FAMILY_ROWS[family]['family']}Config")(**MINIMAL | changes)
    windows = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    assert [config.masks.windows[number] for number in config.masks.of_layer] == windows
    assert config.context == 512


@pytest.mark.parametrize("family", QWENS)
def test_a_window_that_does_not_say_how_far_it_reaches(family, qwen):
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 96}
    with pytest.raises(ConfigError, match=r"'sliding_attention' and sliding_window does not say how far it"):
        qwen(family, **kinds, use_sliding_window=False)


@pytest.mark.parametrize(
    ("family", "fact", "reason"),
    [
        ("qwen2", {"attention_bias": False}, "Qwen2ForCausalLM has a bias on queries, keys and values"),
        ("qwen2", {"use_qk_norm": True}, "Qwen2ForCausalLM has no norms of queries and keys"),
        ("qwen3", {"attention_bias": True}, "Qwen3ForCausalLM has a bias on none of its projections, and no"),
        ("qwen3", {"qk_norm": False}, "Qwen3ForCausalLM has norms of queries and keys"),
        ("qwen3", {"max_window_layers": -1, "use_sliding_window": True}, "must be a whole number, 0 or more"),
        ("llama", {"attention_bias": True}, "LlamaForCausalLM has a bias on none of its projections, and no"),
    ],
)
def test_what_contradicts_the_family_is_refused(family, fact, reason, qwen):
    with pytest.raises(ConfigError, match=f"{next(iter(fact))} is .*{reason}"):
        qwen(family, **fact)
    assert qwen("qwen2", attention_bias=True) == qwen("qwen2")
    assert qwen("qwen3", attention_bias=False, use_qk_norm=True) == qwen("qwen3")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen2_moe", "mixture of experts"),
        ("qwen3_moe", "mixture of experts"),
        ("mixtral", "mixture of experts"),
        ("deepseek_v3", "mixture of experts"),
        ("gpt_oss", "mixture of experts"),
        ("qwen2_5_vl", "it reads images or sounds"),
        ("gemma", "its norms multiply by 1 + weight"),
        ("gemma2", "it caps scores and logits"),
        ("gemma4_text", "a cache that layers share are what it takes; Gemma 3 runs"),
        ("gemma3n_text", "it has embeddings of each layer"),
        ("qwen3_5_moe_text", "mixture of experts, in which each token takes weights of its own"),
        ("phi3small", "its attention skips blocks of positions"),
        ("phimoe", "mixture of experts"),
        ("phi", "attention and FFN side by side, after a LayerNorm"),
        ("qwen3_next", "its linear attention is that of Qwen3.5, which runs, and it is a mixture of experts"),
        ("olmo", "its norms stand after attention"),
        ("cohere", "side by side, after a LayerNorm"),
        ("granitemoe", "mixture of experts"),
        ("minicpm", "multiplies embeddings, residuals and logits"),
        ("glm4", "turns neighbouring elements"),
        ("gpt2", "LayerNorm, learned positions"),
        ("llada", "fills the whole text in at once"),
        ("sdar_moe", "mixture of experts"),
        ("arcee", ""),
    ],
)
def test_other_models_are_refused_with_the_reason_and_what_runs(model_type, reason, qwen):
    *first, last = (family.name for family in FAMILIES.values())
    with pytest.raises(ConfigError) as caught:
        qwen(model_type)
    before, _, after = str(caught.value).partition("; only ")
    assert after == f"{', '.join(first)} and {last} are supported (README.md, Models that run)"
    named = rf".*the architecture is not named \(model_type '{model_type}'\)"
    assert re.fullmatch(named + (f": .*{re.escape(reason)}.*" if reason else ""), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_local_experts": 8},
            "num_local_experts is 8: it is a mixture of experts, in which each token takes weights of its "
            "own; only num_local_experts 0 is supported",
        ),
        ({"num_local_experts": None}, "num_local_experts is not there, and 8 then: it is a mixture"),
        (
            {"layer_types": ["mamba", "attention"]},
            "layer_types has 'mamba': a layer of Mamba-2 keeps a state, and a kernel for it is what it "
            "takes; only 'attention' and 'full_attention' are supported",
        ),
        ({"layer_types": None}, "without layer_types all layers are of Mamba-2: a layer of Mamba-2 keeps"),
    ],
)
def test_granite_4_with_other_layers_is_refused(changes, message, tmp_path):
    entries = MINIMAL | NEEDED["granitemoehybrid"] | changes | {"model_type": "granitemoehybrid"}
    given = {name: value for name, value in entries.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(tmp_path)


@pytest.mark.parametrize("family", QWENS)
def test_a_tensor_of_the_family_that_is_missing(family, make_checkpoint, tmp_path):
    folder = shutil.copytree(make_checkpoint(**random_shape(family, 0)), tmp_path / "less")
    tensors = load_file(folder / "model.safetensors")
    last = list(FAMILIES[family].tensors.values())[-1]
    del tensors[f"model.layers.0.{last}"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        WeightsError, match=rf"tensor model\.layers\.0\.{re.escape(last)} is missing from the"
    ):
        Weights(folder, load_config(folder))


def test_fused_biases_are_read(make_checkpoint, tmp_path):
    folder = shutil.copytree(make_checkpoint(**random_shape("qwen2", 0)), tmp_path / "fused")
    config, path = load_config(folder), folder / "model.safetensors"
    plain = {name: tensor.read() for name, tensor in Weights(folder, config).layer(0).items()}
    tensors = load_file(path)
    for kind in ("weight", "bias"):
        names = [f"model.layers.0.self_attn.{of}_proj.{kind}" for of in "qkv"]
        whole = f"model.layers.0.self_attn.qkv_proj.{kind}"
        tensors[whole] = np.concatenate([tensors.pop(name) for name in names])
    save_file(tensors, path, {"format": "pt"})
    for name, tensor in Weights(folder, config).layer(0).items():
        np.testing.assert_array_equal(tensor.read(), plain[name], err_msg=name)


@pytest.mark.parametrize(
    ("entries", "without"),
    [
        ({}, {3, 7}),
        ({"no_rope_layer_interval": 3}, {2, 5}),
        ({"no_rope_layers": [1, 0, 1, 1, 0, 1, 1, 1]}, {1, 4}),
        ({"no_rope_layers": [0] * 9, "no_rope_layer_interval": 3}, set(range(8))),
    ],
)
def test_layers_without_rope(entries, without, qwen):
    import transformers

    config = qwen("smollm3", num_hidden_layers=8, **entries)
    theirs = transformers.SmolLM3Config(**MINIMAL | {"num_hidden_layers": 8}, **entries)
    assert config.layers_without_rope == without
    assert without == {layer for layer in range(8) if not theirs.no_rope_layers[layer]}
    few = config.with_layers(1)
    assert (few.num_hidden_layers, few.rope_of_layer) == (1, (1,))
    more = config.with_layers(16).rope_of_layer
    assert more[:8] == config.rope_of_layer
    assert more[8:] == (0, 0, 0, 1) * 2


@pytest.mark.parametrize("turned", [[1], [1, 2], [True, True], ["1", "0"]])
def test_a_list_that_does_not_say_which_layers_turn(turned, qwen):
    with pytest.raises(
        ConfigError, match=r"no_rope_layers is .*it must be a list of 2 numbers or more, 1 for"
    ):
        qwen("smollm3", no_rope_layers=turned)


@pytest.mark.parametrize("entry", [{"no_rope_layers": [1, 0]}, {"no_rope_layer_interval": 4}])
def test_a_llama_without_rope_in_a_layer_is_refused(entry, qwen):
    with pytest.raises(
        ConfigError, match=f"{next(iter(entry))} is .*every layer of a LlamaForCausalLM has RoPE"
    ):
        qwen("llama", **entry)


def test_longrope_beyond_the_original_length(make_checkpoint, numpy_model, against):
    """A session that was asked for more positions turns all texts as transformers turns longer ones."""
    folder = make_checkpoint(**random_shape("phi3", 1) | {"num_hidden_layers": 1})
    config = load_config(folder)
    assert (config.context, config.context_entry) == (64, "original_max_position_embeddings")
    long = config.with_max_positions(512)
    assert isinstance(long.rope_scaling, LongRopeScaling)
    assert (long.context, long.rope_scaling.is_long) == (512, True)
    assert config.with_max_positions(64).rope_scaling == config.rope_scaling
    short = replace(config, max_position_embeddings=64)
    assert short.with_max_positions(512).rope_scaling == config.rope_scaling
    against.check(numpy_model(folder, 128, max_positions=512), folder, 90, 8)


@pytest.mark.slow
def test_longrope_beyond_the_original_length_on_the_virtual_npu(make_checkpoint, against):
    """In both decode paths, as a server opens it for --max-model-len."""
    folder = make_checkpoint(**random_shape("phi3", 1) | {"num_hidden_layers": 1})
    for decode in ("rows", "guide"):
        options = RuntimeOptions(
            None,
            select_backend("virtual"),
            default_cache_dir(),
            variants="8,32x512",
            decode=decode,
            max_positions=512,
        )
        checkpoint = open_checkpoint(folder)
        checkpoint = replace(checkpoint, config=options.limited(checkpoint.config))
        model = prepare_runtime(checkpoint, options, Reporter()).model
        assert model.positions == 512
        against.check(model, folder, 90, 8)


@pytest.mark.parametrize("part", [0.01, 1.5, 0.4])
def test_a_part_of_a_head_that_has_no_pairs(part, qwen):
    with pytest.raises(
        ConfigError, match=rf"partial_rotary_factor is {part} of a head of 8; RoPE turns pairs"
    ):
        qwen("phi3", partial_rotary_factor=part)


def test_a_llama_that_turns_a_part_of_each_head_is_refused(qwen):
    with pytest.raises(
        ConfigError, match=r"partial_rotary_factor is 0\.5: a LlamaForCausalLM turns whole heads"
    ):
        qwen("llama", partial_rotary_factor=0.5)


def test_large_weights_of_key_norms(make_checkpoint, tmp_path, numpy_model, against):
    """As large as in a published Qwen3, 96.5: scores so far apart that rounding decides where a head looks.
    So errors are pooled over shapes."""
    errors = np.zeros(2)
    for number in range(4):
        shape = {**random_shape("qwen3", number), "num_hidden_layers": 1}
        folder = shutil.copytree(make_checkpoint(**shape), tmp_path / str(number))
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.0.self_attn.k_norm.weight"][5] = 96.5
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        model = numpy_model(folder)
        tokens = against.random_tokens(model, 40)
        ours = against.our_logits(model, tokens[:30], tokens[30:])
        exact, theirs = (against.their_logits(folder, dtype, tokens) for dtype in ("float32", "bfloat16"))
        errors += [np.abs(logits - exact).mean() for logits in (ours, theirs)]
    assert errors[0] < 1.15 * errors[1]


def test_queries_that_grow_end_the_context(qwen):
    """Up to RoPE's original length they do not grow."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}
    config = qwen("ministral3", rope_parameters={**rope, "llama_4_scaling_beta": 0.1})
    assert (config.context, config.context_entry) == (100, "llama_4_scaling_beta")
    assert config.context_reason == "RoPE's original length, beyond which queries grow with their position"
    assert qwen("ministral3", rope_parameters=rope).context == 512
    by_default = qwen("ministral3", max_position_embeddings=262144)
    assert (by_default.context, by_default.rope_scaling.factor) == (16384, 16)


def test_examples_are_documented():
    assert all(family.published_sizes in SOME_THAT_RUN for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"layer_types": ["full_attention"]},
            "layer_types names 1 layers of 2; which of the others have a window",
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "linear", "factor": 2.0},
                }
            },
            "RoPE of layers of sliding attention has the rule 'linear'; only plain RoPE is supported there",
        ),
    ],
)
def test_local_layers_that_are_not_known(changes, reason, tmp_path):
    entries = {**MINIMAL, "model_type": "gemma3_text", **changes}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ConfigError, match=reason):
        load_config(tmp_path)


def test_fewer_and_more_layers_have_all_kinds(tmp_path):
    """Every sixth layer of Gemma 3 has full attention, or the last one of fewer."""
    entries = {**MINIMAL, "model_type": "gemma3_text", "num_hidden_layers": 7}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    config = load_config(tmp_path)
    assert config.rope_of_layer == (1, 1, 1, 1, 1, 0, 1)
    assert config.with_layers(2).rope_of_layer == (1, 0)
    assert config.with_layers(13).rope_of_layer == (1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0)
