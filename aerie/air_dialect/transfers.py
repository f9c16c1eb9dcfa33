"""What moves data: `air.dma_memcpy_nd`, a strided copy, and channels, named queues between the levels."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self
from weakref import WeakKeyDictionary

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FlatSymbolRefAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    SymbolRefAttr,
    UnrankedMemRefType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface, SymbolTable
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import (
    StaticListOp,
    parse_async,
    parse_index,
    parse_index_list,
    print_async,
    print_attributes,
    print_parts,
    print_pattern,
    split_properties,
)
from aerie.air_dialect.types import AsyncTokenType, MemorySpace
from aerie.air_dialect.verifiers import (
    check_broadcast,
    check_channel_size,
    check_channel_type,
    check_element_types,
    check_mmio,
    check_packet_ids,
    check_padding,
    check_pattern,
    check_rank_of_side,
    check_refeed_count,
    parent_ops,
    require_rank,
)

ANY_MEMREF = MemRefType | UnrankedMemRefType
ValueList = Sequence[SSAValue | Operation]


class AccessPattern(NamedTuple):
    """One side of a transfer: dimensions outermost first, offsets and strides in elements.

    Three empty lists mean the whole memref. `offsets` may be shorter than `sizes`: it is for the last
    dimensions.
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
class DmaMemcpyNdOp(StaticListOp):
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
        dst_offsets: ValueList = (),
        dst_sizes: ValueList = (),
        dst_strides: ValueList = (),
        src_offsets: ValueList = (),
        src_sizes: ValueList = (),
        src_strides: ValueList = (),
        async_dependencies: ValueList = (),
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
        print_parts(printer, " : (", [self.dst.type, self.src.type], ")")

    def verify_(self) -> None:
        check_pattern(self, "dst", self.dst_offsets, self.dst_sizes, self.dst_strides)
        check_pattern(self, "src", self.src_offsets, self.src_sizes, self.src_strides)
        check_padding(self, self.pad_before, self.pad_after)
        check_element_types(self.dst.type, self.src.type)
        check_rank_of_side(self, "dst_rank", self.attributes.get("dst_rank"), self.dst)
        check_rank_of_side(self, "src_rank", self.attributes.get("src_rank"), self.src)


# ---- channels ----

CHANNEL_TYPES = ("npu_dma_stream", "npu_dma_packet", "npu_cascade", "npu_mmio", "gpu_symmetric_heap")
DEFAULT_CHANNEL_TYPE = "npu_dma_stream"
_OLD_CHANNEL_TYPES = {
    "dma_stream": "npu_dma_stream",
    "dma_packet": "npu_dma_packet",
    "cascade": "npu_cascade",
}
_OLD_SPELLINGS: WeakKeyDictionary[Operation, str] = WeakKeyDictionary()
"""What the text of a channel called its type, where that was an old spelling."""


@irdl_op_definition
class ChannelOp(IRDLOperation):
    """`air.channel @c [4, 8] {channel_type = "npu_dma_stream"}`: a bundle of 4 x 8 channels.

    `[]`, or nothing, is a single channel. The spellings of channel_type from before May 2026 are read and
    written back in today's.
    """

    name = "air.channel"
    sym_name_attr = prop_def(StringAttr, prop_name="sym_name")
    size_attr = opt_prop_def(ArrayAttr[IntegerAttr], prop_name="size")
    channel_type_attr = opt_prop_def(StringAttr, prop_name="channel_type")
    traits = traits_def(SymbolOpInterface())

    def __init__(
        self,
        sym_name: str,
        size: Sequence[int] = (),
        *,
        channel_type: str | None = None,
        broadcast_shape: Sequence[int] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Declare a bundle of the given size; `broadcast_shape` is the size on the receiving side."""
        own, rest = split_properties(ChannelOp, attributes or {})
        if channel_type is not None:
            own["channel_type"] = StringAttr(channel_type)
        if broadcast_shape is not None:
            rest["broadcast_shape"] = _i64_array(broadcast_shape)
        super().__init__(
            properties={"sym_name": StringAttr(sym_name), "size": _i64_array(size), **own}, attributes=rest
        )

    @property
    def sym_name(self) -> str:
        """The channel's name, without the @."""
        return self.sym_name_attr.data

    @property
    def size(self) -> list[int]:
        """The extents of the bundle; empty for a single channel, and where nothing says it."""
        return _integers(self.size_attr) or []

    @property
    def channel_type(self) -> str:
        """How data moves: one of CHANNEL_TYPES (`npu_dma_stream` when not written)."""
        return DEFAULT_CHANNEL_TYPE if self.channel_type_attr is None else self.channel_type_attr.data

    @property
    def old_channel_type(self) -> str | None:
        """The spelling of before May 2026 that the text had, None for today's."""
        return _OLD_SPELLINGS.get(self)

    @property
    def broadcast_shape(self) -> list[int] | None:
        """The extents on the receiving side of a broadcast, None without one."""
        return _integers(self.attributes.get("broadcast_shape"))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_symbol_name()
        size = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes = parser.parse_optional_attr_dict()
        spelled = attributes.get("channel_type")
        if isinstance(spelled, StringAttr) and spelled.data in _OLD_CHANNEL_TYPES:
            attributes["channel_type"] = StringAttr(_OLD_CHANNEL_TYPES[spelled.data])
            channel = cls(name.data, size or (), attributes=attributes)
            _OLD_SPELLINGS[channel] = spelled.data
            return channel
        return cls(name.data, size or (), attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name)
        print_parts(printer, f" {self.size}")
        print_attributes(printer, self, hidden=("sym_name", "size"))

    def verify_(self) -> None:
        check_channel_type(self.channel_type, CHANNEL_TYPES)
        check_channel_size(self.size)
        check_broadcast(self.size, self.attributes.get("broadcast_shape"))
        check_packet_ids(self.channel_type, self.attributes.get("packet_ids"))
        check_refeed_count(self.attributes.get("air.refeed_count"))


def _i64_array(values: Sequence[int]) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr([IntegerAttr(value, i64) for value in values])


def _integers(attribute: Attribute | None) -> list[int] | None:
    if not isinstance(attribute, ArrayAttr):
        return None
    return [value.value.data for value in attribute if isinstance(value, IntegerAttr)]


class ChannelTransferOp(StaticListOp, ABC):
    """What put and get share: the channel, its bundle indices and the memref's access pattern."""

    async_dependencies = var_operand_def(AsyncTokenType)
    indices = var_operand_def(IndexType)
    memref = operand_def(ANY_MEMREF)
    offsets = var_operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    dest = opt_operand_def(IndexType)
    chan_name_attr = prop_def(FlatSymbolRefAttr, prop_name="chan_name")
    pad_before = opt_prop_def(DenseArrayBase)
    pad_after = opt_prop_def(DenseArrayBase)
    async_token_result = opt_result_def(AsyncTokenType)

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        chan_name: str,
        indices: ValueList,
        memref: SSAValue | Operation,
        offsets: ValueList = (),
        sizes: ValueList = (),
        strides: ValueList = (),
        *,
        dest: SSAValue | Operation | None = None,
        async_dependencies: ValueList = (),
        is_async: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Build a transfer over `chan_name[indices]`; leave the three lists out for the whole memref."""
        own, rest = split_properties(type(self), attributes or {})
        super().__init__(
            operands=[async_dependencies, indices, memref, offsets, sizes, strides, dest],
            result_types=[AsyncTokenType() if is_async else None],
            properties={"chan_name": SymbolRefAttr(chan_name), **own},
            attributes=rest,
        )

    @property
    def chan_name(self) -> str:
        """The channel's name, without the @."""
        return self.chan_name_attr.root_reference.data

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        is_async, dependencies = parse_async(parser)
        name = parser.parse_symbol_name()
        indices = parse_index_list(parser)
        with parser.in_parens():
            pattern = parse_pattern(parser)
        dest = None
        if parser.parse_optional_keyword("dest") is not None:
            with parser.in_parens():
                dest = parse_index(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        with parser.in_parens():
            memref = parser.resolve_operand(pattern.memref, parser.parse_type())
        return cls(
            name.data,
            indices,
            memref,
            *pattern[1:],
            dest=dest,
            async_dependencies=dependencies,
            is_async=is_async,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_async(printer, self.async_token, self.async_dependencies)
        printer.print_string(" ")
        printer.print_symbol_name(self.chan_name)
        print_parts(printer, "[", self.indices, "] (")
        print_pattern(printer, self.memref, self.offsets, self.sizes, self.strides)
        printer.print_string(")")
        if self.dest is not None:
            print_parts(printer, " dest(", self.dest, ")")
        print_attributes(printer, self, hidden=("chan_name",))
        print_parts(printer, " : (", self.memref.type, ")")

    def channel(self) -> ChannelOp | None:
        """The channel's declaration, None when no enclosing module has it."""
        for parent in parent_ops(self):
            if parent.has_trait(SymbolTable):
                declaration = SymbolTable.lookup_symbol(parent, self.chan_name)
                if isinstance(declaration, ChannelOp):
                    return declaration
        return None

    def _verify_transfer(self, side: str, mmio_space: MemorySpace) -> None:
        check_pattern(self, side, self.offsets, self.sizes, self.strides)
        check_padding(self, self.pad_before, self.pad_after)
        check_refeed_count(self.attributes.get("air.refeed_count"))
        channel = self.channel()
        if channel is not None and channel.channel_type == "npu_mmio":
            check_mmio(self, self.memref.type, side, mmio_space)
        if channel is not None and channel.channel_type == "gpu_symmetric_heap":
            require_rank(self, "a gpu_symmetric_heap channel")


@irdl_op_definition
class ChannelPutOp(ChannelTransferOp):
    """`air.channel.put @c[%i, %j] (%src[o] [s] [t]) : (T)`: sends the memref into the channel."""

    name = "air.channel.put"
    STATIC_LISTS: ClassVar[Mapping[str, int]] = {
        "static_src_offsets": 3,
        "static_src_sizes": 4,
        "static_src_strides": 5,
    }

    def verify_(self) -> None:
        self._verify_transfer("src", MemorySpace.L3)


@irdl_op_definition
class ChannelGetOp(ChannelTransferOp):
    """`air.channel.get @c[%i, %j] (%dst[o] [s] [t]) : (T)`: receives from the channel into the memref."""

    name = "air.channel.get"
    STATIC_LISTS: ClassVar[Mapping[str, int]] = {
        "static_dst_offsets": 3,
        "static_dst_sizes": 4,
        "static_dst_strides": 5,
    }

    def verify_(self) -> None:
        self._verify_transfer("dst", MemorySpace.L1)
        if self.dest is not None:
            raise VerifyException("air.channel.get has a dest: only the put chooses which get receives")
