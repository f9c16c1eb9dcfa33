"""`air.dma_memcpy_nd`: a strided copy between two memrefs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from typing_extensions import Self
from xdsl.dialects.builtin import DenseArrayBase, IndexType, MemRefType, UnrankedMemRefType
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    opt_result_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from air_dialect.assembly import (
    StaticLists,
    parse_async,
    parse_index_list,
    print_async,
    print_attributes,
    print_pattern,
    split_properties,
)
from air_dialect.types import AsyncTokenType
from air_dialect.verifiers import check_element_types, check_padding, check_pattern, check_rank_of_side

ANY_MEMREF = MemRefType | UnrankedMemRefType
Values = Sequence[SSAValue | Operation]


class AccessPattern(NamedTuple):
    """One side of a transfer: dimensions outermost first, offsets and strides in elements.

    Three empty lists mean the whole memref. `offsets` may be shorter than `sizes`.
    """

    memref: UnresolvedOperand
    offsets: list[SSAValue]
    sizes: list[SSAValue]
    strides: list[SSAValue]


def parse_pattern(parser: Parser) -> AccessPattern:
    """Parse `%memref[offsets] [sizes] [strides]`."""
    memref = parser.parse_unresolved_operand()
    return AccessPattern(memref, *(parse_index_list(parser) for _ in range(3)))


@irdl_op_definition
class DmaMemcpyNdOp(StaticLists):
    """`air.dma_memcpy_nd (%dst[o] [s] [t], %src[o] [s] [t]) {id = 1 : i32} : (dstT, srcT)`."""

    name = "air.dma_memcpy_nd"
    STATIC_LISTS: ClassVar[Mapping[str, int]] = {
        **{"static_dst_offsets": 2, "static_dst_sizes": 3, "static_dst_strides": 4},
        **{"static_src_offsets": 6, "static_src_sizes": 7, "static_src_strides": 8},
    }
    async_dependencies = var_operand_def(AsyncTokenType)
    dst = operand_def(ANY_MEMREF)
    dst_offsets = var_operand_def(IndexType)
    dst_sizes = var_operand_def(IndexType)
    dst_strides = var_operand_def(IndexType)
    src = operand_def(ANY_MEMREF)
    src_offsets = var_operand_def(IndexType)
    src_sizes = var_operand_def(IndexType)
    src_strides = var_operand_def(IndexType)
    pad_before = opt_prop_def(DenseArrayBase)
    pad_after = opt_prop_def(DenseArrayBase)
    async_token_result = opt_result_def(AsyncTokenType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        dst: SSAValue | Operation,
        src: SSAValue | Operation,
        *,
        dst_offsets: Values = (),
        dst_sizes: Values = (),
        dst_strides: Values = (),
        src_offsets: Values = (),
        src_sizes: Values = (),
        src_strides: Values = (),
        async_dependencies: Values = (),
        is_async: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Build a copy of `src` into `dst`; leave a side's three lists out for the whole memref."""
        own, rest = split_properties(DmaMemcpyNdOp, attributes or {})
        super().__init__(
            operands=[
                async_dependencies,
                *(dst, dst_offsets, dst_sizes, dst_strides),
                *(src, src_offsets, src_sizes, src_strides),
            ],
            result_types=[AsyncTokenType() if is_async else None],
            properties=own,
            attributes=rest,
        )

    @property
    def async_token(self) -> OpResult | None:
        """The token of the asynchronous form, None in the blocking form."""
        return self.results[0] if self.results else None

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        is_async, dependencies = parse_async(parser)
        with parser.in_parens():
            dst = parse_pattern(parser)
            parser.parse_punctuation(",")
            src = parse_pattern(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        with parser.in_parens():
            dst_type = parser.parse_type()
            parser.parse_punctuation(",")
            src_type = parser.parse_type()
        return cls(
            parser.resolve_operand(dst.memref, dst_type),
            parser.resolve_operand(src.memref, src_type),
            dst_offsets=dst.offsets,
            dst_sizes=dst.sizes,
            dst_strides=dst.strides,
            src_offsets=src.offsets,
            src_sizes=src.sizes,
            src_strides=src.strides,
            async_dependencies=dependencies,
            is_async=is_async,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_async(printer, self.async_token, self.async_dependencies)
        printer.print_string(" (")
        print_pattern(printer, self.dst, self.dst_offsets, self.dst_sizes, self.dst_strides)
        printer.print_string(", ")
        print_pattern(printer, self.src, self.src_offsets, self.src_sizes, self.src_strides)
        printer.print_string(")")
        print_attributes(printer, self)
        printer.print_string(" : (")
        printer.print_list([self.dst.type, self.src.type], printer.print_attribute)
        printer.print_string(")")

    def verify_(self) -> None:
        check_pattern(self, "dst", self.dst_offsets, self.dst_sizes, self.dst_strides)
        check_pattern(self, "src", self.src_offsets, self.src_sizes, self.src_strides)
        check_padding(self, self.pad_before, self.pad_after)
        check_element_types(self.dst.type, self.src.type)
        check_rank_of_side(self, "dst_rank", self.attributes.get("dst_rank"), self.dst)
        check_rank_of_side(self, "src_rank", self.attributes.get("src_rank"), self.src)
