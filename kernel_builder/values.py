"""The values that a core computes with: scalars, vectors, arithmetic on them, and functions written in C++.

Arithmetic has the type of its operands and rounds once per operation. Mixed types are refused, so that every
conversion is visible: `x.to(f32)`. A plain number takes the type and shape of the other side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from xdsl.dialects import arith, func, math, vector
from xdsl.dialects.builtin import StringAttr, UnitAttr, VectorType
from xdsl.dialects.vector import CombiningKindAttr, CombiningKindFlag
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from aerie.air_dialect.upstream import arith as upstream_arith
from aerie.air_dialect.upstream import vector as upstream_vector
from aerie.air_dialect.upstream.vector_sums import ContractOp
from aerie.kernel_builder.arguments import DslError, DType, i1
from aerie.kernel_builder.buffers import Buffer, BufferType, View, element_type
from aerie.kernel_builder.index import Index
from aerie.kernel_builder.scopes import RegionStack

Operand: TypeAlias = Union["Value", int, float]

FLOATS = frozenset({"bf16", "f16", "f32"})
_WIDTH = {"bf16": 16, "f16": 16, "f32": 32}

_ARITHMETIC: dict[str, tuple[Any, Any]] = {
    "+": (arith.AddfOp, arith.AddiOp),
    "-": (arith.SubfOp, arith.SubiOp),
    "*": (arith.MulfOp, arith.MuliOp),
    "/": (arith.DivfOp, None),
    "//": (None, arith.FloorDivSIOp),
    "%": (None, arith.RemSIOp),
    "maximum": (arith.MaximumfOp, arith.MaxSIOp),
    "minimum": (arith.MinimumfOp, arith.MinSIOp),
}
"""Operator to its operation on floats and on integers."""

_COMPARE = {"<": ("olt", "slt"), "<=": ("ole", "sle"), ">": ("ogt", "sgt"), ">=": ("oge", "sge")}
_REDUCE = {
    "add": (CombiningKindFlag.ADD, CombiningKindFlag.ADD),
    "mul": (CombiningKindFlag.MUL, CombiningKindFlag.MUL),
    "max": (CombiningKindFlag.MAXIMUMF, CombiningKindFlag.MAXSI),
    "min": (CombiningKindFlag.MINIMUMF, CombiningKindFlag.MINSI),
}


class Value:
    """A scalar (`shape` None) or a vector of `dtype` on a core."""

    __slots__ = ("dtype", "scopes", "shape", "ssa")

    def __init__(
        self, ssa: SSAValue, dtype: DType, shape: tuple[int, ...] | None, scopes: RegionStack
    ) -> None:
        self.ssa = ssa
        self.dtype = dtype
        self.shape = shape
        self.scopes = scopes

    @property
    def mlir_type(self) -> Attribute:
        """The MLIR type: the element type of a scalar, or a vector type."""
        return _type(self.dtype, self.shape)

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.name in FLOATS

    def in_region(self) -> SSAValue:
        """The SSA value in the innermost open region, passed in through `args(...)` if needed."""
        return self.scopes.capture(self.ssa)

    def _result(
        self, op: Any, dtype: DType | None = None, shape: tuple[int, ...] | str | None = "same"
    ) -> Value:
        result_shape = self.shape if isinstance(shape, str) else shape
        return Value(self.scopes.result(op), dtype or self.dtype, result_shape, self.scopes)

    def coerce(self, other: Operand) -> Value:
        """Convert `other` to this type: a plain number becomes a constant. Raises DslError for
        another type.
        """
        if not isinstance(other, Value):
            return Value(
                self.scopes.constant(other, self.dtype, self.shape), self.dtype, self.shape, self.scopes
            )
        if (other.dtype, other.shape) != (self.dtype, self.shape):
            raise DslError(
                f"cannot combine {self} with {other}; convert with .to({self.dtype}) or spread a scalar "
                "with .broadcast"
            )
        return other

    def _binary(self, symbol: str, other: Operand) -> Value:
        op = _ARITHMETIC[symbol][0 if self.is_float else 1]
        if op is None:
            raise DslError(f"`{symbol}` is not defined for {self}")
        right = self.coerce(other)
        return self._result(op(self.in_region(), right.in_region()))

    def __add__(self, other: Operand) -> Value:
        return self._binary("+", other)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("-", other)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("*", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("/", other)

    def __floordiv__(self, other: Operand) -> Value:
        return self._binary("//", other)

    def __mod__(self, other: Operand) -> Value:
        return self._binary("%", other)

    def __radd__(self, other: Operand) -> Value:
        return self.coerce(other) + self

    def __rsub__(self, other: Operand) -> Value:
        return self.coerce(other) - self

    def __rmul__(self, other: Operand) -> Value:
        return self.coerce(other) * self

    def __rtruediv__(self, other: Operand) -> Value:
        return self.coerce(other) / self

    def __neg__(self) -> Value:
        return self._result(arith.NegfOp(self.in_region())) if self.is_float else 0 - self

    def maximum(self, other: Operand) -> Value:
        """The larger of both, lane by lane. Raises DslError if the types differ."""
        return self._binary("maximum", other)

    def minimum(self, other: Operand) -> Value:
        """The smaller of both, lane by lane. Raises DslError if the types differ."""
        return self._binary("minimum", other)

    def _compare(self, symbol: str, other: Operand) -> Value:
        right = self.coerce(other)
        predicate = _COMPARE[symbol][0 if self.is_float else 1]
        kind: Any = upstream_arith.CmpfOp if self.is_float else upstream_arith.CmpiOp
        return self._result(kind(self.in_region(), right.in_region(), predicate), i1)

    def __lt__(self, other: Operand) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare(">=", other)

    def __bool__(self) -> bool:
        raise DslError("a value on a core has no truth while the kernel is written; use .select or `k.when`")

    def select(self, then: Value, otherwise: Operand) -> Value:
        """`then` where this condition (a comparison's result) holds, else `otherwise`.

        A vector condition chooses lane by lane between vectors of its shape, a scalar one between any two.
        """
        if self.dtype != i1 or self.shape not in (None, then.shape):
            raise DslError(
                f"{self} cannot choose for {then}; select with a comparison of scalars, or of vectors of the "
                "same shape"
            )
        chosen = upstream_arith.SelectOp(
            self.in_region(), then.in_region(), then.coerce(otherwise).in_region()
        )
        return then._result(chosen)

    def to(self, dtype: DType) -> Value:
        """Convert to `dtype`. Widening is exact. Narrowing a float rounds in the core's mode: to nearest even
        if the kernel calls `Kernel.round_to_even`, a C++ function or a matrix product that sets it.
        """
        if dtype == self.dtype:
            return self
        target = _type(dtype, self.shape)
        return self._result(_conversion(self.dtype, dtype)(self.in_region(), target), dtype)

    def broadcast(self, *shape: int) -> Value:
        """This scalar in every lane of a vector of `shape`."""
        if self.shape is not None:
            raise DslError(f"{self} is a vector already; only a scalar is broadcast")
        return self._result(
            vector.BroadcastOp(self.in_region(), VectorType(element_type(self.dtype), shape)), shape=shape
        )

    def _unary(self, op: Any) -> Value:
        if not self.is_float:
            raise DslError(f"{op.name} needs a float, not {self}; convert with .to(f32)")
        return self._result(op(self.in_region()))

    def rsqrt(self) -> Value:
        """1 / sqrt(x), lane by lane. Raises DslError for integers."""
        return self._unary(math.RsqrtOp)

    def sqrt(self) -> Value:
        """The square root, lane by lane. Raises DslError for integers."""
        return self._unary(math.SqrtOp)

    def exp(self) -> Value:
        """e**x, lane by lane. Raises DslError for integers. AIE2P lowers it for vectors of bf16 only."""
        return self._unary(math.ExpOp)

    def exp2(self) -> Value:
        """2**x, lane by lane. Raises DslError for integers."""
        return self._unary(math.Exp2Op)

    def tanh(self) -> Value:
        """The hyperbolic tangent, lane by lane. Raises DslError for integers. AIE2P lowers it for 16 bf16
        only.
        """
        return self._unary(math.TanhOp)

    def reduce(self, kind: str) -> Value:
        """Reduce all lanes of a 1-D vector to one scalar. kind: "add", "mul", "max" or "min"."""
        if self.shape is None or len(self.shape) != 1:
            raise DslError(f"reduce needs a 1-D vector, not {self}; use .reshape first")
        flag = _REDUCE[kind][0 if self.is_float else 1]
        op = vector.ReductionOp.build(
            operands=[self.in_region(), None],
            result_types=[element_type(self.dtype)],
            properties={"kind": CombiningKindAttr(flag)},
        )
        return self._result(op, shape=None)

    def reshape(self, *shape: int) -> Value:
        """The lanes, in row-major order, with another shape."""
        op = upstream_vector.ShapeCastOp(self.in_region(), VectorType(element_type(self.dtype), shape))
        return self._result(op, shape=shape)

    def transpose(self) -> Value:
        """A 2-D vector with its dimensions swapped."""
        if self.shape is None or len(self.shape) != 2:
            raise DslError(f"transpose needs a 2-D vector, not {self}")
        shape = self.shape[::-1]
        return self._result(upstream_vector.TransposeOp(self.in_region(), [1, 0]), shape=shape)

    def __str__(self) -> str:
        kind = "scalar" if self.shape is None else "x".join(map(str, self.shape)) + " vector"
        return f"a {kind} of {self.dtype}"


def fma(lhs: Value, rhs: Value, addend: Value) -> Value:
    """left * right + addend, rounded once; all of one type."""
    operands = (lhs.in_region(), lhs.coerce(rhs).in_region(), lhs.coerce(addend).in_region())
    return lhs._result(math.FmaOp(*operands) if lhs.shape is None else vector.FMAOp(*operands))


def contract(lhs: Value, rhs: Value, addend: Value) -> Value:
    """addend (M, N) + left (M, K) @ right (K, N), in addend's type; 8x8x8 bf16 is AIE2P's own."""
    shapes = (lhs.shape, rhs.shape, addend.shape)
    if any(shape is None or len(shape) != 2 for shape in shapes):
        raise DslError(f"contract needs three 2-D vectors, not {lhs}, {rhs}, {addend}")
    (m, k), (k2, n), out = lhs.shape, rhs.shape, addend.shape  # type: ignore[misc]
    if k != k2 or out != (m, n):
        raise DslError(f"contract of {lhs} with {rhs} gives {m}x{n}, not {addend}")
    row, col, along = (AffineExpr.dimension(axis) for axis in range(3))
    maps = [AffineMap(3, 0, pair) for pair in ((row, along), (along, col), (row, col))]
    op = ContractOp(
        lhs.in_region(), rhs.in_region(), addend.in_region(), maps, ["parallel", "parallel", "reduction"]
    )
    return addend._result(op)


def _type(dtype: DType, shape: Sequence[int] | None) -> Attribute:
    return element_type(dtype) if shape is None else VectorType(element_type(dtype), shape)


def _conversion(source: DType, target: DType) -> Any:
    """The arith operation that converts one element type into another; true becomes 1."""
    if target == i1:
        raise DslError(f"{source} does not convert to i1; write a comparison, such as x > 0")
    if source == i1:
        return upstream_arith.UIToFPOp if target.name in FLOATS else upstream_arith.ExtUIOp
    if source.name in FLOATS and target.name in FLOATS:
        if _WIDTH[source.name] == _WIDTH[target.name]:
            raise DslError(f"no direct conversion from {source} to {target}; go through f32")
        widens = _WIDTH[source.name] < _WIDTH[target.name]
        return upstream_arith.ExtFOp if widens else upstream_arith.TruncFOp
    if source.name in FLOATS:
        return upstream_arith.FPToSIOp
    if target.name in FLOATS:
        return upstream_arith.SIToFPOp
    return upstream_arith.ExtSIOp if source.itemsize < target.itemsize else upstream_arith.TruncIOp


ArgumentType: TypeAlias = BufferType | DType
CallArgument: TypeAlias = View | Value | Index | int | float


@dataclass(frozen=True)
class OptLevel:
    """The optimisation level of Peano, the compiler of the cores, for an object: `O1`, `O2`, `O3`, `Os`; and
    why.

    The level matters for correctness: a core's program memory has 16 KiB, and upstream knows kernels that
    hang at another level than theirs (mlir-air programming_examples/llms/qwen25_3b_q4/Makefile).
    """

    level: str
    reason: str


@dataclass(frozen=True)
class ExternalFunction:
    """A C++ function on a core. Call it inside a herd: `matvec(8, 2048, row, a, b, c)`.

    The core passes a buffer as a bare pointer to its first element and a scalar as itself
    (mlir-aie lowers cores with bare-pointer calls), so the C++ side is `extern "C"`.
    """

    name: str
    types: tuple[ArgumentType, ...]
    scopes: RegionStack

    def __call__(self, *arguments: CallArgument) -> None:
        if not self.scopes.inside("herd"):
            raise DslError(f"{self.name} runs on a core: call it inside `with k.herd(...)`")
        if len(arguments) != len(self.types):
            raise DslError(f"{self.name} takes {len(self.types)} arguments, {len(arguments)} given")
        pairs = zip(arguments, self.types, strict=True)
        operands = [self._operand(i, argument, type_) for i, (argument, type_) in enumerate(pairs)]
        self.scopes.emit(func.CallOp(self.name, operands, []))

    def _operand(self, position: int, argument: CallArgument, type_: ArgumentType) -> SSAValue:
        if isinstance(type_, BufferType):
            if not isinstance(argument, Buffer) or argument.type != type_:
                described = f"{argument} ({argument.type})" if isinstance(argument, Buffer) else str(argument)
                raise DslError(
                    f"argument {position} of {self.name} is a whole buffer of {type_}, not {described}; "
                    "to reach into a buffer pass it whole, with an i32 offset"
                )
            return self.scopes.capture(argument.ssa)
        return self._scalar(position, argument, type_)

    def _scalar(self, position: int, argument: CallArgument, dtype: DType) -> SSAValue:
        if isinstance(argument, int | float):
            return self.scopes.constant(argument, dtype)
        if isinstance(argument, Value) and argument.shape is None and argument.dtype == dtype:
            return argument.in_region()
        if isinstance(argument, Index) and dtype.name.startswith("i"):
            index = self.scopes.index(argument)
            return self.scopes.result(arith.IndexCastOp(index, element_type(dtype)))
        raise DslError(f"argument {position} of {self.name} is a scalar of {dtype}, not {argument}")


def external_declaration(
    name: str,
    types: Sequence[ArgumentType],
    link_with: str,
    source: str | None,
    defines: Mapping[str, object],
    optimize: OptLevel | None,
) -> func.FuncOp:
    """`func.func private @name(...)` with the object file to link and how to build it.

    `link_source`, `link_defines` and `link_optimize` are plain attributes that mlir-air ignores. The build of
    the object file reads them: the C++ file if it is not the object's stem, its -D macros, and the
    optimisation level for a core (on a CPU the virtual NPU has its own).
    """
    inputs: list[Attribute] = [t.memref if isinstance(t, BufferType) else element_type(t) for t in types]
    op = func.FuncOp.external(name, inputs, [])
    op.attributes["link_with"] = StringAttr(link_with)
    if source is not None:
        op.attributes["link_source"] = StringAttr(source)
    if defines:
        op.attributes["link_defines"] = StringAttr(
            " ".join(f"{key}={value}" for key, value in defines.items())
        )
    if optimize is not None:
        op.attributes["link_optimize"] = StringAttr(optimize.level)
    op.attributes["llvm.emit_c_interface"] = UnitAttr()
    return op
