"""Hoists L1 buffers that are never freed: each is static, for the whole program, as on the device.

- A buffer that a loop of a core allocates is allocated before the loop: every trip has the same buffer.
- A buffer that a core may read before it writes it, such as a counter, keeps its content for the next point
  of the launch. So it is allocated outside of the launch and passed in (PERSISTENT), the points run one after
  another, and it starts with zeros. Only a buffer with constant indices is a counter (COUNTER), whose zeros
  count as written. Sums that were not cleared are reported as an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from xdsl.dialects import func, memref, scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    UnitAttr,
    i32,
)
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from aerie.air_dialect.assembly import OPERAND_SEGMENT_SIZES
from aerie.air_dialect.effects import ACCESSES, FREE, READ, VIEWS, WRITE, Effect, memory_effects
from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.index_expressions import literal_constant
from aerie.air_dialect.ops import (
    AsyncTokenType,
    ExecuteOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    MemorySpace,
    SegmentOp,
    WaitAllOp,
)
from aerie.air_dialect.values import resolve_alias, walk
from aerie.air_dialect.verifiers import parent_ops
from aerie.virtual_npu.codegen.sharing import COUNTER, PERSISTENT, are_shared, herds_using, is_in


def hoist_l1_buffers(module: ModuleOp) -> None:
    """Change a module in place."""
    launches: dict[LaunchOp, None] = {}
    memory_work = functools.cache(_memory_work)
    for alloc in [op for op in walk(module) if isinstance(op, memref.AllocOp)]:
        if not _is_static_l1(alloc):
            continue
        # Nothing outside of the innermost body around has the buffer.
        around = next((op for op in parent_ops(alloc) if isinstance(op, func.FuncOp | HierarchyOp)), alloc)
        touching = list(_touching(alloc, memory_work(around)))
        if any(FREE in effect for _, effect in touching):
            continue
        if _lasts(alloc, touching):
            launches.update(dict.fromkeys(_move_out(alloc, touching)))
        else:
            _move_before_loops(alloc)
    for launch in launches:
        _serialise(launch)


def _is_static_l1(alloc: memref.AllocOp) -> bool:
    return is_in(alloc.memref, MemorySpace.L1) and DYNAMIC_INDEX not in alloc.memref.type.get_shape()


# ---- what happens to a buffer ----


_Work = list[tuple[Operation, list[tuple[int, Effect]]]]


def _memory_work(around: Operation) -> _Work:
    """The operations of a body that touch memrefs or give them other names, in the order of the text,
    and what they do to their operands. No move of an allocation changes it."""
    work = [
        (
            op,
            [(position, effect) for position, effect in memory_effects(op) if effect & (READ | WRITE | FREE)],
        )
        for op in walk(around)
    ]
    return [(op, done) for op, done in work if done or op.name in VIEWS or isinstance(op, _RENAMING)]


_RENAMING = (HierarchyOp, ExecuteOp)
"""Operations that have other names for a buffer inside, or as a result."""


def _touching(alloc: memref.AllocOp, work: _Work) -> Iterator[tuple[Operation, Effect]]:
    """The operations on a buffer, in the order of the text, and their effects; views are looked through.

    work: that of the body around it.
    """
    names: set[SSAValue] = {alloc.memref}
    for op, done in work:
        for position, effect in done:
            if op.operands[position] in names:
                yield op, _of_call(op, position) if isinstance(op, func.CallOp) else effect
        if op.name in VIEWS and op.operands and op.operands[0] in names:
            names.add(op.results[0])
        names.update(result for result in op.results if resolve_alias(result) in names)
        if isinstance(op, HierarchyOp):
            pairs = zip(op.kernel_args, op.kernel_operands, strict=True)
            names.update(argument for argument, operand in pairs if operand in names)


def _of_call(call: func.CallOp, position: int) -> Effect:
    """The effect of a call on an operand: mlir-air takes the last memref as written, the others as read."""
    memrefs = [i for i, value in enumerate(call.operands) if isinstance(value.type, MemRefType)]
    return WRITE if position == memrefs[-1] else READ


def _element(op: Operation) -> tuple[int, ...] | None:
    """The element that an operation loads or stores; None where the text does not say one."""
    if op.name not in ("memref.load", "memref.store"):
        return None
    indices = [literal_constant(index) for index in op.operands[ACCESSES[op.name][0] + 1 :]]
    known = tuple(index for index in indices if index is not None)
    return known if len(known) == len(indices) else None


_BRANCHES = ("scf.if", "affine.if", "scf.index_switch", "scf.while")


def _lasts(alloc: memref.AllocOp, touching: list[tuple[Operation, Effect]]) -> bool:
    """Whether cores that each have the buffer alone may read it before they write it."""
    inside = [isinstance(op, HerdOp) for op in parent_ops(alloc)]
    around = [op for op in parent_ops(alloc) if isinstance(op, SegmentOp)]
    if any(constant_int(size) != 1 for segment in around for size in segment.sizes):
        return False
    if not any(inside) and (not herds_using(alloc.memref) or are_shared(herds_using(alloc.memref))):
        return False
    written = set[tuple[int, ...] | None]()
    for op, effect in touching:
        if READ in effect and not {_element(op), None} & written:
            return True
        if WRITE in effect and not any(parent.name in _BRANCHES for parent in parent_ops(op)):
            written.add(_element(op))
    return False


# ---- moves ----


def _move_before_loops(alloc: memref.AllocOp) -> None:
    """Allocate it where its core begins, if a loop does so again and again."""
    herd = next((op for op in parent_ops(alloc) if isinstance(op, HerdOp)), None)
    if herd is None or alloc.parent_op() is herd:
        return
    alloc.detach()  # type: ignore[no-untyped-call]
    herd.body.block.insert_op_before(alloc, herd.body.block.first_op)  # type: ignore[arg-type]


def _move_out(alloc: memref.AllocOp, touching: list[tuple[Operation, Effect]]) -> list[LaunchOp]:
    """Allocate it in the function, once; gives the launches that it was in."""
    levels = [op for op in parent_ops(alloc) if isinstance(op, HierarchyOp)]
    alloc.attributes[PERSISTENT] = UnitAttr()
    if all(_element(op) is not None for op, _ in touching):
        alloc.attributes[COUNTER] = UnitAttr()
    function = next((op for op in parent_ops(alloc) if isinstance(op, func.FuncOp)), None)
    if function is None:
        return []
    inner = SSAValue.get(alloc.memref)
    users = list(inner.uses)
    alloc.detach()  # type: ignore[no-untyped-call]
    function.body.block.insert_op_before(alloc, function.body.block.first_op)  # type: ignore[arg-type]
    for level in reversed(levels):
        inner = _hand_in(level, inner)
    if levels:
        for use in users:
            use.operation.operands[use.index] = inner
    return [level for level in levels if isinstance(level, LaunchOp)]


def _hand_in(level: HierarchyOp, value: SSAValue) -> SSAValue:
    """Add a value to what a hierarchy captures; gives its name inside."""
    sizes = level.properties[OPERAND_SEGMENT_SIZES]
    assert isinstance(sizes, DenseArrayBase)
    *others, captured = (int(size) for size in sizes.get_values())
    level.operands = [*level.operands, value]
    level.properties[OPERAND_SEGMENT_SIZES] = DenseArrayBase.from_list(i32, [*others, captured + 1])
    inner = level.body.block.insert_arg(value.type, len(level.body.block.args))
    inner.name_hint = value.name_hint
    return inner


# ---- points one after another ----


def _serialise(launch: LaunchOp) -> None:
    """Put loops around a launch, in each trip of which one of its points runs."""
    if all(constant_int(size) == 1 for size in launch.sizes):
        return
    before = InsertPoint.before(launch)
    if launch.async_dependencies:
        _insert(launch, WaitAllOp.build(operands=[launch.async_dependencies], result_types=[None]), before)
    points: list[SSAValue] = []
    for size in launch.sizes:
        zero, one = (ConstantOp(IntegerAttr(n, IndexType())) for n in (0, 1))
        body = Block([scf.YieldOp()], arg_types=[IndexType()])
        for op in (zero, one, scf.ForOp(zero.result, size, one.result, [], Region(body))):
            _insert(launch, op, before)
        end = body.last_op
        assert end is not None
        points.append(body.args[0])
        before = InsertPoint.before(end)
    _insert(launch, _one_point(launch, points), before)
    tokens: list[SSAValue] = []
    if launch.async_token is not None:
        done = WaitAllOp.build(operands=[[]], result_types=[AsyncTokenType()])
        _insert(launch, done, InsertPoint.before(launch))
        tokens = [done.results[0]]
    Rewriter.replace_op(launch, [], tokens)


def _one_point(launch: LaunchOp, points: list[SSAValue]) -> LaunchOp:
    """A launch of one point with the body of another one, whose coordinates and sizes are captured."""
    body = launch.detach_region(launch.body)
    return LaunchOp((), [*points, *launch.sizes, *launch.kernel_operands], body, sym_name=launch.sym_name)


def _insert(origin_: Operation, op: Operation, before: InsertPoint) -> None:
    op.location = origin_.location
    Rewriter.insert_op(op, before)
