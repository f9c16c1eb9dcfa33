"""The forms that an operation on a core has: mostly one, none for what the compiler never sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from xdsl.dialects import arith, scf, vector
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    MemRefType,
    VectorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap
from xdsl.utils.hints import isa

from aerie.air_dialect.ops import AsyncTokenType
from aerie.air_dialect.values import root_value
from aerie.device.lowering.rule import OpForm

Shape = tuple[int, ...]
_RESULT_FIRST = frozenset([
    "arith.constant", "memref.load", "affine.load", "vector.broadcast", "vector.shape_cast", "vector.load",
    "vector.transfer_read", "vector.extract", "ub.poison",
])  # fmt: skip
"""Operations whose result is what they are about."""
_CONVERSIONS = frozenset([
    "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp",
    "arith.uitofp", "arith.fptosi", "arith.fptoui", "arith.index_cast", "arith.index_castui", "arith.bitcast",
])  # fmt: skip
_BOOKKEEPING = frozenset(["scf.yield", "affine.yield", "linalg.yield", "scf.reduce.return"])


def forms_of(op: Operation) -> Iterator[OpForm]:
    """Every form that an operation has."""
    if op.name.startswith("air.") or op.name in _BOOKKEEPING:
        return
    element, lanes = _type(_about(op))
    if op.name == "scf.for":
        yield from _loop(op)
    elif op.name == "func.call":
        yield from _call(op)
    else:
        detail = _DETAILS.get(op.name)
        yield OpForm(op.name, element, lanes, detail(op) if detail else "")


def _about(op: Operation) -> SSAValue | None:
    """The value whose type decides: what an operation computes on, loads or makes."""
    if op.name in _RESULT_FIRST:
        return op.results[0]
    if op.name == "arith.select":
        return op.operands[1]
    if op.name == "vector.contract":
        return op.operands[2]
    values = [value for value in (*op.operands, *op.results) if not _is_address(value.type)]
    return values[0] if values and not op.name.startswith(("memref.", "affine.", "scf.")) else None


def _is_address(type_: Attribute) -> bool:
    return isinstance(type_, MemRefType | AsyncTokenType)


def _type(value: SSAValue | None) -> tuple[str, int]:
    """Element type and lanes."""
    if value is None or _is_address(value.type):
        return "", 0
    if isinstance(value.type, VectorType):
        return str(value.type.element_type), prod(value.type.get_shape())
    return str(value.type), 0


# ---- what else matters ----


def _conversion(op: Operation) -> str:
    return f"to {_type(op.results[0])[0]}"


def _kind(op: Operation) -> str:
    return str(op.kind.data.value) if isinstance(op, vector.ReductionOp) else ""


def is_widened(value: SSAValue) -> bool:
    """Whether a value comes straight from arith.extf of bf16; of no constant, whose extf MLIR folds."""
    owner = root_value(value).owner
    if not isinstance(owner, arith.ExtFOp) or _type(owner.operands[0])[0] != "bf16":
        return False
    source = root_value(owner.operands[0]).owner
    if isinstance(source, vector.BroadcastOp):
        source = root_value(source.source).owner
    return not isinstance(source, arith.ConstantOp)


def _factors(op: Operation) -> str:
    """f32 products are made of bf16 factors or not at all, so it matters where the factors come from."""
    element, lanes = _type(op.operands[0])
    if element != "f32" or not lanes:
        return ""
    return ("", "one factor widened from bf16", "factors widened from bf16")[
        sum(map(is_widened, op.operands[:2]))
    ]


def _difference(op: Operation) -> str:
    left, right = op.operands
    is_f32 = _type(left)[0] == "f32" and _type(left)[1]
    return "less bf16 widened" if is_f32 and is_widened(right) and not is_widened(left) else ""


def _quotient(op: Operation) -> str:
    owner = root_value(op.operands[0]).owner
    value = owner.value if isinstance(owner, arith.ConstantOp) else None
    if isinstance(value, FloatAttr):
        return "of 1" if value.value.data == 1 else ""
    if isa(value, DenseIntOrFPElementsAttr):
        return "of 1" if set(value.get_values()) == {1} else ""
    return ""


def _broadcast(op: Operation) -> str:
    return "of a vector" if isinstance(op.operands[0].type, VectorType) else ""


def _memory(base: SSAValue, shape: Shape) -> str:
    """`strided` where a vector is no single run of its memref."""
    if not isinstance(base.type, MemRefType):
        return ""
    strides, run = base.type.get_strides(), 1
    for extent, stride in zip(shape[::-1], (strides or ())[::-1], strict=False):
        if extent != 1 and stride != run:
            return "strided"
        run *= extent
    return ""


def _transfer(op: Operation) -> str:
    assert isinstance(op, vector.TransferReadOp | vector.TransferWriteOp)
    kind = (op.result if isinstance(op, vector.TransferReadOp) else op.vector).type
    assert isinstance(kind, VectorType)
    exprs = op.permutation_map.data.results
    if op.mask is not None:
        return "masked"
    if any(isinstance(expr, AffineConstantExpr) for expr in exprs):
        return "of one element to all lanes" if len(exprs) == 1 else "permuted"
    rank = op.permutation_map.data.num_dims
    if [e.position for e in exprs if isinstance(e, AffineDimExpr)] != [*range(rank - len(exprs), rank)]:
        return "permuted"
    if not all(bound.value.data for bound in op.in_bounds):
        return "padded"
    return _memory(op.source, kind.get_shape())


def _access(op: Operation) -> str:
    base, value = (op.operands[0], op.results[0]) if op.results else (op.operands[1], op.operands[0])
    return _memory(base, value.type.get_shape() if isinstance(value.type, VectorType) else ())


def _contraction(op: Operation) -> str:
    """M x K x N with the types, in the layout that the matrix unit takes or in another."""
    left, right, total = op.operands
    maps, shapes = _maps(op), [_shape(value) for value in (left, right, total)]
    axes = [_axes(map_, shape) for map_, shape in zip(maps, shapes, strict=True)]
    if any(len(found) != 2 for found in axes):
        return "not of two matrices"
    (i, k), second, third = axes
    m, n = (extent for extent in shapes[2] if extent != 1)
    depth = next(extent for axis, extent in _extents(maps[0], shapes[0]) if axis == k)
    j = third[1] if third[0] == i else -1
    layout = "" if second == [k, j] else "b transposed" if second == [j, k] else "in another layout"
    types = f"{_source(left)} by {_source(right)} into {_type(total)[0]}"
    return " ".join(part for part in (f"{m}x{depth}x{n}", types, layout) if part)


def _maps(op: Operation) -> list[AffineMap]:
    maps = op.properties.get("indexing_maps", op.attributes.get("indexing_maps"))
    assert isinstance(maps, ArrayAttr)
    return [each.data for each in maps if isinstance(each, AffineMapAttr)]


def _extents(map_: AffineMap, shape: Shape) -> list[tuple[int, int]]:
    """(axis of the iteration space, extent) of each dimension that is longer than 1."""
    exprs = zip(map_.results, shape, strict=True)
    return [(e.position, extent) for e, extent in exprs if isinstance(e, AffineDimExpr) and extent != 1]


def _axes(map_: AffineMap, shape: Shape) -> list[int]:
    return [axis for axis, _ in _extents(map_, shape)]


def _shape(value: SSAValue) -> Shape:
    return value.type.get_shape() if isinstance(value.type, VectorType) else ()


def _source(value: SSAValue) -> str:
    """The element type before a widening, which the lowering looks through."""
    owner = root_value(value).owner
    widens = isinstance(owner, arith.ExtFOp | arith.ExtSIOp | arith.ExtUIOp)
    return _type(owner.operands[0] if widens and isinstance(owner, Operation) else value)[0]


_DETAILS: dict[str, Callable[[Operation], str]] = {
    **dict.fromkeys(_CONVERSIONS, _conversion),
    "arith.mulf": _factors,
    "vector.fma": _factors,
    "arith.subf": _difference,
    "arith.divf": _quotient,
    "vector.reduction": _kind,
    "vector.broadcast": _broadcast,
    "vector.transfer_read": _transfer,
    "vector.transfer_write": _transfer,
    "vector.load": _access,
    "vector.store": _access,
    "vector.contract": _contraction,
}


# ---- operations with more than one form ----


def _loop(op: Operation) -> Iterator[OpForm]:
    """The loop, and what it hands from one iteration to the next."""
    yield OpForm("scf.for")
    assert isinstance(op, scf.ForOp)
    for value in op.iter_args:
        if not isinstance(value.type, AsyncTokenType | MemRefType):
            element, lanes = _type(value)
            shape: Sequence[int] = [extent for extent in _shape(value) if extent != 1]
            yield OpForm("scf.for", element, lanes, "carried" if len(shape) < 2 else "carried, not flat")


def _call(op: Operation) -> Iterator[OpForm]:
    """The call, and the scalars that it passes; memrefs become pointers."""
    yield OpForm("func.call")
    for value in op.operands:
        if not _is_address(value.type) and not isinstance(value.type, IndexType):
            element, lanes = _type(value)
            yield OpForm("func.call", element, lanes, "passed")
