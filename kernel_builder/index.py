"""Index arithmetic: values that only the device knows, as symbolic affine expressions.

An `Index` is a sum of integer multiples of atoms plus an integer. Atoms are loop variables, tile ids, launch
ids, and floor divisions and remainders of other expressions. Symbolic sums make `(row + 8) - row` the plain
number 8, so that a slice's extent is known, and make one `affine.apply` of a long formula. This file does not
touch the program being built; `scopes.RegionStack.index` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, Union

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from aerie.air_dialect.index_divisors import MULTIPLES, Divisibility
from aerie.kernel_builder.arguments import DslError


@dataclass(frozen=True, eq=False)
class Variable:
    """A loop variable, tile id or launch id. kind: the region that it counts: "loop", "herd", "launch", ...

    order: the order of creation, so that printed text is the same in every run. multiple: a number that
    divides every value (a loop's step).
    """

    ssa: SSAValue
    kind: str
    order: int
    multiple: int = 1


@dataclass(frozen=True)
class FloorDiv:
    """floor(numerator / divisor), divisor a positive constant."""

    numerator: tuple[tuple[Atom, int], ...]
    constant: int
    divisor: int


@dataclass(frozen=True)
class Remainder:
    """The remainder of the numerator by a positive constant, never negative."""

    numerator: tuple[tuple[Atom, int], ...]
    constant: int
    divisor: int


Atom: TypeAlias = Variable | FloorDiv | Remainder
IndexLike: TypeAlias = Union["Index", int]


@dataclass(frozen=True)
class AffineConstraint:
    """One affine constraint: `left >= 0`, or `left == 0` if `equal`."""

    left: Index
    equal: bool


@dataclass(frozen=True)
class Condition:
    """Constraints that must all hold. Only the device can decide it: use `with k.when(condition)`."""

    comparisons: tuple[AffineConstraint, ...]

    def __and__(self, other: Condition) -> Condition:
        return Condition(self.comparisons + other.comparisons)

    def __bool__(self) -> NoReturn:
        raise DslError(
            "a comparison of device values has no truth while the kernel is written; "
            "use `with k.when(condition):` so that the device decides"
        )


class Index:
    """An affine expression of loop variables and ids; ints may be mixed with it.

    `+`, `-`, `* int`, `// int`, `% int` give an Index; comparisons give a `Condition`.
    """

    __slots__ = ("constant", "terms")

    def __init__(self, terms: Mapping[Atom, int], constant: int = 0) -> None:
        self.terms: dict[Atom, int] = {atom: factor for atom, factor in terms.items() if factor}
        self.constant = constant

    @staticmethod
    def from_value(value: object) -> Index:
        """Convert `value` to an Index. Raises DslError unless it is an Index or an int."""
        if isinstance(value, Index):
            return value
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise DslError(f"{value!r} is no index; give an int, a loop variable or a tile id")
        return Index({}, int(value))

    @property
    def static(self) -> int | None:
        """The value if it is a plain number, else None."""
        return None if self.terms else self.constant

    @property
    def multiple(self) -> int:
        """The largest number known to divide every value; 0 if it is the number 0."""
        variables = list(self.variables())
        expression = self.affine(lambda variable: AffineExpr.dimension(variables.index(variable)))
        divisors = [Divisibility(variable.multiple) for variable in variables]
        divisor = MULTIPLES.analyze_affine(expression, divisors, len(variables))
        assert divisor is not None  # something divides every number
        return divisor.divisor

    def variables(self) -> frozenset[Variable]:
        """Every loop variable and id that it depends on."""
        variables: set[Variable] = set()
        for atom in self.terms:
            if isinstance(atom, Variable):
                variables.add(atom)
            else:
                variables |= Index(dict(atom.numerator)).variables()
        return frozenset(variables)

    def key(self) -> tuple[frozenset[tuple[Atom, int]], int]:
        """A hashable key, equal for equal expressions."""
        return frozenset(self.terms.items()), self.constant

    def __add__(self, other: IndexLike) -> Index:
        right = Index.from_value(other)
        terms = dict(self.terms)
        for atom, factor in right.terms.items():
            terms[atom] = terms.get(atom, 0) + factor
        return Index(terms, self.constant + right.constant)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + Index.from_value(other) * -1

    def __rsub__(self, other: IndexLike) -> Index:
        return Index.from_value(other) - self

    def __mul__(self, other: IndexLike) -> Index:
        right = Index.from_value(other)
        if right.static is None:
            if self.static is None:
                raise DslError(
                    "a product of two device values is not affine, so no DMA can use it; "
                    "multiply by a plain int or restructure the loop"
                )
            return right * self.constant
        factor = right.constant
        return Index({atom: f * factor for atom, f in self.terms.items()}, self.constant * factor)

    __rmul__ = __mul__

    def _split(self, divisor: object) -> tuple[Index, Index, int]:
        """(whole, rest, divisor) with self == whole * divisor + rest; rest has the terms that do
        not divide.
        """
        if isinstance(divisor, Index) and divisor.static is not None:
            divisor = divisor.static
        if not isinstance(divisor, int) or divisor <= 0:
            raise DslError(f"an index can only be divided by a positive int, not by {divisor!r}")
        whole = {a: f // divisor for a, f in self.terms.items() if f % divisor == 0}
        rest = {a: f for a, f in self.terms.items() if f % divisor}
        quotient, remainder = divmod(self.constant, divisor)
        return Index(whole, quotient), Index(rest, remainder), divisor

    def __floordiv__(self, divisor: IndexLike) -> Index:
        quotient, rest, by = self._split(divisor)
        if rest.static is not None:
            return quotient
        return quotient + Index({FloorDiv(tuple(rest.terms.items()), rest.constant, by): 1})

    def __mod__(self, divisor: IndexLike) -> Index:
        _, rest, by = self._split(divisor)
        if rest.static is not None:
            return rest
        return Index({Remainder(tuple(rest.terms.items()), rest.constant, by): 1})

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition((AffineConstraint(self - Index.from_value(other), True),))

    def __ne__(self, other: object) -> NoReturn:
        raise DslError(
            "`!=` of device values is no affine condition; use `k.when(a == b)` and `k.otherwise()`"
        )

    def __ge__(self, other: IndexLike) -> Condition:
        return Condition((AffineConstraint(self - other, False),))

    def __gt__(self, other: IndexLike) -> Condition:
        return self >= Index.from_value(other) + 1

    def __le__(self, other: IndexLike) -> Condition:
        return Index.from_value(other) >= self

    def __lt__(self, other: IndexLike) -> Condition:
        return Index.from_value(other) >= self + 1

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise DslError("an index known only on the device has no truth; compare it inside `k.when(...)`")

    def __index__(self) -> int:
        if self.static is None:
            raise DslError("this index is known only on the device; a plain int is needed here")
        return self.constant

    def affine(self, leaf: Callable[[Variable], AffineExpr]) -> AffineExpr:
        """Convert to an xDSL affine expression. leaf: the expression of each variable."""
        total = AffineExpr.constant(0)
        for atom, factor in self.terms.items():
            total = total + _affine_atom(atom, leaf) * factor
        return total + self.constant if self.constant else total

    def __repr__(self) -> str:
        return f"Index({len(self.terms)} terms + {self.constant})"


def _affine_atom(atom: Atom, leaf: Callable[[Variable], AffineExpr]) -> AffineExpr:
    if isinstance(atom, Variable):
        return leaf(atom)
    numerator = Index(dict(atom.numerator), atom.constant).affine(leaf)
    return numerator // atom.divisor if isinstance(atom, FloorDiv) else numerator % atom.divisor
