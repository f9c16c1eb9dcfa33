"""Functions written in C++: declared once with their argument types, called like Python functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue

from kernel_builder.buffers import Buffer, BufferType, View, element_type
from kernel_builder.dtypes import DType
from kernel_builder.errors import DslError
from kernel_builder.index import Index
from kernel_builder.scopes import Scopes
from kernel_builder.values import Value

ArgumentType: TypeAlias = BufferType | DType
CallArgument: TypeAlias = View | Value | Index | int | float


@dataclass(frozen=True)
class Optimize:
    """How hard the compiler of the cores (Peano) works on an object: `O1`, `O2`, `O3`, `Os`; and why so hard.

    The level is no matter of taste: a core's program memory has 16 KiB, and upstream knows kernels that hang
    at another level than theirs (mlir-air programming_examples/llms/qwen25_3b_q4/Makefile).
    """

    level: str
    reason: str


@dataclass(frozen=True)
class External:
    """A C++ function on a core. Call it inside a herd: `matvec(8, 2048, row, a, b, c)`.

    The core passes a buffer as a bare pointer to its first element and a scalar as itself
    (mlir-aie lowers cores with bare-pointer calls), so the C++ side is `extern "C"`.
    """

    name: str
    types: tuple[ArgumentType, ...]
    scopes: Scopes

    def __call__(self, *arguments: CallArgument) -> None:
        if not self.scopes.inside("herd"):
            raise DslError(f"{self.name} runs on a core: call it inside `with k.herd(...)`")
        if len(arguments) != len(self.types):
            raise DslError(f"{self.name} takes {len(self.types)} arguments, {len(arguments)} given")
        pairs = zip(arguments, self.types, strict=True)
        operands = [self._operand(i, argument, type_) for i, (argument, type_) in enumerate(pairs)]
        self.scopes.emit(func.CallOp(self.name, operands, []))

    def _operand(self, place: int, argument: CallArgument, type_: ArgumentType) -> SSAValue:
        if isinstance(type_, BufferType):
            if not isinstance(argument, Buffer) or argument.type != type_:
                given = f"{argument} ({argument.type})" if isinstance(argument, Buffer) else str(argument)
                raise DslError(
                    f"argument {place} of {self.name} is a whole buffer of {type_}, not {given}; "
                    "to reach into a buffer pass it whole, with an i32 offset"
                )
            return self.scopes.use(argument.ssa)
        return self._scalar(place, argument, type_)

    def _scalar(self, place: int, argument: CallArgument, dtype: DType) -> SSAValue:
        if isinstance(argument, int | float):
            return self.scopes.constant(argument, dtype)
        if isinstance(argument, Value) and argument.shape is None and argument.dtype == dtype:
            return argument.here()
        if isinstance(argument, Index) and dtype.name.startswith("i"):
            index = self.scopes.index(argument)
            return self.scopes.result(arith.IndexCastOp(index, element_type(dtype)))
        raise DslError(f"argument {place} of {self.name} is a scalar of {dtype}, not {argument}")


def declaration(
    name: str,
    types: Sequence[ArgumentType],
    link_with: str,
    source: str | None,
    defines: Mapping[str, object],
    optimize: Optimize | None,
) -> func.FuncOp:
    """`func.func private @name(...)` with the object file to link and how to build it.

    `link_source`, `link_defines` and `link_optimize` are plain attributes that mlir-air passes over; whoever
    builds the object file reads them: the C++ file, where it is not the object's stem, its -D macros, and the
    level of optimisation for a core (on a CPU it is the virtual NPU's own).
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
