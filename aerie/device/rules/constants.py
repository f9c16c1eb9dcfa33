"""The room that constants of C++ objects have in a core's L1.

The linker puts an object's `.data` and `.rodata` where buffers and stack leave the largest run of bytes. No
stage of the tools before Peano says whether they fit. What is counted is what a source shows: arrays that are
`static`, `const` or `constexpr`, of extents that are numbers. What Peano adds of its own, such as vectors
that no instruction holds, nobody but Peano can tell, so the room is shown wherever C++ is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from xdsl.dialects.func import CallOp, FuncOp

from aerie.air_dialect.ops import HerdOp
from aerie.device.l1_placement import largest_gap
from aerie.device.npu2 import LINKER_SCRIPT
from aerie.device.report import Fault, Finding, ResourceUsage
from aerie.device.rules.externals import attribute_text_of, source_of, text_with_includes
from aerie.device.scopes import ArrayConfiguration, CheckedProgram

ELEMENT_BYTES = {
    **dict.fromkeys(("char", "bool", "int8", "uint8", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("short", "int16", "uint16", "int16_t", "uint16_t", "bfloat16"), 2),
    **dict.fromkeys(("int", "unsigned", "float", "int32", "uint32", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("double", "int64_t", "uint64_t"), 8),
}
_ARRAY = re.compile(
    r"\b(?:static|constexpr|const)\b[\w\s()]*?\b(\w+)\s+(?:const\s+)?\w+\s*((?:\[[^\[\]]*\])+)\s*([={;])([^;]*)"
)
_NUMBER = re.compile(r"\bconstexpr\b[\w\s]*?\b(\w+)\s*=\s*(\d+)\s*;|^\s*#\s*define\s+(\w+)\s+(\d+)\s*$", re.M)


def check_constants(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Bytes of constants that the objects of each herd show, of the room that they have."""
    for name, herds in scope.herds.items():
        sources = _sources(scope.program, herds)
        if sources:
            used = sum(constant_bytes(path, defines) for path, defines in sources.items())
            advice = "use smaller L1 tiles, or pass the tables as an argument"
            room, place, at = largest_gap(scope, herds), scope.report_name(name), herds[0]
            limit = room if used <= room else None  # an object has none of the arrays that nothing uses
            yield ResourceUsage(place, "constants of C++ objects", used, limit, LINKER_SCRIPT, advice, at)
            if used > room:
                message = (
                    f"the sources of its functions show {used} bytes of constant arrays; buffers and stack "
                    f"leave {room} in a row of a core's L1; unless some of them are unused, {advice}"
                )
                yield Fault("constants", place, message, LINKER_SCRIPT, at, certain=False)


def _sources(program: CheckedProgram, herds: Sequence[HerdOp]) -> dict[Path, str]:
    """The C++ sources of the functions that some herds call, each with its macros."""
    functions = {op.sym_name.data: op for op in program.module.walk() if isinstance(op, FuncOp)}
    sources: dict[Path, str] = {}
    for call in (op for herd in herds for op in herd.walk() if isinstance(op, CallOp)):
        function = functions.get(call.callee.root_reference.data)
        path = source_of(program, call, function)
        if path is not None:
            sources.setdefault(path, attribute_text_of(function, "link_defines") or "")
    return sources


def constant_bytes(source: Path, defines: str = "") -> int:
    """Bytes of the constant arrays that a C++ source shows; `defines` are macros, NAME=NUMBER."""
    text = text_with_includes(source, set())
    named = {name: value for name, _, value in (word.partition("=") for word in defines.split())}
    for constant, value, macro, defined in _NUMBER.findall(text):
        named.setdefault(constant or macro, value or defined)
    arrays = _ARRAY.finditer(text)
    return sum(_bytes(array, named) for array in arrays)


def _bytes(array: re.Match[str], named: Mapping[str, str]) -> int:
    element, extents, _, values = array.groups()
    written = [extent.strip() for extent in re.findall(r"\[([^\]]*)\]", extents)]
    counts = [named.get(extent, extent) or str(values.count(",") + 1) for extent in written]
    known = all(count.isdecimal() for count in counts)
    return prod(map(int, counts)) * ELEMENT_BYTES.get(element, 0) if known else 0
