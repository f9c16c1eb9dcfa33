"""The C++ of a whole module: entries, metadata, and what must be linked with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, VectorType
from xdsl.ir import Attribute, Operation

from aerie.common.shown_names import symbol_name
from aerie.device.external_kernels import ExternalKernel
from aerie.virtual_npu.codegen import (  # noqa: F401 - every file of emitters registers what it emits
    affine,
    air,
    arith,
    functions,
    linalg,
    memref,
    scf,
    types,
    vector_lanes,
    vector_memory,
    vector_sums,
    vnpu_ops,
)
from aerie.virtual_npu.codegen.alike_launches import share_launches
from aerie.virtual_npu.codegen.body import CppFile
from aerie.virtual_npu.codegen.buffers import checked_arguments
from aerie.virtual_npu.codegen.channels import channel_struct, ports
from aerie.virtual_npu.codegen.device_annotations import annotate_for_device
from aerie.virtual_npu.codegen.execution import BodyMode, function_mode, public_functions
from aerie.virtual_npu.codegen.functions import emit_function
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported, with_op_in_errors
from aerie.virtual_npu.codegen.passes.pipeline import advance
from aerie.virtual_npu.codegen.size_checks import check_type_sizes
from aerie.virtual_npu.codegen.stops import check_stop_lines
from aerie.virtual_npu.cpp_quoting import entry_symbol, mangled, string_literal
from aerie.virtual_npu.errors import UnsupportedOpError
from aerie.virtual_npu.library import FORMAT
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.source_places import SourcePlaces, places_in


@dataclass
class GeneratedCpp:
    """The C++ of a module, and what must be linked with it."""

    text: str
    kernels: list[ExternalKernel]
    runtime: list[str]
    """The runtime's own sources that it needs, in include/vnpu."""


# ---- entries ----


def _entry(file: CppFile, op: func.FuncOp) -> dict[str, object]:
    """Emit the exported entry of a public function; gives its metadata."""
    name = op.sym_name.data
    function_name = emit_function(file, op)
    inputs = list(enumerate(op.function_type.inputs))
    described = [argument_metadata(op, type_, i) for i, type_ in inputs]
    arguments = [unpacked_argument(type_, i) for i, type_ in inputs]
    entry = f"entry_{mangled(name)}"
    lines = [f"static void {entry}(void *const *arguments) {{"]
    if file.options.checks:
        buffers, arguments = checked_arguments(file, op, arguments)
        lines += buffers
    if function_mode(op, file.options) is BodyMode.SEQUENCER:
        struct = channel_struct(file, op)
        called = string_literal(f"func {symbol_name(name)}")
        where = f"{called}, 0, 0, 0, nullptr, {ports(file, op)}, {line_of(op)}"
        call = ", ".join(["task_loop", f"vnpu::ExecutionPlace{{{where}}}", "channels", *arguments])
        lines += ["  vnpu::TaskLoop task_loop;", f"  {struct} channels(task_loop);"]
        lines += [f"  task_loop.run({function_name}({call}));"]
    else:
        lines.append(f"  {function_name}({', '.join(arguments)});")
    parameters = "void *const *arguments, const vnpu::RunOptions *options, vnpu::RunReport *report"
    symbol = entry_symbol(name)
    lines += ["}", f"VNPU_EXPORT int {symbol}({parameters}) {{"]
    lines += [f"  return vnpu::call_entry({entry}, arguments, options, report);", "}"]
    file.functions.append("\n".join(lines))
    return {"symbol": symbol, "arguments": described}


def metadata_of_places(text: str) -> dict[str, SourcePlaces]:
    """The metadata of a text's locations, nothing where it has none: errors of runs name them."""
    places = places_in(text)
    return {"places": places} if places else {}


def argument_metadata(op: Operation, type_: Attribute, index: int) -> dict[str, object]:
    """Metadata of an argument of an entry; shape [] is a scalar."""
    shape: list[int] = []
    if isinstance(type_, VectorType):
        shape = list(type_.get_shape())
    if isinstance(type_, MemRefType):
        shape = list(type_.get_shape())
        if types.DYNAMIC in shape or not _is_dense(type_):
            raise unsupported(
                op, f"argument {index} has type {type_}: an entry takes dense memrefs of static shape"
            )
    return {"shape": shape, "dtype": types.dtype_name(types.element(type_))}


def unpacked_argument(type_: Attribute, index: int) -> str:
    """C++ text of an argument taken from the array of addresses that an entry is called with."""
    scalar = types.scalar(types.element(type_))
    pointer = f"static_cast<{scalar} *>(arguments[{index}])"
    if isinstance(type_, VectorType):
        return f"vnpu::load<{scalar}, {types.lanes(type_)}>({pointer})"
    return pointer if isinstance(type_, MemRefType) else f"*{pointer}"


def _is_dense(type_: MemRefType) -> bool:
    return types.memref_strides(type_) == types.row_major(type_.get_shape())


# ---- the file ----

_HEADER = """\
// Generated by virtual_npu from AIR-dialect MLIR. Comments carry the lines they come from.
#include "vnpu/entry.h"
#include "vnpu/happens_before.h"
#include "vnpu/shuffle.h"
"""
NOT_ALL_USED = '#pragma GCC diagnostic ignored "-Wunused-parameter"'
"""A body is given all of its operation's arguments, sizes and indices, used or not."""
_PARTS: dict[str, list[str]] = {
    "contract": [],
    "schedule": ["schedule.cc", "channel.cc", "task_loop.cc", "storage.cc", "deadlock.cc"],
    "product": ["product.cc"],
    "rearranged": ["rearranged.cc"],
    "made": ["made.cc"],
}
"""Parts of the runtime that only some programs need: header, and sources."""
RUNTIME = ["runtime.cc", "copies.cc", "team.cc", "sizes.cc"]
"""What every program links."""

_CHECKS = [
    "check.cc", "arena.cc", "garbage.cc", "stale.cc", "kernel_call.cc", "happens_before.cc", "races.cc",
    "record.cc", "stop.cc",
]  # fmt: skip


def generate(
    module: ModuleOp, text: str, options: BuildOptions, kernel_dirs: Sequence[Path] = ()
) -> GeneratedCpp:
    """C++ for a verified module; `text` is its source, for the comments.

    `kernel_dirs` are folders with the sources of external kernels, of which the signatures are read.
    Raises UnsupportedOpError at the first operation that cannot be executed.
    """
    if options.checks:
        annotate_for_device(module)
    check_type_sizes(module)
    advance(module, options, kernel_dirs)
    file = CppFile(module, text.split("\n"), options)
    entries = {}
    for op in public_functions(module):
        with with_op_in_errors(op):
            entries[op.sym_name.data] = _entry(file, op)
    if not entries:
        raise UnsupportedOpError("the module has no public func.func with a body: there is nothing to run")
    check_stop_lines(file)
    share_launches(file)
    metadata = json.dumps(
        {"format": FORMAT, "entries": entries, "kernels": list(file.kernels), **metadata_of_places(text)}
    )
    parts = [
        _HEADER + "".join(f'#include "vnpu/{name}.h"\n' for name in _PARTS if name in file.runtime_parts)
    ]
    parts += [NOT_ALL_USED, *file.declarations, *file.functions]
    parts.append(
        f"VNPU_EXPORT const char vnpu_metadata[];\nconst char vnpu_metadata[] = {string_literal(metadata)};"
    )
    runtime = [
        *RUNTIME,
        *(source for name in _PARTS if name in file.runtime_parts for source in _PARTS[name]),
    ]
    runtime += _CHECKS if options.checks else []
    return GeneratedCpp("\n\n".join(parts) + "\n", list(file.kernels.values()), runtime)
