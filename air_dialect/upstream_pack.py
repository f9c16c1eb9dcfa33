"""`linalg.pack` and `linalg.unpack`: between a plain layout and one of tiles."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import Self
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    i64,
)
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream_linalg import shape_of


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
        printer.print_string(" ")
        printer.print_operand(self.source)
        self._print_padding(printer)
        if self.outer_dims_perm.get_values():
            printer.print_string(f" outer_dims_perm = {list(self.outer_dims_perm.get_values())}")
        printer.print_string(f" inner_dims_pos = {list(self.inner_dims_pos.get_values())} inner_tiles = ")
        print_dynamic_index_list(
            printer, DYNAMIC_INDEX, self.inner_tiles, self.static_inner_tiles.get_values()
        )
        printer.print_string(" into ")
        printer.print_operand(self.dest)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.dest.type)

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
        wanted = (*outer, *self.static_inner_tiles.get_values())
        pairs = zip(wanted, shape_of(packed), strict=False)
        if len(wanted) != len(shape_of(packed)) or any(
            left != right and DYNAMIC_INDEX not in (left, right) for left, right in pairs
        ):
            raise VerifyException(
                f"{self.name} between {attribute_text(plain.type)} and {attribute_text(packed.type)}: these "
                f"tiles make ({', '.join(map(str, wanted))})"
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
        if self.padding_value is None:
            return
        printer.print_string(" padding_value(")
        printer.print_operand(self.padding_value)
        printer.print_string(" : ")
        printer.print_attribute(self.padding_value.type)
        printer.print_string(")")


@irdl_op_definition
class UnpackOp(_RelayoutOp):
    """`linalg.unpack %src ... into %dst : A -> B`: back; what the tiles pad is left out."""

    name = "linalg.unpack"
    PACKED: ClassVar[int] = 0


OPERATIONS: tuple[type[Operation], ...] = (PackOp, UnpackOp)
