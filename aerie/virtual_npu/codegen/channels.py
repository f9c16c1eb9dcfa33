"""Channels in C++: the struct of those that a launch or function uses, and the table of its puts and gets.

From the table the report of a deadlock says who could still put to or get from a channel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_expressions import IndexAnalysis
from aerie.air_dialect.index_intervals import INTERVALS, Interval, single_value
from aerie.air_dialect.index_operators import IndexOperator
from aerie.air_dialect.ops import ChannelTransferOp, HierarchyOp, LaunchOp
from aerie.air_dialect.values import walk
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen.body import CppFile
from aerie.virtual_npu.codegen.cpp_text import TEXTS
from aerie.virtual_npu.codegen.effects import channels_used
from aerie.virtual_npu.codegen.execution import enclosing_function
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported
from aerie.virtual_npu.cpp_quoting import mangled, string_literal

# ---- the struct ----


def channel_field(file: CppFile, op: ChannelTransferOp) -> str:
    """The C++ name of a channel inside its struct."""
    if op.chan_name not in file.channels:
        name = symbol_name(op.chan_name)
        raise unsupported(op, f"channel {name} is not declared: add air.channel {name} [..]")
    return f"ch_{mangled(op.chan_name)}"


def channel_struct(file: CppFile, root: Operation) -> str:
    """The C++ struct with the channels that a launch or function uses; emitted on first use."""
    if root in file.channel_structs:
        return file.channel_structs[root]
    name = file.fresh("Channels")
    file.channel_structs[root] = name
    channels = channels_used(root)
    fields = [f"  vnpu::Channel {_channel(file, channel)};" for channel in channels]
    ends = " ".join(f"ch_{mangled(channel)}.refuse_leftovers();" for channel in channels)
    lines = [
        f"struct {name} {{",
        f"  explicit {name}(vnpu::TaskLoop &task_loop) : task_loop(task_loop) {{}}",
        "  // Fails if a block was sent that no get took.",
        f"  void finish() const {{ {ends} }}",
        "  vnpu::TaskLoop &task_loop;",
        *fields,
        "};",
    ]
    file.declarations.append("\n".join(lines))
    return name


def _channel(file: CppFile, name: str) -> str:
    extents = [", ".join(map(str, bundle(file, name, is_put))) for is_put in (True, False)]
    shown = string_literal(symbol_name(name))
    is_cascade = ", true" if file.channels[name].channel_type == "npu_cascade" else ""
    return f"ch_{mangled(name)}{{task_loop, {shown}, {{{extents[0]}}}, {{{extents[1]}}}{is_cascade}}}"


def bundle(file: CppFile, name: str, is_put: bool) -> list[int]:
    """The extents of a channel, as the putting or the getting side has them."""
    op = file.channels[name]
    size = op.size or [1]
    return list(size if is_put else op.broadcast_shape or size)


def owns_channels(file: CppFile, op: HierarchyOp) -> bool:
    """Whether every point of a launch has channels of its own: where nothing else uses them."""
    function = enclosing_function(op)
    if not isinstance(op, LaunchOp) or function is None:
        return False
    if function not in file.channel_users:
        file.channel_users[function] = _users(function)
    return all(file.channel_users[function][name] == {op} for name in channels_used(op))


def _users(function: Operation) -> dict[str, set[Operation | None]]:
    """The launches of a function that use each channel; None stands for a use outside of launches."""
    users: dict[str, set[Operation | None]] = {}
    for op in walk(function):
        if isinstance(op, ChannelTransferOp):
            around = op.parent_op()
            while around is not None and not isinstance(around, LaunchOp):
                around = around.parent_op()
            users.setdefault(op.chan_name, set()).add(around)
    return users


# ---- the table of puts and gets ----

_MOST_DIMENSIONS = 4
"""`Port::kMaxRank` in include/vnpu/base.h."""
_LINES = ",\n  "


def ports(file: CppFile, op: Operation, within: bool = False) -> str:
    """C++ text of a pointer to the table of puts and gets in the body of an operation; emitted on first use.

    within: also those in the launches, segments and herds in it.
    """
    key = (op, within)
    if key not in file.port_tables:
        transfers = _all_transfers(op) if within else _own_transfers(op)
        found = [_port(file, op, transfer) for transfer in transfers]
        file.port_tables[key] = _port_table(file, found) if found else "nullptr"
    return file.port_tables[key]


def _port_table(file: CppFile, entries: Sequence[str]) -> str:
    text = _LINES.join(entries)
    name = file.declare_once(
        "ports",
        ("vnpu::Ports", text),
        lambda name: (
            f"static const vnpu::Port {name}_list[] = {{\n  {text},\n}};\n"
            f"static const vnpu::Ports {name} = {{{name}_list, {len(entries)}}};"
        ),
    )
    return f"&{name}"


def _all_transfers(op: Operation) -> Iterator[ChannelTransferOp]:
    yield from (inner for inner in walk(op) if isinstance(inner, ChannelTransferOp))


def _own_transfers(op: Operation) -> Iterator[ChannelTransferOp]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if isinstance(inner, ChannelTransferOp):
                    yield inner
                elif not isinstance(inner, HierarchyOp):
                    yield from _own_transfers(inner)


def _port(file: CppFile, op: Operation, transfer: ChannelTransferOp) -> str:
    indices = ", ".join(_index(file, op, value) for value in transfer.indices[:_MOST_DIMENSIONS])
    is_put = str(transfer.name == "air.channel.put").lower()
    name = string_literal(symbol_name(transfer.chan_name))
    return f"{{{name}, {line_of(transfer)}, {is_put}, {{{indices}}}}}"


def _index(file: CppFile, op: Operation, value: SSAValue) -> str:
    """C++ text of a `vnpu::Port::Index`: whether the index is fixed, and the function that gives it."""
    text = _text(op, value)
    if text is None:
        return "{}"
    is_fixed = not re.search(r"\b[xy]\b", text)
    function = file.declare_once(
        "port_index",
        ("vnpu::Port::Index", text),
        lambda name: f"static vnpu::i64 {name}(vnpu::i64 x, vnpu::i64 y) {{ return {text}; }}",
    )
    return f"{{{str(is_fixed).lower()}, {function}}}"


def _text(op: Operation, value: SSAValue) -> str | None:
    """C++ text of an index in terms of x and y of the point that executes; None where it takes more."""
    coordinates = op.ids if isinstance(op, HierarchyOp) else []
    ranges: dict[SSAValue, Interval | None] = {}

    def part_text(part: SSAValue) -> str | None:
        if part in coordinates:
            return "x" if part is coordinates[0] else "y"
        known = single_value(INTERVALS.analyze(part, ranges))
        return None if known is None else str(known)

    return replace(OF_COORDINATES, known_value=part_text).analyze(value)


def _infix(sign: str) -> Callable[[str, str], str]:
    return lambda left, right: f"({left} {sign} {right})"


def _by_number(sign: str) -> Callable[[str, str], str | None]:
    """A division that cannot be by zero."""
    return lambda left, right: f"({left} {sign} {right})" if right.isdigit() and right != "0" else None


_INFIX = {
    IndexOperator.ADD: "+", IndexOperator.SUBTRACT: "-", IndexOperator.MULTIPLY: "*",
    IndexOperator.AND: "&", IndexOperator.OR: "|", IndexOperator.XOR: "^", IndexOperator.EQUAL: "==",
    IndexOperator.UNEQUAL: "!=",
    IndexOperator.LESS: "<", IndexOperator.LESS_EQUAL: "<=", IndexOperator.GREATER: ">",
    IndexOperator.GREATER_EQUAL: ">=",
    IndexOperator.UNSIGNED_LESS: "<", IndexOperator.UNSIGNED_LESS_EQUAL: "<=",
    IndexOperator.UNSIGNED_GREATER: ">",
    IndexOperator.UNSIGNED_GREATER_EQUAL: ">=",
}  # fmt: skip
"""Coordinates are not negative, so the sign makes no difference."""
OF_COORDINATES: IndexAnalysis[str] = IndexAnalysis(
    str,
    {
        **TEXTS.operators,
        **{operator: _infix(sign) for operator, sign in _INFIX.items()},
        IndexOperator.DIVIDE: _by_number("/"),
        IndexOperator.UNSIGNED_DIVIDE: _by_number("/"),
        IndexOperator.REMAINDER: _by_number("%"),
        IndexOperator.UNSIGNED_REMAINDER: _by_number("%"),
        IndexOperator.SELECT: lambda chosen, yes, no: (
            None if chosen is None else f"({chosen} ? {yes} : {no})"
        ),
        IndexOperator.CAST: lambda text: text,
        IndexOperator.UNSIGNED_CAST: lambda text, _: text,
    },
)
