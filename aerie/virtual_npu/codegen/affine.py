"""Emitters of affine: maps, loops, branches, elements, and positions made of one index per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from xdsl.dialects import affine
from xdsl.dialects.builtin import AffineMapAttr, AffineSetAttr, DenseIntOrFPElementsAttr, IntegerType
from xdsl.ir import Attribute, Operation
from xdsl.ir.affine import AffineMap

from aerie.air_dialect.index_operators import IndexOperator
from aerie.air_dialect.upstream.affine import DelinearizeIndexOp, LinearizeIndexOp
from aerie.virtual_npu.codegen import memory, size_checks, types
from aerie.virtual_npu.codegen.body import Body, Scalar, emitter
from aerie.virtual_npu.codegen.cpp_text import add, map_results, min_or_max, mul, parenthesize, set_condition
from aerie.virtual_npu.codegen.memref import combined
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.scf import branch, counted_loop

# ---- maps, loops and branches ----


def _map(op: Operation, name: str) -> AffineMapAttr:
    found = attribute(op, name)
    assert isinstance(found, AffineMapAttr)
    return found


@emitter("affine.apply")
def _apply(body: Body, op: Operation) -> None:
    (text,) = map_results(_map(op, "map").data, body.texts(op.operands))
    body.define(op.results[0], text)


@emitter("affine.min", "affine.max")
def _min_max(body: Body, op: Operation) -> None:
    operator = IndexOperator.MIN if op.name == "affine.min" else IndexOperator.MAX
    texts = map_results(_map(op, "map").data, body.texts(op.operands))
    body.define(op.results[0], min_or_max(operator, texts))


@emitter("affine.for")
def _affine_for(body: Body, op: Operation) -> None:
    assert isinstance(op, affine.ForOp)
    lows = map_results(op.lowerBoundMap.data, body.texts(op.lowerBoundOperands))
    highs = map_results(op.upperBoundMap.data, body.texts(op.upperBoundOperands))
    low, high = min_or_max(IndexOperator.MAX, lows), min_or_max(IndexOperator.MIN, highs)
    bounds = (low, body.emit_variable(high, "upper"), str(op.step.value.data))
    counted_loop(body, op, bounds, op.body.block, op.inits, op.results)


@emitter("affine.if")
def _affine_if(body: Body, op: Operation) -> None:
    condition = attribute(op, "condition")
    assert isinstance(condition, AffineSetAttr)
    yes, no = op.regions
    branch(body, op, set_condition(condition.data, body.texts(op.operands)), yes, no)


@emitter("affine.load")
def _affine_load(body: Body, op: Operation) -> None:
    body.define(op.results[0], memory.read(body, op, op.operands[0], op.operands[1:], _map(op, "map").data))


@emitter("affine.store")
def _affine_store(body: Body, op: Operation) -> None:
    value, target, *indices = op.operands
    body.emit_line(memory.write(body, op, target, indices, body.text(value), _map(op, "map").data))


# ---- positions ----


def _extents(body: Body, op: DelinearizeIndexOp | LinearizeIndexOp, count: int) -> list[str]:
    """The extents after the first dimension, which no extent bounds."""
    dynamic = iter(body.texts(op.dynamic_basis))
    texts = [str(n) if n != types.DYNAMIC else next(dynamic) for n in op.static_basis.get_values()]
    return texts[len(texts) - (count - 1) :]


@emitter("affine.delinearize_index")
def _delinearize(body: Body, op: Operation) -> None:
    assert isinstance(op, DelinearizeIndexOp)
    rest = body.text(op.linear_index)
    indices = []
    for extent in reversed(_extents(body, op, len(op.multi_index))):
        divisor = size_checks.checked_divisor(body, op, extent)
        indices.append(f"vnpu::floor_mod({rest}, {divisor})")
        rest = f"vnpu::floor_div({rest}, {divisor})"
    for result, text in zip(op.multi_index, [rest, *reversed(indices)], strict=True):
        body.define(result, text)


@emitter("affine.linearize_index")
def _linearize(body: Body, op: Operation) -> None:
    assert isinstance(op, LinearizeIndexOp)
    first, *others = body.texts(op.multi_index)
    text = first
    for index, extent in zip(others, _extents(body, op, len(op.multi_index)), strict=True):
        text = add(mul(parenthesize(text), parenthesize(extent)), parenthesize(index))
    body.define(op.linear_index, text)


# ---- affine.parallel ----


@emitter("affine.parallel")
def _parallel(body: Body, op: Operation) -> None:
    """Iterations run one after another; what they yield is folded into the results in that order."""
    assert isinstance(op, affine.ParallelOp)
    kinds = [kind.data for kind in op.reductions]
    totals = [_total(body, op, kind, result.type) for kind, result in zip(kinds, op.results, strict=True)]
    lower, upper = op.lowerBoundsMap.data, op.upperBoundsMap.data
    operands = body.texts(op.map_operands)
    cut = lower.num_dims + lower.num_symbols
    lows = _bounds(lower, op.lowerBoundsGroups, operands[:cut], IndexOperator.MAX)
    highs = _bounds(upper, op.upperBoundsGroups, operands[cut:], IndexOperator.MIN)
    block = op.body.block
    body.comment(op)
    for argument, low, high, step in zip(block.args, lows, highs, op.steps, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        beat = size_checks.declare_heartbeat(body, op, (low, high, str(step.value.data)))
        body.emit_line(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step.value.data}) {{")
        body.depth += 1
        size_checks.emit_beat(body, beat, f"{high} - {name}")
    body.operations(block)
    end = block.last_op
    assert end is not None
    for total, kind, value in zip(totals, kinds, end.operands, strict=True):
        body.emit_line(f"{total} = {combined(kind, types.scalar(value.type), total, body.text(value))};")
    for _ in block.args:
        body.depth -= 1
        body.emit_line("}")
    for result, total in zip(op.results, totals, strict=True):
        body.values[result] = Scalar(total)


def _bounds(
    map_: AffineMap, groups: DenseIntOrFPElementsAttr, operands: Sequence[str], operator: IndexOperator
) -> list[str]:
    """C++ text of one bound per loop: the largest lower, or smallest upper one, of its group."""
    texts = iter(map_results(map_, operands))
    sizes = [size for size in groups.get_values() if isinstance(size, int)]
    return [min_or_max(operator, list(islice(texts, size))) for size in sizes]


_FLOAT_STARTS = {
    "addf": -0.0, "mulf": 1.0, "maximumf": float("-inf"), "maxnumf": float("-inf"), "minimumf": float("inf"),
    "minnumf": float("inf"),
}  # fmt: skip


def _total(body: Body, op: Operation, kind: str, type_: Attribute) -> str:
    """Emit a variable that starts with what the reduction leaves every value as it is; gives its name."""
    name = body.fresh("total")
    body.emit_line(f"{types.cpp(type_)} {name} = {neutral_element(op, kind, type_)};")
    return name


def neutral_element(op: Operation, kind: str, type_: Attribute) -> str:
    """C++ text of the neutral element of a reduction, by its kind. Raises UnsupportedOpError for `assign`."""
    if kind in _FLOAT_STARTS:
        return types.literal(type_, _FLOAT_STARTS[kind])
    if kind == "assign":
        raise unsupported(op, "reduces by assign: which iteration comes last is not defined")
    width = type_.width.data if isinstance(type_, IntegerType) else 64
    starts = {
        "addi": 0, "maxu": 0, "ori": 0, "xori": 0, "muli": 1, "andi": -1, "minu": -1,
        "maxs": -(1 << (width - 1)), "mins": (1 << (width - 1)) - 1,
    }  # fmt: skip
    return types.literal(type_, starts[kind])
