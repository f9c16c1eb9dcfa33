"""Qwen3 (dense): a Llama that normalises each head of queries and keys before RoPE.

Heads are 128 wide whatever the model's width. Windows are those of Qwen2. Defaults: transformers'
configuration_qwen3.py.
"""

from aerie.engine.model_family import LAYER_TENSORS, QK_NORM, ModelFamily

FAMILY = ModelFamily(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    default_positions=32768,
    kv_heads=32,
    head_dim=128,
    has_window=True,
    sliding_window=4096,
    window_is_optional=True,
    window_layers=28,
    tensors={**LAYER_TENSORS, **QK_NORM},
    scoring_architecture="Qwen3ForSequenceClassification",
    published_sizes="Qwen3-0.6B to 8B, Qwen3-Embedding and Qwen3-Reranker 0.6B to 8B",
)
