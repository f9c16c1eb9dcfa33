"""The mode registers of a core, which say how it rounds: what a herd's body declares to have its own.

By default generated code rounds to nearest even, and the registers matter to external kernels alone. A
build with rounding `floor` follows the core throughout: generated code and kernels share one register, in
which a core starts with `floor` and which a kernel may set. mlir-aie's compiler sets it to `conv_even` first
on every core with a matrix product of bf16 (AIECoreToStandard, pull requests 2984 and 2993), and so it is
here; other cores are told by a function (kernel_builder's rounding.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import func
from xdsl.dialects.builtin import BFloat16Type
from xdsl.ir import Operation

from air_dialect.ops import HerdOp
from virtual_npu.codegen import types
from virtual_npu.options import BuildOptions


def mode_registers(herd: HerdOp, takes_turns: bool, options: BuildOptions) -> str:
    """The declaration; empty where the body needs none. `takes_turns`: the tile is a process among others."""
    follows = options.rounding == "floor"
    first = "vnpu::kConvEven" if follows and any(map(_multiplies_bf16, _on_same_cores(herd))) else ""
    if takes_turns:  # the scheduler puts the registers in place
        return f"vnpu::exchange_modes({first});" if first else ""
    if follows or any(isinstance(inner, func.CallOp) for inner in herd.walk()):
        return f"const vnpu::CoreModes modes{{{first}}};"
    return ""


def _on_same_cores(herd: HerdOp) -> Iterator[HerdOp]:
    """The herd, and all of its name in the same function: they are phases of the same cores."""
    root: Operation | None = herd
    while root is not None and not isinstance(root, func.FuncOp):
        root = root.parent_op()
    for op in (root or herd).walk():
        if isinstance(op, HerdOp) and (op is herd or (herd.sym_name and op.sym_name == herd.sym_name)):
            yield op


def _multiplies_bf16(herd: HerdOp) -> bool:
    return any(
        op.name == "vector.contract" and isinstance(types.element(op.operands[0].type), BFloat16Type)
        for op in herd.walk()
    )
