"""The C++ of operations on vectors that compilers for cores make."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.op_errors import unsupported


@emitter("aievec.ups")
def _ups(body: Body, op: Operation) -> None:
    body.define(op.results[0], f"vnpu::cast<{_scalar(op.results[0])}>({body.text(op.operands[0])})")


@emitter("aievec.srs")
def _srs(body: Body, op: Operation) -> None:
    """Rounds floats; of integers it would also shift."""
    if not types.is_float(types.element(op.operands[0].type)):
        raise unsupported(op, "of integers is not supported")
    body.define(op.results[0], f"vnpu::cast<{_scalar(op.results[0])}>({body.text(op.operands[0])})")


@emitter("aievec.cast")
def _accumulator_cast(body: Body, op: Operation) -> None:
    """Between a vector and an accumulator of the same values."""
    body.alias(op.results[0], body.text(op.operands[0]))


@emitter("aievec.add_elem", "aievec.sub_elem")
def _add_elem(body: Body, op: Operation) -> None:
    function = "add" if op.name == "aievec.add_elem" else "sub"
    left, right = body.texts(op.operands)
    body.define(op.results[0], f"vnpu::{function}({left}, {right})")


@emitter("aievec.mul_elem")
def _mul_elem(body: Body, op: Operation) -> None:
    left, right = (_widened(body, op, value) for value in op.operands)
    body.define(op.results[0], f"vnpu::mul({left}, {right})")


@emitter("aievec.mac_elem")
def _mac_elem(body: Body, op: Operation) -> None:
    left, right = (_widened(body, op, value) for value in op.operands[:2])
    body.define(op.results[0], f"vnpu::fma({left}, {right}, {body.text(op.operands[2])})")


def _widened(body: Body, op: Operation, value: SSAValue) -> str:
    text = body.text(value)
    same = types.element(value.type) == types.element(op.results[0].type)
    return text if same else f"vnpu::cast<{_scalar(op.results[0])}>({text})"


@emitter("aievec.shift")
def _shift(body: Body, op: Operation) -> None:
    """The lanes of two vectors in a row, from a number of bytes on."""
    left, right, amount = op.operands
    bytes_ = body.number(amount)
    width = types.byte_width(types.element(left.type))
    if bytes_ is None or bytes_ % width:
        raise unsupported(op, "by a number of bytes that is no constant number of lanes is not supported")
    lanes = f"vnpu::aie::joined<{bytes_ // width}>"
    body.define(op.results[0], f"{lanes}({body.text(left)}, {body.text(right)})")


@emitter("aievec.ext_elem")
def _ext_elem(body: Body, op: Operation) -> None:
    body.define(op.results[0], f"vnpu::lane({body.text(op.operands[0])}, int({body.text(op.operands[1])}))")


@emitter("aievec.broadcast_scalar")
def _broadcast_scalar(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    body.define(
        op.results[0],
        f"vnpu::splat<{_scalar(op.results[0])}, {types.lanes(type_)}>({body.text(op.operands[0])})",  # type: ignore[arg-type]
    )


@emitter("aievec.matmul_aie2p")
def _matmul(body: Body, op: Operation) -> None:
    (m, k), (_, n) = (value.type.get_shape() for value in op.operands[:2])  # type: ignore[attr-defined]
    body.file.runtime_parts.add("contract")
    body.define(op.results[0], f"vnpu::contract<1, {m}, {n}, {k}>({', '.join(body.texts(op.operands))})")


def _scalar(value: SSAValue) -> str:
    return types.scalar(types.element(value.type))
