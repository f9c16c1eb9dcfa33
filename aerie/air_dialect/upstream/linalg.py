"""linalg.reduce and linalg.map over any number of operands, and an attribute that xDSL lacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    ShapedType,
    TensorType,
    i64,
)
from xdsl.dialects.linalg import ops
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, Block, Data, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import print_parts, split_properties
from aerie.air_dialect.types import attribute_text

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


def parse_operands(parser: Parser, word: str) -> Sequence[SSAValue]:
    """Parse `ins(%a, %b : type, type)`; `word` is the keyword, `ins` or `outs`."""
    parser.parse_keyword(word)
    position = parser.pos
    with parser.in_parens():
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, position)


def print_operands(printer: Printer, word: str, values: Sequence[SSAValue]) -> None:
    """Print ` ins(%a : type)`, or `outs`."""
    print_parts(printer, f" {word}(", values, " : ", [value.type for value in values], ")")


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
        inputs = parse_operands(parser, "ins") if cls is not MapOp or _next_is(parser, "ins") else []
        outputs = parse_operands(parser, "outs")
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
            print_operands(printer, "ins", self.inputs)
        print_operands(printer, "outs", self.outputs)
        self._print_properties(printer)
        print_parts(printer, self.attributes, " (")
        printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)

    def _print_properties(self, printer: Printer) -> None:
        """Print what the assembly shows after the operands."""


def _next_is(parser: Parser, word: str) -> bool:
    return str(parser._current_token.text) == word


def _parse_payload(parser: Parser) -> tuple[type[Operation], dict[str, Attribute]] | None:
    """Parse an optional `{ arith.addf {attributes} }`: an operation and its attributes."""
    if parser.parse_optional_punctuation("{") is None:
        return None
    op_type = parser._get_op_by_name(parser.parse_identifier())
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation("}")
    return op_type, attributes


def _body_of(
    payload: tuple[type[Operation], dict[str, Attribute]], types: Sequence[Attribute], *, out_first: bool
) -> Region:
    """A body with one operation on its arguments, whose result has the type of the last one."""
    op_type, attributes = payload
    block = Block(arg_types=types)
    properties, others = split_properties(op_type, attributes)
    op = op_type.create(
        operands=[*reversed(block.args)] if out_first else block.args,
        result_types=[types[-1]],
        properties=properties,
        attributes=others,
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
        remaining = tuple(AffineExpr.dimension(dim) for dim in range(rank) if dim not in reduced)
        maps = [AffineMap.identity(rank)] * len(self.inputs) + [AffineMap(rank, 0, remaining)] * len(
            self.outputs
        )
        return ArrayAttr(map(AffineMapAttr, maps))

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        rank, reduced = len(shape_of(self.inputs[0])), self.dimensions.get_values()
        kinds = (IteratorTypeAttr.reduction(), IteratorTypeAttr.parallel())
        return ArrayAttr(kinds[dim not in reduced] for dim in range(rank))

    def verify_(self) -> None:
        dims = self.dimensions.get_values()
        for source, init in zip(self.inputs, self.outputs, strict=False):
            remaining = tuple(extent for axis, extent in enumerate(shape_of(source)) if axis not in dims)
            if shape_of(init) != remaining:
                raise VerifyException(
                    f"linalg.reduce of {attribute_text(source.type)} over {list(dims)} gives "
                    f"({', '.join(map(str, remaining))}), not {attribute_text(init.type)}"
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


class _RelayoutOp(IRDLOperation, ABC):
    """`%src outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [8, 8] into %dst : A -> B`.

    The packed side has the outer dimensions, in the order of `outer_dims_perm`, then one dimension per tile.
    """

    PACKED: ClassVar[int]
    """Which of source and destination is the packed side."""

    source = operand_def(base(MemRefType) | base(TensorType))
    dest = operand_def(base(MemRefType) | base(TensorType))
    inner_tiles = var_operand_def(IndexType)
    outer_dims_perm = prop_def(DenseArrayBase.constr(i64))
    inner_dims_pos = prop_def(DenseArrayBase.constr(i64))
    static_inner_tiles = prop_def(DenseArrayBase.constr(i64))
    res = var_result_def(TensorType)

    @classmethod
    def _parse_padding(cls, _: Parser) -> Sequence[Sequence[SSAValue]]:
        """The operand group between the destination and the tiles."""
        return ()

    def _print_padding(self, printer: Printer) -> None:
        """Print it."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        padding = cls._parse_padding(parser)
        permutation = _parse_integers(parser, "outer_dims_perm")
        positions = _parse_integers(parser, "inner_dims_pos")
        parser.parse_keyword("inner_tiles")
        parser.parse_punctuation("=")
        tiles, static_tiles = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
        parser.parse_keyword("into")
        dest = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_value = parser.resolve_operand(source, parser.parse_type())
        parser.parse_punctuation("->")
        dest_value = parser.resolve_operand(dest, parser.parse_type())
        sizes = [parser.resolve_operand(tile, IndexType()) for tile in tiles]
        return cls.build(
            operands=[source_value, dest_value, *padding, sizes],
            result_types=[[dest_value.type] if isinstance(dest_value.type, TensorType) else []],
            properties={
                "outer_dims_perm": DenseArrayBase.from_list(i64, permutation),
                "inner_dims_pos": DenseArrayBase.from_list(i64, positions),
                "static_inner_tiles": DenseArrayBase.from_list(i64, static_tiles),
            },
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.source)
        self._print_padding(printer)
        if self.outer_dims_perm.get_values():
            printer.print_string(f" outer_dims_perm = {list(self.outer_dims_perm.get_values())}")
        printer.print_string(f" inner_dims_pos = {list(self.inner_dims_pos.get_values())} inner_tiles = ")
        print_dynamic_index_list(
            printer, DYNAMIC_INDEX, self.inner_tiles, self.static_inner_tiles.get_values()
        )
        print_parts(
            printer, " into ", self.dest, self.attributes, " : ", self.source.type, " -> ", self.dest.type
        )

    def sides(self) -> tuple[SSAValue, SSAValue]:
        """The plain and the packed side."""
        both = self.source, self.dest
        return both[1 - self.PACKED], both[self.PACKED]

    def order(self) -> tuple[int, ...]:
        """For every outer dimension of the packed side, the plain dimension that it counts tiles of."""
        rank = len(shape_of(self.sides()[0]))
        return tuple(self.outer_dims_perm.get_values()) or tuple(range(rank))

    def tile_sizes(self) -> list[int]:
        """Every plain dimension's tile, 1 where it is not tiled, DYNAMIC_INDEX where unknown."""
        tiles = [1] * len(shape_of(self.sides()[0]))
        for dim, size in zip(
            self.inner_dims_pos.get_values(), self.static_inner_tiles.get_values(), strict=True
        ):
            tiles[dim] = size
        return tiles

    def verify_(self) -> None:
        plain, packed = self.sides()
        shape, positions = shape_of(plain), self.inner_dims_pos.get_values()
        in_range = all(0 <= dim < len(shape) for dim in positions)
        if not in_range or len(positions) != len(self.static_inner_tiles):
            raise VerifyException(
                f"{self.name} has inner_dims_pos {list(positions)} and inner_tiles "
                f"{list(self.static_inner_tiles.get_values())}: write one dimension of "
                f"{attribute_text(plain.type)} per tile"
            )
        if sorted(self.order()) != list(range(len(shape))):
            raise VerifyException(
                f"{self.name} has outer_dims_perm {list(self.order())}: write every dimension of "
                f"{attribute_text(plain.type)} once"
            )
        tiles = self.tile_sizes()
        outer = [_tiles_of(shape[dim], tiles[dim]) for dim in self.order()]
        expected = (*outer, *self.static_inner_tiles.get_values())
        pairs = zip(expected, shape_of(packed), strict=False)
        if len(expected) != len(shape_of(packed)) or any(
            left != right and DYNAMIC_INDEX not in (left, right) for left, right in pairs
        ):
            raise VerifyException(
                f"{self.name} between {attribute_text(plain.type)} and {attribute_text(packed.type)}: these "
                f"tiles make ({', '.join(map(str, expected))})"
            )


def _tiles_of(extent: int, tile: int) -> int:
    return DYNAMIC_INDEX if DYNAMIC_INDEX in (extent, tile) else -(-extent // tile)


def _parse_integers(parser: Parser, word: str) -> list[int]:
    """Parse an optional `word = [1, 0]`."""
    if parser.parse_optional_keyword(word) is None:
        return []
    parser.parse_punctuation("=")
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)


@irdl_op_definition
class PackOp(_RelayoutOp):
    """`linalg.pack %src padding_value(%zero : f32) ... into %dst : A -> B`: a plain buffer in tiles."""

    name = "linalg.pack"
    PACKED: ClassVar[int] = 1
    source = operand_def(base(MemRefType) | base(TensorType))
    dest = operand_def(base(MemRefType) | base(TensorType))
    padding_value = opt_operand_def(Attribute)
    inner_tiles = var_operand_def(IndexType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def _parse_padding(cls, parser: Parser) -> Sequence[Sequence[SSAValue]]:
        if parser.parse_optional_keyword("padding_value") is None:
            return ((),)
        with parser.in_parens():
            value = parser.parse_unresolved_operand()
            parser.parse_punctuation(":")
            return ((parser.resolve_operand(value, parser.parse_type()),),)

    def _print_padding(self, printer: Printer) -> None:
        if self.padding_value is not None:
            print_parts(printer, " padding_value(", self.padding_value, " : ", self.padding_value.type, ")")


@irdl_op_definition
class UnpackOp(_RelayoutOp):
    """`linalg.unpack %src ... into %dst : A -> B`: back; what the tiles pad is left out."""

    name = "linalg.unpack"
    PACKED: ClassVar[int] = 0
