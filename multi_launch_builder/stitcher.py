"""Merges many kernel modules into one multi-launch module.

Each kernel comes as MLIR text or as a parsed module, is parsed, renamed, wrapped and wired as IR, and its
launches are appended to one function whose arguments are the program's. Launches run one after the other, in
the order added; intermediates stay in L3 (DDR) and the host is not involved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects import memref
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser

from aerie.air_dialect import make_context, verify
from aerie.kernel_builder.arguments import Argument, ArgumentTable
from aerie.multi_launch_builder.buffer_access import argument_accesses
from aerie.multi_launch_builder.buffer_flow import BufferFlow
from aerie.multi_launch_builder.submodule import (
    Source,
    StitchError,
    SubModule,
    SymbolConflictError,
    read_submodule,
)
from aerie.multi_launch_builder.symbols import Externals, Namer, rename_symbols
from aerie.multi_launch_builder.wiring import Wire, Wiring, resolve_wiring
from aerie.multi_launch_builder.wrap_herds import wrap_bare_herds

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Stitcher:
    """Builds the function `name` with `arguments` out of kernels that are added one by one."""

    def __init__(self, name: str, arguments: ArgumentTable) -> None:
        self.name = name
        self.arguments = arguments
        self._externals = Externals(name)
        self._flow = BufferFlow(arguments)
        self._parts: list[tuple[SubModule, list[Wire]]] = []

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels so far, in launch order."""
        return tuple(sub.label for sub, _ in self._parts)

    def add(
        self,
        source: Source,
        wiring: Wiring,
        *,
        label: str,
        argument_names: Sequence[str] | None = None,
        reshape: bool = False,
    ) -> None:
        """Append the kernel in `source`, with its arguments wired to the program's by `wiring`.

        label: names the launch in messages and prefixes its symbols. argument_names: names the kernel's
        arguments if the source does not. reshape: a wire may join two shapes of one element count.
        Raises StitchError (WiringError, SymbolConflictError, DataflowError) if the kernel does not fit, and
        air_dialect.AirParseError if the text does not parse.
        """
        self._check_label(label)
        sub = read_submodule(source, label, argument_names)
        wires = resolve_wiring(sub, wiring, self.arguments, reshape=reshape)
        self._flow.add_launch(label, wires, argument_accesses(sub))
        self._externals.merge(sub)
        for wire in wires:
            sub.arguments[wire.position].name_hint = wire.argument.name
        wrap_bare_herds(sub)
        self._parts.append((sub, wires))

    def _check_label(self, label: str) -> None:
        if not _LABEL.fullmatch(label):
            raise StitchError(
                f"launch label '{label}' cannot start a symbol name; use letters, digits and underscores, "
                "beginning with a letter"
            )
        if label in self.labels:
            raise SymbolConflictError(
                f"two launches of program '{self.name}' are labelled '{label}'; give each a label of its own"
            )

    def finish(self) -> ModuleOp:
        """The verified program. The stitcher cannot be used afterwards.

        Raises DataflowError if no launch uses an argument as declared.
        """
        self._flow.finish()
        namer = Namer({self.name, *self._externals.names})
        for sub, _ in self._parts:
            rename_symbols(sub, namer)
        module = self._assemble()
        verify(module)
        return module

    def _assemble(self) -> ModuleOp:
        kinds = [_memref_type(argument, make_context()) for argument in self.arguments]
        function = FuncOp(self.name, (kinds, []))
        for value, argument in zip(function.args, self.arguments, strict=True):
            value.name_hint = argument.name
        definitions = [
            sub.module.body.block.detach_op(op) for sub, _ in self._parts for op in sub.definitions
        ]
        for sub, wires in self._parts:
            _append_body(function, sub, wires, self.arguments)
        function.body.block.add_op(ReturnOp())
        declarations = [declaration.clone() for declaration in self._externals.declarations]
        return ModuleOp([*declarations, *definitions, function])


def _memref_type(argument: Argument, ctx: Context) -> MemRefType[Attribute]:
    element_type = Parser(ctx, argument.dtype.mlir).parse_type()
    return MemRefType(element_type, argument.shape)


def _append_body(function: FuncOp, sub: SubModule, wires: list[Wire], arguments: ArgumentTable) -> None:
    block = function.body.block
    for wire in wires:
        inner = sub.arguments[wire.position]
        outer: SSAValue = block.args[arguments.slot(wire.argument.name)]
        if wire.reshaped:
            assert isinstance(inner.type, MemRefType)
            views = _reshape(outer, inner.type)
            block.add_ops(views)
            outer = views[-1].results[0]
        inner.replace_all_uses_with(outer)
    for op in list(sub.entry.ops)[:-1]:
        block.add_op(sub.entry.detach_op(op))


def _reshape(value: SSAValue, target: MemRefType[Attribute]) -> list[Operation]:
    """Operations that view the contiguous memref `value` in the shape of `target`; the last one has the
    result.

    Row-major order stays: all dimensions collapse into one, which expands into the new ones.
    """
    source = value.type
    assert isinstance(source, MemRefType)
    operations: list[Operation] = []
    if len(source.get_shape()) > 1:
        operations.append(_collapse(value, source))
        value = operations[-1].results[0]
    if len(target.get_shape()) > 1:
        operations.append(_expand(value, target))
    return operations


def _flat(kind: MemRefType[Attribute]) -> MemRefType[Attribute]:
    return MemRefType(kind.element_type, [math.prod(kind.get_shape())])


def _one_group(shape: Sequence[int]) -> ArrayAttr[ArrayAttr[IntegerAttr]]:
    return ArrayAttr([ArrayAttr([IntegerAttr(dimension, i64) for dimension in range(len(shape))])])


def _collapse(value: SSAValue, source: MemRefType[Attribute]) -> Operation:
    return memref.CollapseShapeOp.build(
        operands=[value],
        result_types=[_flat(source)],
        properties={"reassociation": _one_group(source.get_shape())},
    )


def _expand(value: SSAValue, target: MemRefType[Attribute]) -> Operation:
    shape = target.get_shape()
    return memref.ExpandShapeOp.build(
        operands=[value, []],
        result_types=[target],
        properties={
            "reassociation": _one_group(shape),
            "static_output_shape": DenseArrayBase.from_list(i64, list(shape)),
        },
    )
