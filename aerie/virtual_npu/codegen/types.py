"""MLIR types in C++."""

from __future__ import annotations

import math
import struct

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    NoneAttr,
    Signedness,
    StridedLayoutAttr,
    TensorType,
    UnrankedMemRefType,
    VectorType,
)
from xdsl.ir import Attribute
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
)

from aerie.virtual_npu.errors import UnsupportedTypeError

DYNAMIC = DYNAMIC_INDEX

_FLOATS: dict[type[Attribute], tuple[str, str, int]] = {
    Float32Type: ("float", "f32", 4),
    Float64Type: ("double", "f64", 8),
    BFloat16Type: ("vnpu::bf16", "bf16", 2),
    Float16Type: ("vnpu::f16", "f16", 2),
}


def _entry(type_: Attribute) -> tuple[str, str, int]:
    """(C++ type, MLIR name, bytes) of a scalar type."""
    if isinstance(type_, IndexType):
        return "vnpu::i64", "index", 8
    if isinstance(type_, IntegerType):
        width = type_.width.data
        if width == 1:
            return "bool", "i1", 1
        if width in (8, 16, 32, 64):
            unsigned = type_.signedness.data is Signedness.UNSIGNED
            prefix = "u" if unsigned else ""
            return f"{prefix}int{width}_t", f"{prefix}i{width}", width // 8
    entry = _FLOATS.get(type(type_))
    if isinstance(type_, UnrankedMemRefType):
        raise UnsupportedTypeError(
            f"{type_} has no shape: run it with arrays (--args), which tell how many elements "
            "there are, or give the argument a ranked, static memref type"
        )
    if isinstance(type_, TensorType):
        raise UnsupportedTypeError(f"{type_} is a tensor: bufferize the module to memrefs first")
    if entry is None:
        raise UnsupportedTypeError(
            f"type {type_} is not supported: use f32, f64, bf16, f16, i1, i8, i16, i32, i64, their "
            "unsigned forms, or index"
        )
    return entry


def is_float(type_: Attribute) -> bool:
    """Whether a scalar type is a floating-point type."""
    return type(type_) in _FLOATS


def scalar(type_: Attribute) -> str:
    """The C++ type of a scalar."""
    return _entry(type_)[0]


def dtype_name(type_: Attribute) -> str:
    """The MLIR name of a scalar type: `bf16`, `f32`, `i32`, `index`, ..."""
    return _entry(type_)[1]


def byte_width(type_: Attribute) -> int:
    """Bytes of one element in memory."""
    return _entry(type_)[2]


def lanes(type_: VectorType) -> int:
    """How many elements a vector has over all its dimensions."""
    return math.prod(type_.get_shape())


def element(type_: Attribute) -> Attribute:
    """The scalar type of a vector or memref, or the type itself."""
    return type_.element_type if isinstance(type_, VectorType | MemRefType) else type_


def cpp(type_: Attribute) -> str:
    """The C++ type of a scalar, or of a vector with its lanes in row-major order."""
    if isinstance(type_, VectorType):
        return f"vnpu::Vec<{scalar(type_.element_type)}, {lanes(type_)}>"
    return scalar(type_)


def pointer(type_: MemRefType, checked: bool) -> str:
    """The C++ type of a pointer into a memref; with checks, of one that knows its buffer."""
    element = scalar(type_.element_type)
    return f"vnpu::Ptr<{element}>" if checked else f"{element} *"


def row_major(shape: tuple[int, ...]) -> list[int]:
    """Strides of a dense row-major buffer; DYNAMIC where they depend on a dynamic extent."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        inner, extent = strides[dim + 1], shape[dim + 1]
        strides[dim] = DYNAMIC if DYNAMIC in (inner, extent) else inner * extent
    return strides


def memref_strides(type_: MemRefType) -> list[int]:
    """Strides of a memref type in elements, outermost first; DYNAMIC if known only at run time."""
    if isinstance(type_.layout, NoneAttr):
        return row_major(type_.get_shape())
    if isinstance(type_.layout, StridedLayoutAttr):
        return [DYNAMIC if isinstance(s, NoneAttr) else s.data for s in type_.layout.strides]
    try:
        assert isinstance(type_.layout, AffineMapAttr)
        (result,) = type_.layout.data.results
        coefficients = _coefficients(result)
    except (AssertionError, ValueError) as error:
        raise UnsupportedTypeError(
            f"the layout of {type_} is not a strided one: write strided<[...], offset: ...>"
        ) from error
    return [coefficients.get(dim, 0) for dim in range(type_.get_num_dims())]


def memref_offset(type_: MemRefType) -> int:
    """The offset in the layout of a memref type, in elements; DYNAMIC if known only at run time."""
    if isinstance(type_.layout, StridedLayoutAttr):
        offset = type_.layout.offset
        return DYNAMIC if isinstance(offset, NoneAttr) else int(offset.data)
    if not isinstance(type_.layout, AffineMapAttr):
        return 0
    map_ = type_.layout.data
    return DYNAMIC if map_.num_symbols else int(map_.eval([0] * map_.num_dims, [])[0])


def _coefficients(expr: AffineExpr) -> dict[int, int]:
    """What every dimension is multiplied by, DYNAMIC where that is no constant. ValueError if not linear."""
    if isinstance(expr, AffineDimExpr):
        return {expr.position: 1}
    if not isinstance(expr, AffineBinaryOpExpr):
        return {}
    left, right = _coefficients(expr.lhs), _coefficients(expr.rhs)
    if expr.kind is AffineBinaryOpKind.Add:
        both = {dim: left.get(dim, 0) + right.get(dim, 0) for dim in (*left, *right)}
        return {dim: DYNAMIC if DYNAMIC in (left.get(dim), right.get(dim)) else both[dim] for dim in both}
    if expr.kind is not AffineBinaryOpKind.Mul or (left and right):
        if left or right:
            raise ValueError(f"{expr} is not linear")
        return {}
    factor = expr.rhs if left else expr.lhs
    by = factor.value if isinstance(factor, AffineConstantExpr) else DYNAMIC
    return {dim: by * c if DYNAMIC not in (by, c) else DYNAMIC for dim, c in (left or right).items()}


# ---- constants ----


def literal(type_: Attribute, value: int | float) -> str:
    """C++ text of a scalar constant."""
    name = dtype_name(type_)
    if isinstance(value, float):
        return _float_literal(name, value)
    if name == "i1":
        return "true" if value else "false"
    if name == "index":
        return str(value)
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"{scalar(type_)}({value})"


def _float_literal(name: str, value: float) -> str:
    if name in ("bf16", "f16"):
        return f"vnpu::{name}{{{_narrow_bits(name, value):#06x}}}"
    if math.isnan(value):
        text = '__builtin_nan("")'
    elif math.isinf(value):
        text = "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    else:
        text = value.hex()
    return f"float({text})" if name == "f32" else text


def _narrow_bits(name: str, value: float) -> int:
    """The 16 bits of a constant, rounded to nearest even."""
    if name == "f16":
        return int.from_bytes(struct.pack("<e", value), "little")
    try:
        bits = int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    if math.isnan(value):
        return 0x7FC0
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
