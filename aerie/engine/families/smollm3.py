"""SmolLM3: a Llama in which every fourth layer does not turn its queries and keys (NoPE).

Such a layer goes through the programs of all others, with a table of RoPE that turns by nothing. Windows are
switched off in the released model; where one is switched on, layers without RoPE have it. Defaults:
transformers' configuration_smollm3.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    default_positions=32768,
    kv_heads=4,
    tied=True,
    rope_theta=2e6,
    no_rope_interval=4,
    has_window=True,
    window_is_optional=True,
    published_sizes="SmolLM3-3B",
)
