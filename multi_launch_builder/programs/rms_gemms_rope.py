"""Prefill, before attention: RMSNorm, the Q, K and V projections, RoPE on Q and K. Six launches."""

from __future__ import annotations

from kernel_builder.arguments import ArgumentTable, Role
from multi_launch_builder.compile_options import GEMM_GRID, STACK
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK, *GEMM_GRID)
"""What aircc is told."""


def _arguments(shape: ModelShape, seq_len: int) -> ArgumentTable:
    emb, q, kv = shape.emb_dim, shape.q_dim, shape.kv_dim
    return bf16_table(
        ("x", (seq_len, emb), Role.INPUT),
        ("attn_norm", (emb,), Role.WEIGHT),
        ("normed", (seq_len, emb), Role.INTERMEDIATE),
        ("wq", (q, emb), Role.WEIGHT),
        ("q", (seq_len, q), Role.INTERMEDIATE),
        ("wk", (kv, emb), Role.WEIGHT),
        ("k", (seq_len, kv), Role.INTERMEDIATE),
        ("wv", (kv, emb), Role.WEIGHT),
        ("v", (seq_len, kv), Role.OUTPUT),
        ("rope_lut", (seq_len, shape.head_dim), Role.LUT),
        ("q_roped", (seq_len, q), Role.OUTPUT),
        ("k_roped", (seq_len, kv), Role.OUTPUT),
    )


def plan(shape: ModelShape, seq_len: int) -> ProgramPlan:
    """x, weights in Hugging Face's (out, in) layout -> q_roped, k_roped, v. All bf16, rows are positions."""
    gemm = {"m": seq_len, "k": shape.emb_dim, "b_transposed": True}
    rope = {"rows": seq_len, "head_dim": shape.head_dim}
    return ProgramPlan(
        "rms_gemms_rope",
        _arguments(shape, seq_len),
        (
            Step(
                "rms_norm",
                "rms_norm",
                {"rows": seq_len, "cols": shape.emb_dim, "eps": shape.rms_norm_eps},
                {"x": "x", "weight": "attn_norm", "out": "normed"},
            ),
            Step("q_gemm", "gemm", {**gemm, "n": shape.q_dim}, {"a": "normed", "b": "wq", "c": "q"}),
            Step("k_gemm", "gemm", {**gemm, "n": shape.kv_dim}, {"a": "normed", "b": "wk", "c": "k"}),
            Step("v_gemm", "gemm", {**gemm, "n": shape.kv_dim}, {"a": "normed", "b": "wv", "c": "v"}),
            Step(
                "q_rope",
                "rope",
                {**rope, "n_heads": shape.n_heads},
                {"x": "q", "lut": "rope_lut", "out": "q_roped"},
            ),
            Step(
                "k_rope",
                "rope",
                {**rope, "n_heads": shape.n_kv_heads},
                {"x": "k", "lut": "rope_lut", "out": "k_roped"},
            ),
        ),
        OPTIONS,
    )
