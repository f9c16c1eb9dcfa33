"""Qwen3.5 (dense, its text): linear attention in three of four layers, attention with a gate in the others.

A layer with linear attention keeps a state of keys by values for each head (engine/delta_states.py), behind a
convolution of queries, keys and values. Norms multiply with 1 + weight, but for the one behind the delta
rule. Of the published files, which read images too, the text part is read. Defaults: transformers'
configuration_qwen3_5.py.
"""

from aerie.engine.model_family import DELTA, GATED_QUERY, LAYER_TENSORS, QK_NORM, ModelFamily

_BOTH = ("attn_norm", "ffn_norm", "w_gate", "w_up", "w_down")

FAMILY = ModelFamily(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    default_positions=32768,
    kv_heads=4,
    head_dim=256,
    has_partial_rotary=True,
    partial_rotary=0.25,
    reads_images=True,
    full_attention_interval=4,
    norm_round_once=True,
    norm_weight_offset=1,
    tensors={
        name: tensor for name, tensor in {**LAYER_TENSORS, **QK_NORM, **GATED_QUERY}.items() if name != "wq"
    },
    conv_tensors={**{name: LAYER_TENSORS[name] for name in _BOTH}, **DELTA},
    published_sizes="Qwen3.5-0.8B to 9B",
)
