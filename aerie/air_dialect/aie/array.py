"""Devices, tiles, buffers, locks and cores."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IntegerAttr, MemRefType, StringAttr, SymbolNameConstraint, TensorType, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, NoTerminator, SymbolTable
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.aie.formats import INDEX, AieOp, integer_of, parse_index_operand, parse_word
from aerie.air_dialect.assembly import print_parts

DEVICES = {
    "npu1": 4, "npu1_1col": 1, "npu1_2col": 2, "npu1_3col": 3, "npu1_4col": 4, "npu2": 8,
    **{f"npu2_{columns}col": columns for columns in range(1, 8)},
}  # fmt: skip
"""The NPUs, with their columns."""
ROWS = 6
"""Rows of an NPU: a shim, a memtile, four cores."""
OTHER_DEVICES = {"xcvc1902": (50, 9), "xcve2302": (17, 4), "xcve2802": (38, 11)}
"""Devices whose texts are read and not run: their columns and rows (mlir-aie's AIETargetModel.h)."""
MAX_LOCK = 63
"""A lock has six bits."""


@irdl_op_definition
class DeviceOp(AieOp):
    """`aie.device(npu2) @name { ... }`: one configuration of the array."""

    name = "aie.device"
    device = prop_def(StringAttr)
    sym_name = opt_prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), SymbolTable())
    FORMAT: ClassVar[str] = "`(` custom<Word>($device) `)` ($sym_name^)? $body attr-dict"

    def verify_(self) -> None:
        if self.device.data not in (*DEVICES, *OTHER_DEVICES):
            raise VerifyException(
                f"aie.device({self.device.data}) is not known here: write one of {', '.join(DEVICES)}"
            )

    @property
    def columns(self) -> int:
        """How many columns the device has."""
        return self.size[0]

    @property
    def size(self) -> tuple[int, int]:
        """How many columns and rows the device has."""
        name = self.device.data
        return OTHER_DEVICES[name] if name in OTHER_DEVICES else (DEVICES[name], ROWS)


@irdl_op_definition
class TileOp(AieOp):
    """`%t = aie.tile(0, 2)`: column and row. Outside a device it is one of the VCK190 (getTargetModel)."""

    name = "aie.tile"
    col = prop_def(IntegerAttr)
    row = prop_def(IntegerAttr)
    result = result_def(INDEX)
    FORMAT: ClassVar[str] = "`(` custom<Number>($col) `,` custom<Number>($row) `)` attr-dict"

    def verify_(self) -> None:
        device = self.parent_op()
        columns, rows = device.size if isinstance(device, DeviceOp) else OTHER_DEVICES["xcvc1902"]
        column, row = self.place
        if not (0 <= column < columns and 0 <= row < rows):
            raise VerifyException(
                f"aie.tile({column}, {row}) is outside: the device has {columns} columns and {rows} rows"
            )

    @property
    def place(self) -> tuple[int, int]:
        """Column and row."""
        return self.integer("col"), self.integer("row")


TILE_KINDS = {"ShimNOCTile": (0, 0), "ShimPLTile": (0, 0), "MemTile": (1, 1), "CoreTile": (2, ROWS - 1)}
"""The kinds of tiles, with their first and last row."""


@irdl_op_definition
class LogicalTileOp(IRDLOperation):
    """`%t = aie.logical_tile<CoreTile>(?, ?)`: a tile of a kind, whose column or row may be open."""

    name = "aie.logical_tile"
    kind = prop_def(StringAttr)
    col = opt_prop_def(IntegerAttr)
    row = opt_prop_def(IntegerAttr)
    result = result_def(INDEX)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        with parser.in_angle_brackets():
            start = parser.pos
            kind = parser.parse_identifier()
            if kind not in TILE_KINDS:
                parser.raise_error(f"no {kind}: write one of {', '.join(TILE_KINDS)}", start)
        properties: dict[str, Attribute] = {"kind": StringAttr(kind)}
        parser.parse_punctuation("(")
        for name in ("col", "row"):
            if parser.parse_optional_punctuation("?") is None:
                properties[name] = IntegerAttr(parser.parse_integer(allow_boolean=False), i32)
            if name == "col":
                parser.parse_punctuation(",")
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(result_types=[INDEX], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        places = ", ".join("?" if one is None else str(one.value.data) for one in (self.col, self.row))
        print_parts(printer, f"<{self.kind.data}>({places})", self.attributes)


@irdl_op_definition
class LockOp(IRDLOperation):
    """`%l = aie.lock(%t, 3) {init = 1 : i32}`."""

    name = "aie.lock"
    tile = operand_def(INDEX)
    lock_id = opt_prop_def(IntegerAttr)
    result = result_def(INDEX)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        tile = parse_index_operand(parser)
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation(",") is not None:
            properties["lock_id"] = IntegerAttr(parser.parse_integer(allow_boolean=False), i32)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[tile], result_types=[INDEX], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.tile)
        if self.lock_id is not None:
            printer.print_string(f", {self.lock_id.value.data}")
        print_parts(printer, ")", self.attributes)

    def verify_(self) -> None:
        init = lock_init(self)
        if not 0 <= init <= MAX_LOCK:
            raise VerifyException(f"aie.lock begins with {init}: a lock has six bits, 0 to {MAX_LOCK}")


ACTIONS = ("Acquire", "AcquireGreaterEqual", "Release")


@irdl_op_definition
class UseLockOp(IRDLOperation):
    """`aie.use_lock(%l, AcquireGreaterEqual, %n)`; the number may be written where the operand stands."""

    name = "aie.use_lock"
    lock = operand_def(INDEX)
    value = operand_def(i32)
    action = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        lock = parse_index_operand(parser)
        parser.parse_punctuation(",")
        start = parser.pos
        action = parse_word(parser)
        if action.data not in ACTIONS:
            parser.raise_error(
                f"aie.use_lock knows no {action.data}: write one of {', '.join(ACTIONS)}", start
            )
        parser.parse_punctuation(",")
        value = _parse_i32(parser)
        if parser.parse_optional_punctuation(",") is not None:
            parser.parse_identifier()  # `blocking`, the only way there is
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[lock, value], properties={"action": action}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.lock, f", {self.action.data}, ", self.value, ")", self.attributes)


def _parse_i32(parser: Parser) -> SSAValue:
    operand = parser.parse_optional_unresolved_operand()
    if operand is not None:
        return parser.resolve_operand(operand, i32)
    return i32_constant(parser.parse_integer(allow_boolean=False))


def i32_constant(number: int) -> SSAValue:
    """The result of a new constant, which `air_dialect.parser_printer` puts before its user."""
    constant = ConstantOp(IntegerAttr(number, i32))
    constant.result.name_hint = f"n{number}"
    return constant.result


@irdl_op_definition
class BufferOp(IRDLOperation):
    """`%b = aie.buffer(%t) {sym_name = "b"} : memref<256xi32> = dense<...>`."""

    name = "aie.buffer"
    tile = operand_def(INDEX)
    initial_value = opt_prop_def()
    result = result_def(MemRefType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        tile = parse_index_operand(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        if not isinstance(type_, MemRefType):
            parser.raise_error("aie.buffer has a memref type")
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation("=") is not None:
            properties["initial_value"] = parse_initial_value(parser, type_)
        return cls(operands=[tile], result_types=[type_], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.tile, ")", self.attributes, " : ", self.result.type)
        if self.initial_value is not None:
            print_parts(printer, " = ", self.initial_value)


def parse_initial_value(parser: Parser, type_: MemRefType) -> Attribute:
    """Parse `dense<...>`, whose type is that of the buffer; a type that follows is taken too."""
    if parser.parse_optional_keyword("dense") is None:
        return parser.parse_attribute()
    tensor: TensorType[Any] = TensorType(type_.element_type, type_.get_shape())
    value = parser.parse_dense_int_or_fp_elements_attr(tensor)
    if parser.parse_optional_punctuation(":") is not None:
        parser.parse_type()
    return value


@irdl_op_definition
class ExternalBufferOp(IRDLOperation):
    """`%b = aie.external_buffer {sym_name = "b"} : memref<...>`: memory of the host, by a name."""

    name = "aie.external_buffer"
    result = result_def(MemRefType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls(result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, self.attributes, " : ", self.result.type)


@irdl_op_definition
class CoreOp(AieOp):
    """`aie.core(%t) { ... }`: the program of a core."""

    name = "aie.core"
    tile = operand_def(INDEX)
    result = result_def(INDEX)
    body = region_def()
    FORMAT: ClassVar[str] = "`(` $tile `)` $body attr-dict"


@irdl_op_definition
class EndOp(AieOp):
    """`aie.end`: the end of a core, of a DMA program, of a task."""

    name = "aie.end"
    traits = traits_def(IsTerminator())
    FORMAT: ClassVar[str] = "attr-dict"


# ---- between cores ----


@irdl_op_definition
class PutCascadeOp(AieOp):
    """`aie.put_cascade(%v : vector<16xf32>)`: to the next core."""

    name = "aie.put_cascade"
    value = operand_def()
    FORMAT: ClassVar[str] = "`(` $value `:` type($value) `)` attr-dict"


@irdl_op_definition
class GetCascadeOp(IRDLOperation):
    """`%v = aie.get_cascade() : vector<16xf32>`: from the core before."""

    name = "aie.get_cascade"
    value = result_def()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls(result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "()", self.attributes, " : ", self.value.type)


@irdl_op_definition
class CascadeFlowOp(AieOp):
    """`aie.cascade_flow(%a, %b)`: core a's cascade leads to core b."""

    name = "aie.cascade_flow"
    source_tile = operand_def(INDEX)
    dest_tile = operand_def(INDEX)
    FORMAT: ClassVar[str] = "`(` $source_tile `,` $dest_tile `)` attr-dict"


@irdl_op_definition
class ConfigureCascadeOp(AieOp):
    """`aie.configure_cascade(%t, North, South)`: from where a core's cascade comes, and where it goes."""

    name = "aie.configure_cascade"
    tile = operand_def(INDEX)
    input_dir = prop_def(StringAttr)
    output_dir = prop_def(StringAttr)
    FORMAT: ClassVar[str] = (
        "`(` $tile `,` custom<Word>($input_dir) `,` custom<Word>($output_dir) `)` attr-dict"
    )


@irdl_op_definition
class PutStreamOp(AieOp):
    """`aie.put_stream(%channel : i32, %v : i32)`: a core writes to its own port of the switch."""

    name = "aie.put_stream"
    channel = operand_def(i32)
    value = operand_def()
    FORMAT: ClassVar[str] = "`(` $channel `:` type($channel) `,` $value `:` type($value) `)` attr-dict"


@irdl_op_definition
class GetStreamOp(AieOp):
    """`%v = aie.get_stream(%channel : i32) : i32`: a core reads from its own port of the switch."""

    name = "aie.get_stream"
    channel = operand_def(i32)
    value = result_def()
    FORMAT: ClassVar[str] = "`(` $channel `:` type($channel) `)` attr-dict `:` type($value)"


def lock_init(op: LockOp) -> int:
    """The value that a lock begins with."""
    return integer_of(op, "init", 0)
