"""vector's gathers, scatters, expanding loads and compressing stores, and its masks."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    MemRefType,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    NoTerminator,
    Pure,
    RecursiveMemoryEffect,
)
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import optional_result_types, print_parts
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted, element_type
from aerie.air_dialect.upstream.vector import vector_shape

_ACCESS = "$base `[` $offsets `]`"


@irdl_op_definition
class GatherOp(IRDLOperation):
    """`vector.gather %m[%i][%where], %mask, %other : memref, indices, mask, vector into vector`: lanes
    that are off get `%other`."""

    name = "vector.gather"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    index_vec = operand_def(VectorType)
    mask = operand_def(VectorType)
    pass_thru = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        _ACCESS + " `[` $index_vec `]` `,` $mask `,` $pass_thru attr-dict `:` type($base) `,` "
        "type($index_vec) `,` type($mask) `,` type($pass_thru) `into` type($result)"
    )


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """`vector.scatter %m[%i][%where], %mask, %v : memref, indices, mask, vector`: later lanes win."""

    name = "vector.scatter"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    index_vec = operand_def(VectorType)
    mask = operand_def(VectorType)
    value_to_store = operand_def(VectorType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        _ACCESS + " `[` $index_vec `]` `,` $mask `,` $value_to_store attr-dict `:` type($base) `,` "
        "type($index_vec) `,` type($mask) `,` type($value_to_store)"
    )


@irdl_op_definition
class ExpandLoadOp(IRDLOperation):
    """`vector.expandload %m[%i], %mask, %other : memref, mask, vector into vector`: consecutive elements."""

    name = "vector.expandload"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    mask = operand_def(VectorType)
    pass_thru = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        _ACCESS + " `,` $mask `,` $pass_thru attr-dict `:` type($base) `,` type($mask) `,` "
        "type($pass_thru) `into` type($result)"
    )


@irdl_op_definition
class CompressStoreOp(IRDLOperation):
    """`vector.compressstore %m[%i], %mask, %v : memref, mask, vector`: the lanes that are on."""

    name = "vector.compressstore"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    mask = operand_def(VectorType)
    value_to_store = operand_def(VectorType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        _ACCESS + " `,` $mask `,` $value_to_store attr-dict `:` type($base) `,` type($mask) `,` "
        "type($value_to_store)"
    )


# ---- masks ----


@irdl_op_definition
class ConstantMaskOp(Formatted):
    """`vector.constant_mask [3, 2] : vector<4x3xi1>`: true below these bounds."""

    name = "vector.constant_mask"
    mask_dim_sizes = prop_def(DenseArrayBase.constr(i64))
    result = result_def(VectorType)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = "$mask_dim_sizes attr-dict `:` type($result)"

    def verify_(self) -> None:
        bounds, shape = self.mask_dim_sizes.get_values(), vector_shape(self.result)
        is_inside = all(0 <= bound <= extent for bound, extent in zip(bounds, shape, strict=False))
        if element_type(self.result.type) != i1 or len(bounds) != max(len(shape), 1) or not is_inside:
            raise VerifyException(
                f"vector.constant_mask {list(bounds)} of {attribute_text(self.result.type)}: write a bound, "
                "from 0 to the extent, per dimension of a vector of i1"
            )


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
        print_parts(printer, " ", self.operands, " ")
        printer.print_region(self.body, print_block_terminators=self.masked is None)
        print_parts(printer, self.attributes, " : ", self.mask.type)
        if self.results:
            print_parts(printer, " -> ", self.result_types)

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
