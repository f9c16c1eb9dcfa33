"""The operation classes of `air.dialects.air`, made from the tables of `aerie.air_dialect`.

mlir-air's build generates them with mlir-tblgen. The names of operands are mlir-air's (AIR.td), which differ
from ours where a table below says so. MLIR's bindings do not know the AIR dialect: an operation is made as
one of an unregistered dialect.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from xdsl.irdl import IRDLOperation, OptOperandDef, OptResultDef, VarOperandDef, VarResultDef

from aerie.air_dialect.assembly import StaticListOp, op_classes
from aerie.air_dialect.hierarchy import HierarchyOp
from aerie.air_dialect.types import MemorySpace

SINGLE, OPTIONAL, VARIADIC = 1, 0, -1
"""How many values a group of operands or results has, as MLIR's `OpView` writes it."""


class Group(NamedTuple):
    """Operands or results of one name."""

    name: str
    arity: int


class OperationTable(NamedTuple):
    """What a class of the bindings is made from: mlir-air's names, in the order of the constructor."""

    name: str
    results: tuple[Group, ...]
    operands: tuple[Group, ...]
    attributes: tuple[str, ...]
    n_regions: int

    @property
    def class_name(self) -> str:
        """`ChannelPutOp` for `air.channel.put`."""
        words = self.function_name.split("_")
        return "".join(word.capitalize() for word in words) + "Op"

    @property
    def function_name(self) -> str:
        """`channel_put` for `air.channel.put`."""
        return self.name.partition(".")[2].replace(".", "_")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The constructor's parameters in order."""
        values = [group.name for group in (*self.results, *self.operands)]
        return (*values, *self.attributes)


def operation_tables() -> list[OperationTable]:
    """A table for each operation of the AIR dialect."""
    from aerie.air_dialect import execution, hierarchy, transfers

    modules = (execution, hierarchy, transfers)
    return [_table(op) for module in modules for op in op_classes(module) if issubclass(op, IRDLOperation)]


def _table(op: type[IRDLOperation]) -> OperationTable:
    definition = op.get_irdl_definition()
    static_lists = op.STATIC_LISTS if issubclass(op, StaticListOp) else {}
    results = tuple(Group(_RESULTS.get(name, name), _count(kind)) for name, kind in definition.results)
    return OperationTable(
        op.name,
        results,
        tuple(_operands(op, definition.operands, static_lists)),
        (*definition.properties, *static_lists),
        len(definition.regions),
    )


_RESULTS = {"async_token_result": "async_token", "values": "results_"}


def _operands(op: type[IRDLOperation], operands: Sequence[Any], lists: Any) -> Iterator[Group]:
    """The operand groups by mlir-air's names, such as `herd_operands` and `dynamic_src_sizes`."""
    sides = [name.split("_")[1] for name in lists]
    dynamic = {number: name.replace("static_", "dynamic_", 1) for name, number in lists.items()}
    for number, (name, kind) in enumerate(operands):
        own = dynamic.get(number, name)
        if own == "memref":
            own = sides[0]
        if own == "kernel_operands" and issubclass(op, HierarchyOp):
            own = f"{op.name.partition('.')[2]}_operands"
        yield Group(own, _count(kind))


def _count(kind: Any) -> int:
    if isinstance(kind, OptOperandDef | OptResultDef):
        return OPTIONAL
    return VARIADIC if isinstance(kind, VarOperandDef | VarResultDef) else SINGLE


# ---- classes of MLIR's bindings ----


def operations_module(name: str, bindings: Any) -> ModuleType:
    """The module `_air_ops_gen`: a class and a function per operation. bindings: `mlir.ir`."""
    module = ModuleType(name)
    for table in operation_tables():
        made = operation_class(table, bindings)
        function = table.function_name
        setattr(module, made.__name__, made)
        setattr(module, function + "_" * keyword.iskeyword(function), _builder(made))
    return module


def _builder(operation: Any) -> Any:
    def build(*arguments: Any, **named: Any) -> Any:
        made = operation(*arguments, **named)
        results = made.operation.results
        return made if not len(results) else results[0] if len(results) == 1 else list(results)

    return build


def operation_class(table: OperationTable, bindings: Any) -> Any:
    """A subclass of `OpView`, whose constructor and accessors have mlir-air's names."""

    def construct(self: Any, *arguments: Any, loc: Any = None, ip: Any = None, **named: Any) -> None:
        given = _bind(table, arguments, named)
        operands = [_values(given.get(group.name), group, bindings) for group in table.operands]
        results = [_types(given.get(group.name), group) for group in table.results]
        attributes = {
            name: _attribute(name, given[name], bindings)
            for name in table.attributes
            if given.get(name) is not None
        }
        bindings.OpView.__init__(
            self,
            table.name,
            (table.n_regions, True),
            [group.arity for group in table.operands] if len(table.operands) > 1 else None,
            [group.arity for group in table.results] if len(table.results) > 1 else None,
            attributes=attributes,
            results=results if len(table.results) > 1 else _flat(results),
            operands=operands if len(table.operands) > 1 else _flat(operands),
            loc=loc,
            ip=ip,
        )

    members: dict[str, Any] = {
        "OPERATION_NAME": table.name,
        "_ODS_REGIONS": (table.n_regions, True),
        "_ODS_OPERAND_SEGMENTS": None,
        "_ODS_RESULT_SEGMENTS": None,
        "__init__": construct,
        **{group.name: property(_operand_getter(table, n)) for n, group in enumerate(table.operands)},
    }
    if table.results:
        members[table.results[0].name] = property(_first_result)
    if table.n_regions:
        members["body"] = property(lambda self: self.operation.regions[0])
    return type(table.class_name, (bindings.OpView,), members)


def _bind(table: OperationTable, arguments: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name. Raises TypeError for one that the operation lacks."""
    unknown = [name for name in named if name not in table.parameters]
    if unknown or len(arguments) > len(table.parameters):
        what = f"no parameter '{unknown[0]}'" if unknown else f"{len(table.parameters)} parameters"
        raise TypeError(f"{table.class_name} has {what}: it takes {', '.join(table.parameters)}")
    return {**dict(zip(table.parameters, arguments, strict=False)), **named}


def _flat(groups: Sequence[Any]) -> list[Any]:
    return [
        value
        for group in groups
        for value in (group if isinstance(group, list) else [group])
        if value is not None
    ]


def _values(given: Any, group: Group, bindings: Any) -> Any:
    if group.arity == VARIADIC:
        return [_value(each, bindings) for each in given or ()]
    return None if given is None else _value(given, bindings)


def _value(given: Any, bindings: Any) -> Any:
    """The value of an operand, which may be given as the operation whose only result it is."""
    if isinstance(given, bindings.OpView | bindings.Operation):
        return given.results[0]
    return given


def _types(given: Any, group: Group) -> Any:
    return list(given or ()) if group.arity == VARIADIC else given


def _attribute(name: str, given: Any, bindings: Any) -> Any:
    """A Python value as the attribute that MLIR's generated code makes of it."""
    if isinstance(given, bindings.Attribute):
        return given
    if name == "chan_name":
        return bindings.FlatSymbolRefAttr.get(str(given))
    if isinstance(given, str):
        return bindings.StringAttr.get(given)
    if name.startswith("static_"):
        return bindings.DenseI64ArrayAttr.get(list(given))
    if name.startswith("pad_"):
        return bindings.DenseI32ArrayAttr.get(list(given))
    i64 = bindings.IntegerType.get_signless(64)
    if isinstance(given, int):
        return bindings.IntegerAttr.get(i64, given)
    entries = [
        each if isinstance(each, bindings.Attribute) else bindings.IntegerAttr.get(i64, each)
        for each in given
    ]
    return bindings.ArrayAttr.get(entries)


def _first_result(self: Any) -> Any:
    results = self.operation.results
    return results[0] if len(results) else None


def _operand_getter(table: OperationTable, number: int) -> Any:
    def get(self: Any) -> Any:
        operands = list(self.operation.operands)
        if len(table.operands) == 1:
            sizes = [len(operands)]
        else:
            sizes = list(self.operation.attributes["operandSegmentSizes"])
        start = sum(sizes[:number])
        found = operands[start : start + sizes[number]]
        if table.operands[number].arity == VARIADIC:
            return found
        return found[0] if found else None

    return get


def enums_module(name: str) -> ModuleType:
    """The module `_air_enum_gen`."""
    module = ModuleType(name)
    module.MemorySpace = MemorySpace  # type: ignore[attr-defined]
    return module
