"""The programs of layers with linear attention, and of attention with a gate (Qwen3.5).

    rms_gemms_delta   x -> delta_qkv, delta_z, delta_ab   norm and projections
    delta_conv        conv_rows -> mixed                  convolution of queries, keys and values, and SiLU
    delta_rule        delta_rows, state -> rule_out, state_out
    delta_gate        delta_out, delta_z -> attn_out      norm of each head, and the gate
    attn_gate         attended, attn_gate -> attn_out

Between the first and the second the host stores `delta_qkv`, and gathers the rows that each row's convolution
reads, as for a short convolution (LFM2). `delta_rule` takes positions of one sequence, and the state before
them; it has as many as the other programs have rows, but at most as a page.
"""

from __future__ import annotations

from aerie.kernel_builder.activations import SIGMOID
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16, f32
from aerie.kernel_builder.delta_rows import row_width, state_shape
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.programs import GEMM_GRID, bf16_table, norm_of_residual, projection
from aerie.multi_launch_builder.shapes import ModelShape

MAX_RUN = 64
"""Most positions of a delta rule's call: those of a page."""


def plan_before_delta(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """RMSNorm and three projections, four launches: x -> delta_qkv, delta_z, delta_ab.

    delta_qkv: queries, keys and values, one after the other. delta_z: the gate of the result. delta_ab: for
    each head what its decay is made of, then for each head what its rate is made of, then zeros.
    """
    emb = shape.emb_dim
    products = (
        ("qkv", shape.delta_mixed_width),
        ("z", shape.delta_width),
        ("ab", shape.delta_gates_width),
    )
    arguments = bf16_table(
        ("x", (rows, emb), Role.INPUT),
        ("attn_norm", (emb,), Role.WEIGHT),
        ("normed", (rows, emb), Role.INTERMEDIATE),
        *((f"w_{of}", (width, emb), Role.WEIGHT) for of, width in products),
        *((f"delta_{of}", (rows, width), Role.OUTPUT) for of, width in products),
    )
    steps = (
        norm_of_residual("rms_norm", rows, shape, "x", "attn_norm"),
        *(
            projection(f"delta_{of}", rows, emb, width, "normed", f"w_{of}", f"delta_{of}")
            for of, width in products
        ),
    )
    return ProgramPlan(name or kind, arguments, steps, GEMM_GRID, kind, rows)


def plan_delta_conv(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """A short convolution and SiLU, two launches: conv_rows -> mixed."""
    width, taps = shape.delta_mixed_width, shape.conv_taps
    arguments = bf16_table(
        ("conv_rows", (rows, taps, width), Role.INPUT),
        ("w_conv", (taps, width), Role.WEIGHT),
        ("conv", (rows, width), Role.INTERMEDIATE),
        ("mixed", (rows, width), Role.OUTPUT),
    )
    wiring = {"rows": "conv_rows", "weight": "w_conv", "out": "conv"}
    steps = (
        LaunchPlan("conv", "short_conv", {"rows": rows, "cols": width, "taps": taps}, wiring),
        _gate("silu", rows, width, "conv", "conv", "mixed", {"activation": SIGMOID}),
    )
    return ProgramPlan(name or kind, arguments, steps, (), kind, rows)


def plan_delta_rule(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """The gated delta rule over positions of one sequence, one launch: delta_rows, state -> rule_out,
    state_out. rows: most of these positions."""
    heads, key_dim, value_dim = shape.delta_value_heads, shape.delta_key_dim, shape.delta_value_dim
    state = state_shape(heads, key_dim, value_dim)
    arguments = ArgumentTable(
        [
            Argument("delta_rows", (heads, rows, row_width(key_dim, value_dim)), bf16, Role.INPUT),
            Argument("state", state, f32, Role.INPUT),
            Argument("rule_out", (rows, shape.delta_width), bf16, Role.OUTPUT),
            Argument("state_out", state, f32, Role.OUTPUT),
        ]
    )
    sizes = {"heads": heads, "positions": rows, "key_dim": key_dim, "value_dim": value_dim}
    wiring = {"rows": "delta_rows", "state": "state", "out": "rule_out", "state_out": "state_out"}
    step = LaunchPlan("delta_rule", "gated_delta_rule", sizes, wiring)
    return ProgramPlan(name or kind, arguments, (step,), (), kind, rows)


def plan_delta_gate(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """RMSNorm of each head, and the gate, two launches: delta_out, delta_z -> attn_out. The weight of this
    norm is taken as it is, in a model whose other norms take 1 + weight too."""
    activation, value_dim = (rows, shape.delta_width), shape.delta_value_dim
    arguments = bf16_table(
        ("delta_out", activation, Role.INPUT),
        ("delta_norm", (value_dim,), Role.WEIGHT),
        ("delta_normed", activation, Role.INTERMEDIATE),
        ("delta_z", activation, Role.INPUT),
        ("attn_out", activation, Role.OUTPUT),
    )
    sizes = {"rows": rows, "cols": value_dim, "heads": shape.delta_value_heads, "eps": shape.rms_norm_eps}
    wiring = {"x": "delta_out", "weight": "delta_norm", "out": "delta_normed"}
    steps = (
        LaunchPlan("delta_norm", "rms_norm", sizes, wiring),
        _gate("delta_gate", rows, shape.delta_width, "delta_z", "delta_normed", "attn_out", {}),
    )
    return ProgramPlan(name or kind, arguments, steps, (), kind, rows)


def plan_attention_gate(kind: str, shape: ModelShape, rows: int, name: str = "") -> ProgramPlan:
    """What attention gives times the sigmoid of its gate, one launch: attended, attn_gate -> attn_out."""
    activation = (rows, shape.q_dim)
    arguments = bf16_table(
        ("attended", activation, Role.INPUT),
        ("attn_gate", activation, Role.INPUT),
        ("attn_out", activation, Role.OUTPUT),
    )
    gate = {"activation": SIGMOID}
    step = _gate("attn_gate", rows, shape.q_dim, "attn_gate", "attended", "attn_out", gate)
    return ProgramPlan(name or kind, arguments, (step,), (), kind, rows)


def _gate(
    label: str, rows: int, width: int, gate: str, x: str, out: str, activation: dict[str, str]
) -> LaunchPlan:
    """out = the activation of gate, times x."""
    parameters = {"rows": rows, "cols": width, **activation}
    return LaunchPlan(label, "swiglu", parameters, {"gate": gate, "up": x, "out": out})
