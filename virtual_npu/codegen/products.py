"""Blocked matrix products: loops around one vector.contract, which become one call of vnpu::multiply_add.

What is recognised, whatever the extents, the order of the loops and the arrangement in blocks:

    for ...                                loops with known bounds, one in the other; the points of a herd too
      air.dma_memcpy_nd                    into L1 buffers that are only read (virtual_npu.codegen.windows)
      c = read C[...]                      f32, or carried around the inner loops
        c += contract(read A[...], read B[...])      bf16; transposed as its maps say
      write c to C[...]

with indices that are linear in the loop variables. Every loop, and every dimension of the contraction, is
then an axis with a step in A, in B and in C. It is one of m where B does not move, of n where A does not, and
of k where C does not; nests with any other one are left alone. Each element of C is summed in the order of
its k axes, as before.

Why that is the same:

- C is an allocation that neither A, B nor a DMA's source lies in, and nothing else is written: so what A and
  B hold does not change, and reading all of it beforehand, or later, gives the same;
- no two values of the m and n axes lead to one element of C, so each one is read and written once, and tiles
  of a herd do not meet;
- nothing else in the loops has an effect, and nothing leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import scf, vector
from xdsl.dialects.builtin import BFloat16Type, Float32Type
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineDimExpr

from air_dialect.ops import DmaMemcpyNdOp, HerdOp
from virtual_npu.codegen import types
from virtual_npu.codegen.body import Body, MemRef, grouped, plus, times
from virtual_npu.codegen.effects import is_inside
from virtual_npu.codegen.intervals import interval
from virtual_npu.codegen.linear import Linear, weighted
from virtual_npu.codegen.memory import origin
from virtual_npu.codegen.vector import contract_extents, contract_maps, reduction_kind, shape_of
from virtual_npu.codegen.windows import READS, itself, window

MOST_AXES = 6
"""vnpu::Axes::kMost."""


@dataclass(frozen=True)
class Axis:
    """One axis of a product: its extent, and its steps in A, B and C, in elements."""

    extent: int
    a: int
    b: int
    c: int

    @property
    def index(self) -> str:
        """m, n or k; nothing for an axis that a matrix product has not."""
        return {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}.get(
            (self.a != 0, self.b != 0, self.c != 0), ""
        )


@dataclass(frozen=True)
class Loop:
    """A counted loop, or a coordinate of a herd: first value, step, trips."""

    variable: SSAValue
    first: int
    step: int
    trips: int


@dataclass(frozen=True)
class Operand:
    """A, B or C: a memref, where the first block begins, and the steps of the dimensions of a block."""

    memref: SSAValue
    start: Linear
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """What loops do: C += A B."""

    a: Operand
    b: Operand
    c: Operand
    axes: tuple[Axis, ...]


# ---- emitting ----


def statement(body: Body, op: Operation) -> str | None:
    """The C++ statement for loops or a herd that are a product; None for others, and where not wanted."""
    if not body.unit.options.is_fast or not isinstance(op, scf.ForOp | HerdOp):
        return None
    product = of_herd(op) if isinstance(op, HerdOp) else of_loops(op, op, ())
    if product is None or (isinstance(op, HerdOp) and _has_copies(body, op)):
        return None
    sides = [_pointer(body, op, side) for side in (product.a, product.b, product.c)]
    axes = [_axes([axis for axis in product.axes if axis.index == name], name) for name in "mnk"]
    return f"vnpu::multiply_add({{{', '.join([*sides, *axes])}}});"


def _has_copies(body: Body, herd: HerdOp) -> bool:
    """Whether tiles have buffers of their own that the herd does not allocate."""
    views = [body.value(value) for value in herd.kernel_operands]
    return any(isinstance(view, MemRef) and view.copies > 1 for view in views)


def _pointer(body: Body, op: Operation, side: Operand) -> str:
    """C++ text of a pointer to the first element of an operand."""
    terms = [times(grouped(body.text(_outside(op, v))), str(n)) for v, n in side.start.terms.items()]
    return plus(body.memref(_outside(op, side.memref)).pointer, *terms, str(side.start.constant))


def _outside(op: Operation, value: SSAValue) -> SSAValue:
    """What a value that a herd captures is outside of it."""
    if isinstance(op, HerdOp):
        pairs = zip(op.kernel_args, op.kernel_operands, strict=True)
        return next((operand for argument, operand in pairs if argument is value), value)
    return value


def _axes(axes: Sequence[Axis], index: str) -> str:
    """C++ text of the axes of one index."""
    first, second = {"m": ("a", "c"), "n": ("b", "c"), "k": ("a", "b")}[index]
    texts = [f"{{{axis.extent}, {getattr(axis, first)}, {getattr(axis, second)}}}" for axis in axes]
    return f"{{{len(texts)}, {{{', '.join(texts)}}}}}"


# ---- recognising ----


def of_herd(herd: HerdOp) -> Product | None:
    """The product that all tiles of a herd make together."""
    sizes = [interval(size) for size in herd.sizes]
    trips = [size[0] for size in sizes if size is not None and size[0] == size[1]]
    inside = [op for op in herd.body.block.ops if not _is_idle(op)]
    if len(inside) != 1 or len(trips) != len(sizes) or herd.async_token is not None:
        return None
    return of_loops(herd, inside[0], [Loop(i, 0, 1, n) for i, n in zip(herd.ids, trips, strict=True)])


def _is_idle(op: Operation) -> bool:
    """Whether an operation does nothing but make indices, constants and buffers."""
    return op.name in _IDLE or (not op.regions and op.name.startswith(("arith.", "index.")))


_IDLE = ("memref.alloc", "memref.dealloc", "affine.apply", "air.herd_terminator")


def of_loops(root: Operation, op: Operation, around: Sequence[Loop]) -> Product | None:
    """The product that loops make; `root` is the loops, or the herd whose coordinates are `around`."""
    nest = list(_nest(op))
    loops = [_counted(loop) for loop in nest]
    if not nest or nest[0].results or None in loops:
        return None
    inside = [inner for loop in nest for inner in loop.body.block.ops if inner not in nest]
    matter = [inner for inner in inside if not _is_harmless(inner)]
    contracts = [inner for inner in matter if inner.name == "vector.contract"]
    writes = [inner for inner in matter if inner.name in _WRITES]
    if len(matter) != 2 or len(contracts) != 1 or len(writes) != 1:
        return None
    fills = [inner for inner in inside if isinstance(inner, DmaMemcpyNdOp)]
    counted = [loop for loop in loops if loop is not None]
    return _Match(root, nest, contracts[0], writes[0]).product(fills, around, counted)


def _nest(op: Operation | None) -> Iterator[scf.ForOp]:
    """Loops that stand one in the other, from the outermost one on."""
    while isinstance(op, scf.ForOp):
        yield op
        inner = [child for child in op.body.block.ops if isinstance(child, scf.ForOp)]
        op = inner[0] if len(inner) == 1 else None


def _is_harmless(op: Operation) -> bool:
    """Whether an operation in the loops has no effect of its own, or may be a DMA that fills a window."""
    if op.name in _HARMLESS or isinstance(op, DmaMemcpyNdOp):
        return True
    return not op.regions and op.name.startswith(("arith.", "index."))


_HARMLESS = ("scf.yield", "affine.apply", "vector.shape_cast", "vector.transfer_read", "vector.load")
_WRITES = ("vector.transfer_write", "vector.store")


def _counted(loop: scf.ForOp) -> Loop | None:
    bounds = [interval(value) for value in (loop.lb, loop.ub, loop.step)]
    known = [bound[0] for bound in bounds if bound is not None and bound[0] == bound[1]]
    if len(known) != len(bounds) or known[2] <= 0 or known[1] <= known[0]:
        return None
    low, high, step = known
    return Loop(loop.body.block.args[0], low, step, -((low - high) // step))


@dataclass(frozen=True)
class _Match:
    """Loops around one contraction, to be looked at closer."""

    root: Operation
    nest: list[scf.ForOp]
    contract: Operation
    write: Operation

    def product(
        self, fills: Sequence[DmaMemcpyNdOp], around: Sequence[Loop], loops: Sequence[Loop]
    ) -> Product | None:
        if not self._is_sum_of_bf16():
            return None
        lhs, rhs, total = self.contract.operands
        reads = [_read_of(_uncast(lhs)), _read_of(_uncast(rhs)), self._carried_read(total)]
        sides = [self._operand(*pair) for pair in zip(self.contract.operands, reads, strict=True)]
        known = [side for side in sides if side is not None]
        if len(known) != 3 or not self._is_apart(known, [read for read in reads if read], fills):
            return None
        return self._along(around, loops, known)

    def _is_sum_of_bf16(self) -> bool:
        elements = [types.element(value.type) for value in self.contract.operands]
        wanted = [BFloat16Type, BFloat16Type, Float32Type]
        return [type(element) for element in elements] == wanted and reduction_kind(self.contract) == "add"

    def _carried_read(self, value: SSAValue) -> Operation | None:
        """The read of C that the sum begins with, where its end is written back to the same place."""
        begin, result = _uncast(value), SSAValue.get(self.contract.results[0])
        carrying = []
        while isinstance(begin, BlockArgument):
            loop, position = begin.owner.parent_op(), begin.index - 1
            if not isinstance(loop, scf.ForOp) or loop not in self.nest:
                return None
            end = loop.body.block.last_op
            if end is None or _uncast(end.operands[position]) is not result:
                return None
            carrying.append(loop)
            begin, result = _uncast(loop.iter_args[position]), loop.results[position]
        read = _read_of(begin)
        if read is None or _uncast(self.write.operands[0]) is not result or not self._same_place(read):
            return None
        inner = self.nest[len(self.nest) - len(carrying) :]
        is_all = self.contract.parent is self.nest[-1].body.block and inner == carrying[::-1]
        return read if is_all and read.is_before_in_block(self.write) else None

    def _same_place(self, read: Operation) -> bool:
        """Whether the write is of the same block, by the same indices, as a read beside it."""
        there, here = _place(read), _place(self.write)
        is_shape = shape_of(read.results[0]) == shape_of(self.write.operands[0])
        return there is not None and there == here and is_shape and read.parent is self.write.parent

    def _operand(self, value: SSAValue, read: Operation | None) -> Operand | None:
        """What one operand of the contraction is, which a read gives."""
        place = None if read is None else _place(read)
        if read is None or place is None:
            return None
        memref, indices, dims = place
        is_sum = value is self.contract.operands[2]
        view = itself(memref) if is_sum else window(self.nest[0], read, memref)
        moved = None if view is None else weighted(indices, view.steps)
        if view is None or moved is None:
            return None
        steps = _cast([view.steps[dim] for dim in dims], shape_of(read.results[0]), shape_of(value))
        return None if steps is None else Operand(view.memref, view.start.plus(moved), steps)

    def _is_apart(
        self, sides: Sequence[Operand], reads: Sequence[Operation], fills: Sequence[DmaMemcpyNdOp]
    ) -> bool:
        """Whether C is a buffer of its own, and every DMA in the loops fills a window on A or B."""
        made = origin(sides[2].memref)
        if not isinstance(made, OpResult) or made.op.name != "memref.alloc":
            return False
        windows = [read.operands[0] for read in reads[:2]]
        filled = all(any(fill.dst is buffer for buffer in windows) for fill in fills)
        return filled and all(origin(side.memref) is not made for side in sides[:2])

    def _along(
        self, around: Sequence[Loop], loops: Sequence[Loop], sides: Sequence[Operand]
    ) -> Product | None:
        """The product with its axes: those of the herd, of the loops, and of the contraction."""
        tiles, own = [_axis(loop, sides) for loop in around], [_axis(loop, sides) for loop in loops]
        lanes = list(self._lane_axes(sides))
        axes = [axis for axis in (*tiles, *own, *lanes) if axis.extent > 1]
        starts = [_start(side.start, (*around, *loops)) for side in sides]
        merged = tuple(axis for index in "mnk" for axis in _merged(axes, index))
        if not (
            all(axis.index for axis in axes)
            # Products are summed in pairs, which a block must not cut.
            and prod(axis.extent for axis in lanes if axis.index == "k") % 2 == 0
            # Tiles that share an element of C would race.
            and not any(axis.index == "k" for axis in tiles if axis.extent > 1)
            and _is_distinct(axes)
            and self._is_outside(sides, starts)
            and all(sum(axis.index == index for axis in merged) <= MOST_AXES for index in "mnk")
        ):
            return None
        a, b, c = (Operand(side.memref, at, side.lanes) for side, at in zip(sides, starts, strict=True))
        return Product(a, b, c, merged)

    def _lane_axes(self, sides: Sequence[Operand]) -> Iterator[Axis]:
        maps = contract_maps(self.contract)
        shapes = [shape_of(value) for value in self.contract.operands]
        for dim, extent in enumerate(contract_extents(self.contract, maps, shapes)):
            pairs = zip(sides, maps, strict=True)
            yield Axis(extent, *(side.lanes[map_.index(dim)] if dim in map_ else 0 for side, map_ in pairs))

    def _is_outside(self, sides: Sequence[Operand], starts: Sequence[Linear]) -> bool:
        """Whether what the statement names is there before the loops, or before the herd."""
        captured = self.root.kernel_args if isinstance(self.root, HerdOp) else ()
        named = [*(value for start in starts for value in start.terms), *(side.memref for side in sides)]
        return all(
            not is_inside(self.root, value) or any(value is arg for arg in captured) for value in named
        )


def _axis(loop: Loop, sides: Sequence[Operand]) -> Axis:
    return Axis(loop.trips, *(side.start.terms.get(loop.variable, 0) * loop.step for side in sides))


def _read_of(value: SSAValue) -> Operation | None:
    made = value.owner
    return made if isinstance(made, Operation) and made.name in READS else None


def _uncast(value: SSAValue) -> SSAValue:
    """A vector before it was given another shape: its elements stay in their order."""
    while isinstance(value, OpResult) and value.op.name == "vector.shape_cast":
        value = value.op.operands[0]
    return value


def _cast(steps: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[int, ...] | None:
    """The steps of a vector's dimensions in another shape; None where more than dimensions of 1 differ."""
    wide = [step for step, extent in zip(steps, before, strict=True) if extent != 1]
    if [extent for extent in before if extent != 1] != [extent for extent in after if extent != 1]:
        return None
    rest = iter(wide)
    return tuple(next(rest) if extent != 1 else 0 for extent in after)


_Place = tuple[SSAValue, list[SSAValue], list[int]]


def _place(op: Operation) -> _Place | None:
    """Where a vector is read or written: the memref, the indices, and which dimension each of its own is."""
    if isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        inside = all(bound.value.data for bound in op.in_bounds)
        dims = [expr.position for expr in op.permutation_map.data.results if isinstance(expr, AffineDimExpr)]
        is_plain = inside and op.mask is None and len(dims) == len(op.permutation_map.data.results)
        return (op.source, list(op.indices), dims) if is_plain and op.in_bounds.data else None
    memref, indices = (op.operands[0], op.operands[1:]) if op.results else (op.operands[1], op.operands[2:])
    moved = shape_of(op.results[0] if op.results else op.operands[0])
    return memref, list(indices), list(range(len(indices) - len(moved), len(indices)))


def _start(start: Linear, loops: Sequence[Loop]) -> Linear:
    """Where the first iteration begins."""
    first = sum(start.terms.get(loop.variable, 0) * loop.first for loop in loops)
    variables = [loop.variable for loop in loops]
    rest = {value: n for value, n in start.terms.items() if not any(value is v for v in variables)}
    return Linear(start.constant + first, rest)


def _is_distinct(axes: Sequence[Axis]) -> bool:
    """Whether no two values of the m and n axes lead to one element of C."""
    reach = 0
    for axis in sorted((axis for axis in axes if axis.c), key=lambda axis: axis.c):
        if axis.c <= reach:
            return False
        reach += (axis.extent - 1) * axis.c
    return True


def _merged(axes: Sequence[Axis], index: str) -> list[Axis]:
    """The axes of one index, neighbours made one where they are one walk; those of m and n as C has them."""
    found = [axis for axis in axes if axis.index == index]
    if index != "k":
        found.sort(key=lambda axis: -axis.c)
    merged: list[Axis] = []
    for axis in found:
        steps = [(getattr(axis, side), side) for side in "abc"]
        last = merged[-1] if merged else None
        if last is not None and all(getattr(last, side) == axis.extent * step for step, side in steps):
            merged[-1] = Axis(last.extent * axis.extent, axis.a, axis.b, axis.c)
        else:
            merged.append(axis)
    return merged
