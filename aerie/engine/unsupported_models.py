"""Refuses models that would be computed wrongly, by name and with the reason.

Aerie computes one decoder, with the additions of a family's file. Several names stand for this decoder, and
other models use one of these names. So the entries of config.json are checked, and each that changes the
computation is refused. Additional tensors are found among the tensors (`weights.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engine.config_layers import state_kind
from aerie.engine.config_reader import MODELS_THAT_RUN, ConfigReader, short
from aerie.engine.errors import ConfigError
from aerie.engine.families import FAMILIES
from aerie.engine.folder import SINGLE_FILE
from aerie.engine.model_family import ModelFamily
from aerie.engine.quantised_files.settings import read_settings


@dataclass(frozen=True)
class RequiredEntry:
    """Entries that change the computation, unless they have one of these values.

    Absent and null are always allowed. The names are those of transformers' configurations and of models with
    their own code. reason: what would be left out; it follows the value in the message.
    """

    names: tuple[str, ...]
    values: tuple[Any, ...]
    reason: str

    def check(self, config: ConfigReader) -> None:
        """Raises ConfigError for an entry with another value."""
        for name in self.names:
            actual = config.get(name)
            if actual is not None and not any(_same(actual, value) for value in self.values):
                raise ConfigError(
                    f"{config.path}: {name} is {short(actual)}: {self.reason}; {self._expected_text(name)}"
                )

    def _expected_text(self, name: str) -> str:
        if not self.values:
            return f"no model with {name} is supported ({MODELS_THAT_RUN})"
        *others, last = map(repr, self.values)
        if not others:
            return f"only {name} {last} is supported"
        return f"only {name} {', '.join(others)} and {last} are supported"


ACTIVATION_ENTRIES = ("hidden_act", "hidden_activation", "activation_function")
FACTOR = "no launch multiplies by a factor of the model"
REQUIRED_ENTRIES = (
    RequiredEntry(("mlp_bias", "use_bias", "bias", "conv_bias"), (False,), "no launch adds a bias there"),
    RequiredEntry(
        ACTIVATION_ENTRIES,
        ("silu", "swish", "gelu_pytorch_tanh"),
        "the FFN's launch computes SwiGLU, or GeGLU by tanh",
    ),
    RequiredEntry(
        ("rope_interleaved", "rope_interleave", "rotary_interleaved"),
        (False,),
        "the two halves of a head are turned against each other, not neighbouring elements",
    ),
    RequiredEntry(
        ("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"), (0.0,), "no launch caps values"
    ),
    RequiredEntry(
        (
            "lm_head_multiplier",
            "logit_scale",
            "scale_emb",
        ),
        (1.0,),
        FACTOR,
    ),
    RequiredEntry(("scale_depth", "dim_model_base"), (), FACTOR),
    RequiredEntry(
        ("num_local_experts", "num_experts", "n_routed_experts"),
        (0,),
        "it is a mixture of experts, in which each token takes weights of its own",
    ),
    RequiredEntry(
        ("kv_lora_rank", "q_lora_rank"), (0,), "latent attention keeps no keys and values of heads"
    ),
    RequiredEntry(("alibi", "use_alibi"), (False,), "positions come from RoPE alone"),
    RequiredEntry(
        ("parallel_attn", "use_parallel_residual"),
        (False,),
        "the FFN comes after attention, not beside it",
    ),
    RequiredEntry(
        ("use_bidirectional_attention", "add_cross_attention"),
        (False,),
        "attention is causal, of the model's own text",
    ),
    RequiredEntry(("is_causal",), (True,), "attention is causal: no token sees those after it"),
    RequiredEntry(("text_config", "vision_config", "audio_config"), (), "only text is read, by one decoder"),
    RequiredEntry(("block_use_swiglu",), (True,), "the FFN's launch computes SwiGLU"),
    RequiredEntry(("use_pos_enc",), (True,), "attention turns heads by their positions"),
    RequiredEntry(("is_encoder_decoder",), (False,), "there is no encoder"),
    RequiredEntry(
        ("transformers_weights",),
        (SINGLE_FILE,),
        "no other file of weights is read, but those that model.safetensors.index.json names",
    ),
)

OTHER_ARCHITECTURES = (
    ("gemma-embedding", "its tokens see those after them, and attention is causal here"),
    ("forsequenceclassification", "its head scores texts, and of such models only Qwen3-Reranker is run"),
    ("vl llava pixtral mllama audio omni", "it reads images or sounds, and only text is read"),
    ("bert electra xlm", "it makes vectors of texts, and no answers"),
    (
        "moe mixtral dbrx deepseek gptoss llama4 minimax",
        "it is a mixture of experts, in which each token takes weights of its own",
    ),
    ("llada dream", "it fills the whole text in at once, and block diffusion goes block by block"),
    (
        "qwen35moe qwen3next",
        "its linear attention is that of Qwen3.5, which runs, and it is a mixture of experts, in which each "
        "token takes weights of its own",
    ),
    ("qwen35", "its files in GGUF have other names and other orders of its heads: take those in safetensors"),
    (
        "mamba jamba bamba falconh1 lfm rwkv nemotronh kimilinear recurrent",
        "it has layers that keep a state instead of keys and values",
    ),
    ("gemma2", "it caps scores and logits: launches that cap are what it takes; Gemma 3 runs"),
    ("gemma3n", "it has embeddings of each layer, and layers that share keys and values"),
    (
        "gemma4",
        "it has heads of two widths, embeddings of each layer, and layers that read the keys and values of "
        "others: programs for a second shape, a launch for these embeddings, and a cache that layers share "
        "are what it takes; Gemma 3 runs",
    ),
    ("gemma", "its norms multiply by 1 + weight, with another rounding of its embeddings; Gemma 3 runs"),
    (
        "phi3small",
        "its attention skips blocks of positions and its FFN has GEGLU: kernels for both are what it takes; "
        "Phi-3-mini and medium run",
    ),
    ("phi", "it adds attention and FFN side by side, after a LayerNorm"),
    ("olmo exaone4", "its norms stand after attention and FFN, or have no weights"),
    ("cohere", "it adds attention and FFN side by side, after a LayerNorm"),
    ("glm", "it turns neighbouring elements of a part of each head"),
    ("minicpm", "it multiplies embeddings, residuals and logits by factors"),
    (
        "gpt opt bloom mpt falcon starcoder stablelm persimmon nemotron",
        "it has LayerNorm, learned positions or an FFN without a gate",
    ),
)
"""Reasons, by what stands in the names of models, which are compared in lower case and without `_`."""

WINDOW_ENTRIES = ("full_attention", "sliding_attention")


def check_supported(config: ConfigReader) -> ModelFamily:
    """The family of a config.json. Raises ConfigError, with the entry's name, for anything that would be
    computed wrongly."""
    family = _family(config)
    for fact in (*_facts_of(family), *REQUIRED_ENTRIES):
        fact.check(config)
    _check_layers(config, family)
    read_settings(config)
    return family


def check_sizes(config: ConfigReader, family: ModelFamily, head_dim: int, positions: int) -> None:
    """As check_supported, for what changes nothing at the model's own sizes: how much of a head RoPE turns,
    what scores are multiplied with, and attention in chunks as long as the context."""
    chunk = config.positive_int("attention_chunk_size", default=0, least=0)
    if chunk < positions:
        RequiredEntry(("attention_chunk_size",), (0,), "attention in chunks is not built").check(config)
    RequiredEntry(("rotary_dim",), (head_dim,), "only whole heads are turned").check(config)
    scores = "scores are divided by the root of head_dim"
    if family.query_scalar is None:
        RequiredEntry(("query_pre_attn_scalar",), (head_dim,), scores).check(config)
    if not family.has_multipliers:
        RequiredEntry(("attention_multiplier",), (head_dim**-0.5,), scores).check(config)


def _facts_of(family: ModelFamily) -> Iterable[RequiredEntry]:
    """What a family has or has not, where a config.json may say otherwise."""
    bias = f"{family.architecture} has a bias on " + (
        "queries, keys and values" if family.qkv_bias else "none of its projections, and no launch adds one"
    )
    yield RequiredEntry(("attention_bias", "qkv_bias", "use_qkv_bias"), (family.qkv_bias,), bias)
    gate = f"attention of a {family.architecture} has {'a' if family.attention_gate else 'no'} gate"
    yield RequiredEntry(("attn_output_gate",), (family.attention_gate,), gate)
    if not family.no_rope_interval:
        every = f"every layer of a {family.architecture} has RoPE"
        yield RequiredEntry(("no_rope_layer_interval",), (0,), every)
    if not family.has_partial_rotary:
        part = f"a {family.architecture} turns whole heads, and this is a part of each"
        yield RequiredEntry(("partial_rotary_factor", "rotary_pct", "rope_pct"), (1.0,), part)
    if not family.has_multipliers:
        factors = ("embedding_multiplier", "residual_multiplier", "logits_scaling")
        yield RequiredEntry(factors, (1.0,), FACTOR)
    norm = f"{family.architecture} has {'norms' if family.qk_norm else 'no norms'} of queries and keys"
    yield RequiredEntry(
        ("qk_norm", "use_qk_norm", "qk_layernorm", "use_qk_layernorm"), (family.qk_norm,), norm
    )


def _family(config: ConfigReader) -> ModelFamily:
    names = config.items("architectures")
    of_name = next((kind for kind, family in FAMILIES.items() if _is_named(family, names)), "llama")
    family = FAMILIES.get(str(config.get("model_type", of_name)))
    if family is None or (names and not _is_named(family, names)):
        *first, last = (each.name for each in FAMILIES.values())
        why = reason_of_name(*names, config.get("model_type"))
        raise ConfigError(
            f"{config.path}: the architecture is {', '.join(map(str, names[:3])) or 'not named'} "
            f"(model_type {short(config.get('model_type'))}){why}{_text_part(config)}; only "
            f"{', '.join(first)} and {last} are supported ({MODELS_THAT_RUN})"
        )
    return family


def _text_part(config: ConfigReader) -> str:
    """What to take in place of a model of images or sounds whose text part would run by itself."""
    part = config.get("text_config") or config.get("llm_config")
    kind = part.get("model_type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in FAMILIES:
        kind = kind.removesuffix("_text").removesuffix("_vl").replace("qwen2_5", "qwen2")
    if not isinstance(kind, str) or kind not in FAMILIES:
        return ""
    return f"; its text part is of the kind {kind}, which runs: fetch the model of text that it was made from"


def _is_named(family: ModelFamily, architectures: Sequence[Any]) -> bool:
    """Whether config.json names the family's class, that of its layers alone, without a head, or one whose
    head scores."""
    layers_alone = re.sub("ForCausalLM$", "Model", family.name)
    return any(
        name in architectures for name in (family.name, layers_alone, family.scoring_architecture) if name
    )


def reason_of_name(*names: Any) -> str:
    """Why a model of these names is not supported, after a colon; empty where that is not known."""
    name = " ".join(map(str, names)).lower().replace("_", "")
    found = (reason for parts, reason in OTHER_ARCHITECTURES if any(part in name for part in parts.split()))
    return next((f": {reason}" for reason in found), "")


def _same(actual: Any, value: Any) -> bool:
    """Whether an entry is this value; true is no number here, and 1 is 1.0."""
    if isinstance(value, float) and isinstance(actual, int | float) and not isinstance(actual, bool):
        return abs(actual - value) <= 1e-6 * abs(value)
    return isinstance(actual, bool) == isinstance(value, bool) and bool(actual == value)


MAMBA = ": a layer of Mamba-2 keeps a state, and a kernel for it is what it takes"


def _check_hybrid(config: ConfigReader) -> None:
    """Neither experts nor layers of Mamba-2, which are what transformers takes where these do not say."""
    if config.positive_int("num_local_experts", default=8, least=0):
        given = config.get("num_local_experts", "not there, and 8 then")
        raise ConfigError(
            f"{config.path}: num_local_experts is {given}: it is a mixture of experts, in which each token "
            "takes weights of its own; only num_local_experts 0 is supported"
        )
    if not config.items("layer_types"):
        raise ConfigError(f"{config.path}: without layer_types all layers are of Mamba-2{MAMBA}")


def _check_layers(config: ConfigReader, family: ModelFamily) -> None:
    """Every layer attends to all positions of the context, and turns its heads, where the family has no
    layers without RoPE."""
    known = ("full_attention", state_kind(family)) if family.conv_tensors else WINDOW_ENTRIES
    if family.is_hybrid:
        _check_hybrid(config)
        known = ("attention", "full_attention")
    other = [kind for kind in config.items("layer_types") if kind not in known]
    if other:
        why = MAMBA if family.is_hybrid else ""
        raise ConfigError(
            f"{config.path}: layer_types has {short(other[0])}{why}; only "
            f"{' and '.join(map(repr, known))} are supported"
        )
    turned = config.items("no_rope_layers")  # 1 for a layer with RoPE, as SmolLM3 and Llama 4 have it
    if not all(turned) and not family.no_rope_interval:
        raise ConfigError(
            f"{config.path}: no_rope_layers is {short(turned)}; every layer of a "
            f"{family.architecture} has RoPE"
        )
