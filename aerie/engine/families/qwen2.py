"""Qwen2 and Qwen2.5: a Llama with a bias on queries, keys and values.

The released models have windows in config.json and switch them off. Defaults: transformers'
configuration_qwen2.py.
"""

from aerie.engine.model_family import LAYER_TENSORS, QKV_BIAS, ModelFamily

FAMILY = ModelFamily(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    default_positions=32768,
    kv_heads=32,
    has_window=True,
    sliding_window=4096,
    window_is_optional=True,
    window_layers=28,
    tensors={**LAYER_TENSORS, **QKV_BIAS},
    published_sizes="Qwen2.5-0.5B to 7B",
)
