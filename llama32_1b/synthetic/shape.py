"""What a synthetic checkpoint looks like: sizes, config.json, the tensors with their spread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aerie.engine.config import ModelConfig
from aerie.engine.rope import Llama3
from aerie.engine.weights import expected_shapes
from aerie.llama32_1b.synthetic.tokenizer import begin_of_text, end_ids

BF16_BYTES = 2

LLAMA_3_2_1B = ModelConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=Llama3(32.0, 1.0, 4.0, 8192),
    tie_word_embeddings=True,
    eos_token_ids=end_ids(128256),
)
"""As in the config.json of meta-llama/Llama-3.2-1B-Instruct."""

TINY = ModelConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=Llama3(32.0, 1.0, 4.0, 128),
    tie_word_embeddings=True,
    eos_token_ids=end_ids(1024),
)

SHAPES = {"llama-3.2-1b": LLAMA_3_2_1B, "tiny": TINY}

EMBED_SPREAD = 0.05
"""Standard deviation of an embedding's elements. Tied to the output, it makes logits of a few units."""

RESIDUAL_SPREAD = 0.3
"""What o_proj and down_proj give, against a normed input: several times the embedding, so that the last row
is not the first one again, and far from where bf16 would lose digits after any number of layers."""

NORM_SPREAD = 0.1
"""How far the weights of a norm are from 1."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of the checkpoint: normally distributed around `mean` with standard deviation `spread`."""

    name: str
    shape: tuple[int, ...]
    mean: float
    spread: float

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * BF16_BYTES


def tensors(config: ModelConfig) -> Iterator[Tensor]:
    """Every tensor of the checkpoint. A projection of a normed row, whose elements are about 1, gives
    elements about 1 again; what is added to the residual stream is smaller."""
    for name, shape in expected_shapes(config).items():
        yield Tensor(name, shape, *_distribution(name, shape))


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if len(shape) == 1:
        return 1.0, NORM_SPREAD
    if not name.startswith("model.layers."):
        return 0.0, EMBED_SPREAD
    adds = name.endswith(("o_proj.weight", "down_proj.weight"))
    return 0.0, (RESIDUAL_SPREAD if adds else 1.0) / math.sqrt(shape[1])


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The contents of config.json, with the keys that the released Llama 3.2 checkpoints use."""
    scaling = config.rope_scaling
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": begin_of_text(config.vocab_size),
        "eos_token_id": list(config.eos_token_ids),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": {"rope_type": "llama3", **vars(scaling)} if scaling else None,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        # As released. Without it, transformers takes a large vocabulary for a faulty one of Mistral's.
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def generation_json(config: ModelConfig) -> dict[str, Any]:
    """The contents of generation_config.json."""
    return {
        "bos_token_id": begin_of_text(config.vocab_size),
        "do_sample": False,
        "eos_token_id": list(config.eos_token_ids),
    }
