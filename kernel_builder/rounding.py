"""How a core rounds f32 to bf16 in code without a C++ function of its own.

A core rounds as a register says, which starts with floor: towards minus infinity. No operation of a herd sets
it. mlir-aie's compiler sets it when a core starts: to nearest even where it multiplies matrices of bf16, and
to floor, in the version we name, where f32 is only rounded (lib/Dialect/AIE/Transforms/AIECoreToStandard.cpp;
pull request 3587 is about that). So a C++ function sets it, after that and before the first rounding.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter

from kernel_builder.buffers import Buffer
from kernel_builder.dsl import Kernel

NAME = "round_to_even"


def round_to_even(k: Kernel, first: Buffer) -> None:
    """Have the core round to nearest even from here on. first: the L1 buffer that it works on next.

    mlir-air orders what a core does by its buffers (air-dependency), so the call takes one. Where a loop
    fills that buffer, call inside the loop: used outside as well it would no longer be double-buffered.
    """
    symbol = "_".join([NAME, first.dtype.name, *map(str, first.type.shape)])
    k.external(symbol, f"{symbol}.o", [first.type], f"{NAME}.cc", {NAME: symbol})(first)


def without_rounding(module: ModuleOp) -> ModuleOp:
    """A copy whose cores nobody tells how to round: upstream's own, or ours if the call had no effect."""
    copy = module.clone()
    for op in [op for op in copy.walk() if _is_ours(op)]:
        Rewriter.erase_op(op)
    return copy


def _is_ours(op: Operation) -> bool:
    if isinstance(op, CallOp):
        return op.callee.root_reference.data.startswith(f"{NAME}_")
    return isinstance(op, FuncOp) and op.sym_name.data.startswith(f"{NAME}_")
