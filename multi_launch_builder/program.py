"""A program: as a plan (which kernels, wired how), and as what a toolchain is given. Loads no IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aerie.kernel_builder.arguments import ArgumentTable

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Operation


@dataclass(frozen=True)
class CompileOption:
    """One flag of aircc, why the program needs it, and upstream's file that says so or does the same."""

    flag: str
    reason: str
    source: str


@dataclass(frozen=True)
class Step:
    """One launch: the kernel's name and build parameters, and kernel argument -> program argument."""

    label: str
    kernel: str
    parameters: Mapping[str, Any]
    wiring: Mapping[str, str]


@dataclass(frozen=True)
class ProgramPlan:
    """The steps of a program, in launch order, between its arguments; `options` are its own, for aircc.

    kind: what it does, the same for programs of any number of rows. rows: tokens of a call. context:
    positions of the KV cache that it is built for; 0 where it has none. Without a kind: one kernel alone.
    """

    name: str
    arguments: ArgumentTable
    steps: tuple[Step, ...]
    options: tuple[CompileOption, ...] = ()
    kind: str = ""
    rows: int = 0
    context: int = 0


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

    `launches` are the names of its launches in the order they run. kind, rows, context: as in its plan.
    """

    name: str
    text: str
    arguments: ArgumentTable
    launches: tuple[str, ...]
    objects: tuple[ExternalObject, ...]
    options: tuple[CompileOption, ...] = ()
    kind: str = ""
    rows: int = 0
    context: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for aircc."""
        return tuple(option.flag for option in self.options)

    def option(self, name: str) -> str | None:
        """The value of the last flag of this name, empty where it has none; None where it is not given."""
        return next(reversed(self.option_values(name)), None)

    def option_values(self, name: str) -> list[str]:
        """The values of every flag of this name, empty for one that has none."""
        pairs = (flag.partition("=") for flag in self.flags)
        return [value for given, _, value in pairs if given == name]

    def of(self, plan: ProgramPlan) -> Program:
        """The same, told what it is: built from `plan`."""
        return replace(self, kind=plan.kind, rows=plan.rows, context=plan.context)

    @staticmethod
    def from_module(
        module: ModuleOp, arguments: ArgumentTable, name: str, options: tuple[CompileOption, ...] = ()
    ) -> Program:
        """The program in a verified module whose one public function is `name`."""
        from aerie.air_dialect import (
            print_module,  # here, so that a program which is only run does not load xDSL
        )

        launches = tuple(_text(op, "sym_name") for op in module.walk() if op.name == "air.launch")
        return Program(name, print_module(module), arguments, launches, external_objects(module), options)


def external_objects(module: ModuleOp) -> tuple[ExternalObject, ...]:
    """The object files that the module's external functions name in `link_with`, in order of appearance."""
    declared: dict[str, list[Operation]] = {}
    for op in module.body.block.ops:
        if op.name == "func.func" and not op.regions[0].blocks and "link_with" in op.attributes:
            declared.setdefault(_text(op, "link_with"), []).append(op)
    return tuple(_object(name, functions) for name, functions in declared.items())


def _object(name: str, functions: list[Operation]) -> ExternalObject:
    source = _text(functions[0], "link_source") or name.removesuffix(".o") + ".cc"
    defines = tuple(_text(functions[0], "link_defines").split())
    symbols = tuple(_text(op, "sym_name") for op in functions)
    return ExternalObject(name, source, defines, symbols, _text(functions[0], "link_optimize"))


def _text(op: Operation, key: str) -> str:
    """The string in an attribute or property; empty where there is none."""
    return str(getattr(op.get_attr_or_prop(key), "data", ""))
