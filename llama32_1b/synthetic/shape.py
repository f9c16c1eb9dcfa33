"""The shape of a synthetic checkpoint: sizes, config.json, tensors with their distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.engine.config import ModelConfig
from aerie.engine.config_layers import state_kind, taps_of
from aerie.engine.families import FAMILIES
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model_family import DiffusionConfig, ModelFamily, Multipliers
from aerie.engine.rope import Llama3Scaling, LongRopeScaling, RopeScaling, rule_entries
from aerie.engine.weights import stored_shapes
from aerie.llama32_1b.synthetic.tokenizer import begin_of_text, end_ids, mask_id

BF16_BYTES = 2


def _shape(
    family: str,
    sizes: tuple[int, int, int, int],
    heads: tuple[int, int, int],
    positions: int,
    rope_theta: float,
    rms_norm_eps: float = 1e-5,
    rule: RopeScaling | None = None,
    tied: bool = True,
    multipliers: Multipliers | None = None,
    rotary_part: float = 1.0,
    attending: tuple[int, ...] = (),
    delta: DeltaHeads | None = None,
) -> ModelConfig:
    """sizes: vocabulary, hidden size, FFN size, layers. heads: query heads, key/value heads, head_dim.
    attending: the layers with attention; the others have short convolutions, or the linear attention `delta`,
    in a family that has them."""
    vocab_size, hidden_size, intermediate_size, layers = sizes
    query_heads, key_value_heads, head_dim = heads
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=query_heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
        rms_norm_eps=rms_norm_eps,
        rope_theta=rope_theta,
        rope_scaling=rule,
        tie_word_embeddings=tied,
        eos_token_ids=end_ids(vocab_size),
        family=FAMILIES[family],
        diffusion=_diffusion(FAMILIES[family], vocab_size),
        layers_without_rope=FAMILIES[family].default_layers_without_rope(layers),
        multipliers=multipliers or Multipliers(),
        partial_rotary_factor=rotary_part,
        layers_with_conv=frozenset(range(layers)) - {*attending} if attending else frozenset(),
        conv_taps=taps_of(FAMILIES[family]) if attending else 0,
        delta=delta,
    )


def _diffusion(family: ModelFamily, vocab_size: int) -> DiffusionConfig | None:
    return family.diffusion.with_mask_token(mask_id(vocab_size)) if family.diffusion else None


def in_family(config: ModelConfig, family: ModelFamily) -> ModelConfig:
    """The same sizes in this model family."""
    if family is config.family:
        return config
    without = family.default_layers_without_rope(config.num_hidden_layers)
    diffusion = _diffusion(family, config.vocab_size)
    factors = config.multipliers if family.has_multipliers else Multipliers()
    part = config.partial_rotary_factor if family.has_partial_rotary else 1.0
    windows = (
        (config.sliding_window, config.layers_with_window) if family.sliding_window else (None, frozenset())
    )
    if (every := family.full_attention_interval) and family.sliding_window:
        layers = config.num_hidden_layers
        local = frozenset(one for one in range(layers - 1) if (one + 1) % every)
        windows = family.sliding_window, local
    conv = frozenset(range(config.num_hidden_layers - 1)) if family.conv_tensors else frozenset[int]()
    return replace(
        config,
        sliding_window=windows[0],
        layers_with_window=windows[1],
        local_rope_theta=family.local_rope_theta,
        activation=family.activation,
        family=family,
        diffusion=diffusion,
        layers_without_rope=without,
        multipliers=factors,
        partial_rotary_factor=part,
        layers_with_conv=conv,
        conv_taps=taps_of(family) if conv else 0,
        delta=_small_delta(config) if family.has_delta else None,
    )


def _small_delta(config: ModelConfig) -> DeltaHeads:
    """Linear attention whose values are as wide as the model's queries."""
    return DeltaHeads(1, config.num_attention_heads, config.head_dim, config.head_dim)


def with_vocabulary(config: ModelConfig, vocab_size: int) -> ModelConfig:
    """The same model with this vocabulary size; its special tokens are the last ids."""
    diffusion = config.diffusion and replace(config.diffusion, mask_token_id=mask_id(vocab_size))
    return replace(config, vocab_size=vocab_size, eos_token_ids=end_ids(vocab_size), diffusion=diffusion)


GRANITE_2B = Multipliers(
    embedding=12.0, attention=0.015625, residual=float(np.float32(0.22)), logits_divisor=8.0
)
PHI_4_MINI = LongRopeScaling(
    short_factor=(1.0,) * 48,
    long_factor=tuple(float(factor) for factor in np.geomspace(1, 64, 48).round(4)),
    original_max_position_embeddings=4096,
    attention_factor=math.sqrt(1 + math.log(32) / math.log(4096)),
)
"""Lengths and factor of the published model; its long factors are other numbers."""
LLAMA_3_2 = Llama3Scaling(32.0, 1.0, 4.0, 8192)

SHAPES = {
    "llama-3.2-1b": _shape("llama", (128256, 2048, 8192, 16), (32, 8, 64), 131072, 5e5, rule=LLAMA_3_2),
    "llama-3.2-3b": _shape("llama", (128256, 3072, 8192, 28), (24, 8, 128), 131072, 5e5, rule=LLAMA_3_2),
    "smollm2-1.7b": _shape("llama", (49152, 2048, 8192, 24), (32, 32, 64), 8192, 130000.0),
    "tinyllama-1.1b": _shape("llama", (32000, 2048, 5632, 22), (32, 4, 64), 2048, 1e4, tied=False),
    "mistral-7b": _shape("mistral", (32768, 4096, 14336, 32), (32, 8, 128), 32768, 1e6, tied=False),
    "olmo2-1b": _shape("olmo2", (100352, 2048, 8192, 16), (16, 16, 128), 4096, 5e5, 1e-6, tied=False),
    "qwen2.5-0.5b": _shape("qwen2", (151936, 896, 4864, 24), (14, 2, 64), 32768, 1e6, 1e-6),
    "qwen3-0.6b": _shape("qwen3", (151936, 1024, 3072, 28), (16, 8, 128), 40960, 1e6, 1e-6),
    "qwen3-1.7b": _shape("qwen3", (151936, 2048, 6144, 28), (16, 8, 128), 40960, 1e6, 1e-6),
    "granite-3.0-2b": _shape(
        "granite", (49155, 2048, 8192, 40), (32, 8, 64), 4096, 1e4, multipliers=GRANITE_2B
    ),
    "granite-4.0-micro": _shape(
        "granitemoehybrid", (100352, 2560, 8192, 40), (40, 8, 64), 131072, 1e7, multipliers=GRANITE_2B
    ),
    "phi-3-mini-4k": _shape("phi3", (32064, 3072, 8192, 32), (32, 32, 96), 4096, 1e4, tied=False),
    "phi-4-mini": _shape(
        "phi3", (200064, 3072, 8192, 32), (24, 8, 128), 131072, 1e4, rule=PHI_4_MINI, rotary_part=0.75
    ),
    "smollm3-3b": _shape("smollm3", (128256, 2048, 11008, 36), (16, 4, 128), 65536, 5e6, 1e-6),
    "lfm2-350m": _shape(
        "lfm2", (65536, 1024, 4608, 16), (16, 8, 64), 128000, 1e6, attending=(2, 5, 8, 10, 12, 14)
    ),
    "lfm2-1.2b": _shape(
        "lfm2", (65536, 2048, 8192, 16), (32, 8, 64), 128000, 1e6, attending=(2, 5, 8, 10, 12, 14)
    ),
    "qwen3.5-0.8b": _shape(
        "qwen3_5_text",
        (248320, 1024, 3584, 24),
        (8, 2, 256),
        262144,
        1e7,
        1e-6,
        rotary_part=0.25,
        attending=tuple(range(3, 24, 4)),
        delta=DeltaHeads(16, 16, 128, 128),
    ),
    "sdar-4b": _shape("sdar", (151936, 2560, 9728, 36), (32, 8, 128), 32768, 1e6, 1e-6, tied=False),
    "tiny": _shape(
        "llama", (1024, 256, 512, 2), (4, 2, 64), 512, 5e5, rule=Llama3Scaling(32.0, 1.0, 4.0, 128)
    ),
}
"""As in the config.json of the published models, but for the ids of special tokens; `tiny` is for tests. Of
granite-4.0-micro the sizes are its own, and the factors, context and RoPE those of other Granites."""

LLAMA_3_2_1B, TINY = SHAPES["llama-3.2-1b"], SHAPES["tiny"]

EMBED_STD = 0.05
"""Standard deviation of the embedding. Tied to the output, it gives logits of a few units."""

RESIDUAL_STD = 0.3
"""Standard deviation of the outputs of o_proj and down_proj for a normed input: several times the embedding,
so that the last row differs from the first, and small enough for bf16 after any number of layers."""

BIAS_STD = 0.5
"""Standard deviation of the biases of queries, keys and values, whose elements are about 1."""

NORM_STD = 0.1
"""Standard deviation of the weights of a norm from 1."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the checkpoint: normally distributed with `mean` and standard deviation `std`."""

    name: str
    shape: tuple[int, ...]
    mean: float
    std: float

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * BF16_BYTES


def tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of the checkpoint. Projections keep elements of a normed row at about 1; what is added to
    the residual stream is smaller."""
    for name, shape in stored_shapes(config).items():
        yield TensorSpec(name, shape, *_distribution(name, shape, config.family.norm_weight_offset))


def _distribution(name: str, shape: tuple[int, ...], norm_offset: int) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's elements. norm_offset: what norms add to their weights."""
    if name.endswith(".bias"):
        return 0.0, BIAS_STD
    if len(shape) == 1:  # of linear attention's own norm, the weight is taken as it is
        return 0.0 if norm_offset and ".linear_attn.norm." not in name else 1.0, NORM_STD
    if not name.startswith("model.layers."):
        return 0.0, EMBED_STD
    adds = name.endswith(
        ("o_proj.weight", "down_proj.weight", "out_proj.weight", "w2.weight", "output_linear.weight")
    )
    return 0.0, (RESIDUAL_STD if adds else 1.0) / math.sqrt(math.prod(shape[1:]))


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The contents of config.json, with the keys that the released checkpoints use."""
    family, diffusion = config.family, config.diffusion
    blocks = {family.diffusion.size_entry: diffusion.block_size} if family.diffusion and diffusion else {}
    return {
        "architectures": [family.name],
        **({} if family.qkv_bias else {"attention_bias": False}),
        "attention_dropout": 0.0,
        "bos_token_id": begin_of_text(config.vocab_size),
        "eos_token_id": list(config.eos_token_ids),
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        **({"hidden_activation": config.activation} if family.local_rope_theta else {}),
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        family.ffn_entry: config.intermediate_size,
        **(_hybrid(config) if family.is_hybrid else {}),
        **blocks,
        **({"mask_token_id": diffusion.mask_token_id} if diffusion else {}),
        "max_position_embeddings": config.max_position_embeddings,
        "mlp_bias": False,
        "model_type": family.model_type,
        **(_multipliers(config) if family.has_multipliers else {}),
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        **(_kinds_of_layers(config) if config.sliding_window or config.layers_with_conv else {}),
        **(_convolutions(config) if config.layers_with_conv else {}),
        **({"no_rope_layers": _has_rope(config)} if family.no_rope_interval else {}),
        **({"partial_rotary_factor": config.partial_rotary_factor} if family.has_partial_rotary else {}),
        "pad_token_id": None,  # some families' default is a token that a small vocabulary has not
        **({"query_pre_attn_scalar": _query_scalar(config)} if family.query_scalar else {}),
        family.norm_eps_entry: config.rms_norm_eps,
        **({"block_auto_adjust_ff_dim": False} if family.adjusts_ffn else {}),
        **({"rope_local_base_freq": config.local_rope_theta} if config.local_rope_theta else {}),
        "rope_scaling": rule_entries(config.rope_scaling) if config.rope_scaling else None,
        "rope_theta": config.rope_theta,
        **({"sliding_window": config.sliding_window} if family.sliding_window else {}),
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        # As released. Without it, transformers takes a large vocabulary for a faulty one of Mistral's.
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def _hybrid(config: ModelConfig) -> dict[str, Any]:
    """Entries of a class that may have layers of Mamba-2, and experts, of a model without."""
    layers = config.num_hidden_layers
    has_rope = len(config.layers_without_rope) < layers
    kinds = {"layer_types": ["full_attention"] * layers, "num_local_experts": 0, "num_experts_per_tok": 0}
    return {**kinds, "position_embedding_type": "rope" if has_rope else None}


def _convolutions(config: ModelConfig) -> dict[str, int]:
    """Entries of layers without attention."""
    if not config.delta:
        return {"conv_L_cache": config.conv_taps}
    sizes = zip(
        ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"), config.delta, strict=True
    )
    return {"linear_conv_kernel_dim": config.conv_taps} | {f"linear_{name}": size for name, size in sizes}


def _kinds_of_layers(config: ModelConfig) -> dict[str, list[str]]:
    """The kind of each layer, where they differ."""
    windowed = config.layers_with_window
    if config.layers_with_conv:
        layers, kind = range(config.num_hidden_layers), state_kind(config.family)
        return {
            "layer_types": [kind if one in config.layers_with_conv else "full_attention" for one in layers]
        }
    if len(windowed) == config.num_hidden_layers and config.local_rope_theta is None:
        return {}
    layers = range(config.num_hidden_layers)
    return {"layer_types": ["sliding_attention" if one in windowed else "full_attention" for one in layers]}


def _query_scalar(config: ModelConfig) -> int:
    scale = config.multipliers.attention
    return config.head_dim if scale is None else round(scale**-2)


def _multipliers(config: ModelConfig) -> dict[str, float]:
    """The entries of a family with factors."""
    factors = config.multipliers
    return {
        "attention_multiplier": factors.attention or config.head_dim**-0.5,
        "embedding_multiplier": factors.embedding,
        "logits_scaling": factors.logits_divisor,
        "residual_multiplier": factors.residual,
    }


def _has_rope(config: ModelConfig) -> list[int]:
    """1 for each layer with RoPE, 0 for one without."""
    return [int(layer not in config.layers_without_rope) for layer in range(config.num_hidden_layers)]


def generation_json(config: ModelConfig) -> dict[str, Any]:
    """The contents of generation_config.json."""
    return {
        "bos_token_id": begin_of_text(config.vocab_size),
        "do_sample": False,
        "eos_token_id": list(config.eos_token_ids),
    }
