"""Decode, after attention, for one token: the same eight launches as o_ffn, on vectors.

The down projection (K = hidden_dim) calls mv.cc built a second time under other symbols: its row is
longer, so its tile is smaller, and one module cannot declare one function with two signatures.
"""

from __future__ import annotations

from kernel_builder.arguments import ArgumentTable, Role
from multi_launch_builder.compile_options import STACK
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK,)
"""What aircc is told."""


def _arguments(shape: ModelShape) -> ArgumentTable:
    emb, hidden, q = shape.emb_dim, shape.hidden_dim, shape.q_dim
    return bf16_table(
        ("attn_out", (q,), Role.INPUT),
        ("wo", (emb, q), Role.WEIGHT),
        ("proj", (emb,), Role.INTERMEDIATE),
        ("x", (emb,), Role.INPUT),
        ("res1", (emb,), Role.INTERMEDIATE),
        ("ffn_norm", (emb,), Role.WEIGHT),
        ("normed", (emb,), Role.INTERMEDIATE),
        ("w_gate", (hidden, emb), Role.WEIGHT),
        ("gate", (hidden,), Role.INTERMEDIATE),
        ("w_up", (hidden, emb), Role.WEIGHT),
        ("up", (hidden,), Role.INTERMEDIATE),
        ("swiglu", (hidden,), Role.INTERMEDIATE),
        ("w_down", (emb, hidden), Role.WEIGHT),
        ("down", (emb,), Role.INTERMEDIATE),
        ("x_next", (emb,), Role.OUTPUT),
    )


def plan(shape: ModelShape) -> ProgramPlan:
    """One token's attn_out and residual x, weights in Hugging Face's (out, in) layout -> x_next. All bf16."""
    emb, hidden = shape.emb_dim, shape.hidden_dim
    vector = {"rows": None, "cols": emb}
    widen = {"m": hidden, "k": emb}
    return ProgramPlan(
        "o_gemv_ffn",
        _arguments(shape),
        (
            Step("o_gemv", "gemv", {"m": emb, "k": shape.q_dim}, _gemv("wo", "attn_out", "proj")),
            Step("attn_add", "eltwise_add", vector, {"a": "x", "b": "proj", "out": "res1"}),
            Step(
                "ffn_norm",
                "rms_norm",
                {**vector, "eps": shape.rms_norm_eps},
                {"x": "res1", "weight": "ffn_norm", "out": "normed"},
            ),
            Step("gate_gemv", "gemv", widen, _gemv("w_gate", "normed", "gate")),
            Step("up_gemv", "gemv", widen, _gemv("w_up", "normed", "up")),
            Step(
                "swiglu",
                "swiglu",
                {"rows": None, "cols": hidden},
                {"gate": "gate", "up": "up", "out": "swiglu"},
            ),
            Step("down_gemv", "gemv", {"m": emb, "k": hidden}, _gemv("w_down", "swiglu", "down")),
            Step("ffn_add", "eltwise_add", vector, {"a": "res1", "b": "down", "out": "x_next"}),
        ),
        OPTIONS,
    )


def _gemv(weight: str, x: str, out: str) -> dict[str, str]:
    return {"weight": weight, "x": x, "out": out}
