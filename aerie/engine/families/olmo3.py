"""OLMo 3: an OLMo 2 with a sliding window in three of four layers, whose RoPE is plain.

RoPE of the layers with full attention may be stretched (yarn in the released models). Cosines and sines as in
OLMo 2. Defaults: transformers' configuration_olmo3.py.
"""

from dataclasses import replace

from aerie.engine.families import olmo2

FAMILY = replace(
    olmo2.FAMILY,
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    rope_theta=5e5,
    local_rope_theta=5e5,
    full_attention_interval=4,
    has_window=True,
    sliding_window=4096,
    published_sizes="OLMo-3-7B and 32B",
)
