"""Index values as linear forms: a constant, and a coefficient for every value that cannot be taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind

from virtual_npu.codegen.algebra import Algebra
from virtual_npu.codegen.intervals import Interval, add, interval, multiply


@dataclass(frozen=True)
class Linear:
    """constant + the sum of coefficient * value over `terms`; no coefficient is 0."""

    constant: int = 0
    terms: dict[SSAValue, int] = field(default_factory=dict)

    def plus(self, other: Linear) -> Linear:
        """The sum of two forms."""
        keys = {*self.terms, *other.terms}
        sums = {key: self.terms.get(key, 0) + other.terms.get(key, 0) for key in keys}
        return Linear(self.constant + other.constant, {key: n for key, n in sums.items() if n})

    def times(self, factor: int) -> Linear:
        """The form, multiplied."""
        scaled = {key: n * factor for key, n in self.terms.items()} if factor else {}
        return Linear(self.constant * factor, scaled)

    def values(self) -> Interval | None:
        """The smallest and the largest value, where those of all terms are known."""
        found: Interval = (self.constant, self.constant)
        for value, coefficient in self.terms.items():
            known = interval(value)
            if known is None:
                return None
            found = add(found, multiply(known, (coefficient, coefficient)))
        return found


def linear(value: SSAValue) -> Linear | None:
    """The linear form of an index; a value that no known operation makes is a term. None if not linear."""
    known = interval(value)
    if known is not None and known[0] == known[1]:
        return Linear(known[0])
    if not isinstance(value, OpResult) or value.op.name not in _MADE_BY:
        return Linear(0, {value: 1})
    operands = [linear(operand) for operand in value.op.operands]
    forms = [form for form in operands if form is not None]
    if len(forms) < len(operands):
        return None
    return _MADE_BY[value.op.name](value.op.properties.get("map"), forms)


def weighted(values: Sequence[SSAValue], weights: Sequence[int]) -> Linear | None:
    """The sum of weight * value."""
    total = Linear()
    for value, weight in zip(values, weights, strict=True):
        form = linear(value)
        if form is None:
            return None
        total = total.plus(form.times(weight))
    return total


def _product(left: Linear, right: Linear) -> Linear | None:
    if left.terms and right.terms:
        return None
    return right.times(left.constant) if not left.terms else left.times(right.constant)


def _applied(map_: object, operands: Sequence[Linear]) -> Linear | None:
    assert isinstance(map_, AffineMapAttr)
    return _ALGEBRA.value(map_.data.results[0], operands, map_.data.num_dims)


_ALGEBRA = Algebra(Linear, {AffineBinaryOpKind.Add: Linear.plus, AffineBinaryOpKind.Mul: _product})

_MADE_BY: dict[str, Callable[[object, Sequence[Linear]], Linear | None]] = {
    "affine.apply": _applied,
    "arith.addi": lambda _, forms: forms[0].plus(forms[1]),
    "arith.subi": lambda _, forms: forms[0].plus(forms[1].times(-1)),
    "arith.muli": lambda _, forms: _product(*forms),
    "index.add": lambda _, forms: forms[0].plus(forms[1]),
    "index.sub": lambda _, forms: forms[0].plus(forms[1].times(-1)),
    "index.mul": lambda _, forms: _product(*forms),
}
