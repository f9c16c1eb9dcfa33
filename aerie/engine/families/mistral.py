"""Mistral: a Llama whose attention forgets what is farther back than its window.

Up to the length of the window the two are the same. Defaults: transformers' configuration_mistral.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="mistral",
    architecture="MistralForCausalLM",
    default_positions=131072,
    kv_heads=8,
    has_window=True,
    sliding_window=4096,
    published_sizes="Mistral-7B",
)
