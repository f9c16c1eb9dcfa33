"""The functions that kernels declare in MLIR and those that their C++ sources define: one list of arguments.

mlir-aie lowers core functions with bare pointers: a buffer arrives as its address alone, an i32 as itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from host_compiler import KERNELS
from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from aerie.air_dialect.text import parse
from aerie.kernel_builder.kernels import registry

POINTERS = {"bf16": "bfloat16*", "f32": "float*"}
SCALARS = {"i32": ("int32_t", "uint32_t")}


@dataclass(frozen=True)
class Declared:
    """A function that a kernel declares: where its source is, its name there, and its arguments in MLIR."""

    symbol: str
    source: str
    name: str
    types: tuple[Attribute, ...]


@cache
def declared() -> tuple[Declared, ...]:
    """Every external function of every kernel at every one of its own test shapes."""
    modules = (spec.build(**case).module for spec in registry().values() for case in spec.cases)
    ops = (op for module in modules for op in module.walk())
    return tuple(_declaration(op) for op in ops if isinstance(op, FuncOp) and op.is_declaration)


def _declaration(op: FuncOp) -> Declared:
    def text(name: str) -> str:
        found = op.attributes.get(name)
        return found.data if isinstance(found, StringAttr) else ""

    macros = [d.partition("=") for d in text("link_defines").split()]
    name = next((macro for macro, _, value in macros if value == op.sym_name.data), op.sym_name.data)
    source = text("link_source") or text("link_with").replace(".o", ".cc")
    return Declared(op.sym_name.data, source, name, tuple(op.function_type.inputs))


def defined(source: Path) -> dict[str, list[str]]:
    """The functions in a source's extern "C" block, with the types of their parameters."""
    text = re.sub(r"//[^\n]*", "", source.read_text())
    block = text[text.index('extern "C" {') :]
    found = re.findall(r"^void (\w+)\(([^)]*)\) \{", block, re.MULTILINE)
    return {name: [_type(p) for p in parameters.split(",")] for name, parameters in found}


def _type(parameter: str) -> str:
    """`const bfloat16* __restrict x` as `bfloat16*`."""
    return re.sub(r"\b(const|__restrict)\b", "", parameter).split()[0]


def fits(mlir: Attribute, c: str) -> bool:
    """Whether a C parameter takes what the core passes for this MLIR type."""
    if isinstance(mlir, MemRefType):
        return c in (POINTERS.get(str(mlir.element_type)), "void*")  # of void nothing is read or written
    return c in SCALARS.get(str(mlir), ())


def test_declarations_and_definitions_agree() -> None:
    seen = {d.symbol: d for d in declared()}
    assert {d.source for d in seen.values()} == {path.name for path in KERNELS.glob("*.cc")}
    for d in seen.values():
        parameters = defined(KERNELS / d.source)[d.name]
        assert len(parameters) == len(d.types), d
        assert all(map(fits, d.types, parameters)), (d, parameters)


def test_every_definition_is_declared_by_a_kernel_or_known_to_stand_by() -> None:
    """linalg_fill_bf16 serves programs that clear first; our own GEMV does not."""
    called = {(d.source, d.name) for d in declared()}
    for source in KERNELS.glob("*.cc"):
        names = set(defined(source)) - {name for file, name in called if file == source.name}
        assert names <= {"linalg_fill_bf16"}


@pytest.mark.parametrize(
    ("parameter", "mlir"),
    [("float* x", "memref<8xbf16, 2 : i32>"), ("int64_t n", "i32"), ("int32_t n", "index")],
)
def test_what_does_not_fit(parameter: str, mlir: str) -> None:
    (op,) = (op for op in parse(f"func.func private @f({mlir})").walk() if isinstance(op, FuncOp))
    assert not fits(op.function_type.inputs.data[0], _type(parameter))
