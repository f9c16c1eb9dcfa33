"""Emitters of affine.parallel, and of the conversions between one position and one per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from xdsl.dialects import affine
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerType
from xdsl.ir import Attribute, Operation
from xdsl.ir.affine import AffineMap

from air_dialect.upstream.affine import DelinearizeIndexOp, LinearizeIndexOp
from virtual_npu.codegen import affine_text, arith, types
from virtual_npu.codegen.body import Body, Scalar, emits, grouped, plus, times, unsupported
from virtual_npu.codegen.gathers import combined

# ---- positions ----


def _extents(body: Body, op: DelinearizeIndexOp | LinearizeIndexOp, count: int) -> list[str]:
    """The extents after the first dimension, which no extent bounds."""
    dynamic = iter(body.texts(op.dynamic_basis))
    texts = [str(n) if n != types.DYNAMIC else next(dynamic) for n in op.static_basis.get_values()]
    return texts[len(texts) - (count - 1) :]


@emits("affine.delinearize_index")
def _delinearize(body: Body, op: Operation) -> None:
    assert isinstance(op, DelinearizeIndexOp)
    rest = body.text(op.linear_index)
    indices = []
    for extent in reversed(_extents(body, op, len(op.multi_index))):
        indices.append(f"vnpu::floor_mod({rest}, {extent})")
        rest = f"vnpu::floor_div({rest}, {extent})"
    for result, text in zip(op.multi_index, [rest, *reversed(indices)], strict=True):
        body.define(result, text)


@emits("affine.linearize_index")
def _linearize(body: Body, op: Operation) -> None:
    assert isinstance(op, LinearizeIndexOp)
    first, *others = body.texts(op.multi_index)
    text = first
    for index, extent in zip(others, _extents(body, op, len(op.multi_index)), strict=True):
        text = plus(times(grouped(text), grouped(extent)), grouped(index))
    body.define(op.linear_index, text)


# ---- affine.parallel ----


@emits("affine.parallel")
def _parallel(body: Body, op: Operation) -> None:
    """Iterations run one after another; what they yield is folded into the results in that order."""
    assert isinstance(op, affine.ParallelOp)
    kinds = [kind.data for kind in op.reductions]
    totals = [_total(body, op, kind, result.type) for kind, result in zip(kinds, op.results, strict=True)]
    lower, upper = op.lowerBoundsMap.data, op.upperBoundsMap.data
    operands = body.texts(op.map_operands)
    cut = lower.num_dims + lower.num_symbols
    lows = _bounds(lower, op.lowerBoundsGroups, operands[:cut], "maxsi")
    highs = _bounds(upper, op.upperBoundsGroups, operands[cut:], "minsi")
    block = op.body.block
    body.comment(op)
    for argument, low, high, step in zip(block.args, lows, highs, op.steps, strict=True):
        name = body.name_for(argument)
        body.values[argument] = Scalar(name)
        body.put(f"for (vnpu::i64 {name} = {low}; {name} < {high}; {name} += {step.value.data}) {{")
        body.depth += 1
    body.operations(block)
    end = block.last_op
    assert end is not None
    for total, kind, value in zip(totals, kinds, end.operands, strict=True):
        body.put(f"{total} = {combined(kind, types.scalar(value.type), total, body.text(value))};")
    for _ in block.args:
        body.depth -= 1
        body.put("}")
    for result, total in zip(op.results, totals, strict=True):
        body.values[result] = Scalar(total)


def _bounds(
    map_: AffineMap, groups: DenseIntOrFPElementsAttr, operands: Sequence[str], function: str
) -> list[str]:
    """C++ text of one bound per loop: the largest lower, or smallest upper one, of its group."""
    texts = iter(affine_text.results(map_, operands))
    found = []
    for size in groups.get_values():
        assert isinstance(size, int)
        first, *rest = islice(texts, size)
        for text in rest:
            first = f"vnpu::{function}<vnpu::i64>({first}, {text})"
        found.append(first)
    return found


_FLOAT_STARTS = {
    "addf": -0.0, "mulf": 1.0, "maximumf": float("-inf"), "maxnumf": float("-inf"), "minimumf": float("inf"),
    "minnumf": float("inf"),
}  # fmt: skip


def _total(body: Body, op: Operation, kind: str, type_: Attribute) -> str:
    """Emit a variable that starts with what the reduction leaves every value as it is; gives its name."""
    name = body.fresh("total")
    body.put(f"{types.cpp(type_)} {name} = {start_of(op, kind, type_)};")
    return name


def start_of(op: Operation, kind: str, type_: Attribute) -> str:
    """C++ text of what a reduction of this kind leaves every value as it is."""
    if kind in _FLOAT_STARTS:
        return arith.literal(type_, _FLOAT_STARTS[kind])
    if kind == "assign":
        raise unsupported(op, "reduces by assign: which iteration comes last is not defined")
    width = type_.width.data if isinstance(type_, IntegerType) else 64
    starts = {
        "addi": 0, "maxu": 0, "ori": 0, "xori": 0, "muli": 1, "andi": -1, "minu": -1,
        "maxs": -(1 << (width - 1)), "mins": (1 << (width - 1)) - 1,
    }  # fmt: skip
    return arith.literal(type_, starts[kind])
