"""The block of a buffer that loops touch: all of its last dimensions, at one place in the first ones.

Where tiles share a buffer, each mostly has such a block of its own: `%acc[%tx, %ty, %i, %j]`. The order
checks can then be told of the block once, before the loops, in place of every access.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineMap

from air_dialect.effects import ACCESSES, accesses
from air_dialect.readings import interval
from air_dialect.values import is_inside
from virtual_npu.codegen import types
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.text import grouped, plus, times


@dataclass(frozen=True)
class Touched:
    """C++ text of where a block begins, in elements from the memref's first; its elements; is it written?"""

    offset: str
    count: int
    writes: bool


def touched_block(body: Body, nest: Operation, value: SSAValue) -> Touched | None:
    """The block of a memref that every access in a nest of loops lies in; None where that cannot be told."""
    users = [inner for inner in nest.walk() if any(operand is value for operand in inner.operands)]
    places = {_place(body, nest, user, value) for user in users}
    if len(places) != 1 or None in places:
        return None
    (found,) = places
    assert found is not None
    offset, count = found
    writes = any(writes for user in users for touched, writes in accesses(user) if touched is value)
    return Touched(offset, count, writes)


def _place(body: Body, nest: Operation, op: Operation, value: SSAValue) -> tuple[str, int] | None:
    if op.name not in ACCESSES or "map" in op.properties:
        return None
    if not _always_runs(nest, op) or not _stays_inside(op):
        return None
    assert isinstance(value.type, MemRefType)
    sizes, strides = value.type.get_shape(), types.memref_strides(value.type)
    if types.DYNAMIC in (*sizes, *strides):
        return None
    first_index = ACCESSES[op.name][0] + 1
    indices = op.operands[first_index : first_index + len(sizes)]
    moved = op.results[0].type if op.results else op.operands[0].type
    shape = moved.get_shape() if isinstance(moved, VectorType) else ()
    extents = [1] * (len(sizes) - len(shape)) + list(shape)
    covered = [_covers(nest, *dim) for dim in zip(indices, extents, sizes, strict=True)]
    first = len(sizes)
    while first > 0 and covered[first - 1]:
        first -= 1
    fixed = [_fixed(body, nest, index) for index in indices[:first]]
    texts = [text for text in fixed if text is not None]
    if len(texts) < first or any(extent != 1 for extent in extents[:first]):
        return None
    if list(strides[first:]) != types.row_major(tuple(sizes[first:])):
        return None
    products = (times(grouped(text), str(stride)) for text, stride in zip(texts, strides, strict=False))
    return plus("0", *products), prod(sizes[first:])


def _always_runs(nest: Operation, op: Operation) -> bool:
    """Whether only loops are between a nest and an operation in it."""
    parent = op.parent_op()
    while parent is not None and parent is not nest:
        if not parent.name.endswith((".for", ".parallel", ".forall")):
            return False
        parent = parent.parent_op()
    return True


def _stays_inside(op: Operation) -> bool:
    """Whether a vector transfer moves the last dimensions in their order, without lanes outside."""
    if not isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        return True
    map_ = op.permutation_map.data
    minor = AffineMap.identity(map_.num_dims).results[map_.num_dims - len(map_.results) :]
    return map_.results == minor and all(bound.value.data for bound in op.in_bounds) and op.mask is None


def _covers(nest: Operation, index: SSAValue, extent: int, size: int) -> bool:
    """Whether an index, over all iterations of a nest, goes through a whole dimension."""
    found = interval(index)
    return found is not None and found[0] == 0 and found[1] + extent == size and _made_inside(nest, index)


def _made_inside(nest: Operation, value: SSAValue) -> bool:
    """Whether only loop variables of a nest, and constants, make a value."""
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return True
    if isinstance(value, OpResult):
        return bool(value.op.operands) and all(_made_inside(nest, operand) for operand in value.op.operands)
    return is_inside(nest, value)


def _fixed(body: Body, nest: Operation, value: SSAValue) -> str | None:
    """C++ text of an index that is the same in all iterations; None for others."""
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return str(found[0])
    return None if is_inside(nest, value) else body.text(value)
