"""What a family of models is: the data that tells its decoder from the others'.

All families share one decoder: RMSNorm, grouped-query attention with RoPE, SwiGLU, residuals. What differs is
data, and a file of `families/` holds it: what config.json calls the family, the entries that may be absent,
which tensors a layer has. Whether there is a bias or a norm more follows from the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
"""What a layer of every family has: the checkpoint's words by the names that the programs' arguments have."""

QKV_BIAS = {"bq": "self_attn.q_proj.bias", "bk": "self_attn.k_proj.bias", "bv": "self_attn.v_proj.bias"}
"""Vectors added to queries, keys and values."""

QK_NORM = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}
"""Weights of an RMSNorm over each head of queries and of keys, before RoPE."""

FUSED = {
    ("wq", "wk", "wv"): ("self_attn.qkv_proj.weight", "self_attn.attn_qkv.weight"),
    ("bq", "bk", "bv"): ("self_attn.qkv_proj.bias", "self_attn.attn_qkv.bias"),
    ("w_gate", "w_up"): ("mlp.gate_up_proj.weight", "mlp.ffn_gate_up.weight"),
}
"""Tensors that may lie in a file as one, one below the other in this order, and what that one is called."""


@dataclass(frozen=True)
class DiffusionConfig:
    """How a model fills its text in block by block. Blocks are aligned to position 0: that of a position is
    `position // block_size`.

    block_size: tokens of a block, as the model was trained. mask_token_id: what stands where no token is
    chosen yet. shifted: logits at a position say the token at the next one. sub_block: tokens of the parts of
    a block that are filled one after another; None where a block is filled as a whole.
    """

    block_size: int
    mask_token_id: int
    shifted: bool = False
    sub_block: int | None = None


@dataclass(frozen=True)
class FamilyDiffusion:
    """What a family of block diffusion says of its blocks; `diffusion.py` reads the rest from a checkpoint.

    size_entry: the entry of config.json that says how many tokens a block has. size: as many where it does
    not. mask_token: the tokenizer's text of the mask token, looked up where config.json has no
    `mask_token_id`. shifted, sub_block: as DiffusionConfig.
    """

    size_entry: str
    size: int
    mask_token: str
    shifted: bool = False
    sub_block: int | None = None

    def with_mask_token(self, mask_token_id: int) -> DiffusionConfig:
        """Blocks of the family's own size."""
        return DiffusionConfig(self.size, mask_token_id, self.shifted, self.sub_block)


@dataclass(frozen=True)
class ModelFamily:
    """A family, and what transformers takes for entries that its config.json lacks.

    model_type, architecture: what config.json calls it; `architecture` is the class of transformers that
    computes the same layers. published_as: what config.json calls that class, where the model comes with code
    of its own. positions, sliding_window: in tokens. kv_heads: None for as many as there are query heads.
    head_dim: None for hidden_size / num_attention_heads. window_is_optional: the window counts only where
    `use_sliding_window` is true, and in the layers that `layer_types` or `max_window_layers` name. tensors:
    of a layer, as LAYER_TENSORS. diffusion: of a family of block diffusion. examples: published sizes, for
    messages.
    """

    model_type: str
    architecture: str
    default_positions: int
    published_as: str = ""
    kv_heads: int | None = None
    head_dim: int | None = None
    sliding_window: int | None = None
    window_is_optional: bool = False
    window_layers: int = 0
    tensors: Mapping[str, str] = field(default_factory=lambda: LAYER_TENSORS, hash=False)
    diffusion: FamilyDiffusion | None = None
    published_sizes: str = ""

    @property
    def name(self) -> str:
        """What `architectures` of config.json says."""
        return self.published_as or self.architecture

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections of queries, keys and values have a bias."""
        return "bq" in self.tensors

    @property
    def qk_norm(self) -> bool:
        """Whether each head of queries and keys is normalised before RoPE."""
        return "q_norm" in self.tensors
