"""What mlir-air's build adds to MLIR's bindings in C++: AIR's assembly, the types of the dialect, passes.

Nothing of it is built here. Text in AIR's assembly is read by our reader and handed on in generic form. A
transform script tiles and vectorises: it is left out, with a note.
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from types import ModuleType
from typing import Any

from aerie.virtual_npu.errors import UnsupportedOpError


class ModuleText:
    """A module that MLIR's bindings cannot read. It prints as it is written, which aircc needs."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class TransformScript(ModuleText):
    """A transform script with operations of mlir-air's extension."""


def extend_bindings(ir: Any) -> None:
    """Let `Module.parse` read AIR's assembly, keep a transform script as text, let modules print AIR's
    assembly, as programs expect that join the texts of several, and let calls in launches be verified."""
    read, to_text, check = ir.Module.parse, ir.Module.__str__, ir.Operation.verify

    def parse(asm: Any, context: Any = None) -> Any:
        try:
            return read(asm, context)
        except ir.MLIRError:
            text = asm.decode() if isinstance(asm, bytes) else str(asm)
            if _TRANSFORM.search(text):
                return TransformScript(text)
            if not _AIR_ASSEMBLY.search(text):
                raise
        try:
            return read(to_generic(text), context)
        except ir.MLIRError:  # it does not look up symbols through operations that it does not know
            return ModuleText(text)

    def text_of(module: Any) -> str:
        text: str = to_text(module)
        if '"air.' not in text:
            return text
        if sys._getframe(1).f_globals.get("__name__") in _COMPILES:
            return to_assembly(module.operation.get_asm(enable_debug_info=True), with_places=True)
        return to_assembly(text)

    def verify(operation: Any) -> bool:
        try:
            return bool(check(operation))
        except ir.MLIRError as error:
            found = error.error_diagnostics
            if not found or not all(_is_known_symbol(each.message, operation, ir) for each in found):
                raise
        return True

    ir.Module.parse = staticmethod(parse)
    ir.Module.__str__ = text_of
    next(base for base in ir.Operation.__mro__ if "verify" in vars(base)).verify = verify


def refuse_air_passes(managers: Any) -> None:
    """Let a pipeline with compiler passes of mlir-air say that they are not here. managers: the module
    `mlir.passmanager`."""
    read = managers.PassManager.parse

    def parse(pipeline: str, context: Any = None) -> Any:
        try:
            return read(pipeline, context)
        except ValueError as error:
            unknown = _UNKNOWN_PASS.search(str(error))
            if not unknown:
                raise
            raise UnsupportedOpError(
                f"{unknown[1]} is a compiler pass of mlir-air, and none of mlir-air is built here: programs "
                "that it makes cannot be made; run the text that it gives (aircc --debug-ir writes it)"
            ) from error

    managers.PassManager.parse = staticmethod(parse)


_UNKNOWN_PASS = re.compile(r"'(air[\w-]+)' does not refer to a registered pass")
_NOT_FOUND = re.compile(r"'[\w.]+' op '([^']+)' does not reference a valid function")


def _is_known_symbol(message: str, operation: Any, ir: Any) -> bool:
    """Whether MLIR misses a function that the module has: it does not look up symbols through operations that
    it does not know, as air.herd is here. Our reader checks the call when the program is built."""
    missing = _NOT_FOUND.fullmatch(message)
    top = operation.operation
    while top.parent is not None:
        top = top.parent.operation
    return missing is not None and missing[1] in ir.SymbolTable(top)


_TRANSFORM = re.compile(r"\btransform\.(with_pdl_patterns|named_sequence|sequence|air\.)")
_AIR_ASSEMBLY = re.compile(r"(?<!\")\bair\.(launch|segment|herd|channel|dma_memcpy_nd|execute|wait_all)\b")


_COMPILES = ("air.backend.xrt", "aerie.vnpu")
"""Who takes a module's text to compile it, the first for aircc: errors shall name places in the program,
whose text a user never sees. What a program prints for itself has no locations, as upstream."""


def to_assembly(text: str, *, with_places: bool = False) -> str:
    """AIR text in AIR's assembly; as it is where our reader does not take it, which aircc then says.

    with_places: with a location for each operation whose own location names a place.
    """
    from aerie.air_dialect.parser_printer import parse, print_module, print_with_places
    from aerie.air_dialect.verification import AirParseError

    try:
        module = parse(text, strict=False)
        printed = print_with_places(module, text) if with_places else print_module(module)
    except AirParseError:
        return text
    return _SHORTENED.sub(r"\1\2", printed)


_SHORTENED = re.compile(r"^(\s*)(?:builtin|func)\.(module|return)\b", re.MULTILINE)
"""Operations that MLIR prints without their dialect."""


def to_generic(text: str) -> str:
    """AIR text in MLIR's generic form. Raises AirParseError."""
    from aerie.air_dialect.parser_printer import parse
    from aerie.air_dialect.types import AttributePrinter

    module = parse(text)
    stream = StringIO()
    AttributePrinter(stream=stream, print_generic_format=True).print_op(module)
    return stream.getvalue()


def air_module(name: str, ir: Any) -> ModuleType:
    """The module `air._mlir_libs._air`."""
    module = ModuleType(name)
    module.register_dialect = lambda registry: None  # type: ignore[attr-defined]  # noqa: ARG005
    module.run_transform = run_transform  # type: ignore[attr-defined]
    module.AsyncTokenType = _token_type(ir)  # type: ignore[attr-defined]
    module.__path__ = []
    return module


def _token_type(ir: Any) -> type:
    class AsyncTokenType:
        """`!air.async.token`."""

        @staticmethod
        def get(context: Any = None) -> Any:
            """The type."""
            return ir.Type.parse("!air.async.token", context)

    return AsyncTokenType


def run_transform(script: Any, module: Any) -> None:  # noqa: ARG001
    """Leave the transform script out, and say so: it changes how a program computes. What it computes may
    differ in rounding, where the script keeps sums in registers that the program itself rounds."""
    print(
        "note: the transform script is left out: it tiles and vectorises, and may round less often",
        file=sys.stderr,
    )


def runner_module(name: str) -> ModuleType:
    """The module `air._mlir_libs._air.runner`."""
    module = ModuleType(name)

    def run(*_: Any) -> None:
        raise UnsupportedOpError(
            "air-runner, mlir-air's model of time, is not built here: aerie vnpu run --trace shows the "
            "order of a program's events"
        )

    module.run = run  # type: ignore[attr-defined]
    return module


def transform_module(name: str, ir: Any) -> ModuleType:
    """The module `_air_transform_ops_gen`, whose one class mlir-air's own file extends."""
    module = ModuleType(name)
    module.LinalgTileOp = type(  # type: ignore[attr-defined]
        "LinalgTileOp", (ir.OpView,), {"OPERATION_NAME": "transform.air.linalg_tile"}
    )
    return module
