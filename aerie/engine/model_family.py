"""Model families: the data that distinguishes the decoders of models.

All families share one decoder: RMSNorm, grouped-query attention with RoPE, SwiGLU, residuals. The differences
are data in a file of `families/`: the family's name in config.json, defaults of entries, and the tensors of a
layer. The tensors show whether there are biases or further norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER_TENSORS = {
    "attn_norm": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wo": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
}
"""The tensors of a layer of every family: names in the checkpoint by the names of the programs' arguments."""

QKV_BIAS = {"bq": "self_attn.q_proj.bias", "bk": "self_attn.k_proj.bias", "bv": "self_attn.v_proj.bias"}
"""Vectors added to queries, keys and values."""

QK_NORM = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}
"""Weights of an RMSNorm over each head of queries and keys, or over all of them, before RoPE."""

POST_NORMS = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
"""Weights of an RMSNorm on what attention and the FFN give, before it is added to the residual."""

CONV = {
    "w_conv_b": "conv.b_proj.weight",
    "w_conv_c": "conv.c_proj.weight",
    "w_conv_x": "conv.x_proj.weight",
    "w_conv": "conv.conv.weight",
    "wo": "conv.out_proj.weight",
}
"""The tensors of a short convolution, in place of attention: three projections, which files store as one, the
taps of each column, and the output projection."""

DELTA = {
    "w_qkv": "linear_attn.in_proj_qkv.weight",
    "w_z": "linear_attn.in_proj_z.weight",
    "w_a": "linear_attn.in_proj_a.weight",
    "w_b": "linear_attn.in_proj_b.weight",
    "w_conv": "linear_attn.conv1d.weight",
    "a_log": "linear_attn.A_log",
    "dt_bias": "linear_attn.dt_bias",
    "delta_norm": "linear_attn.norm.weight",
    "wo": "linear_attn.out_proj.weight",
}
"""The tensors of linear attention, in place of attention: queries, keys and values in one, the gate, what
decays and rates are made of, the taps of each column, a norm of heads, and the output projection."""

GATED_QUERY = {"wqg": "self_attn.q_proj.weight"}
"""Of each head the queries' projection, then that of the gate on what attention gives, in place of `wq`."""

GATE_UP = ("w_gate", "w_up")

FUSED = {
    ("w_conv_b", "w_conv_c", "w_conv_x"): ("conv.in_proj.weight",),
    ("wq", "wk", "wv"): ("self_attn.qkv_proj.weight", "self_attn.attn_qkv.weight"),
    ("bq", "bk", "bv"): ("self_attn.qkv_proj.bias", "self_attn.attn_qkv.bias"),
    GATE_UP: ("mlp.gate_up_proj.weight", "mlp.ffn_gate_up.weight", "shared_mlp.input_linear.weight"),
}
"""Tensors that a file may store as one, one below the other in this order, and that tensor's names."""


@dataclass(frozen=True)
class DiffusionConfig:
    """Block diffusion of a model. Blocks are aligned to position 0: a position is in block `position //
    block_size`.

    block_size: tokens of a block, as the model was trained. mask_token_id: the token of positions without a
    token. shifted: logits at a position predict the token at the next one. sub_block: tokens of the parts of
    a block that are filled one after another; None means one part.
    """

    block_size: int
    mask_token_id: int
    shifted: bool = False
    sub_block: int | None = None


@dataclass(frozen=True)
class FamilyDiffusion:
    """Block diffusion of a family; `diffusion.py` reads the rest from a checkpoint.

    size_entry: the entry of config.json with the block size. size: the default. mask_token: the tokenizer's
    text of the mask token, used if config.json has no `mask_token_id`. shifted, sub_block: as
    DiffusionConfig.
    """

    size_entry: str
    size: int
    mask_token: str
    shifted: bool = False
    sub_block: int | None = None

    def with_mask_token(self, mask_token_id: int) -> DiffusionConfig:
        """The config with the family's default block size."""
        return DiffusionConfig(self.size, mask_token_id, self.shifted, self.sub_block)


@dataclass(frozen=True)
class Multipliers:
    """Factors of a model: of the embeddings, of scores (None: 1 / sqrt(head_dim)), of what is added to the
    residual, and what logits are divided by."""

    embedding: float = 1.0
    attention: float | None = None
    residual: float = 1.0
    logits_divisor: float = 1.0


@dataclass(frozen=True)
class ModelFamily:
    """A family, and transformers' defaults for entries that its config.json may lack.

    model_type, architecture: its names in config.json; `architecture` is the class of transformers with the
    same layers. published_as: the class in config.json, if the model comes with its own code.
    default_positions, sliding_window: in tokens. kv_heads: None means as many as query heads. head_dim: None
    means hidden_size / num_attention_heads. tied: whether the embeddings are the LM head too. rope_theta:
    RoPE's base. default_rope: `rope_parameters`, where config.json has neither these nor `rope_scaling`.
    no_rope_interval: every layer whose number, from 1 on, is a multiple of it has no RoPE, where
    `no_rope_layers` does not say which; 0 means that all layers have it. local_rope_theta: RoPE's base in
    layers of sliding attention; None means that of all layers. full_attention_interval: with that, every
    layer whose number, from 1 on, is a multiple of it has full attention, where `layer_types` does not say
    which. activation: of the FFN's gate, "silu" or "gelu_pytorch_tanh". query_scalar:
    `query_pre_attn_scalar`, one over whose root scores are multiplied with; None means head_dim, and no such
    entry. scales_embeddings: they are multiplied with the root of the hidden size, in bf16. has_window:
    whether its layers may have a window; a family without ignores `sliding_window`, as transformers does.
    window_is_optional: the window applies only if `use_sliding_window` is true, and in the layers that
    `layer_types` or `max_window_layers` name. has_partial_rotary: whether RoPE may turn only the first part
    of a head, `partial_rotary_factor` of it, by default `partial_rotary`. reads_images: whether its published
    files have RoPE for images too. is_fused: whether queries, keys and values, and gate and up, are one
    tensor each. fused_ffn: the tensor that gate and up are, where that has another name. is_hybrid: whether
    its class has layers of Mamba-2 and experts too, which are refused, and `position_embedding_type` says
    whether layers have RoPE. ffn_entry: what config.json calls the FFN's width. has_multipliers: whether
    config.json has the four factors of Multipliers, each 1 where it does not say. scoring_architecture: the
    class of its rerankers with a head that scores in place of the LM head; None where none of its rerankers
    is known. tensors: of a layer, as LAYER_TENSORS. conv_tensors: of a layer with a short convolution, or
    with linear attention, in place of attention, which `layer_types` names; empty means that it has no such
    layers. final_norm: the tensor of the norm after the layers. norm_eps_entry: what config.json calls the
    epsilon. adjusts_ffn: whether the FFN's width follows from the entries `block_*`, by rounding. diffusion:
    for a family of block diffusion. published_sizes: for messages. run_with: the published models that the
    project ran, with real weights, and their types.
    """

    model_type: str
    architecture: str
    default_positions: int
    published_as: str = ""
    kv_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    tied: bool = False
    rope_theta: float = 10000.0
    default_rope: Mapping[str, Any] = field(default_factory=dict, hash=False)
    no_rope_interval: int = 0
    local_rope_theta: float | None = None
    full_attention_interval: int = 0
    activation: str = "silu"
    query_scalar: int | None = None
    scales_embeddings: bool = False
    has_window: bool = False
    sliding_window: int | None = None
    window_is_optional: bool = False
    window_layers: int = 0
    has_partial_rotary: bool = False
    partial_rotary: float = 1.0
    reads_images: bool = False
    is_fused: bool = False
    fused_ffn: str = ""
    is_hybrid: bool = False
    ffn_entry: str = "intermediate_size"
    has_multipliers: bool = False
    qk_norm_spans_heads: bool = False
    norm_round_once: bool = False
    norm_weight_offset: int = 0
    tensors: Mapping[str, str] = field(default_factory=lambda: LAYER_TENSORS, hash=False)
    scoring_architecture: str | None = None
    conv_tensors: Mapping[str, str] = field(default_factory=dict, hash=False)
    final_norm: str = "model.norm.weight"
    norm_eps_entry: str = "rms_norm_eps"
    adjusts_ffn: bool = False
    diffusion: FamilyDiffusion | None = None
    published_sizes: str = ""
    run_with: str = ""

    @property
    def name(self) -> str:
        """The name in `architectures` of config.json."""
        return self.published_as or self.architecture

    def default_layers_without_rope(self, layers: int, interval: int | None = None) -> frozenset[int]:
        """The layers without RoPE, from 0 on, by the family's interval or another one."""
        every = interval or self.no_rope_interval
        return frozenset(range(every - 1, layers, every)) if every else frozenset()

    @property
    def has_delta(self) -> bool:
        """Whether the layers without attention have linear attention."""
        return "a_log" in self.conv_tensors

    @property
    def attention_gate(self) -> bool:
        """Whether what attention gives is multiplied with a gate."""
        return "wqg" in self.tensors

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections of queries, keys and values have a bias."""
        return "bq" in self.tensors

    @property
    def norm_before(self) -> bool:
        """Whether attention and the FFN read what a norm makes of the residual."""
        return "attn_norm" in self.tensors

    @property
    def norm_after(self) -> bool:
        """Whether what attention and the FFN give is normalised before it is added to the residual."""
        return "attn_post_norm" in self.tensors

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised before RoPE."""
        return "q_norm" in self.tensors
