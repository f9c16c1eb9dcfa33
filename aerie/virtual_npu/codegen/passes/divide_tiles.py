"""Finds the loop of a tile whose trips are independent, so that threads can share them.

A herd has as many tiles as the device has cores or columns, and a CPU may have more threads, or slower and
faster ones. A tile that computes independent outputs one after the other, such as the rows of a GEMV, gives
the same bits if each part of its loop runs as a tile of its own, from the tile's first operation on. It does
where

- the tile is straight code (no channels): operations, one loop, deallocations;
- the operations before the loop write nothing but buffers that the tile allocates, so that a second tile may
  do them again;
- a trip reads no buffer of the tile that an earlier trip wrote: what it writes, it overwrites as a whole
  before it reads it (`_Trip`);
- two trips write no element outside of the tile in common, and read none that a trip writes. Memrefs that
  are not the same may overlap in memory: the program looks when it runs (`vnpu::are_apart`), and then leaves
  tiles whole.

A function in C++ counts as reading and writing what it does not take as a pointer to const. A declaration
before its definition says what it overwrites (`external_kernels.Overwrite`). In a loop only functions with
such a declaration may stand, for others may depend on what they did before: the core's modes, variables.

The loop gets the attribute `vnpu.divided`: how many of its trips are worth handing to a thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, VectorType, i64
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.effects import (
    ACCESSES,
    ALLOCATIONS,
    FREE,
    READ,
    UNKNOWN,
    VIEWS,
    WRITE,
    is_memref,
    memory_effects,
)
from aerie.air_dialect.index_intervals import analyze_loop
from aerie.air_dialect.linear_forms import LinearForm, linear_form, weighted_sum
from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp
from aerie.air_dialect.values import root_value
from aerie.device.external_kernels import Overwrite
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.dialect import DIVIDED, BorrowOp
from aerie.virtual_npu.codegen.execution import BodyMode, is_coroutine, visit_operations
from aerie.virtual_npu.codegen.passes.dma_views import side_offset, walk_extents, writes_whole
from aerie.virtual_npu.codegen.passes.external_promises import ExternalPromises
from aerie.virtual_npu.codegen.passes.loops import Loop, only_computes
from aerie.virtual_npu.options import BuildOptions

WORTH_BYTES = 16 << 10
"""Bytes that a thread moves at least in its share of the trips. The hand-over to a thread takes longer than
moving less."""


def divide_tiles(module: ModuleOp, options: BuildOptions, kernel_dirs: Sequence[Path]) -> None:
    """Mark the loops that threads may share; `kernel_dirs` are where the sources of functions in C++ are
    looked up."""
    promises = ExternalPromises(module, kernel_dirs)

    def visit(op: Operation, _: BodyMode) -> bool:
        if isinstance(op, HerdOp) and op.has_body and not is_coroutine(op, options):
            loop = independent_loop(op, promises)
            if loop is not None:
                loop.attributes[DIVIDED] = IntegerAttr(_grain(loop), i64)
        return True

    visit_operations(module, options, visit)


def independent_loop(herd: HerdOp, promises: ExternalPromises) -> scf.ForOp | None:
    """The loop in a herd's tiles whose trips threads may share; None if there is none."""
    ops = list(herd.body.block.ops)
    loops = [op for op in ops if isinstance(op, scf.ForOp)]
    if not loops or loops[-1].iter_args or not _is_counted(loops[-1]):
        return None
    loop, place = loops[-1], ops.index(loops[-1])
    before, after = ops[:place], ops[place + 1 :]
    if not all(only_computes(op) or op.name in ("memref.dealloc", "air.herd_terminator") for op in after):
        return None
    try:
        trip = _Trip(loop, before, promises)
        trip.run()
        first = [_touched(op, promises) for op in _inside(before)]
    except _DependentError:
        return None
    reads = {root_value(value) for touched in first for value in touched.reads}
    writes = {root_value(value) for touched in first for value in touched.writes}
    is_repeatable = all(map(trip.is_own, writes)) and not reads & trip.outside
    return loop if trip.outside and is_repeatable else None


def _is_counted(loop: scf.ForOp) -> bool:
    counted = analyze_loop(loop)
    return counted is not None and counted.trip_count > 1


class _DependentError(Exception):
    """Nothing shows that the trips are independent."""


# ---- what an operation touches ----


@dataclass
class _Touched:
    """The memrefs that an operation reads and writes.

    overwrites: those of `writes` that it does not read before; which elements, or None where that is not
    known.
    """

    reads: list[SSAValue] = field(default_factory=list)
    writes: list[SSAValue] = field(default_factory=list)
    overwrites: dict[SSAValue, _Elements | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Elements:
    """Elements of a memref: the first one, and (step, count) of each axis. Without axes: one element."""

    start: LinearForm
    axes: tuple[tuple[int, int], ...]


_LOOPS = ("scf.for", "affine.for")
_BRANCHES = ("scf.if", "affine.if")
_AROUND = ("vnpu.borrow", "vnpu.borrowed", *_LOOPS, *_BRANCHES)
_MAKES_MEMREFS = ("vnpu.borrowed", *ALLOCATIONS, *VIEWS)
_SILENT = ("scf.yield", "affine.yield", "vnpu.yield")


def _inside(ops: Sequence[Operation]) -> Iterator[Operation]:
    """The operations, and those in the regions of loops, branches and wrappers."""
    for op in ops:
        yield op
        if op.name in _AROUND:
            yield from _inside(
                [inner for region in op.regions for each in region.blocks for inner in each.ops]
            )


def _is_known(op: Operation) -> bool:
    """Whether an operation does nothing but what the table of memory effects says, and passes no memrefs on
    under another name."""
    carried = [argument for region in op.regions for block in region.blocks for argument in block.args]
    made = [] if op.name in _MAKES_MEMREFS else op.results
    if op.name in _AROUND and any(is_memref(value) for value in (*carried, *made)):
        return False
    names = (*_AROUND, *_MAKES_MEMREFS, *_SILENT, *ACCESSES, "air.dma_memcpy_nd")
    is_computation = only_computes(op) or op.name.startswith(("math.", "vector.", "linalg."))
    return op.name in names or is_computation


def _touched(op: Operation, promises: ExternalPromises) -> _Touched:
    """What an operation reads and writes. Raises _DependentError if that is not known."""
    if isinstance(op, func.CallOp):
        return _of_call(op, promises)
    found = _Touched()
    for position, effect in memory_effects(op):
        value = op.operands[position]
        if effect in (FREE, UNKNOWN):
            raise _DependentError
        if READ in effect:
            found.reads.append(value)
        if WRITE in effect:
            found.writes.append(value)
            if READ not in effect:
                found.overwrites[value] = _written(op, value)
    if not _is_known(op):
        raise _DependentError
    return found


def _of_call(call: func.CallOp, promises: ExternalPromises) -> _Touched:
    found, constant = _Touched(), promises.unwritten_by(call)
    if call.results or constant is None:
        raise _DependentError
    declared = {part.position: part for part in promises.overwritten_by(call)}
    for position, value in enumerate(call.operands):
        if not is_memref(value):
            continue
        if position not in constant:
            found.writes.append(value)
        if position in declared and position not in constant:
            found.overwrites[value] = _declared(call, declared[position])
        else:
            found.reads.append(value)
    return found


def _declared(call: func.CallOp, part: Overwrite) -> _Elements | None:
    """The elements that a call overwrites; None where it does not say. Where it depends on a parameter, the
    caller asks for that."""
    type_ = call.operands[part.position].type
    assert isinstance(type_, MemRefType)
    if not part.end:
        return _Elements(LinearForm(), ((1, prod(type_.get_shape())),))
    arguments = dict(zip(part.parameters, call.operands, strict=False))
    begin, end = _evaluate(part.begin, arguments), _evaluate(part.end, arguments)
    count = None if begin is None or end is None else end.plus(begin.times(-1))
    if begin is None or count is None or count.terms:
        return None
    return _Elements(begin, ((1, count.constant),))


def _evaluate(text: str, arguments: Mapping[str, SSAValue]) -> LinearForm | None:
    """A declared bound for the arguments of a call; None where it is no linear form."""
    try:
        return _of_expression(ast.parse(text, mode="eval").body, arguments)
    except SyntaxError:
        return None


def _of_expression(node: ast.expr, arguments: Mapping[str, SSAValue]) -> LinearForm | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return LinearForm(node.value)
    if isinstance(node, ast.Name) and node.id in arguments:
        return linear_form(arguments[node.id])
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _of_expression(node.left, arguments), _of_expression(node.right, arguments)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add):
        return left.plus(right)
    if not isinstance(node.op, ast.Mult) or (left.terms and right.terms):
        return None
    return right.times(left.constant) if not left.terms else left.times(right.constant)


def _written(op: Operation, value: SSAValue) -> _Elements | None:
    """The elements of a memref that an operation overwrites; None where that is not known."""
    if isinstance(op, DmaMemcpyNdOp):
        return _of_dma(op)
    if op.name in ACCESSES:
        return _of_store(op, value)
    type_ = value.type
    assert isinstance(type_, MemRefType)
    is_whole = op.name.startswith("linalg.") and _is_dense(type_)
    return _Elements(LinearForm(), ((1, prod(type_.get_shape())),)) if is_whole else None


def _of_dma(dma: DmaMemcpyNdOp) -> _Elements | None:
    type_ = dma.dst.type
    assert isinstance(type_, MemRefType)
    if writes_whole(dma):
        return _Elements(LinearForm(), ((1, prod(type_.get_shape())),))
    walk = walk_extents(type_, dma.dst_sizes, dma.dst_strides)
    if walk is None or len(dma.dst_offsets) > len(walk[1]):
        return None
    sizes, strides = walk
    return _Elements(side_offset(strides, dma.dst_offsets), tuple(zip(strides, sizes, strict=True)))


def _of_store(op: Operation, value: SSAValue) -> _Elements | None:
    """Of a store of an element, or of a vector along the last dimension that lies inside."""
    type_, stored = value.type, op.operands[0].type
    assert isinstance(type_, MemRefType)
    strides = types.memref_strides(type_)
    lanes = list(stored.get_shape()) if isinstance(stored, VectorType) else []
    if not op.name.startswith(("memref.", "vector.")) or types.DYNAMIC in strides or len(lanes) > 1:
        return None
    if lanes and (strides[-1] != 1 or not _is_plain(op, len(strides))):
        return None
    start = weighted_sum(op.operands[2 : 2 + len(strides)], strides)
    return _Elements(start, ((1, lanes[0]),) if lanes else ())


def _is_plain(op: Operation, rank: int) -> bool:
    """Whether a vector is stored along the last dimension, without a mask, and lies inside."""
    if op.name == "vector.store":
        return True
    in_bounds, map_ = op.properties.get("in_bounds"), op.properties.get("permutation_map")
    is_inside = in_bounds is not None and "false" not in str(in_bounds)
    is_along = map_ is None or str(map_).endswith(f"-> (d{rank - 1})>")
    return is_inside and is_along and len(op.operands) == 2 + rank


def _is_dense(type_: MemRefType) -> bool:
    shape = type_.get_shape()
    return types.DYNAMIC not in shape and types.memref_strides(type_) == types.row_major(shape)


# ---- one trip ----


class _Trip:
    """One trip of a loop: which buffers of the tile it has overwritten as a whole, operation by operation.

    A buffer counts as overwritten once one operation, or the trips of inner loops that surround it, have
    written all of its elements.
    """

    def __init__(self, loop: scf.ForOp, before: Sequence[Operation], promises: ExternalPromises) -> None:
        self.loop, self.promises = loop, promises
        self.outside: set[SSAValue] = set()
        """The memrefs from outside of the tile that the loop writes."""
        allocations = [op for op in before if op.name in (*ALLOCATIONS, "vnpu.borrowed")]
        self._own = {value for op in allocations for value in op.results}
        self._ops = list(_inside([*loop.body.block.ops]))
        self._inner = {value for op in self._ops for value in op.results}
        self._changed: set[SSAValue] = set()
        self._read_outside: set[SSAValue] = set()
        self._after_loop: dict[int, set[SSAValue]] = {}
        """By depth of an inner loop: the buffers that are overwritten once that loop has ended."""

    def is_own(self, root: SSAValue) -> bool:
        """Whether the tile allocates a buffer before the loop."""
        return root in self._own

    def run(self) -> None:
        """Raises _DependentError where the trip may depend on another one."""
        for op in self._ops:
            written = [root_value(value) for value in _touched(op, self.promises).writes]
            if isinstance(op, func.CallOp) and written and not self.promises.overwritten_by(op):
                raise _DependentError
            self._changed.update(written)
        self._walk(self.loop.body.block, [], set(), is_certain=True)
        if self.outside & self._read_outside:
            raise _DependentError

    def _walk(self, block: Block, loops: list[Loop], whole: set[SSAValue], is_certain: bool) -> None:
        """Follow a block. loops: the counted ones around it. whole: buffers that are overwritten already;
        those that the block overwrites are added. is_certain: whether the block runs in every trip."""
        for op in block.ops:
            if isinstance(op, scf.ForOp):
                self._walk_loop(op, loops, whole, is_certain)
            elif op.name in (*_LOOPS, *_BRANCHES):
                for inner in (each for region in op.regions for each in region.blocks):
                    self._walk(inner, loops, set(whole), is_certain=False)
            elif op.name != "vnpu.borrowed":
                self._step(op.original if isinstance(op, BorrowOp) else op, loops, whole, is_certain)

    def _walk_loop(self, op: scf.ForOp, loops: list[Loop], whole: set[SSAValue], is_certain: bool) -> None:
        counted = analyze_loop(op)
        if counted is None:
            self._walk(op.body.block, loops, set(whole), is_certain=False)
            return
        self._walk(op.body.block, [*loops, Loop(op.body.block.args[0], *counted)], whole, is_certain)
        whole.update(self._after_loop.pop(len(loops), ()))

    def _step(self, op: Operation, loops: list[Loop], whole: set[SSAValue], is_certain: bool) -> None:
        touched = _touched(op, self.promises)
        reads = touched.reads + (self._sums(op, loops) if isinstance(op, func.CallOp) else [])
        for root in map(root_value, reads):
            if root in self._own:
                if root in self._changed and root not in whole:
                    raise _DependentError
            elif root not in self._inner:
                self._read_outside.add(root)
        for value in touched.writes:
            root = root_value(value)
            if root not in self._own and root not in self._inner:
                self._write_outside(root, touched.overwrites.get(value), loops)
        for value, elements in touched.overwrites.items():
            if value in self._own and elements is not None and is_certain:
                self._overwrite(value, elements, loops, whole)

    def _sums(self, call: func.CallOp, loops: list[Loop]) -> list[SSAValue]:
        """The buffers that a call reads and adds to: it overwrites them only if a parameter is 0, and that is
        not 0 in the first trip."""
        parts = [part for part in self.promises.overwritten_by(call) if part.zero is not None]
        forms = [_at_first_trip(linear_form(call.operands[part.zero or 0]), loops) for part in parts]
        pairs = zip(parts, forms, strict=True)
        return [call.operands[part.position] for part, form in pairs if form != LinearForm()]

    def _write_outside(self, root: SSAValue, elements: _Elements | None, loops: list[Loop]) -> None:
        if elements is None or root in self.outside or not self._is_apart(elements, loops):
            raise _DependentError
        self.outside.add(root)

    def _is_apart(self, elements: _Elements, loops: list[Loop]) -> bool:
        """Whether no two trips of the loop write the same element."""
        counted = analyze_loop(self.loop)
        assert counted is not None
        own = Loop(self.loop.body.block.args[0], *counted)
        known = [each.variable for each in (own, *loops)]
        if any(term not in known and _is_within(term, self.loop) for term in elements.start.terms):
            return False
        axes = [(abs(step), count) for step, count in elements.axes]
        axes += [_axis(elements.start, each) for each in loops]
        step, trips = _axis(elements.start, own)
        reach = sum(far * (count - 1) for far, count in axes if far <= step)
        larger = sorted(axis for axis in axes if axis[0] > step)
        for far, count in [(step, trips), *larger]:
            if far <= reach:
                return False
            reach += far * (count - 1)
        return True

    def _overwrite(
        self, root: SSAValue, elements: _Elements, loops: list[Loop], whole: set[SSAValue]
    ) -> None:
        """Record a buffer as overwritten: now, or once some of the loops around have ended."""
        for place in range(len(loops), -1, -1):
            if _covers(root, elements, loops[place:]):
                (whole if place == len(loops) else self._after_loop.setdefault(place, set())).add(root)
                return


def _is_within(value: SSAValue, loop: scf.ForOp) -> bool:
    """Whether a value is computed in a loop."""
    around: Operation | None = value.owner.parent_op() if isinstance(value.owner, Block) else value.owner
    while around is not None and around is not loop:
        around = around.parent_op()
    return around is loop


def _axis(start: LinearForm, loop: Loop) -> tuple[int, int]:
    """(step, count) of the elements that a loop walks."""
    return abs(start.terms.get(loop.variable, 0) * loop.step), loop.trip_count


def _at_first_trip(form: LinearForm, loops: Sequence[Loop]) -> LinearForm:
    """A linear form in the first trip of loops."""
    values = {loop.variable: loop.first for loop in loops}
    total = LinearForm(form.constant)
    for value, factor in form.terms.items():
        known = values.get(value)
        total = total.plus(LinearForm(0, {value: factor}) if known is None else LinearForm(known * factor))
    return total


def _covers(buffer: SSAValue, elements: _Elements, loops: Sequence[Loop]) -> bool:
    """Whether the trips of loops overwrite all elements of a dense buffer."""
    type_, start = buffer.type, _at_first_trip(elements.start, loops)
    assert isinstance(type_, MemRefType)
    if not _is_dense(type_) or start != LinearForm():
        return False
    axes = [*elements.axes, *(_axis(elements.start, loop) for loop in loops)]
    reach = 1
    for step, count in sorted(axes):
        if step > reach or count < 1:
            return False
        reach += step * (count - 1)
    return reach >= prod(type_.get_shape())


# ---- what is worth it ----


def _grain(loop: scf.ForOp) -> int:
    """The trips of a loop that move WORTH_BYTES."""
    moved = sum(
        _bytes_of(op, loop) for op in _inside([*loop.body.block.ops]) if isinstance(op, DmaMemcpyNdOp)
    )
    return max(1, -(-WORTH_BYTES // max(1, moved)))


def _bytes_of(dma: DmaMemcpyNdOp, loop: scf.ForOp) -> int:
    """What a DMA moves in one trip of the loop, with those of loops between the two."""
    type_ = dma.dst.type
    assert isinstance(type_, MemRefType)
    walk, trips = walk_extents(type_, dma.dst_sizes, dma.dst_strides), 1
    around = dma.parent_op()
    while around is not None and around is not loop:
        counted = analyze_loop(around) if isinstance(around, scf.ForOp) else None
        trips *= 1 if counted is None else counted.trip_count
        around = around.parent_op()
    return 0 if walk is None else prod(walk[0]) * trips * types.byte_width(type_.element_type)
