"""Loops that send one buffer again and again, which aircc turns into the count of a lock.

aircc's first pass, air-annotate-refeed (mlir-air e972f294, AIRMiscPasses.cpp), replaces a counted loop whose
body only puts, and always puts the same, by one put. The number of trips becomes `air.refeed_count`: of the
allocation where the source is in L2, else of the put. air-to-aie makes lock values of it, of 32 bits; a lock
has 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import affine, memref, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from aerie.air_dialect.index_constants import NUMBERS
from aerie.air_dialect.index_expressions import iteration_range
from aerie.air_dialect.ops import ChannelOp, ChannelPutOp, ExecuteOp, MemorySpace, memory_space

REFEED_COUNT = "air.refeed_count"
_PURE = ("arith.", "index.", "affine.apply")


@dataclass(frozen=True)
class Refeed:
    """Puts of one buffer that are made `count` times per fill of it: by loops, by attribute, or both.

    carrier: what the count is of: the allocation in L2, else the put; a channel where it is written there.
    put: the first of the puts; None for an attribute that no put is known for. in_loop: whether a loop, of
    its trips, has a part in the count.
    """

    attribute_op: Operation
    put: ChannelPutOp | None
    count: int
    in_loop: bool


def find_refeeds(module: Operation) -> list[Refeed]:
    """Every refeed of a module, in the order of the text."""
    by_carrier: dict[Operation, Refeed] = {}
    for op in module.walk():
        count = _written(op)
        if count is not None:
            by_carrier[op] = Refeed(op, op if isinstance(op, ChannelPutOp) else None, count, in_loop=False)
    for op in module.walk():
        if isinstance(op, ChannelPutOp) and (trips := _trips_around(op)) > 1:
            carrier = _carrier(op)
            earlier = by_carrier.get(carrier)
            total = trips + earlier.count if earlier is not None else trips
            by_carrier[carrier] = Refeed(
                carrier, (earlier.put if earlier else None) or op, total, in_loop=True
            )
    return list(by_carrier.values())


def _written(op: Operation) -> int | None:
    """The count that the text gives an allocation, a put or a channel."""
    count = op.attributes.get(REFEED_COUNT)
    is_carrier = isinstance(op, memref.AllocOp | ChannelPutOp | ChannelOp)
    return count.value.data if is_carrier and isinstance(count, IntegerAttr) else None


def _carrier(put: ChannelPutOp) -> Operation:
    alloc = _allocation(put.memref) if _space(put) == MemorySpace.L2 else None
    return put if alloc is None else alloc


def _space(put: ChannelPutOp) -> int | None:
    try:
        return memory_space(put.memref.type)
    except ValueError:
        return None


def _allocation(value: SSAValue) -> Operation | None:
    """The allocation behind a memref, out of an air.execute too; no view is looked through."""
    if isinstance(value, OpResult) and isinstance(value.op, ExecuteOp) and value.index > 0:
        end = value.op.body.block.last_op
        return None if end is None else _allocation(end.operands[value.index - 1])
    owner = value.owner
    return owner if isinstance(owner, memref.AllocOp) else None


def _trips_around(put: ChannelPutOp) -> int:
    """The trips of the loops that do nothing but this put, multiplied; 1 where there are none."""
    trips, inner = 1, _Sent(put)
    while (loop := inner.around()) is not None:
        count = _trip_count(loop)
        if count is None or not inner.is_all_of(loop):
            break
        trips *= count
        inner = _Sent(put, loop)
    return trips


@dataclass(frozen=True)
class _Sent:
    """A put, or the outermost of the loops that were found to stand for it alone."""

    put: ChannelPutOp
    loop: scf.ForOp | affine.ForOp | None = None

    @property
    def op(self) -> Operation:
        return self.put if self.loop is None else self.loop

    def around(self) -> scf.ForOp | affine.ForOp | None:
        """The loop whose body this is in, directly."""
        parent = self.op.parent_op()
        return parent if isinstance(parent, scf.ForOp | affine.ForOp) else None

    def is_all_of(self, loop: scf.ForOp | affine.ForOp) -> bool:
        """Whether a loop does nothing else, and always the same."""
        block = loop.body.block
        other_ops = [op for op in block.ops if op is not self.op and op is not block.last_op]
        return (
            all(op.name.startswith(_PURE) for op in other_ops)
            and not any(_is_of(block, operand) for op in other_ops for operand in op.operands)
            and all(
                not isinstance(value, BlockArgument) or value.owner is not block for value in self._taken()
            )
            and self._carries_token(loop)
        )

    def _taken(self) -> Iterator[SSAValue]:
        """What the put takes, without the tokens that it waits for."""
        waits = set(self.put.async_dependencies)
        yield from (operand for operand in self.put.operands if operand not in waits)

    def _carries_token(self, loop: scf.ForOp | affine.ForOp) -> bool:
        """Of a put with a token: whether the loop carries that and nothing else."""
        if self.put.async_token is None:
            return not loop.results
        if not isinstance(loop, scf.ForOp) or len(loop.iter_args) != 1:
            return False
        block = loop.body.block
        waits = self.put.async_dependencies if self.loop is None else _initial(self.loop)
        end = block.last_op
        return (
            list(waits) == [block.args[1]] and end is not None and list(end.operands) == [self.op.results[0]]
        )


def _initial(loop: scf.ForOp | affine.ForOp) -> list[SSAValue]:
    return list(loop.iter_args) if isinstance(loop, scf.ForOp) else []


def _is_of(block: object, value: SSAValue) -> bool:
    """Whether a value is an argument of a block, or made in it."""
    return value.owner is block or (isinstance(value, OpResult) and value.op.parent is block)


def _trip_count(loop: scf.ForOp | affine.ForOp) -> int | None:
    """The trips of a loop between constants; None for any other, which becomes no count of a lock."""
    space = iteration_range(loop.body.block.args[0])
    if space is None:
        return None
    low, high, step = (NUMBERS.analyze_term(bound) for bound in space[:3])
    if low is None or high is None or step is None or step < 1:
        return None
    return max(0, -(-(high - low) // step)) or None
