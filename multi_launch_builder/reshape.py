"""Views of a contiguous buffer in another shape, as operations; no data moves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, MemRefType, i64
from xdsl.ir import Attribute, Operation, SSAValue


def reshape(value: SSAValue, target: MemRefType[Attribute]) -> list[Operation]:
    """Operations that show the contiguous memref `value` in the shape of `target`, the last one's result.

    Row-major order stays: all dimensions collapse into one, which expands into the new ones.
    """
    source = value.type
    assert isinstance(source, MemRefType)
    operations: list[Operation] = []
    if len(source.get_shape()) > 1:
        operations.append(_collapse(value, source))
        value = operations[-1].results[0]
    if len(target.get_shape()) > 1:
        operations.append(_expand(value, target))
    return operations


def _flat(kind: MemRefType[Attribute]) -> MemRefType[Attribute]:
    return MemRefType(kind.element_type, [math.prod(kind.get_shape())])


def _one_group(shape: Sequence[int]) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    return ArrayAttr([ArrayAttr([IntegerAttr(dimension, i64) for dimension in range(len(shape))])])


def _collapse(value: SSAValue, source: MemRefType[Attribute]) -> Operation:
    return memref.CollapseShapeOp.build(
        operands=[value],
        result_types=[_flat(source)],
        properties={"reassociation": _one_group(source.get_shape())},
    )


def _expand(value: SSAValue, target: MemRefType[Attribute]) -> Operation:
    shape = target.get_shape()
    return memref.ExpandShapeOp.build(
        operands=[value, []],
        result_types=[target],
        properties={
            "reassociation": _one_group(shape),
            "static_output_shape": DenseArrayBase.from_list(i64, list(shape)),
        },
    )
