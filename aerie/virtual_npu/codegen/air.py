"""Emitters of the AIR dialect: hierarchy, data movement, tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.index_intervals import analyze_loop
from aerie.air_dialect.ops import (
    ChannelTransferOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    WaitAllOp,
)
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen import size_checks
from aerie.virtual_npu.codegen.body import Body, Scalar, emitter
from aerie.virtual_npu.codegen.channels import bundle, channel_field, channel_struct, owns_channels, ports
from aerie.virtual_npu.codegen.cpp_text import add, mul, parenthesize
from aerie.virtual_npu.codegen.device_annotations import lock_error
from aerie.virtual_npu.codegen.dialect import DIVIDED
from aerie.virtual_npu.codegen.effects import channels_used
from aerie.virtual_npu.codegen.execution import BodyMode, has_uniform_transfers, is_coroutine
from aerie.virtual_npu.codegen.functions import captured_arguments, divided_loop, emit_hierarchy_function
from aerie.virtual_npu.codegen.memory import checked_access, uses_of, whole_view
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported
from aerie.virtual_npu.codegen.tokens import (
    await_transfer,
    define_token,
    emit_in_order,
    has_mark_tokens,
    join,
    suspend,
    wait_list,
)
from aerie.virtual_npu.cpp_quoting import string_literal

# ---- tokens ----


@emitter("air.wait_all")
def _wait_all(body: Body, op: Operation) -> None:
    assert isinstance(op, WaitAllOp)
    if body.mode is BodyMode.SEQUENCER and op.async_token is None:
        if op.async_dependencies:
            body.comment(op)
            suspend(body, f"sequencer.wait({join(body, op.async_dependencies)})")
    elif body.mode is BodyMode.SEQUENCER or (has_mark_tokens(body) and op.async_token is not None):
        define_token(body, op.async_token, join(body, op.async_dependencies))
    else:
        with emit_in_order(body, op, op.async_dependencies):
            pass


@emitter("air.execute")
def _execute(body: Body, op: Operation) -> None:
    assert isinstance(op, ExecuteOp)
    block = op.body.block
    if body.mode is BodyMode.SEQUENCER:
        name = body.fresh(op.async_token.name_hint or "group")
        body.emit_line(f"sequencer.open_group({join(body, op.async_dependencies)});")
        body.operations(block)
        body.emit_line(f"const vnpu::Token {name} = sequencer.close_group();")
        body.values[op.async_token] = Scalar(name)
    else:
        with emit_in_order(body, op, op.async_dependencies, ", ".join(uses_of(body, op))):
            body.operations(block)
    assert block.last_op is not None
    for result, value in zip(op.values, block.last_op.operands, strict=True):
        body.values[result] = body.values[value]


# ---- data movement ----


def access_pattern(body: Body, op: Operation, memref: SSAValue, lists: tuple[Sequence[SSAValue], ...]) -> str:
    """C++ text of one side of a transfer. Offset i moves by stride i; shorter lists align on the right."""
    view = body.memref(memref)
    offsets, extents, strides = (body.texts(values) for values in lists)
    if not extents:
        extents, strides = whole_view(view)
        layout = list(view.strides)
    else:
        layout = strides
    if len(offsets) > len(layout):
        raise unsupported(
            op, f"{len(offsets)} offsets but {len(layout)} strides: write one stride per offset"
        )
    aligned = layout[len(layout) - len(offsets) :]
    offset = (
        add(*(mul(parenthesize(o), parenthesize(s)) for o, s in zip(offsets, aligned, strict=True)))
        if offsets
        else "0"
    )
    offset = size_checks.checked_offset(body, offsets, aligned, offset)
    return checked_access(body, op, view, offset, extents, strides)


def _padded(body: Body, op: Operation, side: str, rank: int) -> str:
    """C++ text of the side that gives data, with zeros around it as pad_before and pad_after say."""
    before, after = attribute(op, "pad_before"), attribute(op, "pad_after")
    if not isinstance(before, DenseArrayBase) or not isinstance(after, DenseArrayBase):
        return side
    if op.name == "air.channel.get":
        raise unsupported(op, "pad_before and pad_after belong to the side that gives data: pad in the put")
    if len(before.get_values()) != rank:
        raise unsupported(
            op, f"pad_before has {len(before.get_values())} values for {rank} sizes: give one per dimension"
        )
    name = body.fresh("padding")
    numbers = ", ".join(map(str, [*before.get_values(), *after.get_values()]))
    body.emit_line(f"static const vnpu::i64 {name}[] = {{{numbers}}};")
    return f"vnpu::padded({side}, {name})"


@emitter("air.dma_memcpy_nd")
def _dma(body: Body, op: Operation) -> None:
    assert isinstance(op, DmaMemcpyNdOp)
    dst = access_pattern(body, op, op.dst, (op.dst_offsets, op.dst_sizes, op.dst_strides))
    src = access_pattern(body, op, op.src, (op.src_offsets, op.src_sizes, op.src_strides))
    src = _padded(body, op, src, len(op.src_sizes) or len(body.memref(op.src).sizes))
    body.comment(op)
    if body.mode is BodyMode.SEQUENCER:
        order = wait_list(body, op, op.async_dependencies)
        define_token(body, op.async_token, f"sequencer.copy({body.site(op)}, {order}, {dst}, {src})")
        return
    with emit_in_order(body, op, op.async_dependencies):
        body.emit_line(f"vnpu::dma({body.site(op)}, {dst}, {src});")


@emitter("air.channel.put", "air.channel.get")
def _transfer(body: Body, op: Operation) -> None:
    assert isinstance(op, ChannelTransferOp)
    if body.mode is BodyMode.SEQUENCER:
        issue_transfer(body, op)
        return
    site, arguments = _checked_arguments(body, op)
    with emit_in_order(body, op, op.async_dependencies):
        await_transfer(body, op, site, arguments)


def issue_transfer(body: Body, op: ChannelTransferOp, *more: str) -> None:
    """Emit the call that issues a put or get to a sequencer. more: C++ text of further arguments."""
    site, arguments = _checked_arguments(body, op)
    given = ", ".join([site, wait_list(body, op, op.async_dependencies), arguments, *more])
    define_token(body, op.async_token, f"sequencer.{op.name.removeprefix('air.channel.')}({given})")


def _checked_arguments(body: Body, op: ChannelTransferOp) -> tuple[str, str]:
    site, arguments = transfer_arguments(body, op)
    if body.checked and (fault := lock_error(op)):
        body.emit_line(f'vnpu::fail_as(vnpu::Failure::kLock, {site}, "%s", {string_literal(fault)});')
    return site, arguments


def transfer_arguments(body: Body, op: ChannelTransferOp) -> tuple[str, str]:
    """C++ text of the site of a put or get, and of its channel, index and memory. Emits its line as a
    comment."""
    is_put = op.name == "air.channel.put"
    side = access_pattern(body, op, op.memref, (op.offsets, op.sizes, op.strides))
    side = _padded(body, op, side, len(op.sizes) or len(body.memref(op.memref).sizes))
    channel = f"channels.{channel_field(body.file, op)}"
    index = _bundle_index(body, op, is_put, channel)
    body.comment(op)
    return body.site(op, symbol_name(op.chan_name)), f"{channel}, {index}, {side}"


def _bundle_index(body: Body, op: ChannelTransferOp, is_put: bool, channel: str) -> str:
    """C++ text of the flat index into a bundle, checked at run time against its extents."""
    extents = bundle(body.file, op.chan_name, is_put)
    texts = [
        "0" if extent == 1 and _is_coordinate(value) else body.text(value)
        for value, extent in zip_longest(op.indices, extents[: len(op.indices)])
    ]
    side = "put_index" if is_put else "get_index"
    return f"{channel}.{side}({body.site(op, symbol_name(op.chan_name))}, {{{', '.join(texts)}}})"


def _is_coordinate(value: SSAValue) -> bool:
    """Whether an index is a coordinate of the tile.

    The compiler makes channels for one tile, row or column, and their users still name both coordinates.
    """
    around = value.owner.parent_op() if isinstance(value.owner, Block) else None
    return isinstance(around, HerdOp) and value in around.ids


# ---- hierarchy ----


@emitter("air.launch", "air.segment", "air.herd")
def _hierarchy(body: Body, op: Operation) -> None:
    assert isinstance(op, HierarchyOp)
    if not op.has_body:
        _without_body(body, op)
        return
    if not is_coroutine(op, body.file.options):
        emit_grid(body, op, lambda capture: emit_points(body, op, capture))
        return
    function = emit_hierarchy_function(body, op)
    body.comment(op)
    if body.mode is BodyMode.SEQUENCER and body.checked and owns_channels(body.file, op):
        _issue_islands(body, op, function)
    elif body.mode is BodyMode.SEQUENCER:
        _spawn(body, op, function)
    else:
        with emit_in_order(body, op, op.async_dependencies):
            _island(body, op, function)


def _without_body(body: Body, op: HierarchyOp) -> None:
    """Nothing runs: its token is done when those are that it waits for."""
    body.comment(op)
    if op.properties.get("link_with") is not None:
        raise unsupported(
            op,
            f"{symbol_label(op) or 'a herd'} has link_with but no body, which names no function to run: call "
            "the external function in a body",
        )
    if body.mode is BodyMode.SEQUENCER and op.async_token is not None:
        define_token(body, op.async_token, join(body, op.async_dependencies))
    elif body.mode is BodyMode.SEQUENCER and op.async_dependencies:
        suspend(body, f"sequencer.wait({join(body, op.async_dependencies)})")
    else:
        with emit_in_order(body, op, op.async_dependencies):
            return


def emit_grid(body: Body, op: HierarchyOp, run: Callable[[str], None]) -> None:
    """Emit all points of a hierarchy without channels: where it stands, or as one task of a sequencer.

    `run` emits them; it is given how C++ lambdas capture, `&` or `=`.
    """
    if body.mode is BodyMode.SEQUENCER:
        _issue_grid(body, op, run)
        return
    with emit_in_order(body, op, op.async_dependencies):
        run("&")


def _issue_grid(body: Body, op: HierarchyOp, run: Callable[[str], None]) -> None:
    uses = ", ".join(uses_of(body, op))
    order = wait_list(body, op, op.async_dependencies)
    call = f"sequencer.run({body.site(op, symbol_label(op))}, {order}, {{{uses}}}, [=]"
    if op.async_token is not None:
        name = body.name_for(op.async_token)
        call = f"const vnpu::Token {name} = {call}"
        body.values[op.async_token] = Scalar(name)
    with body.block(call, "});"):
        run("=")


def symbol_label(op: HierarchyOp) -> str:
    """`@name` of a hierarchy operation, or nothing."""
    return symbol_name(op.sym_name) if op.sym_name else ""


def _arguments(body: Body, op: HierarchyOp, ids: Sequence[str], leading: Sequence[str] = ()) -> str:
    return ", ".join([*leading, *ids, *captured_arguments(body, op)])


def _points(body: Body, op: HierarchyOp) -> tuple[str, list[str]]:
    """How many points the iteration space has, and the coordinates of point `flat` (last one fastest)."""
    size_checks.check_points(body, op, body.texts(op.sizes))
    extents = [parenthesize(text) for text in body.texts(op.sizes)]
    count, ids = "1", []
    for size in reversed(extents):
        if size == "1":
            ids.append("0")
            continue
        ids.append(f"flat / {count} % {size}" if count != "1" else f"flat % {size}")
        count = mul(parenthesize(count), size)
    return count, list(reversed(ids))


def emit_points(body: Body, op: HierarchyOp, capture: str) -> None:
    """Emit the call of a plain function for every point of a hierarchy, spread over the threads."""
    function = emit_hierarchy_function(body, op)
    body.comment(op)
    count, ids = _points(body, op)
    loop = divided_loop(op)
    if loop is not None:
        _emit_divided(body, op, loop, capture, function)
    elif count == "1":
        with body.block(""):
            if isinstance(op, HerdOp):
                body.emit_line("vnpu::check_running();")
            body.emit_line(f"const vnpu::CurrentTile here({_where(body, op, ['0'] * len(ids))});")
            body.emit_line(f"{function}({_arguments(body, op, ['0'] * len(ids))});")
    else:
        call = f"{function}({_arguments(body, op, ids)});"
        with body.block(f"vnpu::parallel({count}, [{capture}](vnpu::i64 flat)", "});"):
            body.emit_line(f"const vnpu::CurrentTile here({_where(body, op, ids)});")
            body.emit_line(call)


def _emit_divided(body: Body, op: HierarchyOp, loop: scf.ForOp, capture: str, function: str) -> None:
    """Emit the calls of a tile's function for parts of its loop, which all threads share."""
    count, ids = _points(body, op)
    counted, grain = analyze_loop(loop), loop.attributes[DIVIDED]
    assert counted is not None
    assert isinstance(grain, IntegerAttr)
    tiles = f"{{{count}, {counted.trip_count}, {grain.value.data}}}"
    apart = f"vnpu::are_apart({{{', '.join(uses_of(body, op))}}})"
    with body.block(
        f"vnpu::parallel_trips({tiles}, {apart}, [{capture}](vnpu::i64 flat, vnpu::Trips trips)", "});"
    ):
        body.emit_line("(void)flat;")
        body.emit_line(f"const vnpu::CurrentTile here({_where(body, op, ids)});")
        body.emit_line(f"{function}({_arguments(body, op, ids, ['trips'])});")


def _island(body: Body, op: HierarchyOp, function: str) -> None:
    """Run every iteration of a launch that owns its channels as an island of its own, over all threads."""
    if body.mode is BodyMode.PROCESS and channels_used(op):
        raise unsupported(
            op, "this is inside a herd and has channels of its own: move it outside of the herd"
        )
    _emit_islands(body, op, function)
    if body.file.options.checks:
        body.emit_line("vnpu::next_phase();")


def _issue_islands(body: Body, op: HierarchyOp, function: str) -> None:
    """The same as one task of a sequencer."""
    uses = ", ".join(uses_of(body, op))
    order = wait_list(body, op, op.async_dependencies)
    site = body.site(op, symbol_label(op))
    token = ""
    if op.async_token is not None:
        name = body.name_for(op.async_token)
        token = f"const vnpu::Token {name} = "
        body.values[op.async_token] = Scalar(name)
    with body.block(f"{token}sequencer.launch({site}, {order}, {{{uses}}}, [=, &where]", "});"):
        _emit_islands(body, op, function)


def _emit_islands(body: Body, op: HierarchyOp, function: str) -> None:
    count, ids = _points(body, op)
    owns = owns_channels(body.file, op)
    launch = body.fresh("launch")
    outer = "(vnpu::current_strand())" if body.checked else ""
    body.emit_line(f"vnpu::Launch {launch}{outer};")
    with body.block(f"vnpu::parallel({count}, [&](vnpu::i64 flat)", "});"):
        body.emit_line("(void)flat;")
        is_alike = body.file.options.is_fast and isinstance(op, LaunchOp) and has_uniform_transfers(op)
        body.emit_line(f"vnpu::TaskLoop task_loop(&{launch}{', flat > 0' if is_alike else ''});")
        if not owns:
            body.emit_line(f"{channel_struct(body.file, body.root or op)} channels(task_loop);")
        channels = [] if owns else ["channels"]
        call = _arguments(body, op, ids, ["task_loop", _where(body, op, ids), *channels])
        body.emit_line(f"task_loop.run({function}({call}));")


def _where(body: Body, op: HierarchyOp, ids: Sequence[str]) -> str:
    """C++ text of the `vnpu::ExecutionPlace` of one point."""
    x, y = (*ids, "0", "0")[:2]
    name = string_literal(f"{op.name.removeprefix('air.')} {symbol_label(op)}".strip())
    around = "vnpu::here" if body.mode is BodyMode.STRAIGHT else "&where"
    table = ports(body.file, op)
    return f"vnpu::ExecutionPlace{{{name}, {len(op.sizes)}, {x}, {y}, {around}, {table}, {line_of(op)}}}"


def _spawn(body: Body, op: HierarchyOp, function: str) -> None:
    """Issue a hierarchy with channels: one process per point."""
    count, ids = _points(body, op)
    uses = ", ".join(uses_of(body, op))
    channels = [] if owns_channels(body.file, op) else ["channels"]
    call = _arguments(body, op, ids, ["task_loop", _where(body, op, ids), *channels])
    make = f"[=, &where, &task_loop, &channels](vnpu::i64 flat) {{ return {function}({call}); }}"
    order = wait_list(body, op, op.async_dependencies)
    site = body.site(op, symbol_label(op))
    table = ports(body.file, op, within=True)
    call = f"sequencer.spawn({site}, {order}, {{{uses}}}, {table}, {count}, {make})"
    define_token(body, op.async_token, call)
