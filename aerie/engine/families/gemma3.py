"""Gemma 3 (text): four norms per layer that multiply with 1 + weight, GeGLU, and two RoPE bases.

Layers of sliding attention turn heads by another base than those of full attention, which are every sixth.
Norms keep f32 up to the product and round once. Embeddings are multiplied with the root of the hidden size in
bf16. Defaults: transformers' configuration_gemma3.py.
"""

from aerie.engine.model_family import LAYER_TENSORS, POST_NORMS, QK_NORM, ModelFamily

FAMILY = ModelFamily(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    default_positions=131072,
    kv_heads=4,
    head_dim=256,
    tied=True,
    rope_theta=1e6,
    local_rope_theta=1e4,
    full_attention_interval=6,
    activation="gelu_pytorch_tanh",
    query_scalar=256,
    scales_embeddings=True,
    has_window=True,
    sliding_window=4096,
    norm_round_once=True,
    norm_weight_offset=1,
    tensors={
        **LAYER_TENSORS,
        **QK_NORM,
        **POST_NORMS,
        "ffn_norm": "pre_feedforward_layernorm.weight",
    },
    published_sizes="Gemma-3-270M and 1B, the text part of 4B to 27B",
    run_with="Gemma 3 270M, Q4_K_M",
)
