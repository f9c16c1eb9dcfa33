"""Nests of counted loops and herds, one in the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects import func, scf
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_intervals import analyze_loop, interval
from aerie.air_dialect.linear_forms import LinearForm, linear_form
from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp


@dataclass(frozen=True)
class Loop:
    """A counted loop, or a coordinate of a herd: first value, step, number of iterations."""

    variable: SSAValue
    first: int
    step: int
    trip_count: int


class LoopNest:
    """Loops and herds from an outermost one on: each holds exactly one further, and any other operations."""

    def __init__(self, root: Operation) -> None:
        self.ops: tuple[scf.ForOp | HerdOp, ...] = tuple(_chain(root))

    @property
    def innermost(self) -> scf.ForOp | HerdOp:
        """The one that holds no other."""
        return self.ops[-1]

    @cached_property
    def inside(self) -> list[Operation]:
        """The operations in the bodies, but for the nest's own loops and herds."""
        return [op for holder in self.ops for op in holder.body.block.ops if op not in self.ops]

    @cached_property
    def fills(self) -> list[DmaMemcpyNdOp]:
        """The DMAs of the bodies."""
        return [op for op in self.inside if isinstance(op, DmaMemcpyNdOp)]

    @cached_property
    def calls(self) -> list[func.CallOp]:
        """The calls of the bodies."""
        return [op for op in self.inside if isinstance(op, func.CallOp)]

    def loops(self) -> list[Loop] | None:
        """Every loop and every coordinate, outermost first; None where one is not counted, or a herd is
        asynchronous."""
        counted = [_counted(op) if isinstance(op, scf.ForOp) else _tiles(op) for op in self.ops]
        known = [loops for loops in counted if loops is not None]
        return [loop for loops in known for loop in loops] if len(known) == len(counted) else None

    def coordinates(self) -> list[SSAValue]:
        """The coordinates of the herds."""
        return [index for op in self.ops if isinstance(op, HerdOp) for index in op.ids]

    def outer_value(self, value: SSAValue) -> SSAValue:
        """The value outside of the nest's herds that an argument of theirs stands for; any other value
        itself."""
        for herd in reversed(self.ops):
            if isinstance(herd, HerdOp):
                pairs = zip(herd.kernel_args, herd.kernel_operands, strict=True)
                value = next((operand for argument, operand in pairs if argument is value), value)
        return value

    def resolve(self, expression: LinearForm) -> LinearForm | None:
        """A linear form with each argument of a herd replaced by the form of the value outside."""
        total = LinearForm(expression.constant)
        for value, factor in expression.terms.items():
            outer = self.outer_value(value)
            known = LinearForm(0, {value: 1}) if outer is value else linear_form(outer)
            if known is None:
                return None
            total = total.plus(known.times(factor))
        return total


def _chain(op: Operation | None) -> Iterator[scf.ForOp | HerdOp]:
    while isinstance(op, scf.ForOp | HerdOp):
        yield op
        inner = [child for child in op.body.block.ops if isinstance(child, scf.ForOp | HerdOp)]
        op = inner[0] if len(inner) == 1 else None


def _counted(loop: scf.ForOp) -> list[Loop] | None:
    found = analyze_loop(loop)
    return None if found is None else [Loop(loop.body.block.args[0], *found)]


def _tiles(herd: HerdOp) -> list[Loop] | None:
    sizes = [interval(size) for size in herd.sizes]
    trips = [size[0] for size in sizes if size is not None and size[0] == size[1] > 0]
    if len(trips) != len(sizes) or herd.async_token is not None or herd.async_dependencies:
        return None
    return [Loop(index, 0, 1, count) for index, count in zip(herd.ids, trips, strict=True)]


def only_computes(op: Operation) -> bool:
    """Whether an operation makes a number or a vector of others, and does nothing else."""
    return op.name in ("affine.apply", "vector.shape_cast") or op.name.startswith(("arith.", "index."))
