"""What the architectures of GGUF files are called elsewhere, and how their tensors lie.

A line more is an architecture more. Names: gguf's constants.py; which permute: llama.cpp's conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Tensors of a layer, `blk.N.NAME.weight` or `.bias`, by the names that transformers has."""

OLMO2_NAMES = {
    **{name: theirs for name, theirs in LAYER_NAMES.items() if name not in ("attn_norm", "ffn_norm")},
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

GEMMA3_NAMES = {
    **LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

LFM2_NAMES = {
    **LAYER_NAMES,
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}

QWEN35_NAMES = {
    **{name: theirs for name, theirs in LAYER_NAMES.items() if name != "ffn_norm"},
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
VECTORS_OF_DELTA = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
"""Of linear attention: tensors whose names have no suffix, in the file or in transformers."""

MODEL_NAMES = {"token_embd": "model.embed_tokens", "output": "lm_head", "cls.output": "score"}

ROPE_FREQS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors that belong to the config."""


@dataclass(frozen=True)
class Architecture:
    """model_type: transformers' name for it. permutes_qk: whether the rows of queries and keys are permuted
    in the file (block_tensors.py). norms_added: what the file has added to the weights of all norms, but for
    those called `plain_norm`. layer_names: as LAYER_NAMES. final_norm: the norm after the layers, in the file
    and in transformers. is_written: whether such files are written too."""

    model_type: str
    permutes_qk: bool = False
    norms_added: float = 0.0
    plain_norm: str = ""
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES, hash=False)
    final_norm: tuple[str, str] = ("output_norm", "model.norm")
    is_written: bool = True

    def added_to(self, name: str) -> float:
        """What files have added to a tensor of transformers' name."""
        is_plain = self.plain_norm and name.endswith(self.plain_norm)
        return self.norms_added if name.endswith("norm.weight") and not is_plain else 0.0

    @property
    def model_names(self) -> Mapping[str, str]:
        """Tensors outside of the layers, by the names that transformers has."""
        return {**MODEL_NAMES, self.final_norm[0]: self.final_norm[1]}


ARCHITECTURES = {
    "llama": Architecture("llama", permutes_qk=True),
    "gemma3": Architecture("gemma3_text", norms_added=1.0, layer_names=GEMMA3_NAMES, is_written=False),
    "granite": Architecture("granite", permutes_qk=True),
    "lfm2": Architecture(
        "lfm2", layer_names=LFM2_NAMES, final_norm=("token_embd_norm", "model.embedding_norm")
    ),
    "olmo2": Architecture("olmo2", layer_names=OLMO2_NAMES),
    "phi3": Architecture("phi3", is_written=False),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen35": Architecture(
        "qwen3_5_text", norms_added=1.0, plain_norm="linear_attn.norm.weight", layer_names=QWEN35_NAMES
    ),
    "smollm3": Architecture("smollm3", permutes_qk=True),
}
"""By `general.architecture`. Mistral's files call themselves llama, and are the same but for a window."""
