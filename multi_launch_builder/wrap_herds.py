"""Puts bare herds into a launch and a segment.

A multi-launch module needs both around every herd: mlir-air's `airrt-to-npu` finds the work of a launch by
its segment, and drops a bare herd as soon as other launches have segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IndexType
from xdsl.dialects.memref import AllocOp, DeallocOp, GetGlobalOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from aerie.air_dialect.ops import (
    ChannelGetOp,
    ChannelPutOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    SegmentOp,
    WaitAllOp,
)
from aerie.air_dialect.types import AsyncTokenType, MemorySpace, memory_space
from aerie.multi_launch_builder.submodule import StitchError, SubModule

_DEVICE_OPS = (HierarchyOp, ChannelPutOp, ChannelGetOp, DmaMemcpyNdOp, ExecuteOp, WaitAllOp)
_REMADE = (ConstantOp, GetGlobalOp)
_L3_USERS = (ChannelPutOp, ChannelGetOp, AllocOp, DeallocOp)


def wrap_bare_herds(sub: SubModule) -> None:
    """Wrap, in place, what is outside a launch in a launch, and herds outside a segment in a segment.

    If the kernel has no launch, its body from the first device operation to the last becomes one. Inside the
    launch, everything moves into the segment except index arithmetic, L3 allocations and the L3 ends of
    channels, which the launch keeps.
    Raises StitchError if a token or a result would cross the border of the new launch or segment.
    """
    block = sub.entry
    if _contains(sub.function, LaunchOp):
        for op in list(block.ops):
            if _contains(op, (HerdOp, SegmentOp)) and not _contains(op, LaunchOp):
                _enclose([op], LaunchOp, sub.label, None)
    elif _contains(sub.function, HierarchyOp):
        _enclose(_device_part(list(block.ops)), LaunchOp, sub.label, None)
    for launch in [op for op in block.walk() if isinstance(op, LaunchOp)]:
        body = launch.body.block
        if _contains(launch, HerdOp) and not _contains(launch, SegmentOp):
            inner = [op for op in list(body.ops)[:-1] if not _stays_in_launch(op)]
            _enclose(inner, SegmentOp, sub.label, "segment")


def _device_part(ops: list[Operation]) -> list[Operation]:
    """From the first operation that the device runs, or that waits for one, to the last."""
    places = [place for place, op in enumerate(ops) if _contains(op, _DEVICE_OPS)]
    return ops[places[0] : places[-1] + 1]


def _contains(op: Operation, kind: type[Operation] | tuple[type[Operation], ...]) -> bool:
    return any(isinstance(inner, kind) for inner in op.walk())


def _stays_in_launch(op: Operation) -> bool:
    """True for index arithmetic, L3 allocations, a channel end on an L3 buffer, and a loop of such ends."""
    if op.results and not op.regions and all(isinstance(result.type, IndexType) for result in op.results):
        return True
    if _contains(op, HerdOp):
        return False
    return any(
        memory_space(inner.memref.type) == MemorySpace.L3
        for inner in op.walk()
        if isinstance(inner, _L3_USERS)
    )


def _enclose(
    ops: Sequence[Operation], kind: type[LaunchOp] | type[SegmentOp], label: str, name: str | None
) -> None:
    """Move `ops`, of one block, into a new operation of `kind` at the place of the last.

    Buffers and indices from outside come in as arguments; constants from outside are created again inside.
    """
    constants, captured = _outside_values(ops)
    _check_closed(ops, captured, kind, label)
    hierarchy = kind([], captured, sym_name=name)
    block = ops[-1].parent
    assert block is not None
    block.insert_op_after(hierarchy, ops[-1])
    copies = [constant.clone() for constant in constants]
    builder = hierarchy.body_builder()
    for op in copies:
        builder.insert(op)
    for op in ops:
        builder.insert(block.detach_op(op))
    for constant, copy in zip(constants, copies, strict=True):
        _replace_inside(constant.results[0], copy.results[0], hierarchy)
        if not constant.results[0].first_use:
            Rewriter.erase_op(constant)
    for outer, inner in zip(captured, hierarchy.kernel_args, strict=True):
        inner.name_hint = outer.name_hint
        _replace_inside(outer, inner, hierarchy)


def _outside_values(ops: Sequence[Operation]) -> tuple[list[Operation], list[SSAValue]]:
    """What `ops` use from outside themselves: constants and globals, and other values."""
    constants: dict[Operation, None] = {}
    captured: dict[SSAValue, None] = {}
    for value in _operands(ops):
        owner = value.owner
        if _is_inside(owner, ops):
            continue
        if isinstance(owner, _REMADE):
            constants[owner] = None
        else:
            captured[value] = None
    return list(constants), list(captured)


def _operands(ops: Iterable[Operation]) -> Iterable[SSAValue]:
    return (operand for op in ops for inner in op.walk() for operand in inner.operands)


def _is_inside(owner: Operation | Block, ops: Sequence[Operation]) -> bool:
    return any(op.is_ancestor(owner) for op in ops)


def _check_closed(
    ops: Sequence[Operation], captured: Sequence[SSAValue], kind: type[HierarchyOp], label: str
) -> None:
    """Refuse a token or a result that would cross the border of the new operation."""
    leaving = [use.operation for op in ops for result in op.results for use in result.uses]
    tied = [user for user in leaving if not _is_inside(user, ops)]
    tied += [op for op in ops if any(value in captured for value in _tokens(op))]
    if tied:
        raise StitchError(
            f"launch '{label}': '{tied[0].name}' depends on a result across the border of the {kind.name} "
            f"that its herd needs; write {kind.name} around both in the kernel"
        )


def _tokens(op: Operation) -> Iterable[SSAValue]:
    return (value for value in op.operands if isinstance(value.type, AsyncTokenType))


def _replace_inside(outer: SSAValue, inner: SSAValue, hierarchy: HierarchyOp) -> None:
    outer.replace_uses_with_if(
        inner, lambda use: use.operation is not hierarchy and hierarchy.is_ancestor(use.operation)
    )
