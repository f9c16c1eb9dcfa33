"""The state of one C++ file under construction: its declarations and functions, and the names they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from air_dialect.ops import ChannelOp
from virtual_npu.external import ExternalKernel
from virtual_npu.library import identifier
from virtual_npu.options import BuildOptions


@dataclass
class Unit:
    """One C++ file under construction."""

    module: ModuleOp
    source: Sequence[str]
    """The lines of the MLIR text, for comments."""
    options: BuildOptions
    functions: list[str] = field(default_factory=list)
    declarations: list[str] = field(default_factory=list)
    kernels: dict[str, ExternalKernel] = field(default_factory=dict)
    """The external kernels that are called, by their symbol."""
    needs: set[str] = field(default_factory=set)
    """The parts of the runtime that it needs beyond the common one: schedule, product, turned."""
    names: set[str] = field(default_factory=set)
    emitted: set[str] = field(default_factory=set)
    channel_structs: dict[Operation, str] = field(default_factory=dict)
    port_tables: dict[tuple[Operation, bool], str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    """C++ text of a pointer to every memref.global that is used, by its name."""
    constants: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.symbols: dict[str, func.FuncOp] = {}
        self.channels: dict[str, ChannelOp] = {}
        for op in self.module.walk():
            if isinstance(op, func.FuncOp):
                self.symbols[op.sym_name.data] = op
            elif isinstance(op, ChannelOp):
                self.channels[op.sym_name] = op

    def source_line(self, line: int) -> str:
        """A line of the MLIR text, stripped; empty for operations that were built in Python."""
        if not 0 < line <= len(self.source):
            return ""
        return self.source[line - 1].strip().rstrip("\\")

    def fresh(self, hint: str) -> str:
        """A C++ name that no other function or struct of this file has."""
        base = identifier(hint)
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return name

    def constant(self, type_: str, hint: str, fields: str) -> str:
        """The C++ name of a constant of the file; the same fields give the same one."""
        key = type_, fields
        if key not in self.constants:
            self.constants[key] = self.fresh(hint)
            self.declarations.append(f"static constexpr {type_} {self.constants[key]}{{{fields}}};")
        return self.constants[key]
