"""`arith.extsi`, `arith.extui` and `arith.trunci` on vectors: xDSL's take integers only.

The classes are subclasses of xDSL's, so `isinstance(op, arith.ExtSIOp)` holds.
"""

from __future__ import annotations

from typing_extensions import Self
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, TensorType, VectorType
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from air_dialect.upstream_memref import parse_conversion, print_conversion


def _shape_and_width(type_: Attribute) -> tuple[tuple[int, ...], int] | None:
    """The shape and the element's width in bits of an integer or a vector of integers."""
    shape: tuple[int, ...] = ()
    if isinstance(type_, VectorType | TensorType):
        shape, type_ = type_.get_shape(), type_.element_type
    return (shape, type_.width.data) if isinstance(type_, IntegerType) else None


def _check_widths(op: Operation, narrow_type: Attribute, wide_type: Attribute) -> None:
    narrow, wide = _shape_and_width(narrow_type), _shape_and_width(wide_type)
    if narrow is None or wide is None or narrow[0] != wide[0] or narrow[1] >= wide[1]:
        raise VerifyException(
            f"{op.name} from {op.operands[0].type} to {op.results[0].type}: write integers, or vectors of "
            f"integers of one shape, of which {narrow_type} would be the narrower"
        )


class ExtSIOp(arith.ExtSIOp):
    """`arith.extsi %v : vector<8xi8> to vector<8xi32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source, target, attributes = parse_conversion(parser)
        return cls.create(operands=[source], result_types=[target], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.results[0].type)

    def verify_(self) -> None:
        _check_widths(self, self.operands[0].type, self.results[0].type)


class ExtUIOp(arith.ExtUIOp):
    """`arith.extui %v : vector<8xi8> to vector<8xi32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source, target, attributes = parse_conversion(parser)
        return cls.create(operands=[source], result_types=[target], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.results[0].type)

    def verify_(self) -> None:
        _check_widths(self, self.operands[0].type, self.results[0].type)


class TruncIOp(arith.TruncIOp):
    """`arith.trunci %v : vector<8xi32> to vector<8xi8>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source, target, attributes = parse_conversion(parser)
        return cls.create(operands=[source], result_types=[target], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.results[0].type)

    def verify_(self) -> None:
        _check_widths(self, self.results[0].type, self.operands[0].type)


OPERATIONS: tuple[type[Operation], ...] = (ExtSIOp, ExtUIOp, TruncIOp)
