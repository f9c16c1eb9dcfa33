"""The runtime sequence, by which the host drives the array, and the operations of `aiex` in it."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator

from aerie.air_dialect.aie.array import i32_constant
from aerie.air_dialect.aie.attributes import PacketInfoAttr
from aerie.air_dialect.aie.formats import (
    INDEX,
    AieOp,
    fill_regions,
    integer_array,
    integers,
    parse_index_operand,
    parse_integers_and_operands,
    parse_number,
    parse_word,
    print_integers_and_operands,
)
from aerie.air_dialect.assembly import print_parts


@irdl_op_definition
class RuntimeSequenceOp(IRDLOperation):
    """`aie.runtime_sequence @name(%a: memref<64xi32>, ...) { ... }`: what the host does in a run."""

    name = "aie.runtime_sequence"
    sym_name = opt_prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_optional_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        with_keyword = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(arguments)
        properties: dict[str, Attribute] = {} if name is None else {"sym_name": name}
        attributes = with_keyword.data if with_keyword is not None else parser.parse_optional_attr_dict()
        op = cls(regions=[body], properties=properties, attributes=attributes)
        fill_regions(op)
        return op

    def print(self, printer: Printer) -> None:
        if self.sym_name is not None:
            printer.print_string(" ")
            printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(") ")
        printer.print_region(self.body, print_entry_block_args=False)
        print_parts(printer, self.attributes)


@irdl_op_definition
class ConfigureOp(AieOp):
    """`aiex.configure @device { run... }`: loads a device, and runs sequences of it."""

    name = "aiex.configure"
    symbol = prop_def(SymbolRefAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    FORMAT: ClassVar[str] = "$symbol $body attr-dict"


@irdl_op_definition
class RunOp(AieOp):
    """`aiex.run @sequence(%a, %b) : (memref<...>, memref<...>)`."""

    name = "aiex.run"
    sequence = prop_def(SymbolRefAttr)
    arguments = var_operand_def()
    FORMAT: ClassVar[str] = "$sequence `(` $arguments `)` `:` `(` type($arguments) `)` attr-dict"


# ---- tasks of shim DMAs ----


@irdl_op_definition
class DmaMemcpyNdOp(IRDLOperation):
    """`aiex.npu.dma_memcpy_nd(%a[offsets][sizes][strides], packet = <...>) {metadata = @in, id = 0}`."""

    name = "aiex.npu.dma_memcpy_nd"
    memref = operand_def()
    offsets = var_operand_def()
    sizes = var_operand_def()
    strides = var_operand_def()
    static_offsets = prop_def(DenseArrayBase)
    static_sizes = prop_def(DenseArrayBase)
    static_strides = prop_def(DenseArrayBase)
    packet = opt_prop_def(PacketInfoAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        memref = parser.parse_unresolved_operand()
        properties: dict[str, Attribute] = {}
        dynamic: list[list[SSAValue]] = []
        for name in ("offsets", "sizes", "strides"):
            numbers, operands = parse_integers_and_operands(parser)
            properties[f"static_{name}"] = integer_array(numbers)
            dynamic.append(operands)
        if parser.parse_optional_punctuation(",") is not None:
            parser.parse_keyword("packet")
            parser.parse_punctuation("=")
            properties["packet"] = PacketInfoAttr(PacketInfoAttr.parse_parameter(parser))
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(memref, parser.parse_type())
        return cls(operands=[[value], *dynamic], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.memref)
        for static, operands in (
            (self.static_offsets, self.offsets),
            (self.static_sizes, self.sizes),
            (self.static_strides, self.strides),
        ):
            print_integers_and_operands(printer, integers(static), operands)
        if self.packet is not None:
            printer.print_string(", packet = ")
            self.packet.print_parameter(printer)
        print_parts(printer, ")", self.attributes, " : ", self.memref.type)


@irdl_op_definition
class DmaWaitOp(AieOp):
    """`aiex.npu.dma_wait {symbol = @out}`: until the channel has sent a token."""

    name = "aiex.npu.dma_wait"
    FORMAT: ClassVar[str] = "attr-dict"


class _ConfigureTaskOp(IRDLOperation):
    """A task: a chain of descriptors for a channel."""

    def print_rest(self, printer: Printer, repeat: SSAValue | None) -> None:
        """Print what follows the channel."""
        if repeat is not None:
            print_parts(printer, " repeat ", repeat, " : ", repeat.type)
        printer.print_string(" ")
        printer.print_region(self.regions[0])
        print_parts(printer, self.attributes)


def _parse_repeat(parser: Parser) -> list[SSAValue]:
    if parser.parse_optional_keyword("repeat") is None:
        return []
    operand = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    return [parser.resolve_operand(operand, parser.parse_type())]


@irdl_op_definition
class DmaConfigureTaskOp(_ConfigureTaskOp):
    """`%t = aiex.dma_configure_task(%tile, MM2S, 0) { dma_bd; end }`."""

    name = "aiex.dma_configure_task"
    tile = operand_def(INDEX)
    repeat = opt_operand_def()
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    packet = opt_prop_def(PacketInfoAttr)
    result = result_def(INDEX)
    body = region_def()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        tile = parse_index_operand(parser)
        parser.parse_punctuation(",")
        properties: dict[str, Attribute] = {"direction": parse_word(parser)}
        parser.parse_punctuation(",")
        properties["channel"] = parse_number(parser)
        if parser.parse_optional_punctuation(",") is not None:
            properties["packet"] = PacketInfoAttr(PacketInfoAttr.parse_parameter(parser))
        parser.parse_punctuation(")")
        repeat = _parse_repeat(parser)
        body = parser.parse_region()
        attributes = parser.parse_optional_attr_dict()
        return cls(
            operands=[tile, repeat], result_types=[INDEX], regions=[body], properties=properties,
            attributes=attributes,
        )  # fmt: skip

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.tile, f", {self.direction.data}, {self.channel.value.data}")
        if self.packet is not None:
            printer.print_string(", ")
            self.packet.print_parameter(printer)
        printer.print_string(")")
        self.print_rest(printer, self.repeat)


@irdl_op_definition
class DmaConfigureTaskForOp(_ConfigureTaskOp):
    """`%t = aiex.dma_configure_task_for @in { dma_bd; end }`."""

    name = "aiex.dma_configure_task_for"
    alloc = prop_def(SymbolRefAttr)
    repeat = opt_operand_def()
    result = result_def(INDEX)
    body = region_def()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        alloc = SymbolRefAttr(parser.parse_symbol_name())
        repeat = _parse_repeat(parser)
        body = parser.parse_region()
        attributes = parser.parse_optional_attr_dict()
        return cls(
            operands=[repeat], result_types=[INDEX], regions=[body], properties={"alloc": alloc},
            attributes=attributes,
        )  # fmt: skip

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.alloc)
        self.print_rest(printer, self.repeat)


class _NumbersOp(AieOp):
    """An operation on numbers, which the older form `name {address = 4 : ui32, ...}` has as attributes."""

    NUMBERS: ClassVar[tuple[str, ...]]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        given = parser.parse_optional_attr_dict()
        if not given:
            return super().parse(parser)
        numbers = [given.pop(name, None) for name in cls.NUMBERS]
        values = [i32_constant(_signed(number)) for number in numbers]
        operands = [values] if cls is SyncOp else values
        return cls(operands=operands, attributes=given)


def _signed(number: Attribute | None) -> int:
    """The 32 bits of a number, as an i32 has them; 0 where it is absent."""
    bits = number.value.data & 0xFFFFFFFF if isinstance(number, IntegerAttr) else 0
    return bits - (1 << 32) if bits >> 31 else bits


class _TaskOp(AieOp):
    """Something about a task."""

    task = operand_def(INDEX)
    FORMAT: ClassVar[str] = "`(` $task `)` attr-dict"


@irdl_op_definition
class DmaStartTaskOp(_TaskOp):
    """`aiex.dma_start_task(%t)`: into the queue of its channel."""

    name = "aiex.dma_start_task"


@irdl_op_definition
class DmaAwaitTaskOp(_TaskOp):
    """`aiex.dma_await_task(%t)`: until it has sent its token."""

    name = "aiex.dma_await_task"


@irdl_op_definition
class DmaFreeTaskOp(_TaskOp):
    """`aiex.dma_free_task(%t)`: its descriptors may be used again."""

    name = "aiex.dma_free_task"


# ---- resets ----


@irdl_op_definition
class CoreResetOp(AieOp):
    """`aiex.core_reset(%t)`: a core stands still until it is enabled, and then begins anew."""

    name = "aiex.core_reset"
    tile = operand_def(INDEX)
    FORMAT: ClassVar[str] = "`(` $tile `)` attr-dict"


@irdl_op_definition
class DmaChannelResetOp(AieOp):
    """`aiex.dma_channel_reset(%t, MM2S, 0)`: a channel and its queue, not its locks."""

    name = "aiex.dma_channel_reset"
    tile = operand_def(INDEX)
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    FORMAT: ClassVar[str] = (
        "`(` $tile `,` custom<Word>($direction) `,` custom<Number>($channel) `)` attr-dict"
    )


@irdl_op_definition
class DmaChannelResetForOp(AieOp):
    """`aiex.dma_channel_reset_for @in`: the channel of an allocation."""

    name = "aiex.dma_channel_reset_for"
    alloc = prop_def(SymbolRefAttr)
    FORMAT: ClassVar[str] = "$alloc attr-dict"


# ---- registers ----


@irdl_op_definition
class RtpWriteOp(AieOp):
    """`aiex.npu.rtp_write(@buffer, 0, %v) : i32`: a run-time parameter in a core's buffer."""

    name = "aiex.npu.rtp_write"
    buffer = prop_def(SymbolRefAttr)
    index = prop_def(IntegerAttr)
    value = operand_def()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        buffer = SymbolRefAttr(parser.parse_symbol_name())
        parser.parse_punctuation(",")
        index = parse_number(parser)
        parser.parse_punctuation(",")
        operand = parser.parse_optional_unresolved_operand()
        number = None if operand else parser.parse_integer(allow_boolean=False)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        if operand is not None:
            parser.parse_punctuation(":")
            value: SSAValue = parser.resolve_operand(operand, parser.parse_type())
        else:
            value = i32_constant(number or 0)
        return cls(operands=[value], properties={"buffer": buffer, "index": index}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.buffer, f", {self.index.value.data}, ", self.value, ")")
        print_parts(printer, self.attributes, " : ", self.value.type)


@irdl_op_definition
class SetLockOp(AieOp):
    """`aiex.set_lock(%l, 1)`: the host sets a lock."""

    name = "aiex.set_lock"
    lock = operand_def(INDEX)
    value = prop_def(IntegerAttr)
    FORMAT: ClassVar[str] = "`(` $lock `,` custom<Number>($value) `)` attr-dict"


@irdl_op_definition
class LoadPdiOp(AieOp):
    """`aiex.npu.load_pdi {device_ref = @device}`: loads a device."""

    name = "aiex.npu.load_pdi"
    FORMAT: ClassVar[str] = "attr-dict"


@irdl_op_definition
class SyncOp(_NumbersOp):
    """`aiex.npu.sync(%column, %row, %direction, %channel, %columns, %rows)`: until a token has come."""

    name = "aiex.npu.sync"
    arguments = var_operand_def(i32)
    NUMBERS: ClassVar[tuple[str, ...]] = ("column", "row", "direction", "channel", "column_num", "row_num")
    FORMAT: ClassVar[str] = "`(` $arguments `)` attr-dict `:` type($arguments)"


@irdl_op_definition
class Write32Op(_NumbersOp):
    """`aiex.npu.write32(%address, %value) {column, row}`: a register."""

    name = "aiex.npu.write32"
    address = operand_def(i32)
    value = operand_def(i32)
    NUMBERS: ClassVar[tuple[str, ...]] = ("address", "value")
    FORMAT: ClassVar[str] = "`(` $address `,` $value `)` attr-dict `:` type($address) `,` type($value)"


@irdl_op_definition
class MaskWrite32Op(_NumbersOp):
    """`aiex.npu.maskwrite32(%address, %value, %mask) {column, row}`: bits of a register."""

    name = "aiex.npu.maskwrite32"
    address = operand_def(i32)
    value = operand_def(i32)
    mask = operand_def(i32)
    NUMBERS: ClassVar[tuple[str, ...]] = ("address", "value", "mask")
    FORMAT: ClassVar[str] = (
        "`(` $address `,` $value `,` $mask `)` attr-dict `:` type($address) `,` type($value) `,` type($mask)"
    )


@irdl_op_definition
class BlockWriteOp(AieOp):
    """`aiex.npu.blockwrite(%data) {address, column, row} : memref<8xi32>`: registers in a row."""

    name = "aiex.npu.blockwrite"
    data = operand_def()
    FORMAT: ClassVar[str] = "`(` $data `)` attr-dict `:` type($data)"


@irdl_op_definition
class AddressPatchOp(_NumbersOp):
    """`aiex.npu.address_patch(%plus : i32) {addr, arg_idx}`: an argument's address into a descriptor."""

    name = "aiex.npu.address_patch"
    plus = operand_def(i32)
    NUMBERS: ClassVar[tuple[str, ...]] = ("arg_plus",)
    FORMAT: ClassVar[str] = "`(` $plus `:` type($plus) `)` attr-dict"


@irdl_op_definition
class WriteBdOp(AieOp):
    """`aiex.npu.writebd {bd_id, buffer_length, ...}`: a descriptor, by the fields of its registers."""

    name = "aiex.npu.writebd"
    FORMAT: ClassVar[str] = "attr-dict"


@irdl_op_definition
class PushQueueOp(IRDLOperation):
    """`aiex.npu.push_queue(0, 0, S2MM : 0) bd_id %b repeat %r {issue_token} : i32, i32`."""

    name = "aiex.npu.push_queue"
    column = prop_def(IntegerAttr)
    row = prop_def(IntegerAttr)
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    bd = operand_def(i32)
    repeat = operand_def(i32)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        properties: dict[str, Attribute] = {"column": parse_number(parser)}
        parser.parse_punctuation(",")
        properties["row"] = parse_number(parser)
        parser.parse_punctuation(",")
        properties["direction"] = parse_word(parser)
        parser.parse_punctuation(":")
        properties["channel"] = parse_number(parser)
        parser.parse_punctuation(")")
        parser.parse_keyword("bd_id")
        bd = parser.parse_unresolved_operand()
        parser.parse_keyword("repeat")
        repeat = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        operands = [parser.resolve_operand(operand, i32) for operand in (bd, repeat)]
        return cls(operands=operands, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        places = f"({self.column.value.data}, {self.row.value.data}, {self.direction.data} : "
        print_parts(printer, places + f"{self.channel.value.data}) bd_id ", self.bd, " repeat ", self.repeat)
        print_parts(printer, self.attributes, " : i32, i32")
