"""Granite 4.0's dense models: Granite 3 with the FFN of a mixture's shared expert, and no experts beside it.

Gate and up are one tensor. `position_embedding_type` says whether layers have RoPE; without it none has. The
same class has models with layers of Mamba-2, and with experts, which are refused by name. Defaults:
transformers' configuration_granitemoehybrid.py.
"""

from aerie.engine.model_family import LAYER_TENSORS, ModelFamily

FAMILY = ModelFamily(
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    default_positions=2048,
    has_multipliers=True,
    is_hybrid=True,
    ffn_entry="shared_intermediate_size",
    fused_ffn="shared_mlp.input_linear.weight",
    tensors={
        **LAYER_TENSORS,
        "w_gate": "shared_mlp.gate_linear.weight",
        "w_up": "shared_mlp.up_linear.weight",
        "w_down": "shared_mlp.output_linear.weight",
    },
    published_sizes="Granite-4.0-350M, 1B and micro",
)
