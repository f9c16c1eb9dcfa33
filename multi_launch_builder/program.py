"""A compiled unit's source: MLIR text, its argument table, and what the toolchain must be told."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

from air_dialect import print_module
from air_dialect.ops import LaunchOp
from kernel_builder.arguments import ArgumentTable
from multi_launch_builder.symbols import OBJECT_ATTRIBUTE, symbol_name


@dataclass(frozen=True)
class CompileOption:
    """One flag of aircc, why the program needs it, and upstream's file that says so or does the same."""

    flag: str
    reason: str
    source: str


@dataclass(frozen=True)
class ExternalObject:
    """An object file the program links: its C++ source, its -D macros, the functions taken from it.

    optimize: the level of optimisation for a core, such as `O2`; empty where the kernel declares none.
    """

    name: str
    source: str
    defines: tuple[str, ...]
    symbols: tuple[str, ...]
    optimize: str = ""


@dataclass(frozen=True)
class Program:
    """One `func.func` named `name` in `text`, called with `arguments` in table order.

    `launches` are the names of its launches in the order they run.
    """

    name: str
    text: str
    arguments: ArgumentTable
    launches: tuple[str, ...]
    objects: tuple[ExternalObject, ...]
    options: tuple[CompileOption, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for aircc."""
        return tuple(option.flag for option in self.options)

    def option(self, name: str) -> str | None:
        """The value of the last flag of this name, empty where it has none; None where it is not given."""
        pairs = (flag.partition("=") for flag in self.flags)
        return next((value for given, _, value in reversed(list(pairs)) if given == name), None)

    @staticmethod
    def from_module(
        module: ModuleOp, arguments: ArgumentTable, name: str, options: tuple[CompileOption, ...] = ()
    ) -> Program:
        """The program in a verified module whose one public function is `name`."""
        launches = tuple(symbol_name(op) or "" for op in module.walk() if isinstance(op, LaunchOp))
        return Program(name, print_module(module), arguments, launches, external_objects(module), options)


def external_objects(module: ModuleOp) -> tuple[ExternalObject, ...]:
    """The object files that the module's external functions name in `link_with`, in order of appearance."""
    declared: dict[str, list[FuncOp]] = {}
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.is_declaration and OBJECT_ATTRIBUTE in op.attributes:
            declared.setdefault(_text(op, OBJECT_ATTRIBUTE), []).append(op)
    return tuple(_object(name, functions) for name, functions in declared.items())


def _object(name: str, functions: list[FuncOp]) -> ExternalObject:
    source = _text(functions[0], "link_source") or name.removesuffix(".o") + ".cc"
    defines = tuple(_text(functions[0], "link_defines").split())
    symbols = tuple(op.sym_name.data for op in functions)
    return ExternalObject(name, source, defines, symbols, _text(functions[0], "link_optimize"))


def _text(op: FuncOp, key: str) -> str:
    value = op.attributes.get(key)
    return value.data if isinstance(value, StringAttr) else ""
