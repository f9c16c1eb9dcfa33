"""Decode, before attention, for one token: RMSNorm, the Q, K and V projections, RoPE. Six launches."""

from __future__ import annotations

from kernel_builder.arguments import ArgumentTable, Role
from multi_launch_builder.compile_options import STACK
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK,)
"""What aircc is told."""


def _arguments(shape: ModelShape) -> ArgumentTable:
    emb, q, kv = shape.emb_dim, shape.q_dim, shape.kv_dim
    return bf16_table(
        ("x", (emb,), Role.INPUT),
        ("attn_norm", (emb,), Role.WEIGHT),
        ("normed", (emb,), Role.INTERMEDIATE),
        ("wq", (q, emb), Role.WEIGHT),
        ("q", (q,), Role.INTERMEDIATE),
        ("wk", (kv, emb), Role.WEIGHT),
        ("k", (kv,), Role.INTERMEDIATE),
        ("wv", (kv, emb), Role.WEIGHT),
        ("v", (kv,), Role.OUTPUT),
        ("rope_row", (shape.head_dim,), Role.INPUT),
        ("q_roped", (q,), Role.OUTPUT),
        ("k_roped", (kv,), Role.OUTPUT),
    )


def plan(shape: ModelShape) -> ProgramPlan:
    """One token's x, weights in Hugging Face's (out, in) layout -> q_roped, k_roped, v. All bf16."""
    rope = {"rows": None, "head_dim": shape.head_dim}
    return ProgramPlan(
        "rms_gemv_rope",
        _arguments(shape),
        (
            Step(
                "rms_norm",
                "rms_norm",
                {"rows": None, "cols": shape.emb_dim, "eps": shape.rms_norm_eps},
                {"x": "x", "weight": "attn_norm", "out": "normed"},
            ),
            _projection("q", shape.q_dim, shape.emb_dim),
            _projection("k", shape.kv_dim, shape.emb_dim),
            _projection("v", shape.kv_dim, shape.emb_dim),
            Step(
                "q_rope",
                "rope",
                {**rope, "n_heads": shape.n_heads},
                {"x": "q", "lut": "rope_row", "out": "q_roped"},
            ),
            Step(
                "k_rope",
                "rope",
                {**rope, "n_heads": shape.n_kv_heads},
                {"x": "k", "lut": "rope_row", "out": "k_roped"},
            ),
        ),
        OPTIONS,
    )


def _projection(name: str, rows: int, cols: int) -> Step:
    wiring = {"weight": f"w{name}", "x": "normed", "out": name}
    return Step(f"{name}_gemv", "gemv", {"m": rows, "k": cols}, wiring)
