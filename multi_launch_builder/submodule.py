"""Reads one kernel module, from any source, into the data structure that the stitcher works on.

A kernel module has one public function with a body, which is the kernel. Everything else at module level
(external declarations, channels, globals, private functions) belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation
from xdsl.traits import SymbolOpInterface

from aerie.air_dialect import parse, verify
from aerie.common.errors import AerieError
from aerie.kernel_builder.arguments import ArgumentTable


class StitchError(AerieError, ValueError):
    """A module cannot become part of a multi-launch program."""


class WiringError(StitchError):
    """A launch argument and a program argument do not fit, or an argument has no wire."""


class SymbolConflictError(StitchError):
    """One symbol or object file has two meanings in one program."""


class DataflowError(StitchError):
    """A buffer is read before it is written, written where it must not be, or never used."""


NAME_ATTRIBUTE = "aerie.name"
"""Argument attribute that names a kernel argument in text: `%arg0: memref<...> {aerie.name = "x"}`."""


class NamedModule(Protocol):
    """A verified module that carries the names of its arguments, as kernel_builder's KernelModule does."""

    @property
    def module(self) -> ModuleOp: ...
    @property
    def arguments(self) -> ArgumentTable: ...


Source: TypeAlias = str | ModuleOp | NamedModule


@dataclass
class SubModule:
    """A private copy of one kernel module, and the argument names for its wiring."""

    label: str
    module: ModuleOp
    function: FuncOp
    argument_names: tuple[str, ...]

    @property
    def entry(self) -> Block:
        """The first block of the kernel's function."""
        block = self.function.body.blocks.first
        assert block is not None
        return block

    @property
    def arguments(self) -> tuple[BlockArgument, ...]:
        """The arguments of the kernel's function, in order."""
        return self.entry.args

    @property
    def declarations(self) -> list[FuncOp]:
        """External functions: declared here, defined in an object file."""
        return [op for op in self.module.body.block.ops if isinstance(op, FuncOp) and op.is_declaration]

    @property
    def definitions(self) -> list[Operation]:
        """Module-level symbols that belong to this kernel: channels, globals, private functions."""
        declared = set(map(id, self.declarations))
        ops = self.module.body.block.ops
        return [op for op in ops if op is not self.function and id(op) not in declared]


def read_submodule(source: Source, label: str, argument_names: Sequence[str] | None = None) -> SubModule:
    """The kernel in `source` under the name `label`. The caller's module is not changed.

    Argument names come from `argument_names`, else from the source's own argument table, else per argument
    from its `aerie.name` attribute, its SSA name, or `arg<position>`.
    Raises StitchError if the module is not one kernel, air_dialect.AirParseError if the text is invalid.
    """
    if argument_names is None and not isinstance(source, (str, ModuleOp)):
        argument_names = source.arguments.names
    module = _private_copy(source, label)
    function = _kernel_function(module, label)
    _check_module_level(module, label)
    names = _argument_names(function, label, argument_names)
    return SubModule(label, module, function, names)


def _private_copy(source: Source, label: str) -> ModuleOp:
    if isinstance(source, str):
        return parse(source, filename=label)
    if not isinstance(source, ModuleOp):
        return source.module.clone()
    verify(source)
    return source.clone()


def _is_public(function: FuncOp) -> bool:
    return function.sym_visibility is None or function.sym_visibility.data != "private"


def _kernel_function(module: ModuleOp, label: str) -> FuncOp:
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    kernels = [op for op in functions if _is_public(op) and not op.is_declaration]
    if len(kernels) != 1:
        names = ", ".join(f"@{op.sym_name.data}" for op in kernels) or "none"
        raise StitchError(
            f"launch '{label}': a kernel module has exactly one public func.func with a body, this one has "
            f"{len(kernels)} ({names}); make the others private or pass them one by one"
        )
    _check_signature(kernels[0], label)
    return kernels[0]


def _check_signature(function: FuncOp, label: str) -> None:
    if function.function_type.outputs.data:
        raise StitchError(
            f"launch '{label}': kernel @{function.sym_name.data} returns "
            f"{len(function.function_type.outputs.data)} value(s); a launch writes its results into "
            "buffer arguments, so let it return nothing"
        )
    if len(function.body.blocks) != 1:
        raise StitchError(
            f"launch '{label}': the body of kernel @{function.sym_name.data} has "
            f"{len(function.body.blocks)} blocks, the stitcher takes one; use scf.for and scf.if for control "
            "flow"
        )


def _check_module_level(module: ModuleOp, label: str) -> None:
    for op in module.body.block.ops:
        if not op.has_trait(SymbolOpInterface, value_if_unregistered=False):
            raise StitchError(
                f"launch '{label}': operation '{op.name}' at module level is not a symbol "
                "(function, channel, global), so its place in the program is unknown; "
                "move it into the kernel function"
            )


def _argument_names(function: FuncOp, label: str, requested: Sequence[str] | None) -> tuple[str, ...]:
    count = len(function.args)
    names = tuple(requested) if requested is not None else _names_in_text(function)
    if len(names) != count:
        raise StitchError(
            f"launch '{label}': {len(names)} argument names for kernel @{function.sym_name.data}, "
            f"which has {count} arguments; give one name per argument"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StitchError(
            f"launch '{label}': several arguments of kernel @{function.sym_name.data} are named "
            f"'{twice[0]}'; pass argument_names with a name of its own for each"
        )
    return names


def _names_in_text(function: FuncOp) -> tuple[str, ...]:
    attributes = function.arg_attrs.data if function.arg_attrs else (DictionaryAttr({}),) * len(function.args)
    pairs = zip(function.args, attributes, strict=True)
    return tuple(_name_in_text(argument, named) for argument, named in pairs)


def _name_in_text(argument: BlockArgument, attributes: DictionaryAttr) -> str:
    named = attributes.data.get(NAME_ATTRIBUTE)
    if isinstance(named, StringAttr):
        return named.data
    return argument.name_hint or f"arg{argument.index}"
