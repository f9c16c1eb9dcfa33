"""Ministral 3: a Mistral without windows, with heads of 128 and RoPE stretched by yarn.

Beyond the original length queries grow with their position (`llama_4_scaling_beta`); up to it the factor is
1, and the context ends there. Defaults: transformers' configuration_ministral3.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    default_positions=262144,
    kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    default_rope={
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    has_window=True,
    published_sizes="Ministral-3-3B to 14B",
)
