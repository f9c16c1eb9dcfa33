"""Emitters of arith, math and index: lanewise operations on scalars and vectors."""

from __future__ import annotations

from xdsl.dialects.arith import CMPI_COMPARISON_OPERATIONS, CmpfOp, CmpiOp, ConstantOp
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    Float32Type,
    Float64Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    VectorType,
)
from xdsl.ir import Attribute, Operation, SSAValue

from aerie.air_dialect.upstream.arith import ROUNDING, ROUNDINGS
from aerie.virtual_npu.codegen import types, value_checks
from aerie.virtual_npu.codegen.body import Body, Scalar, emitter
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.rounded_shifts import rounded_shift

_BINARY = {
    "arith.addf": "add", "arith.subf": "sub", "arith.mulf": "mul", "arith.divf": "divf",
    "arith.maximumf": "maximumf", "arith.minimumf": "minimumf", "arith.maxnumf": "maxnumf",
    "arith.minnumf": "minnumf", "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul",
    "arith.andi": "andi", "arith.ori": "ori", "arith.xori": "xori", "arith.shli": "shli",
    "arith.shrsi": "shrsi", "arith.shrui": "shrui", "arith.maxsi": "maxsi", "arith.maxui": "maxui",
    "arith.minsi": "minsi", "arith.minui": "minui", "math.powf": "powf", "math.atan2": "atan2",
    "math.copysign": "copysign", "index.add": "add", "index.sub": "sub", "index.mul": "mul",
    "index.maxs": "maxsi", "index.mins": "minsi",

}  # fmt: skip
_DIVISIONS = {
    "arith.divsi": "divsi", "arith.divui": "divui", "arith.remsi": "remsi", "arith.remui": "remui",
    "arith.floordivsi": "floordivsi", "arith.ceildivsi": "ceildivsi", "arith.ceildivui": "ceildivui",
    "index.divs": "divsi", "index.divu": "divui", "index.rems": "remsi", "index.remu": "remui",
    "index.floordivs": "floordivsi", "index.ceildivs": "ceildivsi",
}  # fmt: skip
_MATH = [
    "ceil", "floor", "round", "roundeven", "trunc", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log",
    "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf",
]  # fmt: skip
_UNARY = {
    "arith.negf": "negf", "math.absf": "absf", "math.absi": "absi",
    **{f"math.{name}": name for name in _MATH},
}  # fmt: skip
_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
_CMPI = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
_CMPF = [
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
]


def _has_native_operators(type_: Attribute) -> bool:
    """Whether C++'s own + - * mean what the operation means on this type."""
    if isinstance(type_, Float32Type | Float64Type | IndexType):
        return True
    return isinstance(type_, IntegerType) and type_.width.data >= 32


def _rounding(op: Operation) -> str:
    """How an operation says that it rounds; empty where that is to nearest even."""
    mode = attribute(op, ROUNDING)
    return ROUNDINGS[mode.value.data] if isinstance(mode, IntegerAttr) and mode.value.data else ""


def _refuse_rounding(op: Operation) -> None:
    if _rounding(op):
        raise unsupported(
            op,
            f"rounds {_rounding(op)}: it is done to_nearest_even only; arith.truncf rounds in every mode",
        )


@emitter(*_BINARY)
def _binary(body: Body, op: Operation) -> None:
    _refuse_rounding(op)
    name, (left, right) = _BINARY[op.name], body.texts(op.operands)
    if name.startswith("sh"):
        value_checks.check_shift(body, op)
    if name in _OPERATORS and _has_native_operators(op.results[0].type):
        body.define(op.results[0], f"{left} {_OPERATORS[name]} {right}")
    elif name in ("add", "sub") and types.cpp(op.results[0].type) == "bool":
        body.define(op.results[0], f"{left} != {right}")
    else:
        body.define(op.results[0], f"vnpu::{name}{template_argument(op.results[0].type)}({left}, {right})")


def template_argument(type_: Attribute) -> str:
    """The explicit template argument of a function of scalars, which literals need; empty for vectors, and
    for double, whose functions are overloads and no templates."""
    return "" if isinstance(type_, VectorType | Float64Type) else f"<{types.cpp(type_)}>"


@emitter(*_DIVISIONS)
def _division(body: Body, op: Operation) -> None:
    left, right = body.texts(op.operands)
    type_ = "" if isinstance(op.results[0].type, VectorType) else f"<{types.cpp(op.results[0].type)}>"
    body.define(op.results[0], f"vnpu::{_DIVISIONS[op.name]}{type_}({body.site(op)}, {left}, {right})")


@emitter(*_UNARY)
def _unary(body: Body, op: Operation) -> None:
    body.define(op.results[0], f"vnpu::{_UNARY[op.name]}({body.text(op.operands[0])})")


@emitter("math.fma", "vector.fma")
def _fma(body: Body, op: Operation) -> None:
    body.define(op.results[0], f"vnpu::fma({', '.join(body.texts(op.operands))})")


@emitter("arith.cmpi")
def _cmpi(body: Body, op: Operation) -> None:
    assert isinstance(op, CmpiOp)
    left, right = body.texts(op.operands)
    predicate = _CMPI[op.predicate.value.data]
    body.define(op.results[0], f"vnpu::cmp_{predicate}{_operand_template_argument(op)}({left}, {right})")


@emitter("arith.cmpf")
def _cmpf(body: Body, op: Operation) -> None:
    assert isinstance(op, CmpfOp)
    left, right = body.texts(op.operands)
    predicate = _CMPF[op.predicate.value.data]
    body.define(op.results[0], f"vnpu::cmpf_{predicate}{_operand_template_argument(op)}({left}, {right})")


def _operand_template_argument(op: Operation) -> str:
    """`<T>` for scalar operands, so that integer literals take the operand's type."""
    type_ = op.operands[0].type
    return "" if isinstance(type_, VectorType) else f"<{types.cpp(type_)}>"


@emitter("arith.select")
def _select(body: Body, op: Operation) -> None:
    condition, yes, no = op.operands
    if isinstance(yes.type, MemRefType):
        _select_memref(body, op, yes, no)
        return
    if isinstance(condition.type, VectorType):
        expression = f"vnpu::select({', '.join(body.texts(op.operands))})"
    else:
        expression = f"{body.text(condition)} ? {body.text(yes)} : {body.text(no)}"
    body.define(op.results[0], expression)


def _select_memref(body: Body, op: Operation, yes: SSAValue, no: SSAValue) -> None:
    """One of two buffers: its pointer, and its sizes and strides where the type leaves them open."""
    condition, left, right = body.text(op.operands[0]), body.memref(yes), body.memref(no)

    def chosen(one: str, other: str) -> str:
        return one if one == other else f"({condition} ? {one} : {other})"

    sizes = [chosen(*pair) for pair in zip(left.sizes, right.sizes, strict=True)]
    strides = [chosen(*pair) for pair in zip(left.strides, right.strides, strict=True)]
    body.define_memref(op.results[0], chosen(left.pointer, right.pointer), sizes, strides)


# ---- conversions ----


def _result_scalar(op: Operation) -> str:
    return types.scalar(types.element(op.results[0].type))


@emitter("arith.extf", "arith.truncf", "arith.fptosi", "arith.fptoui")
def _cast(body: Body, op: Operation) -> None:
    if "fpto" in op.name:
        value_checks.check_fits(body, op)
    if _rounding(op):
        function = f"cast_rounded<{_result_scalar(op)}, vnpu::Rounding::{_rounding(op)}>"
        body.define(op.results[0], f"vnpu::{function}({body.text(op.operands[0])})")
        return
    body.define(op.results[0], f"vnpu::cast<{_result_scalar(op)}>({body.text(op.operands[0])})")


def _is_nibbles(type_: Attribute) -> bool:
    """Whether a type is a vector of i4: it can be made from bytes, and widened, and nothing else."""
    return (
        isinstance(type_, VectorType)
        and isinstance(four := type_.element_type, IntegerType)
        and (four.width.data == 4)
    )


def _define_nibbles(body: Body, result: SSAValue, expression: str) -> None:
    """Emit a vector of i4, which is one of bytes in C++."""
    name = body.name_for(result)
    body.emit_line(f"const auto {name} = {expression};")
    body.values[result] = Scalar(name)


@emitter("arith.sitofp", "arith.extsi", "arith.index_cast", "index.casts")
def _cast_signed(body: Body, op: Operation) -> None:
    _refuse_rounding(op)
    if _is_nibbles(op.operands[0].type):
        lanes = f"vnpu::signed_nibbles({body.text(op.operands[0])})"
        body.define(op.results[0], f"vnpu::cast<{_result_scalar(op)}>({lanes})")
        return
    is_bit = types.dtype_name(types.element(op.operands[0].type)) == "i1"
    _from_integer(body, op, "cast_signed_bit" if is_bit else "cast")


@emitter("arith.uitofp", "arith.extui", "arith.index_castui", "index.castu")
def _cast_unsigned(body: Body, op: Operation) -> None:
    _refuse_rounding(op)
    _from_integer(body, op, "cast_unsigned")


def _from_integer(body: Body, op: Operation, function: str) -> None:
    source = body.text(op.operands[0])
    if not isinstance(op.operands[0].type, VectorType):
        source = f"{types.cpp(op.operands[0].type)}({source})"
    if types.dtype_name(types.element(op.results[0].type)) == "i1":
        function = "cast_unsigned"
    body.define(op.results[0], f"vnpu::{function}<{_result_scalar(op)}>({source})")


@emitter("arith.trunci")
def _trunci(body: Body, op: Operation) -> None:
    if _is_nibbles(op.results[0].type):
        _define_nibbles(body, op.results[0], f"vnpu::low_nibbles({body.text(op.operands[0])})")
    elif types.dtype_name(types.element(op.results[0].type)) == "i1":
        body.define(op.results[0], f"vnpu::truncate_to_bit({body.text(op.operands[0])})")
    elif shift := rounded_shift(op):
        number, bits = body.texts([shift.number, shift.bits])
        clamped = f"vnpu::round_shift(int32_t({number}), int32_t({bits}), {shift.low}, {shift.high})"
        body.define(op.results[0], f"vnpu::cast<{_result_scalar(op)}>({clamped})")
    else:
        _from_integer(body, op, "cast")


@emitter("arith.bitcast", "vector.bitcast")
def _bitcast(body: Body, op: Operation) -> None:
    source, result = op.operands[0].type, op.results[0]
    if _is_nibbles(result.type) and not _is_nibbles(source):
        assert isinstance(result.type, VectorType)
        count = types.lanes(result.type) // 2
        packed = f"vnpu::bit_cast<vnpu::Vec<uint8_t, {count}>>({body.text(op.operands[0])})"
        _define_nibbles(body, result, f"vnpu::unpack_nibbles({packed})")
        return
    if _is_nibbles(source):
        packed = f"vnpu::pack_nibbles({body.text(op.operands[0])})"
        body.define(result, f"vnpu::bit_cast<{types.cpp(result.type)}>({packed})")
        return
    body.define(
        op.results[0], f"vnpu::bit_cast<{types.cpp(op.results[0].type)}>({body.text(op.operands[0])})"
    )


# ---- constants ----


@emitter("arith.constant", "index.constant")
def _constant(body: Body, op: Operation) -> None:
    value = op.properties["value"] if "value" in op.properties else op.attributes["value"]
    result = op.results[0]
    if isinstance(value, IntegerAttr):
        body.values[result] = Scalar(types.literal(result.type, value.value.data), is_literal=True)
    elif isinstance(value, FloatAttr):
        body.values[result] = Scalar(types.literal(result.type, float(value.value.data)))
    elif isinstance(op, ConstantOp) and isinstance(value, DenseIntOrFPElementsAttr):
        _dense(body, op, value)
    else:
        raise unsupported(op, f"a constant of type {result.type} is not supported")


@emitter("ub.poison")
def _poison(body: Body, op: Operation) -> None:
    """Any value will do; zeros keep runs alike."""
    body.define(op.results[0], f"{types.cpp(op.results[0].type)}{{}}")


def _dense(body: Body, op: Operation, value: DenseIntOrFPElementsAttr) -> None:
    type_ = op.results[0].type
    if not isinstance(type_, VectorType):
        raise unsupported(op, f"a constant of type {type_} is not supported; use memref.global for buffers")
    count, scalar_type = types.lanes(type_), types.scalar(type_.element_type)
    numbers = [number for number in value.get_values() if not isinstance(number, tuple)]
    if value.is_splat():
        first = types.literal(type_.element_type, numbers[0])
        body.define(op.results[0], f"vnpu::splat<{scalar_type}, {count}>({first})")
        return
    name = body.fresh("table")
    text = ", ".join(types.literal(type_.element_type, number) for number in numbers)
    body.emit_line(f"static const {scalar_type} {name}[{count}] = {{{text}}};")
    body.define(op.results[0], f"vnpu::load<{scalar_type}, {count}>({name})")


# ---- rarer operations ----


_RARE_UNARY = {
    **{f"math.{name}": name for name in ("erfc", "asinh", "acosh", "atanh", "ctlz", "cttz", "ctpop")},
    **{f"math.{name}": name for name in ("isfinite", "isinf", "isnan", "isnormal")},
}
_RARE_BINARY = {
    "arith.remf": "remf", "math.ipowi": "ipowi", "index.and": "andi", "index.or": "ori",
    "index.xor": "xori", "index.shl": "shli", "index.shrs": "shrsi", "index.shru": "shrui",
    "index.maxu": "maxui", "index.minu": "minui",
}  # fmt: skip


def call_text(body: Body, op: Operation, function: str) -> str:
    """C++ text of a call of a function with the operands of `op`."""
    explicit = template_argument(op.operands[0].type)
    return f"vnpu::{function}{explicit}({', '.join(body.texts(op.operands))})"


@emitter(*_RARE_UNARY, *_RARE_BINARY)
def _rare(body: Body, op: Operation) -> None:
    function = {**_RARE_UNARY, **_RARE_BINARY}[op.name]
    if function.startswith("sh"):
        value_checks.check_shift(body, op)
    body.define(op.results[0], call_text(body, op, function))


@emitter("index.ceildivu")
def _ceildivu(body: Body, op: Operation) -> None:
    left, right = body.texts(op.operands)
    body.define(op.results[0], f"vnpu::ceildivui<vnpu::i64>({body.site(op)}, {left}, {right})")


@emitter("math.fpowi")
def _fpowi(body: Body, op: Operation) -> None:
    value, exponent = op.operands
    text = body.text(exponent)
    if not isinstance(exponent.type, VectorType):
        text = f"{types.cpp(exponent.type)}({text})"
    body.define(op.results[0], f"vnpu::fpowi({body.text(value)}, {text})")


@emitter("math.sincos")
def _sincos(body: Body, op: Operation) -> None:
    for result, function in zip(op.results, ("sin", "cos"), strict=True):
        body.define(result, call_text(body, op, function))


@emitter("math.clampf")
def _clampf(body: Body, op: Operation) -> None:
    """The larger of value and lower bound, then the smaller of that and the upper bound."""
    value, low, high = body.texts(op.operands)
    body.define(op.results[0], f"vnpu::minimumf(vnpu::maximumf({value}, {low}), {high})")


@emitter("arith.addui_extended")
def _add_extended(body: Body, op: Operation) -> None:
    total, overflow = op.results
    left, _ = body.texts(op.operands)
    body.define(total, call_text(body, op, "add"))
    compared = "" if isinstance(total.type, VectorType) else f"<{types.cpp(total.type)}>"
    body.define(overflow, f"vnpu::cmp_ult{compared}({body.text(total)}, {left})")


@emitter("arith.mului_extended", "arith.mulsi_extended")
def _multiply_extended(body: Body, op: Operation) -> None:
    low, high = op.results
    body.define(low, call_text(body, op, "mul"))
    body.define(high, call_text(body, op, "mului_high" if "mului" in op.name else "mulsi_high"))


@emitter("index.cmp")
def _compare(body: Body, op: Operation) -> None:
    predicate = attribute(op, "pred")
    assert isinstance(predicate, IntegerAttr)
    body.define(op.results[0], call_text(body, op, f"cmp_{CMPI_COMPARISON_OPERATIONS[predicate.value.data]}"))


@emitter("index.sizeof")
def _size_of(body: Body, op: Operation) -> None:
    body.alias(op.results[0], "64")


@emitter("index.bool.constant")
def _bool_constant(body: Body, op: Operation) -> None:
    value = attribute(op, "value")
    assert isinstance(value, IntegerAttr)
    body.alias(op.results[0], "true" if value.value.data else "false")
