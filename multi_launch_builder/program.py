"""A program as a plan (which kernels, wired how), and as the input of a toolchain. Loads no IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aerie.kernel_builder.arguments import ArgumentTable

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Operation


@dataclass(frozen=True)
class CompileOption:
    """One flag of aircc, why the program needs it, and the upstream file that says so or does the same."""

    flag: str
    reason: str
    source: str


@dataclass(frozen=True)
class LaunchPlan:
    """One launch: the kernel's name and build parameters, and kernel argument -> program argument."""

    label: str
    kernel: str
    parameters: Mapping[str, Any]
    wiring: Mapping[str, str]


@dataclass(frozen=True)
class ProgramPlan:
    """The launches of a program, in order, and its arguments. options: its own, for aircc.

    kind: what it does, the same for programs of any number of rows. rows: tokens of a call. context:
    positions of the KV cache that it is built for; 0 if it has none. Without a kind it is one kernel alone.
    """

    name: str
    arguments: ArgumentTable
    launches: tuple[LaunchPlan, ...]
    options: tuple[CompileOption, ...] = ()
    kind: str = ""
    rows: int = 0
    context: int = 0


@dataclass(frozen=True)
class ExternalObject:
    """An object file that the program links: its C++ source, its -D macros, the functions taken from it.

    optimize: the optimisation level for a core, such as `O2`; "" if the kernel declares none.
    """

    name: str
    source: str
    defines: tuple[str, ...]
    symbols: tuple[str, ...]
    optimize: str = ""


@dataclass(frozen=True)
class Program:
    """One `func.func` named `name` in `text`, called with `arguments` in table order.

    launches: the names of its launches in order. kind, rows, context: as in its plan. built_from: a module
    and the text that `print_as_source` made of it; None where the program was not built in this process.
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
    built_from: tuple[ModuleOp, str] | None = field(default=None, compare=False, repr=False)

    @property
    def module(self) -> ModuleOp | None:
        """The module that `text` was printed from; None where it is gone, or the program has another text."""
        module, text = self.built_from or (None, "")
        return module if text == self.text else None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for aircc."""
        return tuple(option.flag for option in self.options)

    def last_option(self, name: str) -> str | None:
        """The value of the last flag of this name, "" if it has none; None if the flag is not set."""
        return next(reversed(self.all_options(name)), None)

    def all_options(self, name: str) -> list[str]:
        """The values of every flag of this name, "" for one without a value."""
        pairs = (flag.partition("=") for flag in self.flags)
        return [value for given, _, value in pairs if given == name]

    def with_plan(self, plan: ProgramPlan) -> Program:
        """The same program with kind, rows and context of the plan that it was built from."""
        return replace(self, kind=plan.kind, rows=plan.rows, context=plan.context)

    @staticmethod
    def from_module(
        module: ModuleOp, arguments: ArgumentTable, name: str, options: tuple[CompileOption, ...] = ()
    ) -> Program:
        """The program in a verified module whose one public function is `name`."""
        from aerie.air_dialect import (
            print_as_source,  # here, so that a program which is only run does not load xDSL
        )

        launches = tuple(_text(op, "sym_name") for op in module.walk() if op.name == "air.launch")
        text, objects = print_as_source(module), external_objects(module)
        return Program(name, text, arguments, launches, objects, options, built_from=(module, text))


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
    """The string in an attribute or property; "" if there is none."""
    return str(getattr(op.get_attr_or_prop(key), "data", ""))
