"""Phi-3, Phi-3.5 and Phi-4 with their mini and medium sizes: a Llama with fused tensors.

Queries, keys and values are one tensor, gate and up another. RoPE turns a part of each head in Phi-4-mini,
and in models of long contexts it has one set of frequencies up to the original length and another beyond
(longrope): which of them a session uses depends on --max-model-len. Phi-3-small and Phi-3.5-MoE are other
models. Defaults: transformers' configuration_phi3.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    default_positions=4096,
    rms_norm_eps=1e-5,
    has_window=True,
    has_partial_rotary=True,
    is_fused=True,
    published_sizes="Phi-3-mini, Phi-4-mini, Phi-4",
)
