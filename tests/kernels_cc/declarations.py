"""The functions that kernels declare in MLIR, and those that C++ sources define."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN

POINTERS = {"bf16": "bfloat16*", "f32": "float*", "i32": "int32_t*", "i8": "uint8_t*"}
SCALARS = {"i32": ("int32_t", "uint32_t")}
FUNCTION = r"^\s*void (\w+)\s*\(([^)]*)\)\s*\{"
ALONE = FUNCTION.replace("void", 'extern "C" void')


@dataclass(frozen=True)
class Declared:
    """A function that a kernel declares: where its source is, its name there, and its arguments in MLIR."""

    kernel: str
    symbol: str
    source: str
    name: str
    types: tuple[Attribute, ...]


@cache
def declared() -> tuple[Declared, ...]:
    """Every external function of every kernel at every one of its own test shapes."""
    built = ((name, spec.build(**case).module) for name, spec in all_kernels().items() for case in spec.cases)
    ops = ((name, op) for name, module in built for op in module.walk())
    return tuple(_declaration(name, op) for name, op in ops if isinstance(op, FuncOp) and op.is_declaration)


def _declaration(kernel: str, op: FuncOp) -> Declared:
    def text(name: str) -> str:
        found = op.attributes.get(name)
        return found.data if isinstance(found, StringAttr) else ""

    macros = [d.partition("=") for d in text("link_defines").split()]
    name = next((macro for macro, _, value in macros if value == op.sym_name.data), op.sym_name.data)
    source = text("link_source") or text("link_with").replace(".o", ".cc")
    return Declared(kernel, op.sym_name.data, source, name, tuple(op.function_type.inputs))


def sources_of_programs() -> set[str]:
    """The sources that the kernels of the six programs are linked with."""
    used = {step.kernel for plan in plan_programs(DEMO, DEMO_SEQ_LEN).values() for step in plan.launches}
    return {d.source for d in declared() if d.kernel in used}


def defined(text: str) -> dict[str, list[str]]:
    """The functions that C++ text makes callable (extern "C") on a core, with their parameters' types."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^#if defined\(AIE_HOST_.*?^#endif", "", text, flags=re.MULTILINE | re.DOTALL)
    _, _, block = text.partition('extern "C" {')
    found = re.findall(ALONE, text, re.MULTILINE) + re.findall(FUNCTION, block, re.MULTILINE)
    return {name: [_type(p) for p in parameters.split(",")] for name, parameters in found}


def _type(parameter: str) -> str:
    """`const bfloat16* __restrict x` as `bfloat16*`."""
    words = re.sub(r"\b(const|__restrict)\b", "", parameter).replace("*", "* ").split()
    return "".join(words[:2]) if words[1:2] == ["*"] else words[0]


def fits(mlir: Attribute, c: str) -> bool:
    """Whether a C parameter takes what the core passes for this MLIR type."""
    if isinstance(mlir, MemRefType):
        return c in (POINTERS.get(str(mlir.element_type)), "void*")  # of void nothing is read or written
    return c in SCALARS.get(str(mlir), ())


def complaints(sources: Iterable[Path], calls: Iterable[Declared]) -> list[str]:
    """A sentence for each source that no kernel calls, and each call that no source answers."""
    there = {path.name: defined(path.read_text()) for path in sources}
    used = {(d.kernel, d.source, d.name): d for d in calls}.values()
    unused = [
        f"kernels_cc/{name}: no kernel calls it at any of its cases; declare its function in one with "
        f'k.external(FUNCTION, "{Path(name).stem}.o", TYPES), or take the file away'
        for name in sorted(there.keys() - {d.source for d in used})
    ]
    return [*unused, *(sentence for d in used for sentence in _complaints(d, there))]


def _complaints(d: Declared, there: dict[str, dict[str, list[str]]]) -> list[str]:
    where = f"kernels_cc/{d.source}"
    if d.source not in there:
        return [f"kernel {d.kernel} calls {d.name} of {where}, which is not there; save it under that name"]
    if d.name not in there[d.source]:
        known = ", ".join(there[d.source]) or "no function"
        return [
            f"kernel {d.kernel} calls {d.name} of {where}, which defines {known}; write "
            f'`extern "C" void {d.name}(...) {{` there, at the beginning of a line'
        ]
    parameters, types = there[d.source][d.name], [str(t) for t in d.types]
    if len(parameters) != len(types):
        return [
            f"kernel {d.kernel} declares {d.name} with {len(types)} arguments ({', '.join(types)}), {where} "
            f"defines it with {len(parameters)} ({', '.join(parameters)}); give both the same"
        ]
    return [
        f"kernel {d.kernel} passes {mlir} to {d.name} where {where} takes `{c}`; a buffer of bf16 or f32 is "
        "taken as bfloat16* or float*, an i32 as int32_t, and what is constant comes as a macro (defines=): "
        "that a core can be passed anything else, no program of upstream shows"
        for mlir, c in zip(d.types, parameters, strict=True)
        if not fits(mlir, c)
    ]
