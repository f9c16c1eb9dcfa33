"""How the bodies of a program execute: in a plain C++ function, or in a coroutine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from xdsl.dialects import affine, func, scf
from xdsl.dialects.builtin import BFloat16Type, IndexType, IntegerType, ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from aerie.air_dialect.effects import accesses
from aerie.air_dialect.index_constants import leaves
from aerie.air_dialect.index_expressions import iteration_range
from aerie.air_dialect.ops import ChannelTransferOp, HerdOp, HierarchyOp, LaunchOp, SegmentOp
from aerie.air_dialect.upstream.vector_memory import MaskOp
from aerie.air_dialect.values import walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.effects import CHANNEL_TRANSFERS, channels_used
from aerie.virtual_npu.codegen.op_errors import with_op_in_errors
from aerie.virtual_npu.options import BuildOptions


class BodyMode(enum.Enum):
    """How the body of a function, launch, segment or herd executes."""

    STRAIGHT = "straight"
    """Program order, without suspension: a plain C++ function."""
    PROCESS = "process"
    """Program order with channel operations that may suspend: a coroutine. Herd tiles."""
    SEQUENCER = "sequencer"
    """Issues engine operations in program order and lets them finish in any legal order: a coroutine."""


def is_coroutine(op: HierarchyOp, options: BuildOptions) -> bool:
    """Whether the points of a launch, segment or herd are coroutines: with checks, all are."""
    return options.checks or bool(channels_used(op))


def hierarchy_mode(op: HierarchyOp, options: BuildOptions) -> BodyMode:
    """How the body of a launch, segment or herd executes."""
    if not is_coroutine(op, options):
        return BodyMode.STRAIGHT
    return BodyMode.PROCESS if isinstance(op, HerdOp) else BodyMode.SEQUENCER


def function_mode(op: func.FuncOp, options: BuildOptions) -> BodyMode:
    """SEQUENCER for a function where a channel is used outside of launches, or by several; else STRAIGHT.

    With checks also SEQUENCER where operations outside of launches run side by side.
    """
    if options.checks and any(_is_engine(inner) for inner in _outside_launches(op)):
        return BodyMode.SEQUENCER
    earlier: set[str] = set()
    for launch in [inner for inner in walk(op) if isinstance(inner, LaunchOp)]:
        used = set(channels_used(launch))
        if used & earlier:
            return BodyMode.SEQUENCER
        earlier |= used
    is_used_outside = any(inner.name in CHANNEL_TRANSFERS for inner in _outside_launches(op))
    return BodyMode.SEQUENCER if is_used_outside else BodyMode.STRAIGHT


def _outside_launches(op: Operation) -> Iterator[Operation]:
    """The operations in a function that are in no launch, and the launches."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield inner
                if not isinstance(inner, LaunchOp):
                    yield from _outside_launches(inner)


def _is_engine(op: Operation) -> bool:
    """Whether an operation of a function runs beside others: a launch only with a token."""
    if isinstance(op, LaunchOp):
        return op.async_token is not None
    return op.name.startswith("air.") and not op.name.endswith("_terminator")


def enclosing_function(op: Operation) -> func.FuncOp | None:
    """The function that an operation is in; None for one in no function."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, func.FuncOp):
        parent = parent.parent_op()
    return parent


RECURSIVE = "vnpu.recursive"
"""The attribute of a function that calls itself, directly or by way of others (passes/inline.py)."""


# ---- launches ----

_STRAIGHT_ON = ("air.execute", "scf.execute_region", "vnpu.borrow", "vnpu.lend")
"""What has a region that it always enters, once."""
_LOOPS = (scf.ForOp, affine.ForOp, scf.ParallelOp, affine.ParallelOp)
_BRANCHES = (scf.IfOp, affine.IfOp)


def has_uniform_transfers(launch: LaunchOp) -> bool:
    """Whether every point of a launch makes the same puts and gets.

    So it is where constants, loop variables, and coordinates of segments and herds alone say which there are.
    """
    deciding: set[SSAValue] = set()
    for op in walk(launch):
        if isinstance(op, ChannelTransferOp):
            deciding.update(op.indices)
        elif op is not launch and op.regions and channels_used(op):
            if isinstance(op, HierarchyOp):
                deciding.update(op.sizes)
            elif isinstance(op, _LOOPS + _BRANCHES):
                deciding.update(value for value in op.operands if _is_number(value))
            elif op.name not in _STRAIGHT_ON:
                return False
    return all(_is_of_a_body(leaf) for value in deciding for leaf in leaves(value))


def _is_number(value: SSAValue) -> bool:
    return isinstance(value.type, IndexType | IntegerType)


def _is_of_a_body(leaf: SSAValue) -> bool:
    """Whether a value is a loop variable, or a coordinate of a segment or herd."""
    if not isinstance(leaf, BlockArgument):
        return False
    around = leaf.owner.parent_op()
    if isinstance(around, SegmentOp | HerdOp):
        return leaf in around.ids
    return isinstance(around, _LOOPS) and iteration_range(leaf) is not None


# ---- rounding ----


def mode_registers(herd: HerdOp, mode: BodyMode, options: BuildOptions) -> str:
    """The C++ declaration of the registers that say how a core rounds; empty where the body needs none.

    By default generated code rounds to nearest even, and the registers matter to external kernels alone. A
    build with rounding `floor` follows the core throughout: generated code and kernels share one register, in
    which a core starts with `floor` and which a kernel may set. mlir-aie's compiler sets it to `conv_even`
    first on every core with a matrix product of bf16 (AIECoreToStandard, pull requests 2984 and 2993), and so
    it is here; on other cores a function sets it (`round_to_even` of kernel_builder's dsl.py).
    """
    follows = options.rounding == "floor"
    first = "vnpu::kConvEven" if follows and any(map(_multiplies_bf16, _on_same_cores(herd))) else ""
    if mode is BodyMode.PROCESS:  # the scheduler puts the registers in place
        return f"vnpu::exchange_modes({first});" if first else ""
    if follows or any(isinstance(inner, func.CallOp) for inner in walk(herd)):
        return f"const vnpu::CoreModes modes{{{first}}};"
    return ""


def _on_same_cores(herd: HerdOp) -> Iterator[HerdOp]:
    """The herd, and all of its name in the same function: they are phases of the same cores."""
    for op in walk(enclosing_function(herd) or herd):
        if isinstance(op, HerdOp) and (op is herd or (herd.sym_name and op.sym_name == herd.sym_name)):
            yield op


def _multiplies_bf16(herd: HerdOp) -> bool:
    return any(
        op.name == "vector.contract" and isinstance(types.element(op.operands[0].type), BFloat16Type)
        for op in walk(herd)
    )


# ---- walks ----


def visit_operations(
    module: ModuleOp, options: BuildOptions, visit: Callable[[Operation, BodyMode], bool]
) -> None:
    """Call `visit` with every operation of the functions that can run, and the mode of the body it is in.

    Pre-order; the regions of an operation are entered where `visit` returns true. It may replace the
    operation.
    """
    for function in _reached_functions(module):
        _visit_inside(function, function_mode(function, options), options, visit)


def _visit_inside(
    holder: Operation, mode: BodyMode, options: BuildOptions, visit: Callable[[Operation, BodyMode], bool]
) -> None:
    for op in [op for region in holder.regions for block in region.blocks for op in block.ops]:
        with with_op_in_errors(op):
            is_entered = visit(op, mode)
        if not is_entered:
            continue
        inner = mode
        if isinstance(op, HierarchyOp):
            inner = hierarchy_mode(op, options)
        elif mode is BodyMode.SEQUENCER and accesses_memory(op):
            inner = BodyMode.STRAIGHT
        _visit_inside(op, inner, options, visit)


def accesses_memory(op: Operation) -> bool:
    """Whether an operation other than AIR's reads or writes buffers itself, not just in its regions."""
    masked = op.masked if isinstance(op, MaskOp) else None
    return not op.name.startswith("air.") and bool(accesses(masked or op))


def public_functions(module: ModuleOp) -> list[func.FuncOp]:
    """The functions with a body that are not private."""
    found = [op for op in module.body.block.ops if isinstance(op, func.FuncOp) and op.body.blocks]
    return [op for op in found if op.sym_visibility is None or op.sym_visibility.data == "public"]


def _reached_functions(module: ModuleOp) -> list[func.FuncOp]:
    """The public functions, and those with a body that they call."""
    symbols = {op.sym_name.data: op for op in walk(module) if isinstance(op, func.FuncOp)}
    found = dict.fromkeys(public_functions(module))
    pending = list(found)
    while pending:
        calls = (op for op in walk(pending.pop()) if isinstance(op, func.CallOp))
        names = (call.callee.root_reference.data for call in calls)
        new = [symbols[name] for name in names if name in symbols and symbols[name].body.blocks]
        pending += [op for op in new if op not in found]
        found.update(dict.fromkeys(new))
    return list(found)
