"""Mistral: a Llama whose attention forgets what is farther back than its window.

Up to the length of the window the two are the same, and the context ends there. Defaults: transformers'
configuration_mistral.py.
"""

from aerie.engine.family import Family

FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    positions=131072,
    kv_heads=8,
    sliding_window=4096,
    examples="Mistral-7B",
)
