"""Emitters of the rarer operations of arith, math and index."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, VectorType
from xdsl.ir import Operation

from air_dialect.upstream.index import PREDICATES
from virtual_npu.codegen import types
from virtual_npu.codegen.arith import named_type
from virtual_npu.codegen.body import Body, emits
from virtual_npu.codegen.refusals import attribute

_UNARY = {
    **{f"math.{name}": name for name in ("erfc", "asinh", "acosh", "atanh", "ctlz", "cttz", "ctpop")},
    **{f"math.{name}": name for name in ("isfinite", "isinf", "isnan", "isnormal")},
}
_BINARY = {
    "arith.remf": "remf", "math.ipowi": "ipowi", "index.and": "andi", "index.or": "ori",
    "index.xor": "xori", "index.shl": "shli", "index.shrs": "shrsi", "index.shru": "shrui",
    "index.maxu": "maxui", "index.minu": "minui",
}  # fmt: skip


def called(body: Body, op: Operation, function: str) -> str:
    """C++ text of a function of the operands."""
    explicit = named_type(op.operands[0].type)
    return f"vnpu::{function}{explicit}({', '.join(body.texts(op.operands))})"


@emits(*_UNARY, *_BINARY)
def _simple(body: Body, op: Operation) -> None:
    body.define(op.results[0], called(body, op, {**_UNARY, **_BINARY}[op.name]))


@emits("index.ceildivu")
def _ceildivu(body: Body, op: Operation) -> None:
    left, right = body.texts(op.operands)
    body.define(op.results[0], f"vnpu::ceildivui<vnpu::i64>({body.site(op)}, {left}, {right})")


@emits("math.fpowi")
def _fpowi(body: Body, op: Operation) -> None:
    value, exponent = op.operands
    text = body.text(exponent)
    if not isinstance(exponent.type, VectorType):
        text = f"{types.cpp(exponent.type)}({text})"
    body.define(op.results[0], f"vnpu::fpowi({body.text(value)}, {text})")


@emits("math.sincos")
def _sincos(body: Body, op: Operation) -> None:
    for result, function in zip(op.results, ("sin", "cos"), strict=True):
        body.define(result, called(body, op, function))


@emits("math.clampf")
def _clampf(body: Body, op: Operation) -> None:
    """The larger of value and lower bound, then the smaller of that and the upper bound."""
    value, low, high = body.texts(op.operands)
    body.define(op.results[0], f"vnpu::minimumf(vnpu::maximumf({value}, {low}), {high})")


@emits("arith.addui_extended")
def _add_extended(body: Body, op: Operation) -> None:
    total, overflow = op.results
    left, _ = body.texts(op.operands)
    body.define(total, called(body, op, "add"))
    compared = "" if isinstance(total.type, VectorType) else f"<{types.cpp(total.type)}>"
    body.define(overflow, f"vnpu::cmp_ult{compared}({body.text(total)}, {left})")


@emits("arith.mului_extended", "arith.mulsi_extended")
def _multiply_extended(body: Body, op: Operation) -> None:
    low, high = op.results
    body.define(low, called(body, op, "mul"))
    body.define(high, called(body, op, "mului_high" if "mului" in op.name else "mulsi_high"))


@emits("index.cmp")
def _compare(body: Body, op: Operation) -> None:
    predicate = attribute(op, "pred")
    assert isinstance(predicate, IntegerAttr)
    body.define(op.results[0], called(body, op, f"cmp_{PREDICATES[predicate.value.data]}"))


@emits("index.sizeof")
def _size_of(body: Body, op: Operation) -> None:
    body.alias(op.results[0], "64")


@emits("index.bool.constant")
def _bool_constant(body: Body, op: Operation) -> None:
    value = attribute(op, "value")
    assert isinstance(value, IntegerAttr)
    body.alias(op.results[0], "true" if value.value.data else "false")
