"""The six programs of a Llama-class model: one file each, every one a table of steps."""

from __future__ import annotations

from collections.abc import Callable, Collection

from multi_launch_builder.limits import check_seq_len, check_shape
from multi_launch_builder.plan import ProgramPlan, build_program
from multi_launch_builder.program import Program
from multi_launch_builder.programs import (
    flash_attn,
    lm_head_gemv,
    o_ffn,
    o_gemv_ffn,
    rms_gemms_rope,
    rms_gemv_rope,
)
from multi_launch_builder.shapes import ModelShape


def _of_one_row(plan: Callable[[ModelShape], ProgramPlan]) -> Callable[[ModelShape, int], ProgramPlan]:
    """A plan that is the same whatever prompt length the model is compiled for."""
    return lambda shape, _: plan(shape)


PLANS: dict[str, Callable[[ModelShape, int], ProgramPlan]] = {
    "rms_gemms_rope": rms_gemms_rope.plan,
    "flash_attn": flash_attn.plan,
    "o_ffn": o_ffn.plan,
    "rms_gemv_rope": _of_one_row(rms_gemv_rope.plan),
    "o_gemv_ffn": _of_one_row(o_gemv_ffn.plan),
    "lm_head_gemv": _of_one_row(lm_head_gemv.plan),
}
"""Every program by name: from the model's shape and the compiled prompt length to its steps."""


def plan_programs(
    shape: ModelShape, seq_len: int, only: Collection[str] | None = None
) -> dict[str, ProgramPlan]:
    """The plans of a model's programs for prompts of `seq_len` tokens, by name; `only` some of them.

    Raises UnsupportedShapeError, naming the nearest legal value, for a shape the kernels do not accept,
    and ValueError for a name in `only` that is no program.
    """
    unknown = sorted(set(only or ()) - set(PLANS))
    if unknown:
        raise ValueError(f"no program named '{unknown[0]}'; there are: {', '.join(PLANS)}")
    check_shape(shape)
    check_seq_len(seq_len)
    return {name: plan(shape, seq_len) for name, plan in PLANS.items() if only is None or name in only}


def build_programs(
    shape: ModelShape, seq_len: int, only: Collection[str] | None = None
) -> dict[str, Program]:
    """The programs of a model, built and stitched; arguments and errors as for `plan_programs`."""
    return {name: build_program(plan) for name, plan in plan_programs(shape, seq_len, only).items()}
