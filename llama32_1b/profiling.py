"""How much arithmetic a program does, so that its time can be told as a rate."""

from __future__ import annotations

import math

from kernel_builder.arguments import Role
from multi_launch_builder import Program


def program_flops(program: Program) -> float:
    """Floating-point operations of one call: two per multiply-add of every matrix product.

    Norms, RoPE, SwiGLU, softmax and additions are not counted; they are below one percent in prefill.
    """
    if program.name == "flash_attn":
        return _causal_attention_flops(*program.arguments["q_roped"].shape)
    shape = program.arguments["x"].shape
    rows = shape[0] if len(shape) == 2 else 1
    matrices = [a.shape for a in program.arguments if a.role is Role.WEIGHT and len(a.shape) == 2]
    return 2.0 * rows * sum(math.prod(matrix) for matrix in matrices)


def _causal_attention_flops(rows: int, width: int) -> float:
    """q k^T and p v over the rows * (rows + 1) / 2 visible pairs; width is heads * head_dim."""
    return 4.0 * width * rows * (rows + 1) / 2
