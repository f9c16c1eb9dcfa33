"""`vector.mask`: an operation of which only some lanes count."""

from __future__ import annotations

from typing_extensions import Self
from xdsl.dialects.builtin import VectorType, i1
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, NoTerminator, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream_assembly import optional_result_types


@irdl_op_definition
class YieldOp(IRDLOperation):
    """`vector.yield %v : vector<8xf32>`: the results of a masked operation."""

    name = "vector.yield"
    arguments = var_operand_def()
    traits = lazy_traits_def(lambda: (HasParent(MaskOp), IsTerminator()))
    assembly_format = "attr-dict ($arguments^ `:` type($arguments))?"


@irdl_op_definition
class MaskOp(IRDLOperation):
    """`%r = vector.mask %m, %other { vector.transfer_read ... } : vector<8xi1> -> vector<8xf32>`.

    The body holds one operation, whose results are the mask's. `%other` are the lanes that are off.
    """

    name = "vector.mask"
    mask = operand_def(VectorType)
    passthru = opt_operand_def(VectorType)
    res = var_result_def()
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(RecursiveMemoryEffect(), NoTerminator())

    @property
    def masked(self) -> Operation | None:
        """The operation inside, None where values are only handed on."""
        first = self.body.block.first_op
        return None if isinstance(first, YieldOp) else first

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        body = parser.parse_region(())
        last = body.block.last_op
        if not isinstance(last, YieldOp):
            body.block.add_op(YieldOp(operands=[last.results if last is not None else []]))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        results = optional_result_types(parser)
        operands: list[SSAValue] = [parser.resolve_operand(names[0], types[0])]
        operands += [parser.resolve_operand(name, results[0]) for name in names[1:] if results]
        return cls.build(
            operands=[operands[0], operands[1:]],
            result_types=[results],
            regions=[body],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=self.masked is None)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.mask.type)
        if self.results:
            printer.print_string(" -> ")
            printer.print_list(self.result_types, printer.print_attribute)

    def verify_(self) -> None:
        end = self.body.block.last_op
        yielded = [] if end is None else [value.type for value in end.operands]
        if len(self.body.block.ops) > 2 or yielded != list(self.result_types):
            raise VerifyException(
                f"vector.mask holds {len(self.body.block.ops)} operations and gives "
                f"{', '.join(map(attribute_text, yielded)) or 'nothing'}: write one operation, whose "
                "results are the mask's"
            )
        if not isinstance(self.mask.type, VectorType) or self.mask.type.element_type != i1:
            raise VerifyException(f"vector.mask takes a vector of i1, not {attribute_text(self.mask.type)}")


OPERATIONS: tuple[type[Operation], ...] = (YieldOp, MaskOp)
