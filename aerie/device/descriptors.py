"""Buffer descriptors (BDs) of transfers of L1 and L2: the number of each, and what one of them can walk.

After mlir-air at e972f294. A transfer is one descriptor for each copy of its buffer. A core's loops run on
the core, but those around a transfer of L2 have to become dimensions of its descriptor
(`air-opt-memtile-dma-bds`), or else a descriptor for each trip. `air-shrink-memref-sizes-by-access` makes
several transfers of one buffer one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from xdsl.dialects import memref, scf
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_constants import constant_int, leaves
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp, HierarchyOp
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.buffer_copies import trip_count
from aerie.device.npu2 import DmaLimits
from aerie.device.scopes import ArrayConfiguration
from aerie.device.transfers import TransferSide, allocated_bytes

Dims = list[tuple[int, int]]
"""(size, stride) in elements of each dimension, outermost first."""


def descriptors(scope: ArrayConfiguration, side: TransferSide) -> int:
    """The number of descriptors of one transfer of L1 or L2 by one tile."""
    if shrunk_buffers(scope).get(root_value(side.memref), side.op) is not side.op:
        return 0
    steps = _steps(side, scope.device.memtile) if side.space == 1 else 1
    return scope.buffer_count(side.memref) * steps


def contiguous(dims: Dims) -> Dims:
    """A walk with contiguous dimensions merged, and without dimensions of size 1."""
    merged: Dims = []
    for size, stride in dims:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        merged.append((size, stride))
    return merged


# ---- loops around a transfer of L2 ----


def _steps(side: TransferSide, limits: DmaLimits) -> int:
    """The number of descriptors of one transfer: a loop that its offsets depend on takes a free dimension,
    and is unrolled if there is none."""
    dims = side.known_dims
    if dims is None:
        return 1
    walk, unrolled = contiguous(dims), 1
    for loop in _loops(side):
        count = trip_count(loop)
        stride = stride_of(side, loop.body.block.args[0], constant_int(loop.step) or 1)
        if not count or count == 1 or not stride:
            continue
        longer = contiguous([(count, stride), *walk])
        fits = len(longer) <= limits.dims and all(size <= limits.max_wrap for size, _ in longer[:-1])
        if unrolled == 1 and fits:
            walk = longer
        else:
            unrolled *= count
    return unrolled


def _loops(side: TransferSide) -> Iterator[scf.ForOp]:
    """The loops around a transfer in its segment, innermost first."""
    for op in parent_ops(side.op):
        if isinstance(op, scf.ForOp):
            yield op
        if isinstance(op, HierarchyOp) and not isinstance(op, HerdOp):
            return


def stride_of(side: TransferSide, variable: SSAValue, step: int) -> int | None:
    """The distance in elements between a transfer's starts in two steps of a loop variable or coordinate."""
    strides = side.strides[-len(side.offsets) :] if side.offsets else ()
    total = 0
    for offset, stride in zip(side.offsets, strides, strict=False):
        origin = dict.fromkeys(leaves(offset), 0)
        first = constant_int(offset, origin)
        then = constant_int(offset, {**origin, variable: step}) if variable in origin else first
        if first is None or then is None or stride is None:
            return None
        total += (then - first) * stride
    return total


# ---- buffers that are made smaller ----


@lru_cache(maxsize=64)
def shrunk_buffers(scope: ArrayConfiguration) -> dict[SSAValue, Operation]:
    """Buffers that aircc cuts to the size of one transfer, each with the first of its transfers.

    Only transfers use such a buffer, all of one size, each of a part. They become one transfer.
    """
    result: dict[SSAValue, Operation] = {}
    for buffer, used in _by_buffer(scope.sides).items():
        if len(used) > 2 and len({side.sizes for side in used}) == 1 and _are_parts(used):
            result[buffer] = used[0].op
    return result


@lru_cache(maxsize=64)
def underfilled_buffers(scope: ArrayConfiguration) -> dict[SSAValue, int]:
    """Buffers that only transfers use and none fills, with the bytes of the largest transfer.

    air-shrink-memref-sizes-by-access makes them that small before anything is placed.
    """
    others = {root_value(value) for op in scope.ops if not _passes_on(op) for value in op.operands}
    most: dict[SSAValue, int | None] = {}
    for side in scope.sides:
        buffer, dims = root_value(side.memref), side.known_dims
        size = None if dims is None else -(-math.prod(s for s, step in dims if step) * side.bits // 8)
        before = most.get(buffer, 0)
        most[buffer] = None if size is None or before is None else max(size, before)
    return {
        buffer: size
        for buffer, size in most.items()
        if size and buffer not in others and isinstance(buffer.owner, memref.AllocOp)
        if size < (allocated_bytes(buffer) or 0)
    }


def _passes_on(op: Operation) -> bool:
    """Whether an operation moves, frees or passes on a buffer without reading its elements."""
    moves = isinstance(op, DmaMemcpyNdOp | ChannelTransferOp | HierarchyOp)
    return moves or op.name in ("memref.dealloc", "air.execute_terminator")


def buffer_bytes(scope: ArrayConfiguration, buffer: SSAValue) -> int:
    """Bytes of one copy of a buffer after aircc shrank it; 0 if unknown."""
    return underfilled_buffers(scope).get(buffer, allocated_bytes(buffer) or 0)


def _by_buffer(sides: list[TransferSide]) -> dict[SSAValue, list[TransferSide]]:
    """The transfers of each buffer that nothing else uses."""
    by_buffer: dict[SSAValue, list[TransferSide]] = defaultdict(list)
    for side in sides:
        buffer = root_value(side.memref)
        if isinstance(buffer.owner, memref.AllocOp) and buffer is side.memref:
            by_buffer[buffer].append(side)
    return {
        buffer: used
        for buffer, used in by_buffer.items()
        if {use.operation for use in buffer.uses if use.operation.name != "memref.dealloc"}
        == {s.op for s in used}
    }


def _are_parts(used: list[TransferSide]) -> bool:
    """Whether every transfer moves a part of the buffer, at a constant offset."""
    volumes = [math.prod(size for size, _ in side.known_dims or ()) for side in used]
    whole = math.prod(used[0].type.get_shape())
    offsets = [constant_int(offset) for side in used for offset in side.offsets]
    return None not in offsets and all(side.offsets for side in used) and max(volumes) < whole
