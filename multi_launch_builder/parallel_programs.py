"""The programs after attention in a layer that several devices share: of a device's heads, and its part of
the FFN's width.

    o          attn_out -> proj         the device's part of a sum
    attn_add   x, proj -> res1          in models with a norm after attention
    ffn        res1 -> down             the device's part of a sum
    ffn_add    res1, down -> x_next     in models with a norm after the FFN

The host adds up the parts of all devices. Without a norm it adds the residual in the same sum; with one, each
device makes the norm of the whole sum, and adds it to the residual.
"""

from __future__ import annotations

from aerie.kernel_builder.arguments import Role
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.multi_launch_builder.programs import (
    GEMM_GRID,
    after_arguments,
    bf16_table,
    ffn_arguments,
    ffn_steps,
    output_arguments,
    output_projection,
    residual_steps,
)
from aerie.multi_launch_builder.shapes import ModelShape

ADDED = {"attn": ("x", "proj", "res1"), "ffn": ("res1", "down", "x_next")}
"""Of the sum after attention and of that after the FFN: the residual, the sum, and what they make."""


def plan_attention_output(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """Output projection of a device's heads, one launch: attn_out -> proj, its part of a sum."""
    arguments = bf16_table(*output_arguments(shape, rows, Role.OUTPUT))
    return ProgramPlan(name or kind, arguments, (output_projection(shape, rows),), GEMM_GRID, kind, rows)


def plan_ffn(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """RMSNorm, if there is one before the FFN, and the FFN of a device's part of the width, four or five
    launches: res1 -> down, its part of a sum."""
    x = ("res1", (rows, shape.emb_dim), Role.INPUT)
    arguments = bf16_table(x, *ffn_arguments(shape, rows, Role.OUTPUT))
    return ProgramPlan(name or kind, arguments, ffn_steps(shape, rows), GEMM_GRID, kind, rows)


def plan_add(kind: str, of: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """RMSNorm of a sum over devices, added to the residual, two launches. of: "attn" or "ffn" (`ADDED`)."""
    residual, total, out = ADDED[of]
    activation = (rows, shape.emb_dim)
    arguments = bf16_table(
        (residual, activation, Role.INPUT),
        (total, activation, Role.INPUT),
        *after_arguments(shape, rows, of),
        (out, activation, Role.OUTPUT),
    )
    steps = residual_steps(shape, rows, of, residual, total, out)
    return ProgramPlan(name or kind, arguments, steps, (), kind, rows)
