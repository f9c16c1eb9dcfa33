"""Conversions between tensors and memrefs of any memory space or layout.

xDSL's demand a plain memref in L3. The classes are subclasses of xDSL's, so
`isinstance(op, bufferization.ToTensorOp)` holds.
"""

from __future__ import annotations

from xdsl.dialects import bufferization
from xdsl.dialects.builtin import MemRefType, TensorType
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted


def _check_same_data(op: Operation, one: Attribute, other: Attribute) -> None:
    """A tensor and a memref, where ranked, have the same shape and element type."""
    if not isinstance(one, TensorType | MemRefType) or not isinstance(other, TensorType | MemRefType):
        return
    if one.element_type != other.element_type or one.get_shape() != other.get_shape():
        raise VerifyException(
            f"{op.name} from {attribute_text(one)} to {attribute_text(other)}: shape and element "
            "type must be equal"
        )


class ToTensorOp(Formatted, bufferization.ToTensorOp):
    """`bufferization.to_tensor %m restrict writable : memref<8xf32, 2> to tensor<8xf32>`."""

    FORMAT = (
        "$memref (`restrict` $restrict^)? (`writable` $writable^)? attr-dict "
        "`:` type($memref) `to` type($tensor)"
    )

    def verify_(self) -> None:
        _check_same_data(self, self.memref.type, self.tensor.type)


class ToBufferOp(Formatted, bufferization.ToBufferOp):
    """`bufferization.to_buffer %t read_only : tensor<8xf32> to memref<8xf32, strided<[?]>>`."""

    FORMAT = "$tensor (`read_only` $read_only^)? attr-dict `:` type($tensor) `to` type($memref)"

    def verify_(self) -> None:
        _check_same_data(self, self.tensor.type, self.memref.type)


class MaterializeInDestinationOp(Formatted, bufferization.MaterializeInDestinationOp):
    """`bufferization.materialize_in_destination %t in writable %m : (tensor<8xf32>, memref<8xf32>) -> ()`."""

    FORMAT = (
        "$source `in` (`restrict` $restrict^)? (`writable` $writable^)? $dest attr-dict "
        "`:` functional-type(operands, results)"
    )

    def verify_(self) -> None:
        _check_same_data(self, self.source.type, self.dest.type)
