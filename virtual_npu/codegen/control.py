"""Emitters of scf, affine and func: loops, branches and calls."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import affine, func, scf
from xdsl.dialects.builtin import AffineMapAttr, AffineSetAttr, DenseArrayBase, IntegerType, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from air_dialect.ops import AsyncTokenType
from virtual_npu.codegen import affine_text, memory, types
from virtual_npu.codegen.body import Body, MemRef, Scalar, attribute, emits, unsupported
from virtual_npu.codegen.tokens import token_type

# ---- values that loops carry ----


def declare(
    body: Body, op: Operation, values: Sequence[SSAValue], initial: Sequence[str | None]
) -> list[str]:
    """Emit mutable variables for values that control flow assigns; gives their names."""
    names = []
    for value, start in zip(values, initial, strict=True):
        name = body.name_for(value)
        body.put(f"{_variable_type(body, value.type)} {name}{'' if start is None else f' = {start}'};")
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
    """The value that a variable holds. A memref needs a layout that its type tells completely."""
    if not isinstance(type_, MemRefType):
        return Scalar(name)
    sizes, strides = type_.get_shape(), types.memref_strides(type_)
    if types.DYNAMIC in (*sizes, *strides):
        raise unsupported(
            op, f"cannot carry {type_} around a loop or branch: give it static sizes and strides"
        )
    return MemRef(name, tuple(map(str, sizes)), tuple(map(str, strides)), type_)


def carried(body: Body, value: SSAValue) -> str:
    """C++ text of a value as it is assigned to such a variable."""
    found = body.value(value)
    return found.pointer if isinstance(found, MemRef) else found.text


def assign(body: Body, names: Sequence[str], values: Sequence[SSAValue]) -> None:
    """Assign all at once: a new value may read an old one."""
    texts = [carried(body, value) for value in values]
    if len(names) > 1:
        texts = [_copy_if_clobbered(body, text, names) for text in texts]
    for name, text in zip(names, texts, strict=True):
        if name != text:
            body.put(f"{name} = {text};")


def _copy_if_clobbered(body: Body, text: str, names: Sequence[str]) -> str:
    if text not in names:
        return text
    copy = body.fresh("next")
    body.put(f"const auto {copy} = {text};")
    return copy


def region(body: Body, block: Block, names: Sequence[str]) -> None:
    """Emit a block whose terminator assigns what it yields."""
    body.operations(block)
    terminator = block.last_op
    if terminator is not None and names:
        assign(body, names, terminator.operands)


# ---- scf ----


@emits("scf.for")
def _for(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.ForOp)
    low, high, step = body.texts([op.lb, op.ub, op.step])
    _loop(body, op, (low, high, step), op.body.block, op.iter_args, op.results)


def _loop(
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
    with body.block(f"for ({type_} {name} = {low}; {name} < {high}; {name} += {step})"):
        region(body, block, names)
    for result, argument in zip(results, inner, strict=True):
        body.values[result] = body.values[argument]


@emits("scf.if")
def _if(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.IfOp)
    _branch(body, op, body.text(op.cond), op.true_region, op.false_region)


def _branch(body: Body, op: Operation, condition: str, yes: Region, no: Region) -> None:
    body.comment(op)
    names = declare(body, op, op.results, [None] * len(op.results))
    with body.block(f"if ({condition})"):
        region(body, yes.block, names)
    if no.blocks:
        with body.block("else"):
            region(body, no.block, names)


@emits("scf.index_switch")
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


@emits("scf.while")
def _while(body: Body, op: Operation) -> None:
    assert isinstance(op, scf.WhileOp)
    before, after = op.before_region.block, op.after_region.block
    inputs = declare(body, op, before.args, [carried(body, value) for value in op.operands])
    outputs = declare(body, op, after.args, [None] * len(after.args))
    body.comment(op)
    with body.block("for (;;)"):
        body.operations(before)
        condition = before.last_op
        assert isinstance(condition, scf.ConditionOp)
        assign(body, outputs, condition.args)
        body.put(f"if (!{body.text(condition.condition)}) break;")
        region(body, after, inputs)
    for result, argument in zip(op.results, after.args, strict=True):
        body.values[result] = body.values[argument]


@emits("scf.parallel")
def _parallel(body: Body, op: Operation) -> None:
    """Iterations run one after another: tiles and launch iterations are what runs side by side."""
    assert isinstance(op, scf.ParallelOp)
    block = op.body.block
    sums = declare(body, op, op.results, [carried(body, value) for value in op.initVals])
    lows, highs, steps = (body.texts(part) for part in (op.lowerBound, op.upperBound, op.step))
    body.comment(op)
    for argument, low, high, step in zip(block.args, lows, highs, steps, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        body.put(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step}) {{")
        body.depth += 1
    body.operations(block)
    if isinstance(block.last_op, scf.ReduceOp):
        _reduce(body, block.last_op, sums)
    for _ in block.args:
        body.depth -= 1
        body.put("}")


def _reduce(body: Body, op: scf.ReduceOp, sums: Sequence[str]) -> None:
    """Fold this iteration's values into the running results, in order of the iterations."""
    for name, value, inner in zip(sums, op.args, op.reductions, strict=True):
        left, right = inner.block.args
        body.values[left], body.values[right] = _as_value(op, name, left.type), body.values[value]
        region(body, inner.block, [name])


@emits("scf.forall")
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
    body.comment(op)
    for argument, low, high, step in zip(block.args, *bounds, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        body.put(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step}) {{")
        body.depth += 1
    body.operations(block)
    for _ in block.args:
        body.depth -= 1
        body.put("}")


@emits("scf.execute_region")
def _execute_region(body: Body, op: Operation) -> None:
    block = op.regions[0].block
    body.operations(block)
    assert block.last_op is not None
    for result, value in zip(op.results, block.last_op.operands, strict=True):
        body.values[result] = body.values[value]


# ---- affine ----


def _map(op: Operation, name: str) -> AffineMapAttr:
    found = attribute(op, name)
    assert isinstance(found, AffineMapAttr)
    return found


@emits("affine.apply")
def _apply(body: Body, op: Operation) -> None:
    known = [body.const(value) for value in op.operands]
    map_ = _map(op, "map").data
    if all(value is not None for value in known):
        numbers = [value for value in known if value is not None]
        (result,) = map_.eval(numbers[: map_.num_dims], numbers[map_.num_dims :])
        body.values[op.results[0]] = Scalar(str(result), result)
        return
    (text,) = affine_text.results(map_, body.texts(op.operands))
    body.define(op.results[0], text)


def _extreme(map_: AffineMapAttr, operands: Sequence[str], function: str) -> str:
    first, *rest = affine_text.results(map_.data, operands)
    for text in rest:
        first = f"vnpu::{function}<vnpu::i64>({first}, {text})"
    return first


@emits("affine.min", "affine.max")
def _min_max(body: Body, op: Operation) -> None:
    function = "minsi" if op.name == "affine.min" else "maxsi"
    body.define(op.results[0], _extreme(_map(op, "map"), body.texts(op.operands), function))


@emits("affine.for")
def _affine_for(body: Body, op: Operation) -> None:
    assert isinstance(op, affine.ForOp)
    low = _extreme(op.lowerBoundMap, body.texts(op.lowerBoundOperands), "maxsi")
    high = _extreme(op.upperBoundMap, body.texts(op.upperBoundOperands), "minsi")
    bounds = (low, body.hold(high, "upper"), str(op.step.value.data))
    _loop(body, op, bounds, op.body.block, op.inits, op.results)


@emits("affine.if")
def _affine_if(body: Body, op: Operation) -> None:
    condition = attribute(op, "condition")
    assert isinstance(condition, AffineSetAttr)
    yes, no = op.regions
    _branch(body, op, affine_text.condition(condition.data, body.texts(op.operands)), yes, no)


@emits("affine.load")
def _affine_load(body: Body, op: Operation) -> None:
    body.define(op.results[0], memory.read(body, op, op.operands[0], op.operands[1:], _map(op, "map").data))


@emits("affine.store")
def _affine_store(body: Body, op: Operation) -> None:
    value, target, *indices = op.operands
    body.put(memory.write(body, op, target, indices, body.text(value), _map(op, "map").data))


# ---- calls ----


@emits("func.call")
def _call(body: Body, op: Operation) -> None:
    assert isinstance(op, func.CallOp)
    callee = op.callee.root_reference.data
    arguments = [_argument(body, op, value) for value in op.arguments]
    body.comment(op)
    call = f"{body.unit.callee(op, callee)}({', '.join(arguments)})"
    if body.checked and callee in body.unit.kernels:
        call = _kernel_call(body, op, call)
    if body.unit.options.checks and callee in body.unit.kernels:
        body.put(f'if (vnpu::record::on()) vnpu::record::called({body.site(op)}, "{callee}");')
    if not op.results:
        body.put(f"{call};")
    elif len(op.results) == 1 and not isinstance(op.results[0].type, MemRefType):
        body.define(op.results[0], call)
    else:
        raise unsupported(op, "an external function that returns a memref or several values is not supported")


def _argument(body: Body, op: Operation, value: SSAValue) -> str:
    """An argument of a call: a bare pointer for a memref."""
    found = body.value(value)
    if isinstance(found, Scalar):
        if isinstance(value.type, IntegerType) and found.const is not None:
            return f"{types.cpp(value.type)}({found.const})"
        return found.text
    shape = found.type.get_shape()
    if types.DYNAMIC in (*shape, *types.memref_strides(found.type)):
        raise unsupported(op, f"cannot pass {found.type} as a bare pointer: cast it to a static memref type")
    return f"vnpu::raw({found.pointer})" if _is_checked_kernel(body, op) else found.pointer


def _is_checked_kernel(body: Body, op: Operation) -> bool:
    """Whether a call goes to a function in C++, which takes plain pointers."""
    assert isinstance(op, func.CallOp)
    callee = body.unit.symbols.get(op.callee.root_reference.data)
    return body.checked and callee is not None and not callee.body.blocks


def _kernel_call(body: Body, op: Operation, call: str) -> str:
    """The call of an external kernel, with checks of the memrefs that it gets."""
    assert isinstance(op, func.CallOp)
    memrefs = [
        f"vnpu::argument({position}, {body.memref(value).pointer}, {body.memref(value).extent})"
        for position, value in enumerate(op.arguments)
        if isinstance(value.type, MemRefType)
    ]
    site = body.site(op, f"@{op.callee.root_reference.data}")
    scalars = [_argument(body, op, value) for value in op.arguments if not isinstance(value.type, MemRefType)]
    key = f"vnpu::scalars({', '.join(scalars)})"
    return f"vnpu::call_kernel({', '.join([site, f'[&] {{ return {call}; }}', key, *memrefs])})"
