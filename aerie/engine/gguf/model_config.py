"""The entries of a config.json, from the metadata of a GGUF file.

Keys and their defaults: llama.cpp's gguf-py/gguf/constants.py and src/llama-model.cpp. An entry that makes
another model than those computed is passed on under transformers' name, so that it is refused as in a
config.json.
"""

from __future__ import annotations

from typing import Any

from aerie.engine.errors import ConfigError
from aerie.engine.families import FAMILIES
from aerie.engine.gguf.architectures import ARCHITECTURES
from aerie.engine.gguf.container import short
from aerie.engine.gguf.model_files import GGUFModel
from aerie.engine.gguf.rope_entries import rope_base, rope_entries
from aerie.engine.unsupported_models import reason_of_name

OTHER_MODELS = {
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
    "embedding_scale": "embedding_multiplier",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.clamp_kqv": "clip_qkv",
    "attention.max_alibi_bias": "alibi",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "expert_count": "num_experts",
    "use_parallel_residual": "use_parallel_residual",
    "attention.chunk_size": "attention_chunk_size",
}
"""MetadataReader that make another model unless they are absent or 0, by transformers' names for them."""

REFUSED = {
    "nextn_predict_layers": "its last layers draft further tokens, and no such layers are run: fetch a file "
    "without them",
    "attention.layer_norm_epsilon": "it has LayerNorm, and only RMSNorm is computed",
}
"""MetadataReader of models that are not run, unless they are absent or 0."""

GEMMA3_27B_LAYERS = 62
DELTA_INTERVAL = 4
"""Every layer whose number, from 1 on, is a multiple of it has full attention beside linear one, where a file
does not say it (src/models/qwen35.cpp)."""
EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""MetadataReader of the tokens that end an answer, after `tokenizer.ggml.`."""
EOS_TEXTS = (
    *(
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|eom_id|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
    ),
    *("<EOT>", "_<EOT>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "</s>"),
)
"""Texts of tokens that end an answer where their type is control, whether a key names them or not: files name
one, and models say others too (llama.cpp, llama-vocab.cpp, special_eog_ids)."""
CONTROL = 3

WITH_A_WINDOW = {"llama": "mistral", "olmo2": "olmo3"}
"""The model_type of files with a window, where those without call themselves the same."""

MAX_DECLARED_TOKENS = 1 << 24


class MetadataReader:
    """Metadata by type, under the keys of the architecture; errors name file, key and value."""

    def __init__(self, model: GGUFModel) -> None:
        self.model, self.architecture = model, model.architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def get(self, name: str) -> Any:
        """The value of a key of the architecture; None where it is absent."""
        return self.model.metadata.get(self.key(name))

    def positive_int(self, name: str, default: int | None = None) -> int:
        """A whole number, 1 or more; one for each layer must be the same in all. Raises ConfigError."""
        value = self.get(name)
        if value is None:
            value = default
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise self.fail(name, "it differs from layer to layer, and all layers must be alike")
            value = value[0]
        if value is None:
            raise ConfigError(
                f"{self.model.path}: there is no {self.key(name)}; the file is incomplete: fetch another"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(name, "it must be a whole number, 1 or more: fetch the file again")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, "it must be a number: fetch the file again")
        return value

    def fail(self, name: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.model.path}: {self.key(name)} is {shown(self.get(name))}: {problem}")


def shown(value: Any) -> str:
    return short(repr(value))


def config_entries(model: GGUFModel) -> dict[str, Any]:
    """What a config.json of this model says. Raises ConfigError for another architecture, and for a key that
    is missing, malformed or not supported."""
    architecture = _supported(model)
    keys = MetadataReader(model)
    heads, hidden = keys.positive_int("attention.head_count"), keys.positive_int("embedding_length")
    head_dim = keys.positive_int("attention.key_length", max(1, hidden // heads))
    _check_values(keys, head_dim)
    return {
        "model_type": architecture,
        "vocab_size": _vocab_size(keys),
        "hidden_size": hidden,
        "intermediate_size": keys.positive_int("feed_forward_length"),
        **_convolutions(keys, architecture),
        "num_hidden_layers": keys.positive_int("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(keys, architecture, heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.positive_int("context_length"),
        FAMILIES[architecture].norm_eps_entry: keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "eos_token_id": _eos_tokens(model),
        **_rotation(keys, architecture, head_dim),
        **_window(keys),
        **_other_models(keys),
        **_attention_scale(keys, architecture, head_dim),
    }


def _kv_heads(keys: MetadataReader, architecture: str, heads: int) -> int:
    """The key/value heads of layers with attention; files have 0 for layers with a convolution."""
    given = keys.get("attention.head_count_kv")
    family = FAMILIES[architecture]
    if not family.conv_tensors or not isinstance(given, list):
        return keys.positive_int("attention.head_count_kv", heads)
    counts = {count for count in given if isinstance(count, bool) or count != 0}
    if len(counts) != 1 or not all(type(count) is int and count > 0 for count in counts):
        raise keys.fail(
            "attention.head_count_kv",
            "it must be 0 for each layer with a convolution, and one number above 0 for all others: fetch "
            "the file again",
        )
    return int(counts.pop())


def _convolutions(keys: MetadataReader, architecture: str) -> dict[str, Any]:
    """The kinds of layers of a family with convolutions, and its FFN's width as it is."""
    if FAMILIES[architecture].has_delta:
        return _linear_attention(keys)
    if not FAMILIES[architecture].conv_tensors:
        return {}
    given = keys.get("attention.head_count_kv")
    kinds = ["full_attention" if count else "conv" for count in given] if isinstance(given, list) else []
    taps = {"conv_L_cache": keys.positive_int("shortconv.l_cache")} if "conv" in kinds else {}
    return {"block_auto_adjust_ff_dim": False, **({"layer_types": kinds} if kinds else {}), **taps}


def _linear_attention(keys: MetadataReader) -> dict[str, Any]:
    """The sizes of linear attention, and which layers have it."""
    heads, width = keys.positive_int("ssm.time_step_rank"), keys.positive_int("ssm.inner_size")
    if width % heads:
        raise keys.fail(
            "ssm.inner_size",
            f"it must be a multiple of the {heads} heads (ssm.time_step_rank): fetch the file again",
        )
    return {
        "linear_num_value_heads": heads,
        "linear_value_head_dim": width // heads,
        "linear_num_key_heads": keys.positive_int("ssm.group_count"),
        "linear_key_head_dim": keys.positive_int("ssm.state_size"),
        "linear_conv_kernel_dim": keys.positive_int("ssm.conv_kernel"),
        "full_attention_interval": keys.positive_int("full_attention_interval", DELTA_INTERVAL),
    }


def _attention_scale(keys: MetadataReader, architecture: str, head_dim: int) -> dict[str, float]:
    """What scores are multiplied with, of a family with such a factor: llama.cpp has another default than
    transformers, and recognises Gemma 3 27B, whose factor differs, by its number of layers."""
    family = FAMILIES[architecture]
    if family.query_scalar is not None:
        is_largest = keys.positive_int("block_count") == GEMMA3_27B_LAYERS
        width, heads = keys.positive_int("embedding_length"), keys.positive_int("attention.head_count")
        return {"query_pre_attn_scalar": width // heads if is_largest else head_dim}
    has_factor = family.has_multipliers and not keys.get("attention.scale")
    return {"attention_multiplier": head_dim**-0.5} if has_factor else {}


def _supported(model: GGUFModel) -> str:
    """transformers' name for the architecture."""
    name = model.architecture
    if name not in ARCHITECTURES:
        *first, last = ARCHITECTURES
        found = f"general.architecture is {shown(name)}" if name else "there is no general.architecture"
        raise ConfigError(
            f"{model.path}: {found}{reason_of_name(name)}; of GGUF files {', '.join(first)} and {last} are "
            "run"
        )
    keys = MetadataReader(model)
    for key, reason in REFUSED.items():
        if keys.get(key):
            raise keys.fail(key, reason)
    return ARCHITECTURES[name].model_type


def _check_values(keys: MetadataReader, head_dim: int) -> None:
    if keys.positive_int("attention.value_length", head_dim) != head_dim:
        raise keys.fail(
            "attention.value_length",
            f"values are as wide as keys here, {head_dim} (attention.key_length); no other model is run",
        )


def _vocab_size(keys: MetadataReader) -> int:
    tokens = keys.model.metadata.array_length("tokenizer.ggml.tokens")
    return keys.positive_int("vocab_size", tokens)


def _eos_tokens(model: GGUFModel) -> list[int]:
    """The tokens that end an answer: those that keys name, then those that are known by their texts."""
    given = [model.metadata.get(f"tokenizer.ggml.{key}") for key in EOS_KEYS]
    for key, token in zip(EOS_KEYS, given, strict=True):
        if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
            raise ConfigError(
                f"{model.path}: tokenizer.ggml.{key} is {shown(token)}, which is not a token: it must be a "
                "whole number; fetch the file again"
            )
    tokens, types = (model.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if isinstance(tokens, list) and isinstance(types, list):
        texts = dict.fromkeys(EOS_TEXTS)
        control = (number for number, kind in enumerate(types[: len(tokens)]) if kind == CONTROL)
        given += [number for number in control if tokens[number] in texts]
    return list(dict.fromkeys(token for token in given if token is not None))


def _rotation(keys: MetadataReader, architecture: str, head_dim: int) -> dict[str, Any]:
    turned = keys.positive_int("rope.dimension_count", head_dim)
    part = {} if turned == head_dim else {"partial_rotary_factor": turned / head_dim}
    width = turned if FAMILIES[architecture].has_partial_rotary else head_dim
    return {"rope_parameters": rope_entries(keys.model, width), **part}


def _window(keys: MetadataReader) -> dict[str, Any]:
    """A window, by the words of any family: in all layers, or in those that the family says."""
    if not keys.get("attention.sliding_window"):
        return {}
    window = keys.positive_int("attention.sliding_window")
    kind = WITH_A_WINDOW.get(keys.architecture)
    family = {"model_type": kind} if kind else {}
    return {
        **family,
        "sliding_window": window,
        "use_sliding_window": True,
        "max_window_layers": 0,
        **({"rope_local_base_freq": rope_base(keys.model)} if kind == "olmo3" else {}),
    }


def _other_models(keys: MetadataReader) -> dict[str, Any]:
    found = {theirs: keys.get(ours) for ours, theirs in OTHER_MODELS.items()}
    if keys.get("attention.causal") is False:
        found["use_bidirectional_attention"] = True
    return {name: value for name, value in found.items() if value}
