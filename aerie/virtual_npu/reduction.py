"""Finds a smaller text that still fails in the same way, as mlir-reduce does.

Edits are made on the parsed module: operations are dropped in ever smaller groups (delta debugging), loops
and grids are shrunk, numbers are halved throughout the text. A candidate that does not parse is never run. A
text that does not parse itself, or that fails otherwise once it is printed anew, loses lines instead.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import affine, arith, scf
from xdsl.dialects.builtin import (
    AffineMapAttr,
    AnyFloat,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator

from aerie import air_dialect
from aerie.air_dialect.assembly import OPERAND_SEGMENT_SIZES
from aerie.air_dialect.execution import WaitAllOp
from aerie.air_dialect.hierarchy import HierarchyOp
from aerie.air_dialect.types import AsyncTokenType
from aerie.virtual_npu.errors import ERROR_KINDS

_NAMED = re.compile(r"\bline \d+: ([a-z_0-9]+\.[\w.]+(?: @\w+)?)")
_FOUND = re.compile(r"arg\d+(?:\[[\d, ]*\])? is \S+")
_VARYING = re.compile(r"\d+|(?<=[%@])[\w.$-]+|(?<=_)_\d+")
_DISTINCT_KINDS = frozenset((*ERROR_KINDS[1:], "schedule", "garbage", "expect"))
"""The kinds of failure that need no text to be distinguished from others."""


@dataclass(frozen=True)
class Failure:
    """How a run failed: the kind of the error and its message."""

    kind: str
    message: str

    def is_same_as(self, other: Failure) -> bool:
        """Whether both failed in the same way, wherever in the text.

        The kind is the same, and this message names no operation or channel that the other does not name. A
        wrong number is the same number in the same element. Kinds that say little have the same text too, but
        for numbers and names.
        """
        if self.kind != other.kind or not self._operations <= other._operations:
            return False
        if self.kind == "expect":
            return _FOUND.findall(self.message)[:1] == _FOUND.findall(other.message)[:1]
        return self.kind in _DISTINCT_KINDS or self._gist == other._gist

    @property
    def _operations(self) -> set[str]:
        return set() if self.kind == "expect" else set(_NAMED.findall(self.message))

    @property
    def _gist(self) -> str:
        _, colon, text = self.message.partition(": error: ")
        return _VARYING.sub("", (text if colon else self.message).split("\n")[0])


Test = Callable[[str], bool]
Notice = Callable[[str, int], None]


class _EnoughError(Exception):
    """The bound on candidates is reached."""


class Reduction:
    """The search for a smaller text.

    best: the smallest text found so far that passes the test. tries: how many candidates were tested.
    """

    def __init__(self, text: str, test: Test, max_tries: int, notice: Notice = lambda _text, _tries: None):
        """test: whether a text fails in the way looked for. notice: called after each try."""
        self.best, self.tries = text, 0
        self._test, self._max_tries, self._notice = test, max_tries, notice
        self._seen = {text}

    def run(self) -> None:
        """Reduce until nothing more can be taken away, or max_tries candidates were tested."""
        try:
            printed = _printed(self.best)
            if printed is not None and (printed == self.best or self._offer(printed)):
                self._reduce_module()
            else:
                self._reduce_lines()
        except _EnoughError:
            pass

    def _offer(self, text: str) -> bool:
        """Test a candidate, once, and keep it as the best if it passes."""
        if text in self._seen:
            return False
        if self.tries >= self._max_tries:
            raise _EnoughError
        self._seen.add(text)
        self.tries += 1
        is_same = self._test(text)
        if is_same:
            self.best = text
        self._notice(self.best, self.tries)
        return is_same

    def _reduce_lines(self) -> None:
        size = len(self.best.splitlines()) // 2
        while size:
            start = 0
            while start < len(lines := self.best.splitlines(keepends=True)):
                if not self._offer("".join(lines[:start] + lines[start + size :])):
                    start += size
            size //= 2

    def _reduce_module(self) -> None:
        before = ""
        while before != self.best:
            before = self.best
            self._drop_operations()
            for edits in (_unwrapped, _shrunk_loops, _shrunk_grids):
                self._edit(edits)
            self._halve_numbers()

    def _drop_operations(self) -> None:
        size = max(1, _count(self.best) // 2)
        while size:
            start = 0
            while start < (count := _count(self.best)):
                text = _without(self.best, range(start, start + size))
                if text is None or _count(text) >= count or not self._offer(text):
                    start += size
            size //= 2

    def _edit(self, edits: Callable[[ModuleOp], Iterator[Callable[[], None]]]) -> None:
        """Offer each edit by itself; one that passes is the base of the next."""
        number = 0
        while True:
            module = air_dialect.parse(self.best)
            chosen = next((edit for i, edit in enumerate(edits(module)) if i == number), None)
            if chosen is None:
                return
            chosen()
            text = _valid(module)
            if text is None or not self._offer(text):
                number += 1

    def _halve_numbers(self) -> None:
        """Replace a number wherever it stands: the sizes of types, channels, loops and transfers at once."""
        for number in sorted({int(found) for found in _NUMBER.findall(self.best)} - {0, 1}, reverse=True):
            same = re.compile(_NUMBER.pattern.replace(r"\d+", str(number)))
            for smaller in (1, number // 2):
                printed = _printed(same.sub(str(smaller), self.best))
                if printed is not None and self._offer(printed):
                    break


_NUMBER = re.compile(r"(?:(?<![\w%@#.\"])|(?<=\dx))\d+(?=x|\b)(?!\.\d)")


def _printed(text: str) -> str | None:
    """The text as it is printed anew; None if it does not parse."""
    try:
        return air_dialect.print_module(air_dialect.parse(text, check_loops=True))
    except (air_dialect.AirParseError, ValueError, OverflowError):
        return None


def _count(text: str) -> int:
    return len(_droppable(air_dialect.parse(text)))


def _droppable(module: ModuleOp) -> list[Operation]:
    """All operations but terminators and the module, those of the upper levels first."""
    found, level = list[Operation](), list(module.body.block.ops)
    while level:
        found += [op for op in level if not op.has_trait(IsTerminator)]
        level = [inner for op in level for region in op.regions for b in region.blocks for inner in b.ops]
    return found


def _without(text: str, numbers: range) -> str | None:
    """The text without some of its operations; None if they are needed."""
    module = air_dialect.parse(text)
    for op in reversed(_droppable(module)[numbers.start : numbers.stop]):
        if not _drop(op):
            return None
    return _valid(module)


def _drop(op: Operation) -> bool:
    """Take an operation out. What uses a result gets an operand of its type, a zero, or a done token."""
    for result in op.results:
        if not result.uses:
            continue
        other = _stand_in(op, result.type)
        if other is None:
            return False
        result.replace_all_uses_with(other)
    Rewriter.erase_op(op)
    return True


def _stand_in(op: Operation, type_: Attribute) -> SSAValue | None:
    same = next((operand for operand in op.operands if operand.type == type_), None)
    if same is not None or isinstance(op, arith.ConstantOp | WaitAllOp):
        return same
    made: Operation | None = None
    if isinstance(type_, AsyncTokenType):
        made = WaitAllOp(is_async=True)
    elif isinstance(type_, IndexType | IntegerType):
        made = arith.ConstantOp(IntegerAttr(0, type_))
    elif isinstance(type_, AnyFloat):
        made = arith.ConstantOp(FloatAttr(0.0, type_))
    if made is None:
        return None
    _insert_before(op, made)
    return made.results[0]


def _insert_before(op: Operation, new: Operation) -> None:
    block = op.parent
    assert block is not None
    block.insert_op_before(new, op)


def _valid(module: ModuleOp) -> str | None:
    """The module as text, without operands that nothing uses; None if it is no valid program."""
    for op in list(module.walk(reverse=True)):
        if isinstance(op, HierarchyOp):
            _drop_unused_operands(op)
        elif isinstance(op, arith.ConstantOp) and not op.result.uses:
            Rewriter.erase_op(op)
    return _printed(air_dialect.print_module(module))


def _drop_unused_operands(op: HierarchyOp) -> None:
    first = len(op.operands) - len(op.kernel_operands)
    for number, argument in reversed(list(enumerate(op.kernel_args))):
        if argument.uses:
            continue
        op.operands = [value for i, value in enumerate(op.operands) if i != first + number]
        sizes = op.properties[OPERAND_SEGMENT_SIZES]
        assert isinstance(sizes, DenseArrayBase)
        *others, last = [int(size) for size in sizes.iter_values()]
        op.properties[OPERAND_SEGMENT_SIZES] = DenseArrayBase.from_list(i32, [*others, last - 1])
        op.body.block.erase_arg(argument)


# ---- loops and grids ----


def _constant(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def _index(op: Operation, value: int) -> SSAValue:
    """A new constant in front of an operation."""
    made = arith.ConstantOp(IntegerAttr(value, IndexType()))
    _insert_before(op, made)
    return made.result


def _unwrapped(module: ModuleOp) -> Iterator[Callable[[], None]]:
    """For each `scf.for`, launch, segment and herd: its body once, in its place."""
    for op in module.walk():
        if isinstance(op, scf.ForOp):
            yield functools.partial(_unwrap, op, [op.lb, *op.iter_args])
        elif isinstance(op, HierarchyOp):
            yield functools.partial(_unwrap_hierarchy, op)


def _unwrap_hierarchy(op: HierarchyOp) -> None:
    if op.async_token is not None:
        made = WaitAllOp(op.async_dependencies, is_async=True)
        _insert_before(op, made)
        op.async_token.replace_all_uses_with(made.results[0])
    _unwrap(op, [*(_index(op, 0) for _ in op.ids), *op.sizes, *op.kernel_operands])


def _unwrap(op: scf.ForOp | HierarchyOp, arguments: Sequence[SSAValue]) -> None:
    """Put a body in the place of its operation. Results that the terminator has operands for become those."""
    block, last = op.body.block, op.body.block.last_op
    assert last is not None
    for argument, value in zip(block.args, arguments, strict=True):
        argument.replace_all_uses_with(value)
    for result, value in zip(op.results, last.operands, strict=False):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(last)
    for inner in list(block.ops):
        block.detach_op(inner)
        _insert_before(op, inner)
    Rewriter.erase_op(op)


def _shrunk_loops(module: ModuleOp) -> Iterator[Callable[[], None]]:
    """For each loop with constant bounds and several turns: one turn, two, half of them."""
    for op in module.walk():
        if isinstance(op, scf.ForOp):
            bounds = [_constant(value) for value in (op.lb, op.ub, op.step)]
        elif isinstance(op, affine.ForOp):
            bounds = [_only(op.lowerBoundMap.data), _only(op.upperBoundMap.data), op.step.value.data]
        else:
            continue
        lower, upper, step = bounds
        if lower is None or upper is None or step is None or step < 1:
            continue
        turns = -((lower - upper) // step)
        for fewer in sorted({1, 2, turns // 2}):
            if 0 < fewer < turns:
                yield functools.partial(_end_loop, op, lower + fewer * step)


def _only(bounds: AffineMap) -> int | None:
    """The constant that a map is."""
    if bounds.num_dims or bounds.num_symbols or len(bounds.results) != 1:
        return None
    return bounds.eval((), ())[0]


def _end_loop(op: scf.ForOp | affine.ForOp, end: int) -> None:
    if isinstance(op, affine.ForOp):
        op.properties["upperBoundMap"] = AffineMapAttr(AffineMap.constant_map(end))
    else:
        op.operands[1] = _index(op, end)


def _shrunk_grids(module: ModuleOp) -> Iterator[Callable[[], None]]:
    """For each size of a launch, segment or herd: 1, 2, half of it."""
    for op in module.walk():
        if not isinstance(op, HierarchyOp):
            continue
        first = len(op.operands) - len(op.kernel_operands) - len(op.sizes)
        for number, size in enumerate(map(_constant, op.sizes)):
            for smaller in sorted({1, 2, (size or 0) // 2}):
                if size is not None and 0 < smaller < size:
                    yield functools.partial(_resize, op, first + number, smaller)


def _resize(op: HierarchyOp, operand: int, size: int) -> None:
    op.operands[operand] = _index(op, size)
