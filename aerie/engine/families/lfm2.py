"""LFM2 (dense): a Llama with norms of queries and keys, and short convolutions in place of attention in most
layers.

A layer with a convolution keeps a row for each position, B x of its projections, of which a later position
reads two (engine/layer_states.py). The last norm is called that of the embeddings. Widths of FFNs are rounded
from entries of config.json. Defaults: transformers' configuration_lfm2.py.
"""

from aerie.engine.model_family import CONV, LAYER_TENSORS, ModelFamily

_BOTH = {
    "attn_norm": "operator_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "w_gate": "feed_forward.w1.weight",
    "w_up": "feed_forward.w3.weight",
    "w_down": "feed_forward.w2.weight",
}

FAMILY = ModelFamily(
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    default_positions=128000,
    kv_heads=8,
    rms_norm_eps=1e-5,
    tied=True,
    rope_theta=1e6,
    tensors={
        **LAYER_TENSORS,
        **_BOTH,
        "wo": "self_attn.out_proj.weight",
        "q_norm": "self_attn.q_layernorm.weight",
        "k_norm": "self_attn.k_layernorm.weight",
    },
    conv_tensors={**_BOTH, **CONV},
    final_norm="model.embedding_norm.weight",
    norm_eps_entry="norm_eps",
    adjusts_ffn=True,
    published_sizes="LFM2-350M to 2.6B",
)
