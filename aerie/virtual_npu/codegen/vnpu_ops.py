"""Emitters of what the passes put around operations (`virtual_npu.codegen.passes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, MemRefType, SymbolRefAttr
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HierarchyOp
from aerie.air_dialect.values import is_defined_in, walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.access_ranges import accessed_block, accessed_bounds
from aerie.virtual_npu.codegen.air import (
    access_pattern,
    emit_grid,
    emit_points,
    issue_transfer,
    transfer_arguments,
)
from aerie.virtual_npu.codegen.body import Body, Scalar, VersionedLoops, emitter
from aerie.virtual_npu.codegen.cpp_text import add, mul, parenthesize
from aerie.virtual_npu.codegen.dialect import (
    BorrowedOp,
    BorrowOp,
    LendOp,
    NestOp,
    ProductOp,
    TaskOp,
    WrappedOp,
    axes_of_attr,
    ints_of_attr,
)
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.functions import callee_name
from aerie.virtual_npu.codegen.memory import uses_of
from aerie.virtual_npu.codegen.memref import allocated, arena
from aerie.virtual_npu.codegen.tokens import await_transfer, emit_in_order, suspend

# ---- products ----


@emitter("vnpu.product")
def _product(body: Body, op: Operation) -> None:
    assert isinstance(op, ProductOp)
    original = op.original
    if isinstance(original, HierarchyOp):
        emit_grid(
            body, original, lambda capture: _multiply(body, op, lambda: emit_points(body, original, capture))
        )
    else:
        _multiply(body, op, lambda: body.operation(original))


def _multiply(body: Body, op: ProductOp, emit_original: Callable[[], None]) -> None:
    """One call that multiplies; and what it stands for, where it may turn out not to be the same."""
    body.file.runtime_parts.add("product")
    body.comment(op)
    rearranged = _declare_rearranged(body, op)
    conditions = [f"{name}.can_read_operand()" for name in rearranged.values()]
    if op.points is not None:
        conditions += [_is_apart(body, op.c, side) for side in (op.a, op.b)]
    if not conditions:
        body.emit_line(f"vnpu::multiply_add({_fields(body, op)});")
        return
    with body.block(f"if ({' && '.join(conditions)})"):
        text, caller = f"vnpu::Product({_fields(body, op)})", "vnpu::"
        for side, name in rearranged.items():
            if _is_made(op, side):
                caller = f"{name}."
            else:
                text = f"{name}.as_{side}({text})"
        body.emit_line(_call(body, op, text, caller))
    with body.block("else"):
        emit_original()


def _call(body: Body, op: ProductOp, product: str, caller: str) -> str:
    """C++ text of the call for a product. caller: what the function is a part of."""
    if op.points is None:
        return f"{caller}multiply_add({product});"
    c = _pointer(body, op.c, op.c_start, op.c_indices)
    return "{}multiply_rounded({}, {}, {{{}, {}}});".format(caller, product, c, *ints_of_attr(op.points))


def _is_made(op: ProductOp, side: str) -> bool:
    """Whether a function makes an operand of bytes."""
    found = op.a_rearranged if side == "a" else op.b_rearranged
    return found is not None and "made" in found.data


def _is_apart(body: Body, one: SSAValue, other: SSAValue) -> str:
    """C++ text of whether two memrefs share no memory."""
    left, right = body.memref(one), body.memref(other)
    return f"vnpu::are_disjoint({left.pointer}, {left.extent}, {right.pointer}, {right.extent})"


def _declare_rearranged(body: Body, op: ProductOp) -> dict[str, str]:
    """Declare what functions do to buffers of A and B; gives the C++ names, by side."""
    names = {}
    for side, found in (("a", op.a_rearranged), ("b", op.b_rearranged)):
        if found is not None:
            part = "made" if _is_made(op, side) else "rearranged"
            body.file.runtime_parts.add(part)
            names[side] = body.fresh(f"{part}_{side}")
            arguments = ", ".join(_rearranged(body, op, found))
            body.emit_line(f"static const vnpu::{part.capitalize()} {names[side]}({arguments});")
    return names


def _rearranged(body: Body, op: ProductOp, operand: DictionaryAttr) -> list[str]:
    """C++ text of the function, how its buffer is filled, and where and how it is read after the call."""
    symbol, start = operand.data["function"], operand.data["start"]
    assert isinstance(symbol, SymbolRefAttr)
    assert isinstance(start, IntegerAttr)
    name = symbol.root_reference.data
    calls = (inner for inner in walk(op) if isinstance(inner, func.CallOp))
    call = next(inner for inner in calls if inner.callee.root_reference.data == name)
    axes = [
        _axes([[*axis, 0][:3] for axis in axes_of_attr(operand.data[part])])
        for part in ("buffer", "outer", "depth")
    ]
    buffer, *read = axes
    if "made" not in operand.data:
        return [callee_name(body.file, call, name), buffer, str(start.value.data), *read]
    made, argument = (str(_integer(operand, part)) for part in ("made", "argument"))
    return [callee_name(body.file, call, name), buffer, made, str(start.value.data), argument, *read]


def _integer(operand: DictionaryAttr, part: str) -> int:
    attr = operand.data[part]
    assert isinstance(attr, IntegerAttr)
    return int(attr.value.data)


def _fields(body: Body, op: ProductOp) -> str:
    """C++ text of the product as vnpu::Product."""
    sides = [
        _pointer(body, op.a, op.a_start, op.a_indices),
        _bytes(_pointer(body, op.b, op.b_start, op.b_indices), _is_made(op, "b")),
        "nullptr" if op.points is not None else _pointer(body, op.c, op.c_start, op.c_indices),
    ]
    along = [_axes(axes_of_attr(axes)) for axes in (op.m, op.n, op.k)]
    return f"{{{', '.join([*sides, *along, *map(str, ints_of_attr(op.block))])}}}"


def _bytes(pointer: str, is_made: bool) -> str:
    """C++ text of a pointer to bytes as one to bf16, as a Product has it."""
    return f"reinterpret_cast<const vnpu::bf16 *>({pointer})" if is_made else pointer


def _pointer(body: Body, memref: SSAValue, start: DenseArrayBase, indices: Sequence[SSAValue]) -> str:
    """C++ text of a pointer to the first element of an operand."""
    number, *factors = ints_of_attr(start)
    terms = [mul(parenthesize(body.text(index)), str(n)) for index, n in zip(indices, factors, strict=True)]
    return add(body.memref(memref).pointer, *terms, str(number))


def _axes(axes: Sequence[Sequence[int]]) -> str:
    """C++ text of a vnpu::Axes: an extent and two steps each."""
    texts = [f"{{{', '.join(map(str, axis))}}}" for axis in axes]
    return f"{{{len(texts)}, {{{', '.join(texts)}}}}}"


# ---- borrowed buffers ----


@emitter("vnpu.borrowed")
def _borrowed(body: Body, op: Operation) -> None:
    """A pointer for what DMAs bring; for what channels bring, a buffer as well, into which they may copy."""
    assert isinstance(op, BorrowedOp)
    assert isinstance(op.original, memref.AllocOp)
    view, count = allocated(body, op.original)
    result, element = op.results[0], types.scalar(view.type.element_type)
    body.values[result] = view
    if body.mode is BodyMode.STRAIGHT:
        body.emit_line(f"{element} *{view.pointer} = nullptr;")
        return
    body.emit_line(f"{element} *{view.pointer} = {arena(body)}.alloc<{element}>({count});")
    kind = "RelayBuffer" if body.mode is BodyMode.SEQUENCER else "LentBuffer"
    body.lent_buffers[result] = body.fresh(f"{view.pointer}_{kind.lower()}")
    body.emit_line(f"vnpu::{kind} {body.lent_buffers[result]}({view.pointer});")


@emitter("vnpu.borrow")
def _borrow(body: Body, op: Operation) -> None:
    """Let such a buffer point to what a transfer brings."""
    assert isinstance(op, BorrowOp)
    if isinstance(op.original, DmaMemcpyNdOp):
        _borrow_source(body, op.original)
        return
    assert isinstance(op.original, ChannelTransferOp)
    if body.mode is BodyMode.SEQUENCER:
        issue_transfer(body, op.original, f"&{body.lent_buffers[op.original.memref]}")
    else:
        _borrow_block(body, op.original)
    _give_results(body, op)


@emitter("vnpu.lend")
def _lend(body: Body, op: Operation) -> None:
    assert isinstance(op, LendOp)
    assert isinstance(op.original, ChannelTransferOp)
    views = [body.memref(value) for value in op.written]
    written = ", ".join(f"vnpu::writes({view.pointer}, {view.footprint})" for view in views)
    issue_transfer(body, op.original, f"vnpu::Written{{{written}}}")
    _give_results(body, op)


def _give_results(body: Body, op: WrappedOp) -> None:
    for result, value in zip(op.results, op.original.results, strict=True):
        body.values[result] = body.values[value]


def _borrow_source(body: Body, dma: DmaMemcpyNdOp) -> None:
    source = access_pattern(body, dma, dma.src, (dma.src_offsets, dma.src_sizes, dma.src_strides))
    element = types.scalar(types.element(dma.dst.type))
    body.comment(dma)
    body.emit_line(f"{body.memref(dma.dst).pointer} = reinterpret_cast<{element} *>({source}.first);")


def _borrow_block(body: Body, get: ChannelTransferOp) -> None:
    loan, pointer = body.lent_buffers[get.memref], body.memref(get.memref).pointer
    site, arguments = transfer_arguments(body, get)
    with emit_in_order(body, get, get.async_dependencies):
        body.emit_line(f"{pointer} = {loan}.take_back();")
        await_transfer(body, get, site, arguments, f"&{loan}.shared_block")
        body.emit_line(f"{pointer} = {loan}.block();")


# ---- tasks ----


@emitter("vnpu.task")
def _task(body: Body, op: Operation) -> None:
    """Issue memory work to a sequencer; where it has results, do it at once, after what it must wait for."""
    assert isinstance(op, TaskOp)
    original = op.original
    uses = ", ".join(uses_of(body, original))
    if not op.results:
        head = f"sequencer.run({body.site(original)}, vnpu::blocking(vnpu::Token()), {{{uses}}}, [=]"
        with body.block(head, "});"), body.straight_mode():
            body.operation(original)
        return
    suspend(body, f"sequencer.settle({{{uses}}})")
    with body.straight_mode():
        body.operation(original)
    _give_results(body, op)


# ---- nests ----


@emitter("vnpu.nest")
def _nest(body: Body, op: Operation) -> None:
    """Emit loops, in two versions with checks. What they give is assigned to variables outside."""
    assert isinstance(op, NestOp)
    outside = [body.name_for(result) for result in op.results]
    for name, result in zip(outside, op.results, strict=True):
        body.emit_line(f"{types.cpp(result.type)} {name};")
    body.versioned = VersionedLoops(op.original)
    with _two_versions(body, body.versioned) if body.checked else body.outlined(*outside):
        body.operation(op.original)
        for name, result in zip(outside, op.original.results, strict=True):
            body.emit_line(f"{name} = {body.text(result)};")
    body.versioned = None
    for name, result in zip(outside, op.results, strict=True):
        body.values[result] = Scalar(name)


@contextmanager
def _two_versions(body: Body, loops: VersionedLoops) -> Iterator[None]:
    """Write loops once, as a lambda that C++ makes for plain pointers and for those that know their buffer.

    Before the outermost loop comes one test per buffer that it touches: not freed, all of it written,
    nobody to race with; and one per index that is not known to lie inside. Where all hold, no access has
    anything to report but an index that only the loops themselves can tell.
    """
    memrefs = {body.memref(value).pointer: value for value in _memrefs_from_outside(loops.op)}
    body.emit_line(f"vnpu::nest([&]({', '.join(f'auto {pointer}' for pointer in memrefs)}) {{")
    body.depth += 1
    yield
    body.depth -= 1
    inside = " && ".join(loops.conditions) or "true"
    parts = [_part(body, loops.op, pointer, value) for pointer, value in memrefs.items()]
    body.emit_line(f"}}, {', '.join([inside, *parts])});")


def _part(body: Body, op: Operation, pointer: str, value: SSAValue) -> str:
    """C++ text of a `vnpu::Part`: the block that loops touch, or what they reach, or all of the memref."""
    block = accessed_block(body, op, value)
    if block is None:
        bounds = accessed_bounds(body, op, value)
        part = f"vnpu::part({pointer}, {body.memref(value).extent})"
        return part if bounds is None else f"{part}.between({bounds[0]}, {bounds[1]})"
    begin = pointer if block.offset == "0" else f"{pointer} + {parenthesize(block.offset)}"
    use = f"{block.count}, {str(block.writes).lower()}"
    return f"vnpu::block({body.site(op)}, {pointer}, {begin}, {use})"


def _memrefs_from_outside(op: Operation) -> list[SSAValue]:
    memrefs: dict[SSAValue, None] = {}
    for inner in walk(op):
        for value in inner.operands:
            if isinstance(value.type, MemRefType) and not is_defined_in(op, value):
                memrefs[value] = None
    return list(memrefs)
