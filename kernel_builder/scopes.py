"""The program under construction: open regions, and which values each region can use.

The bodies of launch, segment and herd are isolated from above: they see only their own arguments. So a value
from outside is passed through `args(...)` of every such body in between, and a constant is created again
inside.
`RegionStack` does both when a value is used; the code of a kernel never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects import affine, arith
from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    VectorType,
)
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from aerie.kernel_builder.arguments import DslError, DType
from aerie.kernel_builder.buffers import element_type
from aerie.kernel_builder.index import Index, Variable

ISOLATED = ("launch", "segment", "herd")
"""Regions that are isolated from above."""


@dataclass
class KernelRegion:
    """An open region. captured: outer values and this region's arguments for them, in order of first use."""

    kind: str
    block: Block
    captured: dict[SSAValue, SSAValue] = field(default_factory=dict)
    constants: dict[object, SSAValue] = field(default_factory=dict)
    indices: dict[object, SSAValue] = field(default_factory=dict)
    allocated: list[SSAValue] = field(default_factory=list)
    last_constant: Operation | None = None

    @property
    def isolated(self) -> bool:
        """Whether its body sees nothing of the regions around it."""
        return self.kind in ISOLATED or self.kind == "func"


class RegionStack:
    """The stack of open regions. New operations go to the end of the innermost one."""

    def __init__(self, body: Block) -> None:
        self.stack = [KernelRegion("func", body)]
        self.abandoned = False

    @property
    def current(self) -> KernelRegion:
        """The innermost region."""
        return self.stack[-1]

    @property
    def root(self) -> KernelRegion:
        """The innermost isolated region: constants are created there."""
        return next(scope for scope in reversed(self.stack) if scope.isolated)

    def inside(self, kind: str) -> bool:
        """True within a region of this kind, at any depth."""
        return any(scope.kind == kind for scope in self.stack)

    @contextmanager
    def open(self, kind: str, block: Block) -> Iterator[KernelRegion]:
        """Operations emitted inside go to `block`. After an error the stack is as it was before."""
        scope = KernelRegion(kind, block)
        depth = len(self.stack)
        self.stack.append(scope)
        try:
            yield scope
            if len(self.stack) != depth + 1:
                raise DslError(
                    f"a {self.current.kind} is still open at the end of the {kind} around it; "
                    f"{UNFINISHED_LOOP}"
                )
        except GeneratorExit:  # a `for` over a loop of the device was left by break
            self.abandoned = True
            raise
        finally:
            del self.stack[depth:]

    def emit(self, op: Operation) -> Operation:
        """Append `op` to the innermost region."""
        self.current.block.add_op(op)
        return op

    def result(self, op: Operation) -> SSAValue:
        """Append `op` to the innermost region. Returns its only result."""
        return self.emit(op).results[0]

    def capture(self, value: SSAValue) -> SSAValue:
        """`value` as the innermost region sees it, passed in through `args(...)` if needed."""
        owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
        crossed: list[KernelRegion] = []
        for scope in reversed(self.stack):
            if scope.block is owner:
                break
            if scope.isolated:
                crossed.append(scope)
        else:
            name = value.name_hint or "a value"
            raise DslError(f"%{name} is used outside of the region it was made in; make it where it is used")
        for scope in reversed(crossed):
            value = self._capture(scope, value)
        return value

    @staticmethod
    def _capture(scope: KernelRegion, value: SSAValue) -> SSAValue:
        if value not in scope.captured:
            argument: BlockArgument = scope.block.insert_arg(value.type, len(scope.block.args))
            argument.name_hint = value.name_hint
            scope.captured[value] = argument
        return scope.captured[value]

    def _constant(self, key: object, attribute: Any, hint: str) -> SSAValue:
        scope = self.root
        if key not in scope.constants:
            op = arith.ConstantOp(attribute)
            op.result.name_hint = hint
            if scope.last_constant is not None:
                scope.block.insert_op_after(op, scope.last_constant)
            elif scope.block.first_op is not None:
                scope.block.insert_op_before(op, scope.block.first_op)
            else:
                scope.block.add_op(op)
            scope.last_constant, scope.constants[key] = op, op.result
        return scope.constants[key]

    def index_constant(self, value: int) -> SSAValue:
        """An index constant of the innermost isolated region, created once."""
        return self._constant(("index", value), IntegerAttr.from_index_int_value(value), f"c{value}")

    def constant(self, value: float, dtype: DType, shape: tuple[int, ...] | None = None) -> SSAValue:
        """A scalar constant, or with a shape a vector with `value` in every lane."""
        type_ = element_type(dtype)
        if isinstance(type_, IntegerType):
            scalar: Any = IntegerAttr(int(value), type_)
        else:
            scalar = FloatAttr(float(value), type_)
        key = (dtype.name, repr(scalar.value.data), shape)
        if shape is None:
            return self._constant(key, scalar, f"{dtype}_constant")
        # A dense attribute of a single number is a splat: the same number in every lane.
        splat: Any = DenseIntOrFPElementsAttr.from_list(VectorType(type_, shape), [scalar.value.data])
        return self._constant(key, splat, f"{dtype}_vector")

    def index(self, value: Index, hint: str = "at") -> SSAValue:
        """`value` computed in the innermost region: a constant, a variable or one `affine.apply`."""
        if value.static is not None:
            return self.index_constant(value.static)
        if not value.constant and len(value.terms) == 1:
            ((atom, factor),) = value.terms.items()
            if factor == 1 and isinstance(atom, Variable):
                return self.capture(atom.ssa)
        return self._known_index(value) or self._apply(value, hint)

    def _known_index(self, value: Index) -> SSAValue | None:
        """The same expression, if it was computed before in a region that is visible here."""
        for scope in reversed(self.stack):
            if (known := scope.indices.get(value.key())) is not None:
                return known
            if scope.isolated:
                return None
        return None

    def _apply(self, value: Index, hint: str) -> SSAValue:
        variables = sorted(value.variables(), key=lambda v: v.order)
        places = {variable: AffineExpr.symbol(i) for i, variable in enumerate(variables)}
        expression = value.affine(places.__getitem__)
        # Symbols, not dimensions: the form mlir-air's own programs use for tile ids and loop variables alike.
        map_ = AffineMapAttr(AffineMap(0, len(variables), (expression,)))
        operands = [self.capture(variable.ssa) for variable in variables]
        result = self.result(affine.ApplyOp(operands, map_))
        result.name_hint = hint
        self.current.indices[value.key()] = result
        return result

    def indices(self, values: Sequence[Index]) -> list[SSAValue]:
        """Compute several values as `index` does."""
        return [self.index(value) for value in values]


UNFINISHED_LOOP = "a `for ... in k.loop(...)` must run to its end: no break, no return"
