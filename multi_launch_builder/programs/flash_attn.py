"""Prefill attention, causal, grouped query heads: one launch, never stitched with others.

Its many channels make mlir-air's `air-opt-shim-dma-bds` pass grow faster than linearly with the
launches of a module (more than ten minutes at nine launches), so it stays a program of its own.
"""

from __future__ import annotations

from kernel_builder.arguments import Role
from multi_launch_builder.compile_options import ATTENTION_GRID, ONE_COPY, STACK
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK, *ATTENTION_GRID, ONE_COPY)
"""What aircc is told."""


def plan(shape: ModelShape, seq_len: int) -> ProgramPlan:
    """q_roped, k_roped, v (positions x heads*head_dim) -> attn_out, laid out like q_roped."""
    arguments = bf16_table(
        ("q_roped", (seq_len, shape.q_dim), Role.INPUT),
        ("k_roped", (seq_len, shape.kv_dim), Role.INPUT),
        ("v", (seq_len, shape.kv_dim), Role.INPUT),
        ("attn_out", (seq_len, shape.q_dim), Role.OUTPUT),
    )
    parameters = {
        "lq": seq_len,
        "lk": seq_len,
        "n_heads": shape.n_heads,
        "n_kv_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
    }
    wiring = {"q": "q_roped", "k": "k_roped", "v": "v", "out": "attn_out"}
    step = Step("flash_attention", "flash_attention", parameters, wiring)
    return ProgramPlan("flash_attn", arguments, (step,), OPTIONS)
