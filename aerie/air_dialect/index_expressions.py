"""Index expressions: how a value is computed, and one walk for all analyses of it.

`defining_expr(value)` says how an SSA value is computed, one step deep. It is a number, another value that it
stands for (`args(...)` of a hierarchy, results of `air.execute`), an `IndexExpr` (an operator over such
terms), or the `IndexRange` of a loop variable or a coordinate.

An `IndexAnalysis` is an abstract interpretation of these: to constants (index_constants.py), intervals
(index_intervals.py), common divisors (index_divisors.py), linear forms (linear_forms.py), or C++ text
(virtual_npu.codegen). It has a function for every operator, or None where it knows nothing. No analysis looks
at operations by itself.

An analysis that does not know the sign of an operand of an unsigned operator knows nothing of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from xdsl.dialects import affine, scf
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
)
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)

from aerie.air_dialect.hierarchy import HerdOp, HierarchyOp, SegmentOp
from aerie.air_dialect.index_operators import (
    AFFINE,
    COMPARISONS,
    OPERATIONS,
    IndexExpr,
    IndexOperator,
    IndexRange,
    Term,
    operand_values,
)
from aerie.air_dialect.upstream.scf import UNSIGNED
from aerie.air_dialect.values import captured_operand, resolve_alias

T = TypeVar("T")


# ---- analyses ----


def unknown_value(*_: object) -> None:
    """The function of an analysis that knows nothing: None, whatever it is asked."""
    return None


@dataclass(frozen=True)
class IndexAnalysis(Generic[T]):
    """An abstract interpretation of index expressions: to each value a T, or None where nothing is known.

    constant: the T of a number.
    operators: from the T of each operand to that of the result; None for an operator that the analysis does
    not know. Functions are called with operands that are known, but for the condition of a SELECT.
    variable: the T of a loop variable or coordinate, from those of its low, high and step.
    known_value: the T of a value without a look at how it is computed; None for all other values.
    unknown_leaf: the T of a value of which nothing else gave one.
    clamp_to_type: takes a value and its T, and returns None where the value may wrap around in its type.
    through_captures: whether to follow `args(...)` of a hierarchy to the values outside.
    results: what was found of values so far, which calls use and add to; None: each call begins anew.
    """

    constant: Callable[[int], T | None]
    operators: Mapping[IndexOperator, Callable[..., T | None] | None]
    variable: Callable[[SSAValue, T | None, T | None, T | None], T | None] = unknown_value
    known_value: Callable[[SSAValue], T | None] = unknown_value
    unknown_leaf: Callable[[SSAValue], T | None] = unknown_value
    clamp_to_type: Callable[[SSAValue, T], T | None] = lambda _, found: found
    through_captures: bool = True
    results: dict[SSAValue, T | None] | None = None

    def analyze(self, value: SSAValue, results: dict[SSAValue, T | None] | None = None) -> T | None:
        """The T of a value. `results` collects those of all values on the way, for further calls."""
        if results is None:
            results = {} if self.results is None else self.results
        opened: dict[SSAValue, Term | IndexRange | None] = {}
        pending = [value]
        while pending:
            current = pending[-1]
            if current in results:
                pending.pop()
            elif current in opened:
                results[current] = self._combined(current, opened[current], results)
            else:
                known = self.known_value(current)
                number = literal_constant(current) if known is None else None  # most are
                if number is not None:
                    known = self._combined(current, number, results)
                if known is not None:
                    results[current] = known
                    continue
                expr = opened[current] = self._compute(current)
                pending += [
                    source
                    for source in operand_values(expr)
                    if source not in results and source not in opened
                ]
        return results[value]

    def _compute(self, value: SSAValue) -> Term | IndexRange | None:
        if (
            not self.through_captures
            and isinstance(value, BlockArgument)
            and captured_operand(value) is not None
        ):
            return None
        return defining_expr(value)

    def _combined(
        self, value: SSAValue, expr: Term | IndexRange | None, results: Mapping[SSAValue, T | None]
    ) -> T | None:
        if isinstance(expr, IndexRange):
            result = self.variable(value, *(self.term(bound, results) for bound in expr[:3]))
        else:
            result = None if expr is None else self.term(expr, results)
        if result is not None:
            result = self.clamp_to_type(value, result)
        return self.unknown_leaf(value) if result is None else result

    def analyze_term(self, term: Term) -> T | None:
        """The T of a term, such as the bound of a range."""
        return self.term(term, {value: self.analyze(value) for value in operand_values(term)})

    def term(self, term: Term, results: Mapping[SSAValue, T | None]) -> T | None:
        """The T of a term, from those of its values in `results`."""
        if isinstance(term, int):
            return self.constant(term)
        if isinstance(term, IndexExpr):
            return self.apply(term.operator, [self.term(operand, results) for operand in term.operands])
        return results.get(term)

    def apply(self, operator: IndexOperator, operands: Sequence[T | None]) -> T | None:
        """The T of an operator's result, from those of its operands."""
        function = self.operators[operator]
        needed = operands[1:] if operator is IndexOperator.SELECT else operands
        if function is None or any(operand is None for operand in needed):
            return None
        if operator not in (IndexOperator.MIN, IndexOperator.MAX):
            return function(*operands)
        result, *rest = operands
        for operand in rest:
            result = None if result is None else function(result, operand)
        return result

    def analyze_affine(self, expr: AffineExpr, operands: Sequence[T | None], dims: int) -> T | None:
        """The T of an affine expression; operands are those of its `dims` dimensions, then of its symbols."""
        if isinstance(expr, AffineConstantExpr):
            return self.constant(expr.value)
        if isinstance(expr, AffineDimExpr):
            return operands[expr.position]
        if isinstance(expr, AffineSymExpr):
            return operands[dims + expr.position]
        assert isinstance(expr, AffineBinaryOpExpr)
        sides = [self.analyze_affine(side, operands, dims) for side in (expr.lhs, expr.rhs)]
        return self.apply(AFFINE[expr.kind], sides)

    def analyze_map(self, map_: AffineMap, operands: Sequence[SSAValue]) -> list[T | None]:
        """The T of each result of an affine map; operands are the dimensions, then the symbols."""
        known = [self.analyze(operand) for operand in operands]
        return [self.analyze_affine(expr, known, map_.num_dims) for expr in map_.results]


def _over(operator: IndexOperator) -> Callable[..., Term]:
    return lambda *operands: IndexExpr(operator, operands)


_TERMS: IndexAnalysis[Term] = IndexAnalysis(
    lambda number: number, {operator: _over(operator) for operator in IndexOperator}
)
"""Affine expressions as terms."""


# ---- definitions ----


def defining_expr(value: SSAValue) -> Term | IndexRange | None:
    """How a value is computed, one step deep; None where no known operation computes it."""
    through = resolve_alias(value)
    if through is not None:
        return through
    if isinstance(value, BlockArgument):
        return iteration_range(value)
    assert isinstance(value, OpResult)
    op = value.op
    operator = OPERATIONS.get(op.name)
    if operator is None:
        function = _OTHERS.get(op.name)
        return None if function is None else function(value)
    if not isinstance(value.type, IndexType | IntegerType):
        return None
    if operator is IndexOperator.UNSIGNED_CAST:
        return IndexExpr(operator, (op.operands[0], _width(op.operands[0])))
    return IndexExpr(operator, tuple(op.operands))


def literal_constant(value: SSAValue) -> int | None:
    """The value of a constant operation, as a signed integer of its type; None for any other operation."""
    owner = value.owner
    if isinstance(owner, Block) or owner.name not in (
        "arith.constant",
        "index.constant",
        "index.bool.constant",
    ):
        return None
    number = owner.properties.get("value", owner.attributes.get("value"))
    if not isinstance(number, IntegerAttr):
        return None
    if not isinstance(value.type, IntegerType):
        return int(number.value.data)
    most = 1 << (value.type.width.data - 1)
    return int((number.value.data + most) % (2 * most) - most)


def _width(value: SSAValue) -> int:
    return int(value.type.width.data) if isinstance(value.type, IntegerType) else 64


def _compared(value: OpResult) -> Term | None:
    predicate = value.op.properties.get("predicate", value.op.properties.get("pred"))
    if not isinstance(predicate, IntegerAttr) or not isinstance(value.type, IntegerType):
        return None
    return IndexExpr(COMPARISONS[predicate.value.data], tuple(value.op.operands))


_SHIFTS: Mapping[str, IndexOperator] = {
    **dict.fromkeys(("arith.shli", "index.shl"), IndexOperator.MULTIPLY),
    **dict.fromkeys(("arith.shrsi", "index.shrs"), IndexOperator.FLOOR_DIVIDE),
    **dict.fromkeys(("arith.shrui", "index.shru"), IndexOperator.UNSIGNED_DIVIDE),
}


def _shifted(value: OpResult) -> Term | None:
    """A shift by a number is a product or a quotient."""
    op = value.op
    amount = literal_constant(op.operands[1])
    if amount is None or not 0 <= amount < _width(value):
        return None
    return IndexExpr(_SHIFTS[op.name], (op.operands[0], 1 << amount))


def _mapped(value: OpResult) -> Term | None:
    map_ = value.op.properties.get("map")
    if not isinstance(map_, AffineMapAttr):
        return None
    terms = terms_of(map_.data, value.op.operands)
    if value.op.name == "affine.apply":
        return terms[0]
    return IndexExpr(IndexOperator.MIN if value.op.name == "affine.min" else IndexOperator.MAX, tuple(terms))


def terms_of(map_: AffineMap, operands: Sequence[SSAValue]) -> list[Term]:
    """The results of an affine map over values, the dimensions first, then the symbols."""
    terms = [_TERMS.analyze_affine(expr, operands, map_.num_dims) for expr in map_.results]
    return [term for term in terms if term is not None]


def _basis(op: Operation, dynamic: Sequence[SSAValue], count: int) -> list[SSAValue | int]:
    """The extents of all dimensions but the first, which nothing bounds."""
    basis = op.properties["static_basis"]
    assert isinstance(basis, DenseArrayBase)
    extents = mixed_values(basis.get_values(), dynamic)
    return extents[len(extents) - (count - 1) :]


def _delinearized(value: OpResult) -> Term | None:
    op = value.op
    rest: Term = op.operands[0]
    positions: list[Term] = []
    for extent in reversed(_basis(op, op.operands[1:], len(op.results))):
        positions.append(IndexExpr(IndexOperator.MODULO, (rest, extent)))
        rest = IndexExpr(IndexOperator.FLOOR_DIVIDE, (rest, extent))
    return [*positions, rest][len(op.results) - 1 - value.index]


def _linearized(value: OpResult) -> Term | None:
    op = value.op
    basis = op.properties["static_basis"]
    assert isinstance(basis, DenseArrayBase)
    count = len(op.operands) - sum(extent == DYNAMIC_INDEX for extent in basis.get_values())
    total: Term = op.operands[0]
    for index, extent in zip(op.operands[1:count], _basis(op, op.operands[count:], count), strict=True):
        total = IndexExpr(IndexOperator.ADD, (IndexExpr(IndexOperator.MULTIPLY, (total, extent)), index))
    return total


def _shape_expr(value: OpResult) -> Term | None:
    """What the type of a memref says: its rank, an extent, or the offset, extents and steps of its layout."""
    op, type_ = value.op, value.op.operands[0].type
    if not isinstance(type_, MemRefType):
        return None
    shape = type_.get_shape()
    if op.name == "memref.rank":
        return len(shape)
    if op.name == "memref.dim":
        dim = literal_constant(op.operands[1])
        extent = shape[dim] if dim is not None and 0 <= dim < len(shape) else DYNAMIC_INDEX
        return None if extent == DYNAMIC_INDEX else extent
    known = (None, type_.get_offset(), *shape, *(type_.get_strides() or [None] * len(shape)))[value.index]
    return None if known == DYNAMIC_INDEX else known


_OTHERS: Mapping[str, Callable[[OpResult], Term | None]] = {
    **dict.fromkeys(("arith.constant", "index.constant", "index.bool.constant"), literal_constant),
    **dict.fromkeys(("arith.cmpi", "index.cmp"), _compared),
    **dict.fromkeys(_SHIFTS, _shifted),
    **dict.fromkeys(("affine.apply", "affine.min", "affine.max"), _mapped),
    "affine.delinearize_index": _delinearized,
    "affine.linearize_index": _linearized,
    **dict.fromkeys(("memref.rank", "memref.dim", "memref.extract_strided_metadata"), _shape_expr),
    "index.sizeof": lambda _: 64,
}


# ---- loop variables and coordinates ----


def mixed_values(static: Sequence[int], dynamic: Sequence[SSAValue]) -> list[SSAValue | int]:
    """MLIR's mixed lists: the numbers of `static`, with the next value of `dynamic` for each that is
    kDynamic."""
    values = iter(dynamic)
    return [next(values) if entry == DYNAMIC_INDEX else int(entry) for entry in static]


def iteration_range(value: SSAValue) -> IndexRange | None:
    """What the variable of a loop or a coordinate runs over; None for any other value."""
    if not isinstance(value, BlockArgument):
        return None
    op = value.owner.parent_op()
    ranges = [] if op is None else _ranges(op)
    return ranges[value.index] if value.index < len(ranges) else None


def _ranges(op: Operation) -> list[IndexRange]:
    """The ranges of the block arguments with which the body of an operation begins."""
    if isinstance(op, HierarchyOp):
        return [IndexRange(0, size, 1, isinstance(op, HerdOp | SegmentOp)) for size in op.sizes]
    if isinstance(op, scf.ForOp):
        return [IndexRange(op.lb, op.ub, op.step, False)] if is_signed_loop(op) else []
    if isinstance(op, affine.ForOp):
        low = terms_of(op.lowerBoundMap.data, op.lowerBoundOperands)
        high = terms_of(op.upperBoundMap.data, op.upperBoundOperands)
        return [IndexRange(_largest(low), _smallest(high), op.step.value.data, False)]
    if isinstance(op, scf.ParallelOp):
        return [
            IndexRange(*bounds, True) for bounds in zip(op.lowerBound, op.upperBound, op.step, strict=True)
        ]
    if isinstance(op, affine.ParallelOp):
        return _affine_parallel_range(op)
    return _forall_range(op) if op.name == "scf.forall" else []


def is_signed_loop(loop: scf.ForOp) -> bool:
    """Whether a loop runs as signed integers say: an unsigned one does between constants without a sign."""
    bounds = [literal_constant(bound) for bound in (loop.lb, loop.ub, loop.step)]
    return UNSIGNED not in loop.attributes or all(bound is not None and bound >= 0 for bound in bounds)


def _affine_parallel_range(op: affine.ParallelOp) -> list[IndexRange]:
    lower, upper = op.lowerBoundsMap.data, op.upperBoundsMap.data
    cut = lower.num_dims + lower.num_symbols
    lows = _grouped(terms_of(lower, op.map_operands[:cut]), op.lowerBoundsGroups.get_values())
    highs = _grouped(terms_of(upper, op.map_operands[cut:]), op.upperBoundsGroups.get_values())
    steps = [step.value.data for step in op.steps]
    return [
        IndexRange(_largest(low), _smallest(high), step, True)
        for low, high, step in zip(lows, highs, steps, strict=True)
    ]


def _grouped(terms: Sequence[Term], groups: Sequence[int | float]) -> list[list[Term]]:
    rest = iter(terms)
    return [[next(rest) for _ in range(int(count))] for count in groups]


def _forall_range(op: Operation) -> list[IndexRange]:
    static = [op.properties[f"static{part}"] for part in ("LowerBound", "UpperBound", "Step")]
    operands = list(op.operands)
    bounds: list[list[SSAValue | int]] = []
    for part in static:
        assert isinstance(part, DenseArrayBase)
        entries = part.get_values()
        count = sum(entry == DYNAMIC_INDEX for entry in entries)
        bounds.append(mixed_values(entries, operands[:count]))
        operands = operands[count:]
    lows, highs, steps = bounds
    return [IndexRange(*each, True) for each in zip(lows, highs, steps, strict=True)]


def _largest(terms: Sequence[Term]) -> Term:
    return terms[0] if len(terms) == 1 else IndexExpr(IndexOperator.MAX, tuple(terms))


def _smallest(terms: Sequence[Term]) -> Term:
    return terms[0] if len(terms) == 1 else IndexExpr(IndexOperator.MIN, tuple(terms))
