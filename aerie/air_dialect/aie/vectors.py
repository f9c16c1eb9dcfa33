"""The vector operations of a core (aievec), as the compiler makes them of MLIR's vector dialect."""

from __future__ import annotations

from typing import Self

from xdsl.irdl import IRDLOperation, irdl_op_definition, result_def, traits_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from aerie.air_dialect.assembly import print_parts


class VectorOp(IRDLOperation):
    """An operation `aievec.name %a, %b {attributes} : type, ..., type`.

    As many types are written as there are operands, and then the result's, or the result's alone.
    """

    arguments = var_operand_def()
    result = result_def()
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        start = parser.pos
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        if parser.parse_optional_keyword("into") is not None:
            types += [parser.parse_type()] * 2  # the sums, before and after
        if cls.name == "aievec.mac_elem" and len(types) == len(operands):
            types.append(types[-1])
        if len(types) == 1:
            types *= len(operands) + 1
        if len(types) != len(operands) + 1:
            parser.raise_error(f"{cls.name} has {len(operands)} operands and {len(types)} types", start)
        values = parser.resolve_operands(operands, types[:-1], start)
        return cls(operands=[values], result_types=[types[-1]], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", list(self.arguments), self.attributes, " : ")
        types = [value.type for value in self.arguments]
        if self.name == "aievec.matmul_aie2p":
            print_parts(printer, types[:2], " into ", self.result.type)
        elif self.name == "aievec.mac_elem":
            print_parts(printer, types)
        elif all(type_ == self.result.type for type_ in types) and self.name in _ONE_TYPE:
            print_parts(printer, self.result.type)
        else:
            print_parts(printer, [*types, self.result.type])


_NAMES = (
    "ups", "srs", "cast", "add_elem", "sub_elem", "mul_elem", "mac_elem", "shift", "ext_elem",
    "broadcast_scalar", "matmul_aie2p",
)  # fmt: skip
_ONE_TYPE = ("aievec.add_elem", "aievec.sub_elem")


def _define(name: str) -> type[VectorOp]:
    members = {"name": f"aievec.{name}", "__module__": __name__, "__doc__": f"`aievec.{name}`."}
    return irdl_op_definition(type(f"{name.title().replace('_', '')}Op", (VectorOp,), members))


TABLE_OPS = [_define(name) for name in _NAMES]
