"""Symbols of many kernels in one module: external functions shared, everything else renamed.

An external function keeps its name, because the object file defines it under that name. A launch
takes its label as its name. Channels, globals, private functions, segments and herds take the label
as a prefix, unless they start with it; inside one kernel, equal herd names stay equal, since mlir-air
places herds of one name on the same cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr, SymbolRefAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.ops import HierarchyOp, LaunchOp
from aerie.multi_launch_builder.submodule import SubModule, SymbolConflictError

OBJECT_ATTRIBUTE = "link_with"
BUILD_ATTRIBUTES = ("link_source", "link_defines", "link_optimize")


def symbol_name(op: Operation) -> str | None:
    """The name of a symbol or hierarchy operation, or None."""
    name = op.get_attr_or_prop("sym_name")
    return name.data if isinstance(name, StringAttr) else None


def set_symbol_name(op: Operation, name: str) -> None:
    """Rename `op`, wherever it stores its name."""
    holder = op.attributes if "sym_name" in op.attributes else op.properties
    holder["sym_name"] = StringAttr(name)


@dataclass
class Externals:
    """The external functions of a program: one declaration per symbol, one build per object file."""

    program: str
    _declared: dict[str, tuple[FuncOp, str]] = field(default_factory=dict)
    _built: dict[str, tuple[tuple[Attribute | None, ...], str]] = field(default_factory=dict)

    @property
    def declarations(self) -> list[FuncOp]:
        """One declaration per symbol, in order of appearance."""
        return [declaration for declaration, _ in self._declared.values()]

    @property
    def names(self) -> set[str]:
        """The symbols that are declared so far."""
        return set(self._declared)

    def merge(self, sub: SubModule) -> None:
        """Add the declarations of `sub`.

        Raises SymbolConflictError if one symbol is declared, or one object file is built, in two ways.
        """
        for declaration in sub.declarations:
            self._share_symbol(declaration, sub.label)
            self._share_object(declaration, sub.label)

    def _share_symbol(self, declaration: FuncOp, label: str) -> None:
        name = declaration.sym_name.data
        if name == self.program:
            raise SymbolConflictError(
                f"launch '{label}' calls an external function @{name}, which is also the name of the "
                "program; rename the program"
            )
        declared, owner = self._declared.setdefault(name, (declaration, label))
        if _signature(declared) != _signature(declaration):
            raise SymbolConflictError(
                f"external function @{name} is declared in two ways: launch '{owner}' has "
                f"{_describe(declared)}, launch '{label}' has {_describe(declaration)}; one program links "
                f"one @{name}, so build the second under another name"
            )

    def _share_object(self, declaration: FuncOp, label: str) -> None:
        object_file = declaration.attributes.get(OBJECT_ATTRIBUTE)
        if not isinstance(object_file, StringAttr):
            return
        build = tuple(declaration.attributes.get(key) for key in BUILD_ATTRIBUTES)
        declared, owner = self._built.setdefault(object_file.data, (build, label))
        if declared != build:
            raise SymbolConflictError(
                f"object file {object_file.data} is built in two ways: for launch '{owner}' from "
                f"{_describe_build(declared)}, for launch '{label}' from {_describe_build(build)}; "
                "give the second build an object name and symbols of its own"
            )


def _signature(function: FuncOp) -> tuple[Attribute, dict[str, Attribute]]:
    return function.function_type, function.attributes


def _describe(function: FuncOp) -> str:
    attributes = sorted(function.attributes.items())
    shown = [key if isinstance(value, UnitAttr) else f"{key} = {value}" for key, value in attributes]
    return f"{function.function_type} {{{', '.join(shown)}}}"


def _describe_build(build: Iterable[Attribute | None]) -> str:
    pairs = zip(BUILD_ATTRIBUTES, build, strict=True)
    parts = [f"{key} = {value}" for key, value in pairs if value is not None]
    return ", ".join(parts) or "its own source without defines"


class Namer:
    """Generates names that the program does not have yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        """`base`, or `base_1`, `base_2`, ... if that is taken."""
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def _labelled(label: str, name: str) -> str:
    """The name with the label as prefix, unless it starts with the label already."""
    return name if name.startswith(label + "_") else f"{label}_{name}"


def rename_symbols(sub: SubModule, namer: Namer) -> None:
    """Give everything that `sub` names, and every reference to it, a unique name in the program."""
    symbols = {}
    for definition in sub.definitions:
        old = symbol_name(definition)
        assert old is not None
        symbols[old] = namer.fresh(_labelled(sub.label, old))
        set_symbol_name(definition, symbols[old])
    hierarchy: dict[tuple[str, str], str] = {}
    for op in sub.module.walk():
        _rename_references(op, symbols)
        if isinstance(op, HierarchyOp):
            _rename_hierarchy(op, sub.label, hierarchy, namer)


def _rename_hierarchy(op: HierarchyOp, label: str, names: dict[tuple[str, str], str], namer: Namer) -> None:
    old = symbol_name(op)
    if isinstance(op, LaunchOp):
        set_symbol_name(op, namer.fresh(label))
        return
    if old is None:
        return
    key = (op.name, old)
    if key not in names:
        names[key] = namer.fresh(_labelled(label, old))
    set_symbol_name(op, names[key])


def _rename_references(op: Operation, names: Mapping[str, str]) -> None:
    for holder in (op.attributes, op.properties):
        for key, attribute in holder.items():
            holder[key] = _renamed(attribute, names)


def _renamed(attribute: Attribute, names: Mapping[str, str]) -> Attribute:
    if isinstance(attribute, SymbolRefAttr) and attribute.root_reference.data in names:
        return SymbolRefAttr(names[attribute.root_reference.data], attribute.nested_references)
    if isinstance(attribute, ArrayAttr):
        return ArrayAttr([_renamed(element, names) for element in attribute.data])
    if isinstance(attribute, DictionaryAttr):
        return DictionaryAttr({key: _renamed(value, names) for key, value in attribute.data.items()})
    return attribute
