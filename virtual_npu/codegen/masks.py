"""The emitter of vector.mask: transfers take the mask, reductions leave the lanes that are off out."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import vector
from xdsl.dialects.builtin import DenseArrayBase, VectorType, i32
from xdsl.ir import Operation, SSAValue

from air_dialect.upstream.vector_memory import MaskOp
from virtual_npu.codegen import types
from virtual_npu.codegen.affine import start_of
from virtual_npu.codegen.body import Body, Scalar, emits
from virtual_npu.codegen.refusals import unsupported
from virtual_npu.codegen.vector import reduction_kind

_SEGMENTS = "operandSegmentSizes"


@emits("vector.mask")
def _mask(body: Body, op: Operation) -> None:
    assert isinstance(op, MaskOp)
    inner, end = op.masked, op.body.block.last_op
    assert end is not None
    if inner is None:
        sources = list(end.operands)
    else:
        emit = _EMITTERS.get(inner.name)
        if emit is None:
            raise unsupported(
                op, f"{inner.name} with a mask is not supported: mask its operands or its result"
            )
        sources = emit(body, inner, op.mask)
    for result, source in zip(op.results, sources, strict=True):
        if op.passthru is None:
            body.values[result] = body.values[source]
        else:
            texts = [body.text(value) for value in (op.mask, source, op.passthru)]
            body.define(result, f"vnpu::select({', '.join(texts)})")


def _transfer(body: Body, op: Operation, mask: SSAValue) -> list[SSAValue]:
    """The same transfer with the mask as its last operand."""
    segments = op.properties[_SEGMENTS]
    assert isinstance(segments, DenseArrayBase)
    if segments.get_values()[-1]:
        raise unsupported(op, "this has a mask already: write the one or the other")
    sizes = DenseArrayBase.from_list(i32, [*segments.get_values()[:-1], 1])
    masked = type(op).create(
        operands=[*op.operands, mask],
        result_types=list(op.result_types),
        properties={**op.properties, _SEGMENTS: sizes},
    )
    masked.location = op.location
    for new, old in zip(masked.results, op.results, strict=True):
        new.name_hint = old.name_hint
    body.operation(masked)
    results = list(masked.results)
    masked.drop_all_references()
    return [*results]


def _reduction(body: Body, op: Operation, mask: SSAValue) -> list[SSAValue]:
    """The same reduction, with what changes nothing in the lanes that are off."""
    source = op.operands[0]
    assert isinstance(source.type, VectorType)
    element, count = source.type.element_type, types.lanes(source.type)
    neutral = f"vnpu::splat<{types.scalar(element)}, {count}>({start_of(op, _kind(op), element)})"
    name, kept = body.fresh("masked"), body.values[source]
    body.put(f"const auto {name} = vnpu::select({body.text(mask)}, {body.text(source)}, {neutral});")
    body.values[source] = Scalar(name)
    body.operation(op)
    body.values[source] = kept
    return list(op.results)


_ATOMIC = {"minsi": "mins", "maxsi": "maxs", "minui": "minu", "maxui": "maxu", "xori": "xori"}


def _kind(op: Operation) -> str:
    """The kind of a reduction, as atomic updates name it."""
    kind = reduction_kind(op)
    if kind in ("add", "mul"):
        return kind + ("f" if types.is_float(types.element(op.operands[0].type)) else "i")
    return _ATOMIC.get(kind, kind)


_EMITTERS: dict[str, Callable[[Body, Operation, SSAValue], list[SSAValue]]] = {
    vector.TransferReadOp.name: _transfer,
    vector.TransferWriteOp.name: _transfer,
    vector.ReductionOp.name: _reduction,
    "vector.multi_reduction": _reduction,
}
