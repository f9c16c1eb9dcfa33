"""The values that an index can take, by interval arithmetic over the operations that make it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import affine, scf
from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IntegerAttr, IntegerType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind, AffineExpr, AffineMap

from air_dialect.ops import HierarchyOp
from virtual_npu.codegen.algebra import Algebra

Interval = tuple[int, int]
"""The smallest and the largest value, both included."""


def interval(value: SSAValue) -> Interval | None:
    """The values that an integer or index can take; None where that is not known."""
    if isinstance(value, OpResult):
        return _fitting(value, _of_result(value.op))
    assert isinstance(value, BlockArgument)
    around = value.owner.parent_op()
    if isinstance(around, HierarchyOp):
        return _of_hierarchy_argument(around, value)
    if around is None or value.index >= _count_loop_variables(around):
        return None
    return _of_loop_variable(around, value.index)


def of_map(map_: AffineMap, operands: Sequence[SSAValue]) -> list[Interval | None]:
    """The values of every result of an affine map; operands are the dimensions, then the symbols."""
    known = [interval(operand) for operand in operands]
    return [of_expression(expr, known, map_.num_dims) for expr in map_.results]


def _fitting(value: SSAValue, found: Interval | None) -> Interval | None:
    """None for values that may wrap around in their type."""
    if found is None or not isinstance(value.type, IntegerType):
        return found
    most = 1 << (value.type.width.data - 1)
    return found if -most <= found[0] and found[1] < most else None


# ---- arguments of blocks ----


def _of_hierarchy_argument(op: HierarchyOp, value: SSAValue) -> Interval | None:
    for index, size in zip(op.ids, op.sizes, strict=True):
        if index is value:
            extent = interval(size)
            return (0, max(0, extent[1] - 1)) if extent else None
    inner, outer = (*op.size_args, *op.kernel_args), (*op.sizes, *op.kernel_operands)
    return next(interval(b) for a, b in zip(inner, outer, strict=True) if a is value)


def _count_loop_variables(op: Operation) -> int:
    if isinstance(op, scf.ForOp | affine.ForOp):
        return 1
    if isinstance(op, scf.ParallelOp):
        return len(op.lowerBound)
    return len(op.regions[0].block.args) if op.name in ("affine.parallel", "scf.forall") else 0


def _of_loop_variable(op: Operation, dim: int) -> Interval | None:
    if isinstance(op, scf.ForOp):
        return _counted(interval(op.lb), interval(op.ub), interval(op.step))
    if isinstance(op, scf.ParallelOp):
        bounds = op.lowerBound[dim], op.upperBound[dim], op.step[dim]
        return _counted(*(interval(value) for value in bounds))
    if isinstance(op, affine.ForOp):
        lows = of_map(op.lowerBoundMap.data, op.lowerBoundOperands)
        highs = of_map(op.upperBoundMap.data, op.upperBoundOperands)
        step = op.step.value.data
        return _counted(_fold(max, lows), _fold(min, highs), (step, step))
    if isinstance(op, affine.ParallelOp):
        cut = op.lowerBoundsMap.data.num_dims + op.lowerBoundsMap.data.num_symbols
        if not len(op.lowerBoundsMap.data.results) == len(op.upperBoundsMap.data.results) == len(op.steps):
            return None
        low = of_map(op.lowerBoundsMap.data, op.map_operands[:cut])[dim]
        high = of_map(op.upperBoundsMap.data, op.map_operands[cut:])[dim]
        step = op.steps.data[dim].value.data
        return _counted(low, high, (step, step))
    return _of_forall(op, dim)


def _of_forall(op: Operation, dim: int) -> Interval | None:
    parts = [op.properties.get(f"static{part}") for part in ("LowerBound", "UpperBound", "Step")]
    bounds = [part.get_values()[dim] for part in parts if isinstance(part, DenseArrayBase)]
    if len(bounds) != 3 or -(1 << 63) in bounds:
        return None
    low, high, step = (int(bound) for bound in bounds)
    return _counted((low, low), (high, high), (step, step))


def _counted(low: Interval | None, high: Interval | None, step: Interval | None) -> Interval | None:
    """The values of a loop variable that goes from `low` by `step` as long as it is below `high`."""
    if low is None or high is None:
        return None
    last = high[1] - 1
    if low[0] == low[1] and step is not None and step[0] == step[1] > 0:
        last = low[0] + (last - low[0]) // step[0] * step[0]
    return low[0], max(low[0], last)


# ---- results of operations ----


def _of_result(op: Operation) -> Interval | None:
    constant = op.properties.get("value")
    if op.name in ("arith.constant", "index.constant") and isinstance(constant, IntegerAttr):
        return constant.value.data, constant.value.data
    map_ = op.properties.get("map")
    if isinstance(map_, AffineMapAttr) and op.name in _MAPS:
        return _MAPS[op.name](of_map(map_.data, op.operands))
    if op.name == "arith.select":
        return _either([interval(operand) for operand in op.operands[1:]])
    function = _FUNCTIONS.get(op.name)
    if function is None:
        return None
    operands = [interval(operand) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    return function(*known) if len(known) == len(operands) else None


def of_expression(expr: AffineExpr, operands: Sequence[Interval | None], dims: int) -> Interval | None:
    """The values of an affine expression; operands are the dimensions, then the symbols."""
    return _ALGEBRA.value(expr, operands, dims)


def add(left: Interval, right: Interval) -> Interval:
    """The values of a sum."""
    return left[0] + right[0], left[1] + right[1]


def multiply(left: Interval, right: Interval) -> Interval:
    """The values of a product."""
    products = [a * b for a in left for b in right]
    return min(products), max(products)


def _subtract(left: Interval, right: Interval) -> Interval:
    return left[0] - right[1], left[1] - right[0]


def _floor_divide(left: Interval, right: Interval) -> Interval | None:
    if right[0] <= 0:
        return None
    quotients = [a // b for a in left for b in right]
    return min(quotients), max(quotients)


def _ceil_divide(left: Interval, right: Interval) -> Interval | None:
    negated = _floor_divide((-left[1], -left[0]), right)
    return None if negated is None else (-negated[1], -negated[0])


def _modulo(left: Interval, right: Interval) -> Interval | None:
    if right[0] <= 0:
        return None
    if left[0] >= 0 and left[1] < right[0]:
        return left
    return 0, right[1] - 1


def _of_naturals(function: Callable[[Interval, Interval], Interval | None]) -> Callable[..., Interval | None]:
    """The function where no value is negative; else nothing is known, as for a division that truncates."""
    return lambda left, right: function(left, right) if left[0] >= 0 and right[0] >= 0 else None


def _smaller(left: Interval, right: Interval) -> Interval:
    return min(left[0], right[0]), min(left[1], right[1])


def _larger(left: Interval, right: Interval) -> Interval:
    return max(left[0], right[0]), max(left[1], right[1])


def _fold(function: Callable[[int, int], int], found: Sequence[Interval | None]) -> Interval | None:
    """The smallest, or largest, of several values."""
    known = [one for one in found if one is not None]
    if not known or len(known) != len(found):
        return None
    result = known[0]
    for one in known[1:]:
        result = function(result[0], one[0]), function(result[1], one[1])
    return result


def _either(found: Sequence[Interval | None]) -> Interval | None:
    known = [one for one in found if one is not None]
    if len(known) != len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


_MAPS: dict[str, Callable[[Sequence[Interval | None]], Interval | None]] = {
    "affine.apply": lambda found: found[0],
    "affine.min": lambda found: _fold(min, found),
    "affine.max": lambda found: _fold(max, found),
}
_ALGEBRA: Algebra[Interval] = Algebra(
    lambda value: (value, value),
    {
        AffineBinaryOpKind.Add: add,
        AffineBinaryOpKind.Mul: multiply,
        AffineBinaryOpKind.FloorDiv: _floor_divide,
        AffineBinaryOpKind.CeilDiv: _ceil_divide,
        AffineBinaryOpKind.Mod: _modulo,
    },
)
_FUNCTIONS: dict[str, Callable[..., Interval | None]] = {
    "arith.index_cast": lambda value: value,
    "index.casts": lambda value: value,
    "arith.addi": add,
    "arith.subi": _subtract,
    "arith.muli": multiply,
    "arith.divsi": _of_naturals(_floor_divide),
    "arith.divui": _of_naturals(_floor_divide),
    "arith.floordivsi": _floor_divide,
    "arith.ceildivsi": _ceil_divide,
    "arith.remsi": _of_naturals(_modulo),
    "arith.remui": _of_naturals(_modulo),
    "arith.minsi": _smaller,
    "arith.maxsi": _larger,
    "arith.minui": _of_naturals(_smaller),
    "arith.maxui": _of_naturals(_larger),
    "index.add": add,
    "index.sub": _subtract,
    "index.mul": multiply,
    "index.divs": _of_naturals(_floor_divide),
    "index.divu": _of_naturals(_floor_divide),
    "index.floordivs": _floor_divide,
    "index.rems": _of_naturals(_modulo),
    "index.remu": _of_naturals(_modulo),
    "index.mins": _smaller,
    "index.maxs": _larger,
}
