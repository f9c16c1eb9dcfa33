"""Llama 2, 3, 3.1, 3.2, and what was trained in their shape: TinyLlama, SmolLM2 and many more.

Defaults: transformers' configuration_llama.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="llama",
    architecture="LlamaForCausalLM",
    default_positions=2048,
    run_with="SmolLM2-135M-Instruct, Q4_1",
    published_sizes="Llama-3.2-1B and 3B, Llama-3.1-8B, Llama-2-7B, TinyLlama, SmolLM2",
)
