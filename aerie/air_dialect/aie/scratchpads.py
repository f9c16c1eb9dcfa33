"""Scratchpads: words of the host that a runtime sequence copies, for cores and for offsets of descriptors."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint, SymbolRefAttr
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from aerie.air_dialect.aie.formats import AieOp
from aerie.air_dialect.assembly import print_parts

FUNCTIONS = ("incr", "decr", "mul")
"""What is made of a word and an argument before it is added."""


@irdl_op_definition
class ScratchpadParameterOp(AieOp):
    """`aiex.scratchpad_parameter @factor : bf16`, beside the devices: a word with a name."""

    name = "aiex.scratchpad_parameter"
    sym_name = prop_def(SymbolNameConstraint())
    value_type = prop_def(Attribute, prop_name="type")
    FORMAT: ClassVar[str] = "$sym_name `:` $type attr-dict"


@irdl_op_definition
class ReadScratchpadParameterOp(AieOp):
    """`%f = aiex.read_scratchpad_parameter @factor : bf16`, in a core."""

    name = "aiex.read_scratchpad_parameter"
    parameter = prop_def(SymbolRefAttr)
    result = result_def()
    FORMAT: ClassVar[str] = "$parameter `:` type($result) attr-dict"


@irdl_op_definition
class SyncScratchpadParametersOp(AieOp):
    """`aiex.sync_scratchpad_parameters_from_host`: gives the cores of the device their parameters."""

    name = "aiex.sync_scratchpad_parameters_from_host"
    FORMAT: ClassVar[str] = "attr-dict"


@irdl_op_definition
class CreateScratchpadOp(AieOp):
    """`aiex.npu.create_scratchpad {size = 4 : ui32}`: copies so many bytes of the host's."""

    name = "aiex.npu.create_scratchpad"
    FORMAT: ClassVar[str] = "attr-dict"


@irdl_op_definition
class UpdateFromScratchpadOp(IRDLOperation):
    """`aiex.npu.update_from_scratchpad<mul> {state_table_idx = 0 : ui8, func_arg = 4 : ui32, buffer = @b,
    address = 0 : ui32}`: adds to two words of a tile."""

    name = "aiex.npu.update_from_scratchpad"
    function = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        function = FUNCTIONS[0]
        if parser.parse_optional_punctuation("<") is not None:
            start = parser.pos
            function = parser.parse_identifier()
            if function not in FUNCTIONS:
                parser.raise_error(
                    f"{cls.name} knows no {function}: write one of {', '.join(FUNCTIONS)}", start
                )
            parser.parse_punctuation(">")
        properties = {"function": StringAttr(function)}
        return cls(properties=properties, attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        print_parts(printer, f"<{self.function.data}>", self.attributes)
