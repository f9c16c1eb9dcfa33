"""Emitters of scf, and of cf's assertion: loops and branches, and the values that they carry."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import cf, scf
from xdsl.dialects.builtin import DenseArrayBase, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from aerie.air_dialect.ops import AsyncTokenType
from aerie.air_dialect.upstream.scf import UNSIGNED
from aerie.common.shown_names import one_line
from aerie.virtual_npu.codegen import size_checks, types
from aerie.virtual_npu.codegen.body import Body, MemRef, Scalar, emitter
from aerie.virtual_npu.codegen.cpp_text import add, mul
from aerie.virtual_npu.codegen.dialect import DIVIDED
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.tokens import token_type
from aerie.virtual_npu.codegen.vector_sums import declare_groups
from aerie.virtual_npu.cpp_quoting import string_literal

# ---- values that loops carry ----


def declare(
    body: Body, op: Operation, values: Sequence[SSAValue], initial: Sequence[str | None]
) -> list[str]:
    """Emit mutable variables for values that control flow assigns; gives their names."""
    names = []
    for value, start in zip(values, initial, strict=True):
        name = body.name_for(value)
        body.emit_line(f"{_variable_type(body, value.type)} {name}{'' if start is None else f' = {start}'};")
        body.values[value] = _as_value(op, name, value.type)
        names.append(name)
    return names


def _variable_type(body: Body, type_: Attribute) -> str:
    if isinstance(type_, AsyncTokenType):
        return token_type(body)
    if isinstance(type_, MemRefType):
        return types.pointer(type_, body.checked)
    return types.cpp(type_)


def _as_value(op: Operation, name: str, type_: Attribute) -> Scalar | MemRef:
    """The value that a variable holds. A memref needs a type that gives its whole layout."""
    if not isinstance(type_, MemRefType):
        return Scalar(name)
    sizes, strides = type_.get_shape(), types.memref_strides(type_)
    if types.DYNAMIC in (*sizes, *strides):
        raise unsupported(
            op, f"cannot carry {type_} around a loop or branch: give it static sizes and strides"
        )
    return MemRef(name, tuple(map(str, sizes)), tuple(map(str, strides)), type_)


def carried(body: Body, value: SSAValue) -> str:
    """C++ text of a value, to be assigned to a variable of `declare`."""
    found = body.value(value)
    return found.pointer if isinstance(found, MemRef) else found.text


def assign(body: Body, names: Sequence[str], values: Sequence[SSAValue]) -> None:
    """Emit assignments of all values at once: a new value may be computed from an old one."""
    texts = [carried(body, value) for value in values]
    if len(names) > 1:
        texts = [_copy_if_clobbered(body, text, names) for text in texts]
    for name, text in zip(names, texts, strict=True):
        if name != text:
            body.emit_line(f"{name} = {text};")


def _copy_if_clobbered(body: Body, text: str, names: Sequence[str]) -> str:
    if text not in names:
        return text
    copy = body.fresh("next")
    body.emit_line(f"const auto {copy} = {text};")
    return copy


def region(body: Body, block: Block, names: Sequence[str]) -> None:
    """Emit a block whose terminator assigns what it yields."""
    body.operations(block)
    terminator = block.last_op
    if terminator is not None and names:
        assign(body, names, terminator.operands)


# ---- scf ----


@emitter("scf.for")
def _for(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.ForOp)
    low, high, step = body.texts([op.lb, op.ub, op.step])
    size_checks.check_step(body, op, step)
    declare_groups(body, op)
    if DIVIDED in op.attributes:
        low, high = (add(low, mul(f"trips.{end}", step)) for end in ("first", "end"))
    counted_loop(body, op, (low, high, step), op.body.block, op.iter_args, op.results)


def counted_loop(
    body: Body,
    op: Operation,
    bounds: tuple[str, str, str],
    block: Block,
    initial: Sequence[SSAValue],
    results: Sequence[SSAValue],
) -> None:
    """Emit a counted loop whose block takes the induction variable and the carried values."""
    induction, *inner = block.args
    names = declare(body, op, inner, [carried(body, value) for value in initial])
    name = body.name_for(induction)
    body.values[induction] = Scalar(name)
    body.comment(op)
    low, high, step = bounds
    type_ = types.cpp(induction.type)
    goes_on = f"{name} < {high}"
    if UNSIGNED in op.attributes:
        goes_on = f"vnpu::cmp_ult<{type_}>({name}, {high})"
    beat = size_checks.declare_heartbeat(body, op, bounds)
    with body.block(f"for ({type_} {name} = {low}; {goes_on}; {name} += {step})"):
        size_checks.emit_beat(body, beat, f"{high} - {name}")
        region(body, block, names)
    for result, argument in zip(results, inner, strict=True):
        body.values[result] = body.values[argument]


@emitter("scf.if")
def _if(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.IfOp)
    branch(body, op, body.text(op.cond), op.true_region, op.false_region)


def branch(body: Body, op: Operation, condition: str, yes: Region, no: Region) -> None:
    """Emit an `if` by its condition, as C++ text, and its two regions; the second one may be empty."""
    body.comment(op)
    names = declare(body, op, op.results, [None] * len(op.results))
    with body.block(f"if ({condition})"):
        region(body, yes.block, names)
    if no.blocks:
        with body.block("else"):
            region(body, no.block, names)


@emitter("scf.index_switch")
def _index_switch(body: Body, op: Operation) -> None:
    selector, cases = body.text(op.operands[0]), attribute(op, "cases")
    assert isinstance(cases, DenseArrayBase)
    names = declare(body, op, op.results, [None] * len(op.results))
    default, *regions = op.regions
    for case, inner in zip(cases.get_values(), regions, strict=True):
        with body.block(f"if ({selector} == {case})", "} else"):
            region(body, inner.block, names)
    with body.block(""):
        region(body, default.block, names)


@emitter("scf.while")
def _while(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.WhileOp)
    before, after = op.before_region.block, op.after_region.block
    inputs = declare(body, op, before.args, [carried(body, value) for value in op.operands])
    outputs = declare(body, op, after.args, [None] * len(after.args))
    body.comment(op)
    beat = size_checks.declare_heartbeat(body, op)
    with body.block("for (;;)"):
        size_checks.emit_beat(body, beat, "-1")
        body.operations(before)
        condition = before.last_op
        assert isinstance(condition, scf.ConditionOp)
        assign(body, outputs, condition.args)
        body.emit_line(f"if (!{body.text(condition.condition)}) break;")
        region(body, after, inputs)
    for result, argument in zip(op.results, after.args, strict=True):
        body.values[result] = body.values[argument]


@emitter("scf.parallel")
def _parallel(body: Body, op: Operation) -> None:
    """Iterations run one after another: tiles and launch iterations are what runs side by side."""
    assert isinstance(op, scf.ParallelOp)
    block = op.body.block
    sums = declare(body, op, op.results, [carried(body, value) for value in op.initVals])
    lows, highs, steps = (body.texts(part) for part in (op.lowerBound, op.upperBound, op.step))
    for step in steps:
        size_checks.check_step(body, op, step)
    body.comment(op)
    for argument, low, high, step in zip(block.args, lows, highs, steps, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        beat = size_checks.declare_heartbeat(body, op, (low, high, step))
        body.emit_line(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step}) {{")
        body.depth += 1
        size_checks.emit_beat(body, beat, f"{high} - {name}")
    body.operations(block)
    if isinstance(block.last_op, scf.ReduceOp):
        _reduce(body, block.last_op, sums)
    for _ in block.args:
        body.depth -= 1
        body.emit_line("}")


def _reduce(body: Body, op: scf.ReduceOp, sums: Sequence[str]) -> None:
    """Fold this iteration's values into the running results, in order of the iterations."""
    for name, value, inner in zip(sums, op.args, op.reductions, strict=True):
        left, right = inner.block.args
        body.values[left], body.values[right] = _as_value(op, name, left.type), body.values[value]
        region(body, inner.block, [name])


@emitter("scf.forall")
def _forall(body: Body, op: Operation) -> None:
    block = op.regions[0].block
    segments = [attribute(op, f"static{part}") for part in ("LowerBound", "UpperBound", "Step")]
    if op.results:
        raise unsupported(op, "shared outputs are not supported: write to a memref")
    dynamic = iter(body.texts(op.operands))
    bounds = []
    for part in segments:
        assert isinstance(part, DenseArrayBase)
        bounds.append([str(n) if n != -(1 << 63) else next(dynamic) for n in part.get_values()])
    for step in bounds[2]:
        size_checks.check_step(body, op, step)
    body.comment(op)
    for argument, low, high, step in zip(block.args, *bounds, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        beat = size_checks.declare_heartbeat(body, op, (low, high, step))
        body.emit_line(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step}) {{")
        body.depth += 1
        size_checks.emit_beat(body, beat, f"{high} - {name}")
    body.operations(block)
    for _ in block.args:
        body.depth -= 1
        body.emit_line("}")


@emitter("scf.execute_region")
def _execute_region(body: Body, op: Operation) -> None:
    block = op.regions[0].block
    body.operations(block)
    assert block.last_op is not None
    for result, value in zip(op.results, block.last_op.operands, strict=True):
        body.values[result] = body.values[value]


# ---- cf ----


@emitter("cf.assert")
def _assert(body: Body, op: Operation) -> None:
    """Ends the run with the message of the assertion where it does not hold."""
    assert isinstance(op, cf.AssertOp)
    message = string_literal(f"the assertion does not hold: {one_line(op.msg.data)}")
    body.emit_line(f'if (!{body.text(op.arg)}) vnpu::fail({body.site(op)}, "%s", {message});')
