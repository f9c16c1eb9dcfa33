"""Prefill, after attention: output projection, residual, RMSNorm, SwiGLU FFN, residual. Eight launches."""

from __future__ import annotations

from kernel_builder.arguments import ArgumentTable, Role
from multi_launch_builder.compile_options import GEMM_GRID, STACK
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK, *GEMM_GRID)
"""What aircc is told."""


def _arguments(shape: ModelShape, seq_len: int) -> ArgumentTable:
    emb, hidden, q = shape.emb_dim, shape.hidden_dim, shape.q_dim
    return bf16_table(
        ("attn_out", (seq_len, q), Role.INPUT),
        ("wo", (emb, q), Role.WEIGHT),
        ("proj", (seq_len, emb), Role.INTERMEDIATE),
        ("x", (seq_len, emb), Role.INPUT),
        ("res1", (seq_len, emb), Role.INTERMEDIATE),
        ("ffn_norm", (emb,), Role.WEIGHT),
        ("normed", (seq_len, emb), Role.INTERMEDIATE),
        ("w_gate", (hidden, emb), Role.WEIGHT),
        ("gate", (seq_len, hidden), Role.INTERMEDIATE),
        ("w_up", (hidden, emb), Role.WEIGHT),
        ("up", (seq_len, hidden), Role.INTERMEDIATE),
        ("swiglu", (seq_len, hidden), Role.INTERMEDIATE),
        ("w_down", (emb, hidden), Role.WEIGHT),
        ("down", (seq_len, emb), Role.INTERMEDIATE),
        ("x_next", (seq_len, emb), Role.OUTPUT),
    )


def plan(shape: ModelShape, seq_len: int) -> ProgramPlan:
    """attn_out and the residual x, weights in Hugging Face's (out, in) layout -> x_next. All buffers bf16."""
    emb, hidden = shape.emb_dim, shape.hidden_dim
    rows = {"rows": seq_len, "cols": emb}
    widen = {"m": seq_len, "k": emb, "n": hidden, "b_transposed": True}
    return ProgramPlan(
        "o_ffn",
        _arguments(shape, seq_len),
        (
            Step(
                "o_gemm",
                "gemm",
                {"m": seq_len, "k": shape.q_dim, "n": emb, "b_transposed": True},
                {"a": "attn_out", "b": "wo", "c": "proj"},
            ),
            Step("attn_add", "eltwise_add", rows, {"a": "x", "b": "proj", "out": "res1"}),
            Step(
                "ffn_norm",
                "rms_norm",
                {**rows, "eps": shape.rms_norm_eps},
                {"x": "res1", "weight": "ffn_norm", "out": "normed"},
            ),
            Step("gate_gemm", "gemm", widen, {"a": "normed", "b": "w_gate", "c": "gate"}),
            Step("up_gemm", "gemm", widen, {"a": "normed", "b": "w_up", "c": "up"}),
            Step(
                "swiglu",
                "swiglu",
                {"rows": seq_len, "cols": hidden},
                {"gate": "gate", "up": "up", "out": "swiglu"},
            ),
            Step(
                "down_gemm",
                "gemm",
                {"m": seq_len, "k": hidden, "n": emb, "b_transposed": True},
                {"a": "swiglu", "b": "w_down", "c": "down"},
            ),
            Step("ffn_add", "eltwise_add", rows, {"a": "res1", "b": "down", "out": "x_next"}),
        ),
        OPTIONS,
    )
