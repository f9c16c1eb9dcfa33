"""How a kernel uses its buffer arguments: which it reads, which it writes, and which comes first.

An operation this page does not know (a call into an object file, say) may read and may write: it
counts as a use, and it never causes a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import memref, scf, vector
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.dialects.linalg.ops import FillOp
from xdsl.ir import Operation, SSAValue, Use
from xdsl.traits import SymbolTable

from air_dialect.ops import ChannelGetOp, ChannelPutOp, DmaMemcpyNdOp, HierarchyOp
from air_dialect.upstream.memref import ReshapeOp, TransposeOp
from multi_launch_builder.submodule import SubModule

READ = "read"
WRITE = "write"
BOTH = "read and write"
UNKNOWN = "may read, may write"
NONE = "none"

_VIEWS = (
    memref.SubviewOp,
    memref.CastOp,
    memref.ReinterpretCastOp,
    memref.CollapseShapeOp,
    memref.ExpandShapeOp,
    memref.MemorySpaceCastOp,
    memref.ViewOp,
    TransposeOp,
    ReshapeOp,
)
_READERS = (ChannelPutOp, memref.LoadOp, vector.LoadOp, vector.TransferReadOp)
_WRITERS = (ChannelGetOp, memref.StoreOp, vector.StoreOp, vector.TransferWriteOp, FillOp)
_NO_ACCESS = (memref.DeallocOp, memref.DimOp, memref.RankOp, ReturnOp)


@dataclass(frozen=True)
class Access:
    """What a launch does to one buffer. `may_` is what it can do, the others are what it does for certain."""

    may_read: bool
    may_write: bool
    writes: bool
    reads_first: bool


def argument_accesses(sub: SubModule) -> dict[str, Access]:
    """For every argument of the kernel, by name, how it is accessed; order is the order in the text."""
    order = {id(op): position for position, op in enumerate(sub.function.walk())}
    return {
        name: _summary(argument, order)
        for name, argument in zip(sub.argument_names, sub.arguments, strict=True)
    }


def _summary(argument: SSAValue, order: dict[int, int]) -> Access:
    found = sorted(
        ((order.get(id(use.operation), len(order)), kind) for use, kind in _accesses(argument)),
        key=lambda access: access[0],
    )
    kinds = {kind for _, kind in found}
    first = next((position for position, _ in found), None)
    at_first = {kind for position, kind in found if position == first}
    return Access(
        may_read=bool(kinds & {READ, BOTH, UNKNOWN}),
        may_write=bool(kinds & {WRITE, BOTH, UNKNOWN}),
        writes=bool(kinds & {WRITE, BOTH}),
        reads_first=READ in at_first,
    )


def _accesses(value: SSAValue) -> Iterator[tuple[Use, str]]:
    """Every access to `value` and to the views of it, through hierarchy operations and calls."""
    for use in value.uses:
        inner = _inner_names(use)
        if inner:
            for alias in inner:
                yield from _accesses(alias)
        else:
            kind = _access_kind(use)
            if kind != NONE:
                yield use, kind


def _inner_names(use: Use) -> list[SSAValue]:
    """What the used value is called inside or after the operation, where that only passes it on."""
    op = use.operation
    value = op.operands[use.index]
    if isinstance(op, HierarchyOp):
        pairs = zip(op.kernel_operands, op.kernel_args, strict=True)
        return [argument for operand, argument in pairs if operand is value]
    if isinstance(op, _VIEWS):
        return [op.results[0]]
    if isinstance(op, CallOp):
        return _callee_arguments(op, use.index)
    if isinstance(op, scf.ForOp) and use.index >= 3:
        return [op.body.block.args[use.index - 2], op.results[use.index - 3]]
    return []


def _callee_arguments(call: CallOp, index: int) -> list[SSAValue]:
    callee = SymbolTable.lookup_symbol(call, call.callee)
    if isinstance(callee, FuncOp) and not callee.is_declaration:
        return [callee.args[index]]
    return []


def _access_kind(use: Use) -> str:
    op = use.operation
    value = op.operands[use.index]
    if isinstance(op, _NO_ACCESS):
        return NONE
    if isinstance(op, _READERS):
        return READ
    if isinstance(op, _WRITERS):
        return WRITE
    if isinstance(op, DmaMemcpyNdOp):
        return _copy_kind(value, op.dst, op.src)
    if isinstance(op, memref.CopyOp):
        return _copy_kind(value, op.destination, op.source)
    return _structured_kind(op, value)


def _copy_kind(value: SSAValue, destination: SSAValue, source: SSAValue) -> str:
    if destination is source:
        return BOTH
    return WRITE if value is destination else READ


def _structured_kind(op: Operation, value: SSAValue) -> str:
    """linalg operations read their `ins`; an `outs` they may read as well as write."""
    if not op.name.startswith("linalg."):
        return UNKNOWN
    return READ if value in tuple(getattr(op, "inputs", ())) else BOTH
