"""The dialect `vnpu`: operations that the passes wrap around what they recognise, with emitters of their own.

The region holds the original operation. So a walk of the program finds all reads, writes and transfers where
they were, and an emitter can fall back on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

DIVIDED = "vnpu.divided"
"""The attribute of a tile's loop of which threads share the trips: how many are worth handing to one
(passes/divide_tiles.py)."""


@irdl_op_definition
class YieldOp(IRDLOperation):
    """`vnpu.yield %value : type`: the results of the operation around."""

    name = "vnpu.yield"
    values = var_operand_def()
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict ($values^ `:` type($values))?"


class WrappedOp(IRDLOperation):
    """An operation that wraps another one, for which other C++ is emitted."""

    body = region_def("single_block")
    outputs = var_result_def()

    @property
    def original(self) -> Operation:
        """The operation that it wraps."""
        first = self.body.block.first_op
        assert first is not None
        return first

    def print(self, printer: Printer) -> None:
        """Print the operation's own part, then the region; a terminator without operands is left out."""
        self.print_own(printer)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=bool(self.results))
        if self.results:
            printer.print_string(" : ")
            printer.print_list([result.type for result in self.results], printer.print_attribute)

    def print_own(self, printer: Printer) -> None:
        """Print what stands between the name and the region."""


@irdl_op_definition
class ProductOp(WrappedOp):
    """`vnpu.product`: loops, or a herd, that add the product of A and B to C; or a launch that makes it C.

    An operand begins `start` elements after its memref's first: a number, then a factor for each index.
    m, n and k are axes, outermost first: `[extent, step in the one, step in the other]`, in elements, of A
    and C for m, of B and C for n, of A and B for k. `block` has the steps of k and the columns of n that
    one contraction of the region takes, which the order of its sums hangs on (vnpu/dots.h). Where a function
    rearranges a buffer of A or B first, the region is executed, unless that function is found at run time to
    do nothing but permute elements.

    `points` is there where C is bf16, and its elements are not added to, but each the rounding of one sum:
    how many of the outermost axes of m and of n are the points of a launch. Where C lies in A or B then, the
    region is executed.
    """

    name = "vnpu.product"
    a = operand_def(MemRefType)
    b = operand_def(MemRefType)
    c = operand_def(MemRefType)
    a_indices = var_operand_def(IndexType)
    b_indices = var_operand_def(IndexType)
    c_indices = var_operand_def(IndexType)
    a_start = prop_def(DenseArrayBase)
    b_start = prop_def(DenseArrayBase)
    c_start = prop_def(DenseArrayBase)
    m = prop_def(ArrayAttr[DenseArrayBase])
    n = prop_def(ArrayAttr[DenseArrayBase])
    k = prop_def(ArrayAttr[DenseArrayBase])
    block = prop_def(DenseArrayBase)
    points = opt_prop_def(DenseArrayBase)
    a_rearranged = opt_prop_def(DictionaryAttr)
    b_rearranged = opt_prop_def(DictionaryAttr)
    """function: the one called. buffer: for each dimension, its extent, and the step in the source by which
    it is filled. start, outer, depth: where the product reads the buffer after the call: first element, axes
    of m (of A) or n (of B), axes of k.

    Of a function that makes the buffer out of another one: buffer is of the other one, made the elements that
    it makes, and argument the integer that it takes first, of which axes have a step too."""

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def print_own(self, printer: Printer) -> None:
        """`%c[start] += %a[start] * %b[start]`, then the axes; `=` where sums are rounded."""
        sides = [
            (" ", self.c, self.c_start, self.c_indices),
            (" += " if self.points is None else " = ", self.a, self.a_start, self.a_indices),
            (" * ", self.b, self.b_start, self.b_indices),
        ]
        for sign, memref, start, indices in sides:
            printer.print_string(sign)
            printer.print_operand(memref)
            number, *factors = ints_of_attr(start)
            printer.print_string("[")
            if number or not factors:
                printer.print_string(f"{number}{' + ' if factors else ''}")
            printer.print_list(zip(factors, indices, strict=True), partial(_print_term, printer), " + ")
            printer.print_string("]")
        for name in ("m", "n", "k"):
            printer.print_string(f" {name} {axes_of_attr(self.properties[name])}")
        printer.print_string(" block {}x{}".format(*ints_of_attr(self.block)))
        if self.points is not None:
            printer.print_string(" points {}, {}".format(*ints_of_attr(self.points)))
        for name, found in (("a", self.a_rearranged), ("b", self.b_rearranged)):
            if found is not None:
                buffer, outer, depth = (
                    axes_of_attr(found.data[part]) for part in ("buffer", "outer", "depth")
                )
                printer.print_string(f" {name} rearranged by {found.data['function']} in {buffer}")
                first = found.data["start"]
                assert isinstance(first, IntegerAttr)
                printer.print_string(f" from {first.value.data} along {outer} {depth}")


def _print_term(printer: Printer, term: tuple[int, SSAValue]) -> None:
    printer.print_string(f"{term[0]} * ")
    printer.print_operand(term[1])


@irdl_op_definition
class NestOp(WrappedOp):
    """`vnpu.nest`: the outermost of loops that read or write memory and suspend nowhere."""

    name = "vnpu.nest"


@irdl_op_definition
class TaskOp(WrappedOp):
    """`vnpu.task`: an operation that reads or writes memory itself, where engines run side by side."""

    name = "vnpu.task"


@irdl_op_definition
class BorrowedOp(WrappedOp):
    """`vnpu.borrowed`: an allocation in L1 or L2 that points to what transfers bring, in place of a copy."""

    name = "vnpu.borrowed"


@irdl_op_definition
class BorrowOp(WrappedOp):
    """`vnpu.borrow`: a DMA or air.channel.get that lets such a buffer point to its data; of one in L2, an
    air.channel.put too, which reads where it points to."""

    name = "vnpu.borrow"


@irdl_op_definition
class LendOp(WrappedOp):
    """`vnpu.lend`: an air.channel.put of a launch, which writes `written` and nothing else from outside: what
    the put reads stays, unless it lies in one of these, and its receiver may read it where it is."""

    name = "vnpu.lend"
    written = var_operand_def(MemRefType)


WrapperOp = TypeVar("WrapperOp", bound=WrappedOp)


def wrap(
    op: Operation,
    wrapper: type[WrapperOp],
    operands: Sequence[SSAValue | Sequence[SSAValue]] = (),
    properties: Mapping[str, Attribute] | None = None,
) -> WrapperOp:
    """Wrap an operation in another one, which takes its place and its results; gives the outer one."""
    block = Block()
    new = wrapper(
        operands=operands,
        properties=properties,
        regions=[Region(block)],
        result_types=[[result.type for result in op.results]],
    )
    new.location = op.location
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    Rewriter.insert_op(new, InsertPoint.before(op))
    op.detach()  # type: ignore[no-untyped-call]
    block.add_ops([op, YieldOp(operands=[op.results])])
    return new


def int_array_attr(values: Sequence[int]) -> DenseArrayBase:
    """Integers as an array attribute."""
    return DenseArrayBase.from_list(i64, values)


def ints_of_attr(attr: Attribute) -> list[int]:
    """The integers of such an attribute."""
    assert isinstance(attr, DenseArrayBase)
    return [int(number) for number in attr.get_values()]


def axes_attr(values: Sequence[Sequence[int]]) -> ArrayAttr[DenseArrayBase]:
    """Axes as an attribute: of each the extent, then its steps."""
    return ArrayAttr([int_array_attr(axis) for axis in values])


def axes_of_attr(attr: Attribute) -> list[list[int]]:
    """The axes of such an attribute."""
    assert isinstance(attr, ArrayAttr)
    return [ints_of_attr(axis) for axis in attr]
