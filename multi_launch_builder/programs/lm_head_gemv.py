"""The logits of one row: the vocabulary, padded, in eight partitions, one GEMV launch each.

In partitions, as mlir-air runs its LM heads, because one task of a shim DMA queue repeats at most 255 times.
"""

from __future__ import annotations

from kernel_builder.arguments import Role
from multi_launch_builder.compile_options import STACK
from multi_launch_builder.limits import LM_HEAD_PARTITIONS, padded_vocab_size
from multi_launch_builder.plan import ProgramPlan, Step, bf16_table
from multi_launch_builder.shapes import ModelShape

OPTIONS = (STACK,)
"""What aircc is told."""


def plan(shape: ModelShape) -> ProgramPlan:
    """x (E,), lm_head_i (Vp/8, E) -> logits_i (Vp/8,), for i from 0 to 7; Vp is the padded vocabulary."""
    rows = padded_vocab_size(shape) // LM_HEAD_PARTITIONS
    partitions = range(LM_HEAD_PARTITIONS)
    arguments = bf16_table(
        ("x", (shape.emb_dim,), Role.INPUT),
        *((f"lm_head_{i}", (rows, shape.emb_dim), Role.WEIGHT) for i in partitions),
        *((f"logits_{i}", (rows,), Role.OUTPUT) for i in partitions),
    )
    steps = tuple(_partition(i, rows, shape.emb_dim) for i in partitions)
    return ProgramPlan("lm_head_gemv", arguments, steps, OPTIONS)


def _partition(index: int, rows: int, cols: int) -> Step:
    wiring = {"weight": f"lm_head_{index}", "x": "x", "out": f"logits_{index}"}
    return Step(f"partition_{index}", "gemv", {"m": rows, "k": cols}, wiring)
