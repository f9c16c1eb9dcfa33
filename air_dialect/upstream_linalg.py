"""What MLIR's linalg dialect has and xDSL lacks: matrix-vector products and a few attributes.

Also `linalg.reduce` from one element type into another, which xDSL's does not allow.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, MemRefType, TensorType
from xdsl.dialects.linalg import ops
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.ir import Data, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import irdl_attr_definition, irdl_op_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text

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


class _MatrixVectorOp(NamedOperation, ABC):
    """A sum of products over one dimension of a matrix, added to the output."""

    PRINT_ATTRS_IN_FRONT: ClassVar[bool] = True
    MATRIX: ClassVar[int]
    """The position of the matrix among the inputs, and the dimension of it that the output follows."""

    def __init__(self, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> None:
        super().__init__(
            ins=inputs,
            outs=outputs,
            result_types=[[value.type for value in outputs if isinstance(value.type, TensorType)]],
            hidden_region=self.get_hidden_region(inputs, outputs),
        )

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        return ops.MatmulOp.get_hidden_region(inputs, outputs)

    def get_default_indexing_maps(self) -> Sequence[AffineMap]:
        """The maps over (kept dimension, summed dimension)."""
        matrix = AffineMap.from_callable(
            lambda kept, summed: (summed, kept) if self.MATRIX else (kept, summed)
        )
        vector = AffineMap.from_callable(lambda _, summed: (summed,))
        output = AffineMap.from_callable(lambda kept, _: (kept,))
        return (vector, matrix, output) if self.MATRIX else (matrix, vector, output)

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        return ArrayAttr([IteratorTypeAttr.parallel(), IteratorTypeAttr.reduction()])

    def verify_(self) -> None:
        types = [value.type for value in self.operands]
        shapes = [type_.get_shape() for type_ in types if isinstance(type_, MemRefType | TensorType)]
        ranks = (1, 2, 1) if self.MATRIX else (2, 1, 1)
        found = f"{' and '.join(map(attribute_text, types[:-1]))} into {attribute_text(types[-1])}"
        if tuple(map(len, shapes)) != ranks:
            order = "a vector and a matrix" if self.MATRIX else "a matrix and a vector"
            raise VerifyException(f"{self.name} takes {order}, and gives a vector, not {found}")
        matrix = shapes[self.MATRIX]
        wanted: list[tuple[int, ...]] = [(matrix[1 - self.MATRIX],), (matrix[self.MATRIX],)]
        wanted.insert(self.MATRIX, matrix)
        if shapes != wanted:
            texts = [f"({', '.join(map(str, shape))})" for shape in wanted]
            raise VerifyException(f"{self.name} of {found}: write {texts[0]} and {texts[1]} into {texts[2]}")


@irdl_op_definition
class MatvecOp(_MatrixVectorOp):
    """`linalg.matvec ins(%a, %x : ...) outs(%y : ...)`: y (m) += a (m, k) x (k)."""

    name = "linalg.matvec"
    MATRIX: ClassVar[int] = 0


@irdl_op_definition
class VecmatOp(_MatrixVectorOp):
    """`linalg.vecmat ins(%x, %a : ...) outs(%y : ...)`: y (n) += x (k) a (k, n)."""

    name = "linalg.vecmat"
    MATRIX: ClassVar[int] = 1


class ReduceOp(ops.ReduceOp):
    """`linalg.reduce ins(%a : ...) outs(%b : ...) dimensions = [1] (%in: bf16, %acc: f32) { ... }`."""

    def verify_(self) -> None:
        source, init = self.input.type, self.init.type
        if not isinstance(source, MemRefType | TensorType) or not isinstance(init, MemRefType | TensorType):
            raise VerifyException("linalg.reduce takes tensors or memrefs")
        dims = self.dimensions.get_values()
        kept = tuple(extent for axis, extent in enumerate(source.get_shape()) if axis not in dims)
        if init.get_shape() != kept:
            raise VerifyException(
                f"linalg.reduce of {attribute_text(source)} over {list(dims)} gives "
                f"({', '.join(map(str, kept))}), not {attribute_text(init)}"
            )


OPERATIONS: tuple[type[Operation], ...] = (MatvecOp, VecmatOp, ReduceOp)
