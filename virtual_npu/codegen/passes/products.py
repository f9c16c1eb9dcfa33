"""Blocked matrix products: loops around one vector.contract, which become one call of vnpu::multiply_add.

What is recognised, whatever the extents, the order of the loops and the arrangement in blocks:

    for ...                                loops with known bounds, one in the other; the points of a herd too
      air.dma_memcpy_nd                    into buffers that are only read (windows.py)
      func.call                            that rearranges such a buffer (see there)
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

A function that rearranges a buffer is watched when the program runs (vnpu/rearranged.h). If it turns out to
do anything else, the loops run as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import scf, vector
from xdsl.dialects.builtin import BFloat16Type, DictionaryAttr, Float32Type, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineDimExpr

from aerie.air_dialect.ops import DmaMemcpyNdOp, ExecuteOp, HerdOp
from aerie.air_dialect.readings import Linear, weighted
from aerie.air_dialect.values import is_inside, origin
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.buffers import tile_copies
from aerie.virtual_npu.codegen.dialect import ProductOp, axes, numbers, wrap
from aerie.virtual_npu.codegen.execution import Mode, each_operation, takes_turns
from aerie.virtual_npu.codegen.passes.loops import Loop, LoopNest
from aerie.virtual_npu.codegen.passes.windows import READS, RearrangingCall, Windows, itself
from aerie.virtual_npu.codegen.vector_lanes import shape_of
from aerie.virtual_npu.codegen.vector_sums import contract_extents, contract_maps, reduction_kind
from aerie.virtual_npu.options import BuildOptions

MOST_AXES = 6
"""vnpu::Axes::kMost."""


@dataclass(frozen=True)
class Axis:
    """One axis of a product: its extent, and its steps (strides) in A, B and C, in elements.

    `a_within`, `b_within`: its steps in buffers of A and B that a function rearranges, where there are such.
    """

    extent: int
    a: int
    b: int
    c: int
    a_within: int = 0
    b_within: int = 0

    @property
    def index(self) -> str:
        """m, n or k; empty for an axis with other steps than a matrix product has."""
        moves = bool(self.a or self.a_within), bool(self.b or self.b_within), bool(self.c)
        return {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}.get(moves, "")


@dataclass(frozen=True)
class Rearranged:
    """How blocks are read in a buffer that a function in C++ rearranged before they are multiplied.

    A core may transpose the blocks that a DMA brought, in place, before it multiplies them. The simulator
    need not do so if it knows where each element ends up. vnpu/rearranged.h asks the function itself, with a
    buffer of labels.

    `filled` are the steps in the source of each dimension of the buffer, before the call; `start` and `lanes`
    say where in the buffer, after the call, the first block begins, and the steps of a block's dimensions.
    """

    call: RearrangingCall
    filled: tuple[int, ...]
    start: Linear
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A, B or C: a memref, where the first block begins, and the steps of the dimensions of a block."""

    memref: SSAValue
    start: Linear
    lanes: tuple[int, ...]
    rearranged: Rearranged | None = None


@dataclass(frozen=True)
class Product:
    """C += A B, as loops compute it."""

    a: Operand
    b: Operand
    c: Operand
    axes: tuple[Axis, ...]

    def along(self, index: str) -> list[Axis]:
        """The axes of m, n or k."""
        return [axis for axis in self.axes if axis.index == index]


# ---- rewriting ----


def find_products(module: ModuleOp, options: BuildOptions) -> None:
    """Put `vnpu.product` around loops and herds that are a product.

    Also inside of a product that may fall back on its loops, because a function rearranges what it reads.
    Loops in a sequencer stay as they are: each of their reads and writes waits for the operations under way.
    """
    found: list[tuple[Operation, Product]] = []

    def visit(op: Operation, mode: Mode) -> bool:
        is_candidate = isinstance(op, scf.ForOp) and mode is not Mode.SEQUENCER
        if is_candidate or (isinstance(op, HerdOp) and op.has_body and not takes_turns(op, options)):
            product = of_loops(op, with_herds=isinstance(op, HerdOp) or mode is Mode.STRAIGHT)
            if product is not None and not _has_copies(product):
                found.append((op, product))
                return product.a.rearranged is not None or product.b.rearranged is not None
        return True

    each_operation(module, options, visit)
    for op, product in found:
        _put_around(op, product)


def _has_copies(product: Product) -> bool:
    """Whether tiles have an operand of their own that the herd does not allocate."""
    return any(_copies(side.memref) > 1 for side in (product.a, product.b, product.c))


def _copies(value: SSAValue) -> int:
    """How many copies there are of a buffer that is allocated where it is used, also in an air.execute."""
    while isinstance(value, OpResult) and isinstance(value.op, ExecuteOp):
        end = value.op.body.block.last_op
        assert end is not None
        value = end.operands[value.index - 1]
    is_allocated = isinstance(value, OpResult) and value.op.name in ("memref.alloc", "memref.alloca")
    return tile_copies(value) if is_allocated else 1


def _put_around(op: Operation, product: Product) -> None:
    a, b, c = sides = product.a, product.b, product.c
    along = {index: product.along(index) for index in "mnk"}
    properties: dict[str, Attribute] = {
        "m": axes([[axis.extent, axis.a, axis.c] for axis in along["m"]]),
        "n": axes([[axis.extent, axis.b, axis.c] for axis in along["n"]]),
        "k": axes([[axis.extent, axis.a, axis.b] for axis in along["k"]]),
    }
    for name, side in zip("abc", sides, strict=True):
        properties[f"{name}_start"] = numbers([side.start.constant, *side.start.terms.values()])
    if a.rearranged is not None:
        within = [[[axis.extent, axis.a_within] for axis in along[index]] for index in "mk"]
        properties["a_rearranged"] = _described(a.rearranged, *within)
    if b.rearranged is not None:
        within = [[[axis.extent, axis.b_within] for axis in along[index]] for index in "nk"]
        properties["b_rearranged"] = _described(b.rearranged, *within)
    indices = [list(side.start.terms) for side in sides]
    wrap(op, ProductOp, [a.memref, b.memref, c.memref, *indices], properties)


def _described(found: Rearranged, outer: list[list[int]], depth: list[list[int]]) -> DictionaryAttr:
    """What ProductOp says of an operand that a function rearranges."""
    pairs = zip(found.call.shape, found.filled, strict=True)
    return DictionaryAttr(
        {
            "function": found.call.op.callee,
            "buffer": axes([[extent, step] for extent, step in pairs]),
            "start": IntegerAttr(found.start.constant, i64),
            "outer": axes(outer),
            "depth": axes(depth),
        }
    )


# ---- recognising ----


def of_loops(root: Operation, with_herds: bool = True) -> Product | None:
    """The product that loops, or all tiles of a herd, compute; None where they compute none. Loops around
    herds are looked at only `with_herds`."""
    nest = LoopNest(root)
    loops = nest.loops() if nest.ops else None
    if loops is None or root.results or (nest.coordinates() and not with_herds):
        return None
    matter = [op for op in nest.inside if not _is_harmless(op)]
    contracts = [op for op in matter if op.name == "vector.contract"]
    writes = [op for op in matter if op.name in _WRITES]
    calls = [op for op in matter if op in nest.calls]
    if len(contracts) != 1 or len(writes) != 1 or len(matter) != 2 + len(calls):
        return None
    return _Match(nest, contracts[0], writes[0]).product(loops)


def _is_harmless(op: Operation) -> bool:
    """Whether an operation in the loops has no effect of its own, or may be a DMA that fills a window."""
    if op.name in _HARMLESS or isinstance(op, DmaMemcpyNdOp):
        return True
    if op.name in _OF_TILES:
        return isinstance(op.parent_op(), HerdOp)
    return not op.regions and op.name.startswith(("arith.", "index."))


_HARMLESS = ("scf.yield", "affine.apply", "vector.shape_cast", "vector.transfer_read", "vector.load")
_OF_TILES = ("memref.alloc", "memref.dealloc", "air.herd_terminator")
_WRITES = ("vector.transfer_write", "vector.store")


@dataclass(frozen=True)
class _Match:
    """Loops around one contraction, to be looked at closer."""

    nest: LoopNest
    contract: Operation
    write: Operation

    def product(self, loops: Sequence[Loop]) -> Product | None:
        if not self._is_sum_of_bf16():
            return None
        windows = Windows(self.nest)
        lhs, rhs, total = self.contract.operands
        reads = [_read_of(_uncast(lhs)), _read_of(_uncast(rhs)), self._carried_read(total)]
        pairs = zip(self.contract.operands, reads, strict=True)
        sides = [self._operand(windows, value, read) for value, read in pairs]
        known = [side for side in sides if side is not None]
        if len(known) != 3 or not self._is_apart(known, windows):
            return None
        return self._along(loops, known)

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
            if not isinstance(loop, scf.ForOp) or loop not in self.nest.ops:
                return None
            end = loop.body.block.last_op
            if end is None or _uncast(end.operands[position]) is not result:
                return None
            carrying.append(loop)
            begin, result = _uncast(loop.iter_args[position]), loop.results[position]
        read = _read_of(begin)
        if read is None or _uncast(self.write.operands[0]) is not result or not self._same_place(read):
            return None
        ops = self.nest.ops
        inner = list(ops[len(ops) - len(carrying) :])
        is_all = self.contract.parent is self.nest.innermost.body.block and inner == carrying[::-1]
        return read if is_all and read.is_before_in_block(self.write) else None

    def _same_place(self, read: Operation) -> bool:
        """Whether the write is of the same block, by the same indices, as a read beside it."""
        there, here = _place(read), _place(self.write)
        is_shape = shape_of(read.results[0]) == shape_of(self.write.operands[0])
        return there is not None and there == here and is_shape and read.parent is self.write.parent

    def _operand(self, windows: Windows, value: SSAValue, read: Operation | None) -> Operand | None:
        """What one operand of the contraction is, which a read gives."""
        place = None if read is None else _place(read)
        if read is None or place is None:
            return None
        memref, indices, dims = place
        is_sum = value is self.contract.operands[2]
        view = itself(self.nest.outside(memref)) if is_sum else windows.on(memref, read)
        own = itself(memref)
        if view is None or own is None:
            return None
        # What indices move: the window, or the buffer that a function rearranges behind it.
        steps = view.steps if view.rearranged_by is None else own.steps
        indexed = weighted(indices, steps)
        moved = None if indexed is None else self.nest.resolved(indexed)
        lanes = _cast([steps[dim] for dim in dims], shape_of(read.results[0]), shape_of(value))
        if moved is None or lanes is None:
            return None
        if view.rearranged_by is None:
            return Operand(view.memref, view.start.plus(moved), lanes)
        still = (0,) * len(lanes)
        return Operand(
            view.memref, view.start, still, Rearranged(view.rearranged_by, view.steps, moved, lanes)
        )

    def _is_apart(self, sides: Sequence[Operand], windows: Windows) -> bool:
        """Whether C is a buffer of its own, and the windows on A and B are all that is filled and called."""
        made = origin(sides[2].memref)
        if not isinstance(made, OpResult) or made.op.name != "memref.alloc":
            return False
        touched = [value for fill in self.nest.fills for value in (fill.dst, fill.src)]
        others = [*touched, *(side.memref for side in sides[:2])]
        effects = [*self.nest.fills, *self.nest.calls]
        is_known = all(op in windows.replaced for op in effects)
        return is_known and all(origin(value) is not made for value in others)

    def _along(self, loops: Sequence[Loop], sides: Sequence[Operand]) -> Product | None:
        """The product with its axes: those of the loops and herds, and of the contraction."""
        own, lanes = [_axis(loop, sides) for loop in loops], list(self._lane_axes(sides))
        axes = [axis for axis in (*own, *lanes) if axis.extent > 1]
        coordinates = self.nest.coordinates()
        tiles = [axis for axis, loop in zip(own, loops, strict=True) if loop.variable in coordinates]
        sides = [_at_first(side, loops) for side in sides]
        merged = tuple(axis for index in "mnk" for axis in _merged(axes, index))
        if not (
            all(axis.index for axis in axes)
            # Products are summed in pairs, which a block must not cut.
            and prod(axis.extent for axis in lanes if axis.index == "k") % 2 == 0
            # Tiles that share an element of C would race.
            and not any(axis.index == "k" for axis in tiles if axis.extent > 1)
            and _is_distinct(axes)
            and all(self._is_outside(side) for side in sides)
            and all(sum(axis.index == index for axis in merged) <= MOST_AXES for index in "mnk")
        ):
            return None
        a, b, c = sides
        return Product(a, b, c, merged)

    def _lane_axes(self, sides: Sequence[Operand]) -> Iterator[Axis]:
        maps = contract_maps(self.contract)
        shapes = [shape_of(value) for value in self.contract.operands]
        for dim, extent in enumerate(contract_extents(self.contract, maps, shapes)):
            where = [map_.index(dim) if dim in map_ else -1 for map_ in maps]
            steps = [0 if at < 0 else side.lanes[at] for side, at in zip(sides, where, strict=True)]
            within = [
                0 if at < 0 or side.rearranged is None else side.rearranged.lanes[at]
                for side, at in zip(sides[:2], where[:2], strict=True)
            ]
            yield Axis(extent, *steps, *within)

    def _is_outside(self, side: Operand) -> bool:
        """Whether what the statement names is there before the loops, or before the herd."""
        if side.rearranged is not None and (
            side.rearranged.start.terms or len(side.rearranged.call.shape) > MOST_AXES
        ):
            return False
        return not any(is_inside(self.nest.ops[0], value) for value in (side.memref, *side.start.terms))


def _axis(loop: Loop, sides: Sequence[Operand]) -> Axis:
    steps = [side.start.terms.get(loop.variable, 0) * loop.step for side in sides]
    within = [
        0 if side.rearranged is None else side.rearranged.start.terms.get(loop.variable, 0) * loop.step
        for side in sides[:2]
    ]
    return Axis(loop.trips, *steps, *within)


def _at_first(side: Operand, loops: Sequence[Loop]) -> Operand:
    """An operand as the first iteration sees it."""
    rearranged = side.rearranged
    if rearranged is not None:
        rearranged = replace(rearranged, start=_start(rearranged.start, loops))
    return replace(side, start=_start(side.start, loops), rearranged=rearranged)


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
        steps = [(getattr(axis, side), side) for side in ("a", "b", "c", "a_within", "b_within")]
        last = merged[-1] if merged else None
        if last is not None and all(getattr(last, side) == axis.extent * step for step, side in steps):
            merged[-1] = replace(axis, extent=last.extent * axis.extent)
        else:
            merged.append(axis)
    return merged
