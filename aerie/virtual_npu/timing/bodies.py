"""Bodies as steps: work between two transfers is one number, and only control and transfers stay.

Steps are made once for each block; a launch then walks them with concrete indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.dialects import affine, func, scf
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue

from aerie.air_dialect.index_constants import NUMBERS, Known, constant_int
from aerie.air_dialect.index_expressions import iteration_range
from aerie.air_dialect.index_operators import Term, operand_values
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HierarchyOp
from aerie.common.errors import ProgramError
from aerie.device.report import line_of
from aerie.device.transfers import length
from aerie.virtual_npu.timing.core_costs import CoreWork, operation_work
from aerie.virtual_npu.timing.costs import NOTHING, cost, prices
from aerie.virtual_npu.timing.parameters import DEFAULT

LOOPS = ("scf.for", "scf.parallel", "scf.forall", "affine.for", "affine.parallel")
BRANCHES = ("scf.if", "affine.if")


class TimingError(ProgramError):
    """The timing model cannot follow a program."""

    kind = "timing"


NO_WORK = CoreWork()
ITERATION = CoreWork(cost(loop_cycles=1))


@dataclass(frozen=True)
class Step:
    """An operation to walk (a transfer, a hierarchy, a loop, a branch) or, where `op` is None, work.

    bodies: the steps of its regions.
    """

    op: Operation | None
    work: CoreWork = NO_WORK
    bodies: tuple[tuple[Step, ...], ...] = ()


@dataclass
class Bodies:
    """The steps of the blocks of a module."""

    module: ModuleOp
    _steps: dict[Block, tuple[Step, ...]] = field(default_factory=dict)
    _work: dict[Operation, CoreWork | None] = field(default_factory=dict)
    _trips: dict[SSAValue, range] = field(default_factory=dict)

    def steps(self, block: Block) -> tuple[Step, ...]:
        """The steps of a block, those of its work joined."""
        if block not in self._steps:
            self._steps[block] = tuple(self._joined(block))
        return self._steps[block]

    def _joined(self, block: Block) -> list[Step]:
        steps: list[Step] = []
        work = CoreWork()
        for op in block.ops:
            fixed = self.fixed_work(op)
            if fixed is not None:
                work += fixed
                continue
            if work.cost != NOTHING:
                steps.append(Step(None, work))
                work = CoreWork()
            steps.append(self._step(op))
        return [*steps, Step(None, work)] if work.cost != NOTHING else steps

    def _step(self, op: Operation) -> Step:
        if isinstance(op, HierarchyOp):
            return Step(op)
        blocks = [region.block if region.blocks else None for region in self._called(op)]
        return Step(op, bodies=tuple(self.steps(block) if block else () for block in blocks))

    def fixed_work(self, op: Operation) -> CoreWork | None:
        """The work of an operation that needs no walk; None for a transfer, a hierarchy, what holds one, and
        a loop whose trips depend on where it runs."""
        if op not in self._work:
            self._work[op] = self._count(op)
        return self._work[op]

    def _count(self, op: Operation) -> CoreWork | None:
        if isinstance(op, DmaMemcpyNdOp | ChannelTransferOp | HierarchyOp):
            return None
        regions = self._called(op)
        if not regions or op.name.startswith("linalg."):
            return operation_work(op)
        bodies = [self._body_work(block) for region in regions for block in region.blocks]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return None
        if op.name in LOOPS:
            return self._loop_work(op, known[0])
        if op.name in BRANCHES:
            return self._branch_work(op, known)
        if op.name.startswith("scf.") and op.name != "scf.execute_region":
            raise _unknown_trips(op)
        return sum(known, CoreWork())

    def _body_work(self, block: Block) -> CoreWork | None:
        total = CoreWork()
        for op in block.ops:
            work = self.fixed_work(op)
            if work is None:
                return None
            total += work
        return total

    def _loop_work(self, op: Operation, body: CoreWork) -> CoreWork | None:
        count = 1
        for arg in _induction(op):
            trips = self.trips(arg, {})
            if trips is None:
                return None
            count *= length(trips)
        return (body + ITERATION).times(count)

    def _branch_work(self, op: Operation, bodies: list[CoreWork]) -> CoreWork | None:
        """The longer arm where data decides; None where indices do, which are known when the op is walked."""
        longest = max(bodies, key=_usual_cycles)
        if longest.cost == NOTHING:
            return longest
        values = op.operands if op.name == "affine.if" else _compared(op.operands[0])
        by_index = all(isinstance(value.type, IndexType) for value in values)
        return None if by_index else longest

    def _called(self, op: Operation) -> Sequence[Region]:
        """The regions of an operation; for a call, those of a function of this module."""
        if isinstance(op, func.CallOp):
            for other in self.module.ops:
                if isinstance(other, func.FuncOp) and other.sym_name.data == op.callee.root_reference.data:
                    return [other.body] if other.body.blocks else []
        return list(op.regions)

    def trips(self, value: SSAValue, known: Known) -> range | None:
        """The values of a loop variable; None where they depend on more than is known."""
        if value in self._trips:
            return self._trips[value]
        space = iteration_range(value)
        if space is None:
            return None
        bounds = [self._number(term, {}) for term in space[:3]]
        fixed = None not in bounds
        if not fixed:
            bounds = [self._number(term, known) for term in space[:3]]
        low, high, step = bounds
        if low is None or high is None or not step or step < 0:
            return None
        trips = range(low, max(low, high), step)
        if fixed:
            self._trips[value] = trips
        return trips

    def _number(self, term: Term, known: Known) -> int | None:
        values: Mapping[SSAValue, int | None] = {v: constant_int(v, known) for v in operand_values(term)}
        return NUMBERS.term(term, values)


def _usual_cycles(work: CoreWork) -> float:
    """With the table's parameters."""
    return float(np.dot(work.cost, prices(DEFAULT)))


def _compared(condition: SSAValue) -> Sequence[SSAValue]:
    """What a condition is computed from, one step deep."""
    return condition.owner.operands if isinstance(condition, OpResult) else ()


def _induction(op: Operation) -> Sequence[SSAValue]:
    """The loop variables of a loop: all its arguments, without those that it carries."""
    args = list(op.regions[0].block.args)
    return args[:1] if isinstance(op, scf.ForOp | affine.ForOp) else args


def walked_trips(op: Operation, bodies: Bodies, known: Known) -> list[tuple[SSAValue, range]]:
    """The loop variables of a loop and their values. Raises TimingError where they are not known."""
    found = []
    for value in _induction(op):
        trips = bodies.trips(value, known)
        if trips is None:
            raise _unknown_trips(op)
        found.append((value, trips))
    return found


def _unknown_trips(op: Operation) -> TimingError:
    return TimingError(
        f"{_place(op)}: the number of iterations depends on data, which the timing model does not have: give "
        "the loop bounds that are constants, or indices of the launch, the herd or a loop"
    )


def _place(op: Operation) -> str:
    line = line_of(op)
    return op.name if line is None else f"line {line}: {op.name}"
