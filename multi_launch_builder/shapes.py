"""The parameters of a program: the shape of the model and the compiled prompt length.

This needs no IR and no kernel. `shape_limits` knows which shapes the kernels accept.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerie.common.errors import AerieError
from aerie.kernel_builder.activations import SILU


class UnsupportedShapeError(AerieError, ValueError):
    """The kernels do not accept a model shape or sequence length.

    problem: what does not fit, without the nearest legal value, which helps only callers that can choose
    another.
    """

    def __init__(self, problem: str, nearest: str = "") -> None:
        super().__init__(f"{problem}; {nearest}" if nearest else problem)
        self.problem = problem


LM_HEAD_PARTITIONS = 8
"""Launches of an LM head."""
LM_HEAD_ROWS = 256
"""A partition has a block of eight rows for each of 32 cores, so that a product of several tokens finds cores
to share it, whatever the vocabulary. For one token, eight cores do whole rounds of eight rows each.
"""
GATE_COLUMNS = 64
"""Columns that a product is rounded up to where a model asks for a few: rows of zeros fill its weight."""
SEQ_LEN_STEP = 64
"""Rows of the highest K and V tile of flash_attn: whole tiles at every length, so padding changes no bit."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-class decoder, in elements, and the epsilon of its RMSNorms.

    Symbols as used in the argument tables: E = emb_dim, H = n_heads, KV = n_kv_heads, D = head_dim,
    F = hidden_dim (of the FFN), V = vocab_size.

    qkv_bias: queries, keys and values have biases (Qwen2). qk_norm: each head of queries and keys goes
    through an RMSNorm with weights of its own (D), before RoPE (Qwen3). attention_scale: what scores are
    multiplied with; None means 1 / sqrt(D). rotary_dim: the first elements of a head, which RoPE turns; None
    means D. residual_scale: what is multiplied with it before it is added to
    the residual (Granite). norm_before: attention and the FFN read what an RMSNorm makes of the residual.
    norm_after: what they give goes through an RMSNorm before it is added to the residual (OLMo 2 has these
    alone). qk_norm_spans_heads: the norms of queries and keys take all heads together, with a weight for each
    element (OLMo 2). norm_round_once, norm_weight_offset: the form of all RMSNorms, as
    kernel_builder/kernels/rms_norm.py has it. activation: of the FFN's gate,
    SILU or GELU. conv_taps: rows that a short convolution reads, which some layers have in place of attention
    (LFM2); 0 means that no layer has one. delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim:
    heads of linear attention and their elements, which some layers have in place of attention, behind a
    convolution of `conv_taps` rows (Qwen3.5); 0 means that no layer has it. attention_gate: what attention
    gives is multiplied with the sigmoid of a projection of its own. all_heads, all_kv_heads: H and KV of the
    whole model, where a device has a part of the heads, and what it has depends on all; 0: as n_heads,
    n_kv_heads.
    """

    emb_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    rms_norm_eps: float
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None
    residual_scale: float = 1.0
    rotary_dim: int | None = None
    activation: str = SILU
    norm_before: bool = True
    norm_after: bool = False
    qk_norm_spans_heads: bool = False
    norm_round_once: bool = False
    norm_weight_offset: int = 0
    conv_taps: int = 0
    delta_key_heads: int = 0
    delta_value_heads: int = 0
    delta_key_dim: int = 0
    delta_value_dim: int = 0
    attention_gate: bool = False
    all_heads: int = 0
    all_kv_heads: int = 0

    @property
    def norm_parameters(self) -> dict[str, float]:
        """What the RMSNorm kernels are given besides sizes."""
        once = {"round_once": True} if self.norm_round_once else {}
        offset = {"weight_offset": self.norm_weight_offset} if self.norm_weight_offset else {}
        return {"eps": self.rms_norm_eps, **once, **offset}

    @property
    def activation_parameters(self) -> dict[str, str]:
        """What the kernel of the activation is given besides sizes."""
        return {} if self.activation == SILU else {"activation": self.activation}

    @property
    def rope_width(self) -> int:
        """Elements of a row of RoPE's table."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def rope_parameters(self) -> dict[str, int]:
        """What the RoPE kernels are given besides sizes."""
        return {} if self.rope_width == self.head_dim else {"rotary_dim": self.rope_width}

    @property
    def attention_parameters(self) -> dict[str, float]:
        """What the attention kernels are given besides sizes."""
        return {} if self.attention_scale is None else {"scale": self.attention_scale}

    @property
    def residual_parameters(self) -> dict[str, float]:
        """What the residual adds are given besides sizes."""
        return {} if self.residual_scale == 1 else {"scale": self.residual_scale}

    @property
    def has_delta(self) -> bool:
        """Whether some layers have linear attention."""
        return self.delta_value_heads > 0

    @property
    def delta_width(self) -> int:
        """Width of all values of linear attention together."""
        return self.delta_value_heads * self.delta_value_dim

    @property
    def delta_mixed_width(self) -> int:
        """Width of all queries, keys and values of linear attention together, which its convolution mixes."""
        return 2 * self.delta_key_heads * self.delta_key_dim + self.delta_width

    @property
    def delta_gates_width(self) -> int:
        """Columns of the product that gives decays and rates: two for each head, rounded up."""
        return -(-2 * self.delta_value_heads // GATE_COLUMNS) * GATE_COLUMNS

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together."""
        return self.n_kv_heads * self.head_dim


DEMO = ModelShape(
    emb_dim=256,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    hidden_dim=768,
    vocab_size=1500,
    rms_norm_eps=1e-5,
)
"""The checkpoint that ships with the project."""

DEMO_SEQ_LEN = 128
"""The prompt length, in tokens, that the demo is compiled for."""

LLAMA_3_2_1B = ModelShape(
    emb_dim=2048,
    n_heads=32,
    n_kv_heads=8,
    head_dim=64,
    hidden_dim=8192,
    vocab_size=128256,
    rms_norm_eps=1e-5,
)
"""meta-llama/Llama-3.2-1B, from its config.json."""


def round_up_seq_len(tokens: int) -> int:
    """The smallest compiled prompt length, in tokens, that holds `tokens` tokens."""
    return max(1, -(-tokens // SEQ_LEN_STEP)) * SEQ_LEN_STEP


def padded_vocab_size(shape: ModelShape) -> int:
    """Rows of the LM head with padding: the vocabulary rounded up to whole partitions."""
    unit = LM_HEAD_PARTITIONS * LM_HEAD_ROWS
    return -(-shape.vocab_size // unit) * unit
