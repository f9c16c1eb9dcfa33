"""`arith.extsi` and `arith.extui` on vectors: xDSL's take integers only.

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


def _check_extension(op: Operation) -> None:
    source, target = op.operands[0].type, op.results[0].type
    narrow, wide = _shape_and_width(source), _shape_and_width(target)
    if narrow is None or wide is None or narrow[0] != wide[0] or narrow[1] >= wide[1]:
        raise VerifyException(
            f"{op.name} from {source} to {target}: it widens integers, or vectors of integers of one shape"
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
        _check_extension(self)


class ExtUIOp(arith.ExtUIOp):
    """`arith.extui %v : vector<8xi8> to vector<8xi32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source, target, attributes = parse_conversion(parser)
        return cls.create(operands=[source], result_types=[target], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.results[0].type)

    def verify_(self) -> None:
        _check_extension(self)


OPERATIONS: tuple[type[Operation], ...] = (ExtSIOp, ExtUIOp)
