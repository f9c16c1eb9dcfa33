"""linalg.reduce and linalg.map over any number of operands, and an attribute that xDSL lacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import Self
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    MemRefType,
    ShapedType,
    TensorType,
    i64,
)
from xdsl.dialects.linalg import ops
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.ir import Attribute, Block, Data, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import AttrSizedOperandSegments, irdl_attr_definition, irdl_op_definition, prop_def
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text

CASTS = ("cast_signed", "cast_unsigned")


@irdl_attr_definition
class TypeFnAttr(Data[str]):
    """`#linalg.type_fn<cast_signed>`: how a named operation converts its inputs' integers."""

    name = "linalg.type_fn"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            word = parser.parse_identifier()
        if word not in CASTS:
            parser.raise_error(f"#linalg.type_fn<{word}>: write one of {', '.join(CASTS)}")
        return word

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


def parse_side(parser: Parser, word: str) -> Sequence[SSAValue]:
    """Parse `ins(%a, %b : type, type)`, or `outs(...)`, as `word` says."""
    parser.parse_keyword(word)
    position = parser.pos
    with parser.in_parens():
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, position)


def print_side(printer: Printer, word: str, values: Sequence[SSAValue]) -> None:
    """Print ` ins(%a : type)`, or `outs`."""
    printer.print_string(f" {word}(")
    printer.print_list(values, printer.print_operand)
    printer.print_string(" : ")
    printer.print_list([value.type for value in values], printer.print_attribute)
    printer.print_string(")")


def _element(value: SSAValue) -> Attribute:
    assert isinstance(value.type, MemRefType | TensorType)
    element: Attribute = value.type.element_type
    return element


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a memref or tensor, () for a scalar."""
    return value.type.get_shape() if isinstance(value.type, ShapedType) else ()


class _WithBody(LinalgStructuredOperation, ABC):
    """The assembly `{ op } ins(...) outs(...)` or `ins(...) outs(...) (%x: type, ...) { ... }`."""

    FOLDS: ClassVar[bool]
    """Whether a body that is written as one operation takes the output's element, as its first operand."""

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        short = _parse_payload(parser)
        inputs = parse_side(parser, "ins") if cls is not MapOp or _next_is(parser, "ins") else []
        outputs = parse_side(parser, "outs")
        properties = cls._parse_properties(parser)
        attributes = parser.parse_optional_attr_dict()
        if short is None:
            arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            body = parser.parse_region(arguments)
        else:
            types = [_element(value) for value in (*inputs, *(outputs if cls.FOLDS else ()))]
            body = _body_of(short, types, out_first=cls.FOLDS)
        for value in outputs[len(body.block.args) - len(inputs) :]:
            body.block.insert_arg(_element(value), len(body.block.args))
        return cls.build(
            operands=[inputs, outputs],
            result_types=[[value.type for value in outputs if isinstance(value.type, TensorType)]],
            properties=properties,
            attributes=attributes,
            regions=[body],
        )

    @classmethod
    @abstractmethod
    def _parse_properties(cls, parser: Parser) -> dict[str, Attribute]:
        """Parse what follows the operands."""

    def print(self, printer: Printer) -> None:
        if self.inputs:
            print_side(printer, "ins", self.inputs)
        print_side(printer, "outs", self.outputs)
        self._print_properties(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" (")
        printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)

    def _print_properties(self, printer: Printer) -> None:
        """Print what the assembly shows after the operands."""


def _next_is(parser: Parser, word: str) -> bool:
    return str(parser._current_token.text) == word


def _parse_payload(parser: Parser) -> tuple[str, dict[str, Attribute]] | None:
    """Parse an optional `{ arith.addf {attributes} }`: an operation's name and attributes."""
    if parser.parse_optional_punctuation("{") is None:
        return None
    name = parser.parse_identifier()
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation("}")
    return name, attributes


def _body_of(
    payload: tuple[str, dict[str, Attribute]], types: Sequence[Attribute], *, out_first: bool
) -> Region:
    """A body with one operation on its arguments, whose result has the type of the last one."""
    from air_dialect.upstream import operation_named

    name, attributes = payload
    op_type = operation_named(name)
    block = Block(arg_types=types)
    own = set(op_type.get_irdl_definition().properties)  # type: ignore[attr-defined]
    op = op_type.create(
        operands=[*reversed(block.args)] if out_first else block.args,
        result_types=[types[-1]],
        properties={key: value for key, value in attributes.items() if key in own},
        attributes={key: value for key, value in attributes.items() if key not in own},
    )
    block.add_ops([op, ops.YieldOp(*op.results)])
    return Region(block)


@irdl_op_definition
class ReduceOp(_WithBody):
    """`linalg.reduce ins(%a : ...) outs(%b : ...) dimensions = [1] (%in: bf16, %acc: f32) { ... }`."""

    name = "linalg.reduce"
    FOLDS: ClassVar[bool] = True
    dimensions = prop_def(DenseArrayBase.constr(i64))

    @classmethod
    def _parse_properties(cls, parser: Parser) -> dict[str, Attribute]:
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        numbers = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        return {"dimensions": DenseArrayBase.from_list(i64, numbers)}

    def _print_properties(self, printer: Printer) -> None:
        printer.print_string(f" dimensions = {list(self.dimensions.get_values())}")

    def get_indexing_maps(self) -> ArrayAttr[AffineMapAttr]:
        rank, reduced = len(shape_of(self.inputs[0])), self.dimensions.get_values()
        kept = tuple(AffineExpr.dimension(dim) for dim in range(rank) if dim not in reduced)
        maps = [AffineMap.identity(rank)] * len(self.inputs) + [AffineMap(rank, 0, kept)] * len(self.outputs)
        return ArrayAttr(map(AffineMapAttr, maps))

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        rank, reduced = len(shape_of(self.inputs[0])), self.dimensions.get_values()
        kinds = (IteratorTypeAttr.reduction(), IteratorTypeAttr.parallel())
        return ArrayAttr(kinds[dim not in reduced] for dim in range(rank))

    def verify_(self) -> None:
        dims = self.dimensions.get_values()
        for source, init in zip(self.inputs, self.outputs, strict=False):
            kept = tuple(extent for axis, extent in enumerate(shape_of(source)) if axis not in dims)
            if shape_of(init) != kept:
                raise VerifyException(
                    f"linalg.reduce of {attribute_text(source.type)} over {list(dims)} gives "
                    f"({', '.join(map(str, kept))}), not {attribute_text(init.type)}"
                )
        super().verify_()


@irdl_op_definition
class MapOp(_WithBody):
    """`linalg.map ins(%a, %b : ...) outs(%c : ...) (%x: f32, %y: f32, %old: f32) { ... }`.

    Older texts do not name the output's element; it is added.
    """

    name = "linalg.map"
    FOLDS: ClassVar[bool] = False

    @classmethod
    def _parse_properties(cls, _: Parser) -> dict[str, Attribute]:
        return {}

    def get_indexing_maps(self) -> ArrayAttr[AffineMapAttr]:
        rank = len(shape_of(self.outputs[0]))
        return ArrayAttr([AffineMapAttr(AffineMap.identity(rank))] * len(self.operands))

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        return ArrayAttr([IteratorTypeAttr.parallel()] * len(shape_of(self.outputs[0])))


OPERATIONS: tuple[type[Operation], ...] = (ReduceOp, MapOp)
