"""OLMo 2: a Llama whose norms stand after attention and the FFN, before the residual is added.

Nothing is normalised before them. Queries and keys go through norms over all heads together. Norms multiply
with their weight in f32 and round once. transformers turns with cosines and sines in float32; here they are
bf16, as for all families. Defaults: transformers' configuration_olmo2.py.
"""

from aerie.engine.model_family import LAYER_TENSORS, POST_NORMS, QK_NORM, ModelFamily

_BEFORE = ("attn_norm", "ffn_norm")

FAMILY = ModelFamily(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    default_positions=2048,
    rms_norm_eps=1e-5,
    qk_norm_spans_heads=True,
    norm_round_once=True,
    tensors={
        **{name: tensor for name, tensor in LAYER_TENSORS.items() if name not in _BEFORE},
        **QK_NORM,
        **POST_NORMS,
    },
    published_sizes="OLMo-2-1B and 7B",
)
