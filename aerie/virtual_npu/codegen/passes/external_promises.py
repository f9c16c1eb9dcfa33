"""What the functions in C++ that a module calls promise: which arguments they do not write, or overwrite.

The promises are in their sources (aerie.device.external_kernels), which a program names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.effects import accesses
from aerie.air_dialect.values import walk
from aerie.device.external_kernels import (
    ExternalKernel,
    Overwrite,
    constant_parameters,
    overwritten_arguments,
)
from aerie.virtual_npu.codegen.functions import external_kernel
from aerie.virtual_npu.errors import UnsupportedOpError


@dataclass
class ExternalPromises:
    """The promises of the functions that a module calls; `folders` are looked up for their sources."""

    module: ModuleOp
    folders: Sequence[Path]
    _unwritten: dict[str, frozenset[int] | None] = field(default_factory=dict)
    _overwritten: dict[str, tuple[Overwrite, ...]] = field(default_factory=dict)

    def written_by(self, op: Operation) -> Iterator[SSAValue]:
        """The memrefs that an operation writes, or of which it makes views, through which others might."""
        constant = (self.unwritten_by(op) if isinstance(op, func.CallOp) else None) or frozenset()
        for value, is_written in accesses(op):
            positions = [i for i, operand in enumerate(op.operands) if operand is value]
            if is_written and not all(i in constant for i in positions):
                yield value
        if any(isinstance(result.type, MemRefType) for result in op.results):
            yield from (operand for operand in op.operands if isinstance(operand.type, MemRefType))

    def unwritten_by(self, call: func.CallOp) -> frozenset[int] | None:
        """The positions of the arguments that a call does not write; None for a function that is not in
        C++."""
        name = call.callee.root_reference.data
        if name not in self._unwritten:
            kernel = self._kernel(call, name)
            self._unwritten[name] = None if kernel is None else constant_parameters(kernel, self.folders)
        return self._unwritten[name]

    def overwritten_by(self, call: func.CallOp) -> tuple[Overwrite, ...]:
        """What a call declares to overwrite. Raises KernelSourceError for a declaration that cannot be
        read."""
        name = call.callee.root_reference.data
        if name not in self._overwritten:
            kernel = self._kernel(call, name)
            self._overwritten[name] = () if kernel is None else overwritten_arguments(kernel, self.folders)
        return self._overwritten[name]

    def _kernel(self, call: func.CallOp, name: str) -> ExternalKernel | None:
        functions = (op for op in walk(self.module) if isinstance(op, func.FuncOp))
        op = next((op for op in functions if op.sym_name.data == name), None)
        if op is None or op.body.blocks:
            return None
        try:
            return external_kernel(call, op)
        except UnsupportedOpError:  # no link_with: the call itself is refused later
            return None
