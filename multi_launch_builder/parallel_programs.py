"""The programs of a layer that several devices share: of a device's heads, and its part of the FFN's width.

    rms_gemms  x -> q, k, v            where norms of queries and keys take all heads together (OLMo 2)
    norm_rope  q_all, k_all -> q_all_roped, k_all_roped
    o          attn_out -> proj        the device's part of a sum
    attn_add   x, proj -> res1         in models with a norm after attention
    ffn        res1 -> down            the device's part of a sum
    ffn_add    res1, down -> x_next    in models with a norm after the FFN

The first two stand in the place of `rms_gemms_rope`: between them the host gathers the queries and keys of
all devices, and after them it keeps the device's own. It adds up the parts of a sum. Without a norm it adds
the residual in the same sum; with one, each device makes the norm of the whole sum, and adds it to the
residual.
"""

from __future__ import annotations

from dataclasses import replace

from aerie.kernel_builder.arguments import Role
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.programs import (
    GEMM_GRID,
    Projection,
    after_arguments,
    before_arguments,
    bf16_table,
    ffn_arguments,
    ffn_steps,
    norm_of_residual,
    output_arguments,
    output_projection,
    residual_steps,
)
from aerie.multi_launch_builder.shapes import ModelShape


def plan_projections(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """RMSNorm, if there is one before attention, and the Q, K and V projections of a device's heads, three
    launches or four, and three more for biases: x -> q, k, v."""
    heads = {"q": shape.n_heads, "k": shape.n_kv_heads, "v": shape.n_kv_heads}
    projections = [Projection(of, shape, rows, count) for of, count in heads.items()]
    arguments = bf16_table(
        ("x", (rows, shape.emb_dim), Role.INPUT),
        *before_arguments(shape, rows, "attn"),
        *(row for each in projections for row in each.product_arguments(Role.OUTPUT)),
    )
    steps = (
        *((norm_of_residual("rms_norm", rows, shape, "x", "attn_norm"),) if shape.norm_before else ()),
        *(each.product for each in projections),
        *(each.bias for each in projections if shape.qkv_bias),
    )
    return ProgramPlan(name or kind, arguments, steps, GEMM_GRID, kind, rows)


def plan_norm_rope(kind: str, shape: ModelShape, rows: int, lut: str, name: str = "") -> ProgramPlan:
    """Norms of the queries and keys of all heads of the model, and RoPE on them, four launches: q_all,
    k_all -> q_all_roped, k_all_roped."""
    whole = replace(
        shape,
        n_heads=shape.all_heads or shape.n_heads,
        n_kv_heads=shape.all_kv_heads or shape.n_kv_heads,
    )
    rotated = [
        Projection(of, whole, rows, heads) for of, heads in (("q", whole.n_heads), ("k", whole.n_kv_heads))
    ]
    arguments = bf16_table(
        *((f"{each.of}_all", each.activation, Role.INPUT) for each in rotated),
        *(row for each in rotated for row in each.norm_arguments),
        (lut, (rows, shape.rope_width), Role.INPUT),
        *((f"{each.of}_all_roped", each.activation, Role.OUTPUT) for each in rotated),
    )
    steps = (
        *(_rewired(each.norm, x=f"{each.of}_all") for each in rotated),
        *(_rewired(each.rope(lut), out=f"{each.of}_all_roped") for each in rotated),
    )
    return ProgramPlan(name or kind, arguments, steps, (), kind, rows)


def _rewired(launch: LaunchPlan, **arguments: str) -> LaunchPlan:
    return replace(launch, wiring={**launch.wiring, **arguments})


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
