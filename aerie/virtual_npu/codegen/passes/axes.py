"""The axes of a matrix product: what the loops, the tiles of a herd and the lanes of its blocks walk.

A loop body may make several blocks of C, so that each block of A and B that it reads is used more than once.
These blocks are more steps of m and of n (`block_axes`): they lie constant steps apart in A, B and C, and
every step of m meets every step of n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.ir import SSAValue

from aerie.air_dialect.linear_forms import LinearForm
from aerie.virtual_npu.codegen.passes.dma_views import RearrangingCall
from aerie.virtual_npu.codegen.passes.loops import Loop

MAX_AXES = 6
"""vnpu::Axes::kMost."""


@dataclass(frozen=True)
class Axis:
    """One axis of a product: its extent, and its steps (strides) in A, B and C, in elements.

    a_in_rearranged, b_in_rearranged: its steps in the buffers of A and B that a function rearranges or makes,
    else 0. b_argument: its step in the integer that the function which makes B takes.
    """

    extent: int
    a: int
    b: int
    c: int
    a_in_rearranged: int = 0
    b_in_rearranged: int = 0
    b_argument: int = 0

    @property
    def index(self) -> str:
        """m, n or k; empty for an axis with other steps than a matrix product has."""
        moves = (
            bool(self.a or self.a_in_rearranged),
            bool(self.b or self.b_in_rearranged or self.b_argument),
            bool(self.c),
        )
        return {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}.get(moves, "")


@dataclass(frozen=True)
class RearrangedOperand:
    """How blocks are read in a buffer that a function in C++ rearranged before they are multiplied.

    A core may transpose the blocks that a DMA brought, in place, before it multiplies them. The simulator
    need not do so if it knows where each element ends up. vnpu/rearranged.h asks the function itself, with a
    buffer of labels.

    `filled` are the steps in the source of each dimension of the buffer, before the call; `start` and `lanes`
    say where in the buffer, after the call, the first block begins, and the steps of a block's dimensions.
    """

    call: RearrangingCall
    filled: tuple[int, ...]
    start: LinearForm
    lanes: tuple[int, ...]
    argument: LinearForm | None = None
    """Of a function that makes the buffer out of another one: the integer that it takes."""


@dataclass(frozen=True)
class Operand:
    """A, B or C: a memref, where the first block begins, and the steps of the dimensions of a block."""

    memref: SSAValue
    start: LinearForm
    lanes: tuple[int, ...]
    rearranged: RearrangedOperand | None = None


Block = tuple[Operand, Operand, Operand]
"""A, B and C of one contraction."""


@dataclass(frozen=True)
class Product:
    """C += A B, as loops compute it."""

    a: Operand
    b: Operand
    c: Operand
    axes: tuple[Axis, ...]
    block: tuple[int, int]
    """Steps of k and columns of n that one contraction of the text takes."""

    def along(self, index: str) -> list[Axis]:
        """The axes of m, n or k."""
        return [axis for axis in self.axes if axis.index == index]


def axis_of(loop: Loop, sides: Block) -> Axis:
    """What a loop, or a coordinate of a herd, walks."""
    steps = [side.start.terms.get(loop.variable, 0) * loop.step for side in sides]
    within = [
        0 if side.rearranged is None else side.rearranged.start.terms.get(loop.variable, 0) * loop.step
        for side in sides[:2]
    ]
    made = sides[1].rearranged
    argument = 0 if made is None or made.argument is None else made.argument.terms.get(loop.variable, 0)
    return replace(Axis(loop.trip_count, *steps, *within), b_argument=argument * loop.step)


def at_first_iteration(side: Operand, loops: Sequence[Loop]) -> Operand:
    """An operand as the first iteration sees it."""
    rearranged = side.rearranged
    if rearranged is not None:
        argument = rearranged.argument
        rearranged = replace(
            rearranged,
            start=_start(rearranged.start, loops),
            argument=None if argument is None else _start(argument, loops),
        )
    return replace(side, start=_start(side.start, loops), rearranged=rearranged)


def _start(begin: LinearForm, loops: Sequence[Loop]) -> LinearForm:
    """Where the first iteration begins."""
    first = sum(begin.terms.get(loop.variable, 0) * loop.first for loop in loops)
    variables = [loop.variable for loop in loops]
    rest = {value: n for value, n in begin.terms.items() if not any(value is v for v in variables)}
    return LinearForm(begin.constant + first, rest)


def block_axes(blocks: Sequence[Block]) -> tuple[Block, list[Axis]] | None:
    """The first of the blocks that one loop body makes, and the axes on which the others lie.

    These are at most one of m and one of n. None where the blocks differ by more than constant steps, or not
    every step of m meets every step of n once.
    """
    first = min(blocks, key=lambda sides: sides[2].start.constant)
    offsets = [_offset(first, sides) for sides in blocks]
    known = [offset for offset in offsets if offset is not None and min(offset) >= 0]
    down = [offset for offset in known if not (offset[1] or offset[4])]
    along = [offset for offset in known if not (offset[0] or offset[3])]
    steps = _even(down), _even(along)
    grid = {tuple(map(sum, zip(one, other, strict=True))) for one in down for other in along}
    if len(known) != len(blocks) or None in steps or not len(down) * len(along) == len(grid) == len(blocks):
        return None
    extents = zip((len(down), len(along)), steps, strict=True)
    found = [Axis(extent, *step) for extent, step in extents if step is not None and extent > 1]
    return (first, found) if grid == set(known) else None


_Offset = tuple[int, ...]
"""The steps of an `Axis`: in A, B and C, and in rearranged buffers of A and B, in elements."""


def _offset(first: Block, other: Block) -> _Offset | None:
    """How far a block lies behind another; None where that is no constant."""
    if any(_at_zero(one) != _at_zero(side) for one, side in zip(first, other, strict=True)):
        return None
    a, b, c = (side.start.constant - one.start.constant for one, side in zip(first, other, strict=True))
    within = [_within(side) - _within(one) for one, side in zip(first[:2], other[:2], strict=True)]
    return a, b, c, within[0], within[1]


def _within(side: Operand) -> int:
    return 0 if side.rearranged is None else side.rearranged.start.constant


def _at_zero(side: Operand) -> Operand:
    """The operand without the constant part of where it begins."""
    rearranged = side.rearranged
    if rearranged is not None:
        rearranged = replace(rearranged, start=LinearForm(0, rearranged.start.terms))
    return replace(side, start=LinearForm(0, side.start.terms), rearranged=rearranged)


def _even(offsets: Sequence[_Offset]) -> _Offset | None:
    """The step between offsets, one of them 0, in the order of C; None where it is not always the same."""
    ordered = sorted(offsets, key=lambda offset: offset[2])
    last = ordered[1] if len(ordered) > 1 else (0,) * 5
    steps = [tuple(n * step for step in last) for n in range(len(ordered))]
    return last if ordered == steps else None


def is_distinct(axes: Sequence[Axis]) -> bool:
    """Whether no two values of the m and n axes lead to one element of C."""
    reach = 0
    for axis in sorted((axis for axis in axes if axis.c), key=lambda axis: axis.c):
        if axis.c <= reach:
            return False
        reach += (axis.extent - 1) * axis.c
    return True


def merge_axes(axes: Sequence[Axis], index: str) -> list[Axis]:
    """The axes of one index, neighbours made one where they are one walk; those of m and n as C has them."""
    found = [axis for axis in axes if axis.index == index]
    if index != "k":
        found.sort(key=lambda axis: -axis.c)
    merged: list[Axis] = []
    for axis in found:
        steps = [
            (getattr(axis, side), side)
            for side in ("a", "b", "c", "a_in_rearranged", "b_in_rearranged", "b_argument")
        ]
        last = merged[-1] if merged else None
        if last is not None and all(getattr(last, side) == axis.extent * step for step, side in steps):
            merged[-1] = replace(axis, extent=last.extent * axis.extent)
        else:
            merged.append(axis)
    return merged
