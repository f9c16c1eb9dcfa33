"""What the host hands to a program."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.func import FuncOp

from air_dialect.ops import HierarchyOp
from virtual_npu.static.patterns import memref_bytes
from virtual_npu.static.report import Fault, Finding, Usage
from virtual_npu.static.scopes import Program
from virtual_npu.static.sources import ADDRESS_PATCH, XRT_BACKEND

BUFFER_LIMIT = 1 << 32
"""Bytes: larger offsets are cut to 32 bits when the driver fills in the addresses of a command stream."""


def arguments(program: Program) -> Iterator[Finding]:
    """Number and size of the arguments of each function that runs something on the array."""
    device = program.device
    for function in program.functions:
        if not any(isinstance(op, HierarchyOp) for op in function.walk()):
            continue
        name = function.sym_name.data
        limit = None if device.elf else device.xclbin_arguments
        others = ", ELF any" if device.elf else ""
        source = f"{XRT_BACKEND}: xclbin takes {device.xclbin_arguments}{others}"
        advice = "put several into one buffer, or split the program"
        used = len(function.function_type.inputs)
        yield Usage(name, "host arguments", used, limit, source, advice, function)
        yield from _sizes(function, name)


def _sizes(function: FuncOp, name: str) -> Iterator[Fault]:
    for number, type_ in enumerate(function.function_type.inputs):
        nbytes = memref_bytes(type_) if isinstance(type_, MemRefType) else None
        if nbytes is not None and nbytes >= BUFFER_LIMIT:
            message = (
                f"argument {number} has {nbytes} bytes; offsets of {BUFFER_LIMIT} and more are cut to 32 "
                "bits, so split it into several buffers"
            )
            yield Fault("host-buffer", name, message, ADDRESS_PATCH, function)
