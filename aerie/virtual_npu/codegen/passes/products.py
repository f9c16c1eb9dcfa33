"""Blocked matrix products: loops around vector.contract, which become one call of vnpu::multiply_add.

What is recognised, whatever the extents, the order of the loops and the arrangement in blocks:

    for ...                                loops with known bounds, one in the other; the points of a herd too
      air.dma_memcpy_nd                    into buffers that are only read (dma_views.py)
      func.call                            that rearranges such a buffer (see there)
      c = read C[...]                      f32, or carried around the inner loops
        c += contract(read A[...], read B[...])      bf16; transposed as its maps say
      write c to C[...]

with indices that are linear in the loop variables. There may be several such c, with a contraction each: the
blocks of C that share blocks of A and B (axes.spread). Every loop, and every dimension of the contraction, is
then an axis with a step in A, in B and in C. It is one of m where B does not move, of n where A does not, and
of k where C does not; nests with any other one are left alone. Each element of C is summed in the order of
its k axes, as before.

Why that is the same:

- C is an allocation that neither A, B nor a DMA's source lies in, and nothing else is written: so what A and
  B hold does not change, and reading all of it beforehand, or later, gives the same;
- no two values of the m and n axes lead to one element of C, so each one is read and written once, and tiles
  of a herd do not meet;
- nothing else in the loops has an effect, and nothing leaves them.

A function that rearranges a buffer is watched when the program runs (vnpu/rearranged.h), and so is one that
makes B out of a buffer of bytes (vnpu/made.h). If it turns out to do anything else, the loops run as they
stand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import scf, vector
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineDimExpr

from aerie.air_dialect.linear_forms import weighted_sum
from aerie.air_dialect.ops import DmaMemcpyNdOp, ExecuteOp, HerdOp
from aerie.air_dialect.values import is_defined_in, root_value
from aerie.virtual_npu.codegen.dialect import ProductOp, axes_attr, int_array_attr, wrap
from aerie.virtual_npu.codegen.execution import BodyMode, is_coroutine, visit_operations
from aerie.virtual_npu.codegen.passes.axes import (
    MAX_AXES,
    Axis,
    Block,
    Operand,
    Product,
    RearrangedOperand,
    at_first_iteration,
    axis_of,
    block_axes,
    is_distinct,
    merge_axes,
)
from aerie.virtual_npu.codegen.passes.dma_views import READS, SourceViews, identity_view
from aerie.virtual_npu.codegen.passes.loops import Loop, LoopNest, only_computes
from aerie.virtual_npu.codegen.sharing import tile_copies
from aerie.virtual_npu.codegen.vector_lanes import before_shape_cast, shape_of
from aerie.virtual_npu.codegen.vector_sums import (
    blocks_per_group,
    contract_extents,
    contract_maps,
    is_sum_of_bf16,
)
from aerie.virtual_npu.options import BuildOptions

# ---- rewriting ----


def find_products(module: ModuleOp, options: BuildOptions) -> None:
    """Put `vnpu.product` around loops and herds that are a product.

    Also inside of a product that may fall back on its loops, because a function rearranges what it reads.
    Loops in a sequencer stay as they are: each of their reads and writes waits for the operations under way.
    """
    products: list[tuple[Operation, Product]] = []
    copies = functools.cache(buffer_copies)  # every loop around a product asks again

    def visit(op: Operation, mode: BodyMode) -> bool:
        is_candidate = isinstance(op, scf.ForOp) and mode is not BodyMode.SEQUENCER
        if is_candidate or (isinstance(op, HerdOp) and op.has_body and not is_coroutine(op, options)):
            product = product_of_loops(op, with_herds=isinstance(op, HerdOp) or mode is BodyMode.STRAIGHT)
            if product is not None and not _has_copies(product, copies):
                products.append((op, product))
                return product.a.rearranged is not None or product.b.rearranged is not None
        return True

    visit_operations(module, options, visit)
    for op, product in products:
        _put_around(op, product)


def _has_copies(product: Product, copies: Callable[[SSAValue], int]) -> bool:
    """Whether tiles have an operand of their own that the herd does not allocate.

    copies: `buffer_copies`, cached.
    """
    return any(copies(side.memref) > 1 for side in (product.a, product.b, product.c))


def buffer_copies(value: SSAValue) -> int:
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
        "m": axes_attr([[axis.extent, axis.a, axis.c] for axis in along["m"]]),
        "n": axes_attr([[axis.extent, axis.b, axis.c] for axis in along["n"]]),
        "k": axes_attr([[axis.extent, axis.a, axis.b] for axis in along["k"]]),
        "block": int_array_attr(product.block),
    }
    for name, side in zip("abc", sides, strict=True):
        properties[f"{name}_start"] = int_array_attr([side.start.constant, *side.start.terms.values()])
    if a.rearranged is not None:
        within = [[[axis.extent, axis.a_in_rearranged] for axis in along[index]] for index in "mk"]
        properties["a_rearranged"] = _rearranged_attr(a.rearranged, *within)
    if b.rearranged is not None:
        argument = b.rearranged.argument is not None
        within = [
            [
                [axis.extent, axis.b_in_rearranged, *([axis.b_argument] if argument else [])]
                for axis in along[index]
            ]
            for index in "nk"
        ]
        properties["b_rearranged"] = _rearranged_attr(b.rearranged, *within)
    indices = [list(side.start.terms) for side in sides]
    wrap(op, ProductOp, [a.memref, b.memref, c.memref, *indices], properties)


def _rearranged_attr(
    operand: RearrangedOperand, outer: list[list[int]], depth: list[list[int]]
) -> DictionaryAttr:
    """What ProductOp says of an operand that a function rearranges."""
    pairs = zip(operand.call.shape, operand.filled, strict=True)
    return DictionaryAttr(
        {
            "function": operand.call.op.callee,
            "buffer": axes_attr([[extent, step] for extent, step in pairs]),
            "start": IntegerAttr(operand.start.constant, i64),
            "outer": axes_attr(outer),
            "depth": axes_attr(depth),
            **_made_attrs(operand),
        }
    )


def _made_attrs(operand: RearrangedOperand) -> dict[str, Attribute]:
    """What ProductOp says beside of a buffer that a function makes: its elements, and the first argument."""
    if operand.argument is None:
        return {}
    numbers = {"made": operand.call.made, "argument": operand.argument.constant}
    return {name: IntegerAttr(number, i64) for name, number in numbers.items()}


# ---- recognising ----


def product_of_loops(root: Operation, with_herds: bool = True) -> Product | None:
    """The product that loops, or all tiles of a herd, compute; None where they compute none. Loops around
    herds are looked at only `with_herds`."""
    nest = LoopNest(root)
    loops = nest.loops() if nest.ops else None
    if loops is None or root.results or (nest.coordinates() and not with_herds):
        return None
    effective = [op for op in nest.inside if not _is_harmless(op)]
    contracts = [op for op in effective if op.name == "vector.contract"]
    writes = [op for op in effective if op.name in WRITES]
    calls = [op for op in effective if op in nest.calls]
    is_all = len(effective) == len(contracts) + len(writes) + len(calls)
    if not contracts or len(contracts) != len(writes) or not is_all:
        return None
    return _Candidate(nest, contracts, writes).product(loops)


def _is_harmless(op: Operation) -> bool:
    """Whether an operation in the loops has no effect of its own, or may be a DMA that fills a window."""
    if op.name in _OF_TILES:
        return isinstance(op.parent_op(), HerdOp)
    return only_computes(op) or op.name in (*READS, "scf.yield") or isinstance(op, DmaMemcpyNdOp)


_OF_TILES = ("memref.alloc", "memref.dealloc", "air.herd_terminator")
WRITES = ("vector.transfer_write", "vector.store")


@dataclass(frozen=True)
class _Candidate:
    """Loops around contractions, to be looked at closer."""

    nest: LoopNest
    contracts: Sequence[Operation]
    writes: Sequence[Operation]

    def product(self, loops: Sequence[Loop]) -> Product | None:
        """All blocks together; None where one is no sum of its own, or they are no product together."""
        views = SourceViews(self.nest)
        found = [self._sides(views, contract) for contract in self.contracts]
        blocks = [sides for sides in found if sides is not None]
        together = block_axes(blocks) if len(blocks) == len(found) else None
        if together is None or not self._is_apart(together[0], views):
            return None
        sides, between = together
        lanes = [list(_lane_axes(contract, sides)) for contract in self.contracts]
        if any(other != lanes[0] for other in lanes):
            return None
        return self._along(loops, sides, between, lanes[0])

    def _sides(self, views: SourceViews, contract: Operation) -> Block | None:
        """A, B and C of one contraction."""
        if not is_sum_of_bf16(contract):
            return None
        lhs, rhs, total = contract.operands
        reads = [
            _read_of(before_shape_cast(lhs)),
            _read_of(before_shape_cast(rhs)),
            self._carried_read(contract),
        ]
        values = zip(contract.operands, reads, strict=True)
        a, b, c = [self._operand(views, value, read, value is total) for value, read in values]
        return None if a is None or b is None or c is None else (a, b, c)

    def _carried_read(self, contract: Operation) -> Operation | None:
        """The read of C that a sum begins with, where its end is written back to the same place."""
        begin, result = before_shape_cast(contract.operands[2]), SSAValue.get(contract.results[0])
        carrying = []
        while isinstance(begin, BlockArgument):
            loop, position = begin.owner.parent_op(), begin.index - 1
            if not isinstance(loop, scf.ForOp) or loop not in self.nest.ops:
                return None
            end = loop.body.block.last_op
            if end is None or before_shape_cast(end.operands[position]) is not result:
                return None
            carrying.append(loop)
            begin, result = before_shape_cast(loop.iter_args[position]), loop.results[position]
        read = _read_of(begin)
        writes = [write for write in self.writes if before_shape_cast(write.operands[0]) is result]
        if read is None or len(writes) != 1 or not _is_same_place(read, writes[0]):
            return None
        ops = self.nest.ops
        inner = list(ops[len(ops) - len(carrying) :])
        is_all = contract.parent is self.nest.innermost.body.block and inner == carrying[::-1]
        return read if is_all and read.is_before_in_block(writes[0]) else None

    def _operand(
        self, views: SourceViews, value: SSAValue, read: Operation | None, is_sum: bool
    ) -> Operand | None:
        """What one operand of a contraction is, which a read gives."""
        place = None if read is None else vector_place(read)
        if read is None or place is None:
            return None
        memref, indices, dims = place
        view = identity_view(self.nest.outer_value(memref)) if is_sum else views.view_of(memref, read)
        own = identity_view(memref)
        if view is None or own is None:
            return None
        # What indices move: the window, or the buffer that a function rearranges behind it.
        steps = view.steps if view.rearranged_by is None else own.steps
        indexed = weighted_sum(indices, steps)
        moved = None if indexed is None else self.nest.resolve(indexed)
        lanes = _cast([steps[dim] for dim in dims], shape_of(read.results[0]), shape_of(value))
        if moved is None or lanes is None:
            return None
        if view.rearranged_by is None:
            return Operand(view.memref, view.start.plus(moved), lanes)
        still = (0,) * len(lanes)
        rearranged = RearrangedOperand(
            view.rearranged_by, view.steps, moved, lanes, view.rearranged_by.argument
        )
        return Operand(view.memref, view.start, still, rearranged)

    def _is_apart(self, sides: Sequence[Operand], views: SourceViews) -> bool:
        """Whether C is a buffer of its own, and the windows on A and B are all that is filled and called."""
        made = root_value(sides[2].memref)
        if not isinstance(made, OpResult) or made.op.name != "memref.alloc":
            return False
        touched = [value for fill in self.nest.fills for value in (fill.dst, fill.src)]
        others = [*touched, *(side.memref for side in sides[:2])]
        effects = [*self.nest.fills, *self.nest.calls]
        is_known = all(op in views.covered_ops for op in effects)
        return is_known and all(root_value(value) is not made for value in others)

    def _along(
        self, loops: Sequence[Loop], sides: Block, between: Sequence[Axis], lanes: Sequence[Axis]
    ) -> Product | None:
        """The product with its axes: those of the loops and herds, those between the contractions of the
        innermost loop, and those of a contraction."""
        own = [axis_of(loop, sides) for loop in loops]
        axes = [axis for axis in (*own, *between, *lanes) if axis.extent > 1]
        coordinates = self.nest.coordinates()
        tiles = [axis for axis, loop in zip(own, loops, strict=True) if loop.variable in coordinates]
        a, b, c = (at_first_iteration(side, loops) for side in sides)
        walks = tuple(axis for index in "mnk" for axis in merge_axes(axes, index))
        steps, columns = (prod(axis.extent for axis in lanes if axis.index == index) for index in "kn")
        goes = {blocks_per_group(contract) for contract in self.contracts}
        if not (
            all(axis.index for axis in axes)
            # Products are summed in pairs, which a block must not cut.
            and steps % 2 == 0
            and len(goes) == 1
            and (a.rearranged is None or a.rearranged.argument is None)
            # Tiles that share an element of C would race.
            and not any(axis.index == "k" for axis in tiles if axis.extent > 1)
            and is_distinct(axes)
            and all(self._is_outside(side) for side in (a, b, c))
            and all(sum(axis.index == index for axis in walks) <= MAX_AXES for index in "mnk")
        ):
            return None
        return Product(a, b, c, walks, (steps * goes.pop(), columns))

    def _is_outside(self, side: Operand) -> bool:
        """Whether what the statement names is there before the loops, or before the herd."""
        found = side.rearranged
        if found is not None and (found.start.terms or len(found.call.shape) > MAX_AXES):
            return False
        if found is not None and found.argument is not None and found.argument.terms:
            return False
        return not any(is_defined_in(self.nest.ops[0], value) for value in (side.memref, *side.start.terms))


def _is_same_place(read: Operation, write: Operation) -> bool:
    """Whether a write is of the same block, by the same indices, as a read beside it."""
    there, here = vector_place(read), vector_place(write)
    is_shape = shape_of(read.results[0]) == shape_of(write.operands[0])
    return there is not None and there == here and is_shape and read.parent is write.parent


def _lane_axes(contract: Operation, sides: Block) -> Iterator[Axis]:
    """The axes of a contraction itself."""
    maps = contract_maps(contract)
    for dim, extent in enumerate(contract_extents(contract)):
        where = [map_.index(dim) if dim in map_ else -1 for map_ in maps]
        steps = [0 if at < 0 else side.lanes[at] for side, at in zip(sides, where, strict=True)]
        within = [
            0 if at < 0 or side.rearranged is None else side.rearranged.lanes[at]
            for side, at in zip(sides[:2], where[:2], strict=True)
        ]
        yield Axis(extent, *steps, *within)


def _read_of(value: SSAValue) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) and owner.name in READS else None


def _cast(steps: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[int, ...] | None:
    """The steps of a vector's dimensions in another shape; None where more than dimensions of 1 differ."""
    wide = [step for step, extent in zip(steps, before, strict=True) if extent != 1]
    if [extent for extent in before if extent != 1] != [extent for extent in after if extent != 1]:
        return None
    rest = iter(wide)
    return tuple(next(rest) if extent != 1 else 0 for extent in after)


VectorPlace = tuple[SSAValue, list[SSAValue], list[int]]


def vector_place(op: Operation) -> VectorPlace | None:
    """Where a vector is read or written: the memref, the indices, and which dimension each of its own is.

    None where it may lie outside, or is masked."""
    if isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        inside = all(bound.value.data for bound in op.in_bounds)
        dims = [expr.position for expr in op.permutation_map.data.results if isinstance(expr, AffineDimExpr)]
        is_plain = inside and op.mask is None and len(dims) == len(op.permutation_map.data.results)
        return (op.source, list(op.indices), dims) if is_plain and op.in_bounds.data else None
    memref, indices = (op.operands[0], op.operands[1:]) if op.results else (op.operands[1], op.operands[2:])
    moved = shape_of(op.results[0] if op.results else op.operands[0])
    return memref, list(indices), list(range(len(indices) - len(moved), len(indices)))
