"""Emitters of memref: buffers, views, loads, stores and copies."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, AffineMapAttr, ArrayAttr, IntegerAttr, MemRefType
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineDimExpr

from aerie.air_dialect.index_intervals import interval
from aerie.air_dialect.ops import ExecuteOp
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import ATOMIC_KINDS
from aerie.air_dialect.upstream.memref import AtomicRMWOp
from aerie.virtual_npu.codegen import memory, size_checks, types
from aerie.virtual_npu.codegen.body import Body, MemRef, emitter
from aerie.virtual_npu.codegen.buffers import global_pointer, label
from aerie.virtual_npu.codegen.cpp_text import add, mul, parenthesize
from aerie.virtual_npu.codegen.device_annotations import alignment_offset
from aerie.virtual_npu.codegen.dialect import WrappedOp
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.memory import checked_access, element_pointer, whole_view
from aerie.virtual_npu.codegen.op_errors import unsupported
from aerie.virtual_npu.codegen.sharing import COUNTER, PERSISTENT, tile_copies
from aerie.virtual_npu.codegen.view_offsets import base_memref, buffer_pointer, offset_of


@emitter("memref.alloc", "memref.alloca")
def _alloc(body: Body, op: Operation) -> None:
    assert isinstance(op, memref.AllocOp | memref.AllocaOp)
    view, count = allocated(body, op)
    size_checks.check_buffer(body, op, view, view.copies)
    element, kind = types.scalar(view.type.element_type), "const auto "
    if body.checked:
        how = op.name == "memref.alloca" or PERSISTENT in op.attributes
        name, offset = body.file.value_names.of(op.memref), alignment_offset(op.memref)
        known_as = label(body.file, name, view.type, op, "allocated", how, offset)
        count = f"{known_as}, {{{', '.join(view.sizes)}}}, {count}"
    else:
        kind = f"{element} *const "
        count = f"{count}, {body.site(op)}" if size_checks.known_integers(view.sizes) is None else count
    body.values[op.memref] = view
    body.emit_line(f"{kind}{view.pointer} = {arena(body)}.alloc<{element}>({count});")
    if PERSISTENT in op.attributes:
        body.emit_line(
            f"vnpu::clear({view.pointer}, {view.footprint}, {str(COUNTER in op.attributes).lower()});"
        )


def allocated(body: Body, op: memref.AllocOp | memref.AllocaOp) -> tuple[MemRef, str]:
    """Name a buffer that is allocated: its MemRef, and C++ text of its number of elements, copies
    included."""
    type_ = op.memref.type
    assert isinstance(type_, MemRefType)
    dynamic = iter(body.texts(op.dynamic_sizes))
    name = body.name_for(op.memref)
    extents = [
        str(n) if n != types.DYNAMIC else body.emit_variable(next(dynamic), f"{name}_size")
        for n in type_.get_shape()
    ]
    strides = ["1"] * len(extents)
    for dim in range(len(extents) - 2, -1, -1):
        strides[dim] = body.emit_variable(mul(strides[dim + 1], extents[dim + 1]), f"{name}_stride")
    known = types.memref_strides(type_)
    if types.DYNAMIC not in known:
        strides = [str(s) for s in known]
    view = MemRef(name, tuple(extents), tuple(strides), type_, tile_copies(op.memref))
    return view, view.footprint


def arena(body: Body) -> str:
    """C++ text of the arena of the body: the allocator of its buffers, freed when it ends."""
    if body.mode is BodyMode.SEQUENCER:
        return "sequencer.arena"
    body.uses_arena = True
    return "arena"


@emitter("memref.dealloc")
def _dealloc(body: Body, op: Operation) -> None:
    """Free a buffer if that happens as often as its allocation; else it stays until its body ends.

    The compiler moves allocations out of loops and leaves the deallocations inside (ping-pong buffers). Such
    a deallocation only says that the contents are no longer needed."""
    view = body.memref(op.operands[0])
    alloc = _allocation(op.operands[0])
    if alloc is None or _loops_around(op) != _loops_around(alloc):
        if body.checked:
            _forget_contents(body, op, view, alloc is not None)
    elif body.mode is BodyMode.SEQUENCER:
        body.emit_line(f"sequencer.dealloc({body.site(op)}, {view.pointer}, {view.footprint});")
    else:
        body.emit_line(f"{arena(body)}.dealloc({body.site(op)}, {view.pointer});")


def _forget_contents(body: Body, op: Operation, view: MemRef, is_own: bool) -> None:
    """End the use of a buffer in one iteration. Only buffers that the body allocated itself lose their
    contents."""
    extent = view.footprint if is_own else "0"
    call = f"vnpu::forget_contents({body.site(op)}, {view.pointer}, {extent});"
    if body.mode is not BodyMode.SEQUENCER:
        body.emit_line(call)
        return
    uses = f"{{vnpu::writes({view.pointer}, {extent})}}"
    with body.block(f"sequencer.run({body.site(op)}, vnpu::blocking(vnpu::Token()), {uses}, [=]", "});"):
        body.emit_line(call)


def _allocation(value: SSAValue) -> Operation | None:
    """The allocation that a buffer comes from, through air.execute too; None if the text does not show it."""
    while isinstance(value, OpResult) and isinstance(value.op, ExecuteOp):
        end = value.op.body.block.last_op
        assert end is not None
        value = end.operands[value.index - 1]
    return value.op if isinstance(value, OpResult) and isinstance(value.op, memref.AllocOp) else None


_ONCE = frozenset(["scf.if", "affine.if", "scf.index_switch", "scf.execute_region", "air.execute"])


def _loops_around(op: Operation) -> list[Operation]:
    """The operations around that may run their bodies more than once."""
    loops, parent = [], op.parent_op()
    while parent is not None:
        if parent.name not in _ONCE and not isinstance(parent, WrappedOp):
            loops.append(parent)
        parent = parent.parent_op()
    return loops


@emitter("memref.load")
def _load(body: Body, op: Operation) -> None:
    body.define(op.results[0], memory.read(body, op, op.operands[0], op.operands[1:]))


@emitter("memref.store")
def _store(body: Body, op: Operation) -> None:
    value, target, *indices = op.operands
    body.emit_line(memory.write(body, op, target, indices, body.text(value)))


@emitter("memref.copy")
def _copy(body: Body, op: Operation) -> None:
    source, target = (body.memref(value) for value in op.operands)
    body.comment(op)
    sides = [checked_access(body, op, view, "0", *whole_view(view)) for view in (target, source)]
    body.emit_line(f"vnpu::dma({body.site(op)}, {sides[0]}, {sides[1]});")


@emitter("memref.dim")
def _dim(body: Body, op: Operation) -> None:
    dim, sizes = body.number(op.operands[1]), body.memref(op.operands[0]).sizes
    if dim is not None and 0 <= dim < len(sizes):
        body.alias(op.results[0], sizes[dim])
        return
    name = body.fresh("sizes")
    body.emit_line(f"const vnpu::i64 {name}[] = {{{', '.join(sizes)}}};")
    index = body.emit_variable(body.text(op.operands[1]), "dim")
    outside = f"{index} < 0 || {index} >= {len(sizes)}"
    message = f'"dimension %lld of a memref of rank {len(sizes)}", (long long)({index})'
    body.emit_line(f"if ({outside}) vnpu::fail({body.site(op)}, {message});")
    body.define(op.results[0], f"{name}[{index}]")


# ---- views ----


def _mixed(body: Body, static: Sequence[int], dynamic: Sequence[SSAValue]) -> list[str]:
    """The texts of a list that mixes integers and values."""
    rest = iter(body.texts(dynamic))
    return [next(rest) if number == DYNAMIC_INDEX else str(number) for number in static]


@emitter("memref.subview")
def _subview(body: Body, op: Operation) -> None:
    assert isinstance(op, memref.SubviewOp)
    source = body.memref(op.source)
    offsets = _mixed(body, op.static_offsets.get_values(), op.offsets)
    extents = _mixed(body, op.static_sizes.get_values(), op.sizes)
    steps = _mixed(body, op.static_strides.get_values(), op.strides)
    strides = [mul(parenthesize(step), stride) for step, stride in zip(steps, source.strides, strict=True)]
    kept_dims = _kept_dims(op, extents)
    _check_bounds(body, op, (offsets, extents, steps))
    pointer = element_pointer(source, offsets)
    body.define_memref(op.result, pointer, [extents[d] for d in kept_dims], [strides[d] for d in kept_dims])


def _check_bounds(body: Body, op: memref.SubviewOp, lists: tuple[Sequence[str], ...]) -> None:
    """Refuse a subview that leaves its source. One without elements never does. If only the offset is not
    known, builds without checks do not check it, as with every index."""
    dynamic = iter(op.offsets)
    for dim, (offset, size, step) in enumerate(zip(*lists, strict=True)):
        shape = size_checks.known_integers([size, step])
        if shape is None or shape[0] < 1 or shape[1] < 0:
            size_checks.check_subview(body, op, dim, offset, size, step, body.memref(op.source).sizes[dim])
            continue
        known = int(offset) if offset.lstrip("-").isdigit() else None
        value = next(dynamic) if op.static_offsets.get_values()[dim] == DYNAMIC_INDEX else None
        values = (known, known) if known is not None else interval(value) if value is not None else None
        reach = mul(parenthesize(step), parenthesize(add(size, "-1")))
        memory.check_bounds(body, op, op.source, dim, memory.AccessIndex(offset, values), add(reach, "1"))


def _kept_dims(op: memref.SubviewOp, sizes: Sequence[str]) -> list[int]:
    """The dimensions that a rank-reducing subview keeps: dropped ones have size 1."""
    assert isinstance(op.result.type, MemRefType)
    shape = op.result.type.get_shape()
    dims: list[int] = []
    to_drop = len(sizes) - len(shape)
    for dim, size in enumerate(sizes):
        matches = len(dims) < len(shape) and (
            shape[len(dims)] == types.DYNAMIC or size == str(shape[len(dims)])
        )
        if to_drop and size == "1" and not (matches and _rest_fits(sizes[dim + 1 :], shape[len(dims) + 1 :])):
            to_drop -= 1
        else:
            dims.append(dim)
    if len(dims) != len(shape):
        raise unsupported(op, f"sizes [{', '.join(sizes)}] do not make {attribute_text(op.result.type)}")
    return dims


def _rest_fits(sizes: Sequence[str], shape: Sequence[int]) -> bool:
    """Whether `shape` can be had from `sizes` by dropping 1s."""
    remaining = list(sizes)
    for extent in shape:
        while remaining and remaining[0] == "1" and extent not in (1, types.DYNAMIC):
            remaining.pop(0)
        if not remaining or (extent != types.DYNAMIC and remaining[0] != str(extent)):
            return False
        remaining.pop(0)
    return all(size == "1" for size in remaining)


def _groups(op: Operation) -> list[list[int]]:
    reassociation = op.properties["reassociation"]
    assert isinstance(reassociation, ArrayAttr)
    groups = []
    for group in reassociation:
        assert isinstance(group, ArrayAttr)
        groups.append([dim.value.data for dim in group if isinstance(dim, IntegerAttr)])
    return groups


@emitter("memref.collapse_shape")
def _collapse(body: Body, op: Operation) -> None:
    source = body.memref(op.operands[0])
    extents, strides = [], []
    for group in _groups(op):
        extent = "1"
        for dim in group:
            extent = mul(extent, parenthesize(source.sizes[dim]))
        extents.append(extent)
        wide = [dim for dim in group if source.sizes[dim] != "1"] or group
        strides.append(source.strides[wide[-1]])
        size_checks.check_dense(
            body, op, [source.sizes[dim] for dim in wide], [source.strides[dim] for dim in wide]
        )
    body.define_memref(op.results[0], source.pointer, extents, strides)


@emitter("memref.expand_shape")
def _expand(body: Body, op: Operation) -> None:
    assert isinstance(op, memref.ExpandShapeOp)
    source = body.memref(op.src)
    shape = _mixed(body, op.static_output_shape.get_values(), op.output_shape)
    strides = [""] * len(shape)
    for outer, group in enumerate(_groups(op)):
        step = source.strides[outer]
        size_checks.check_shape(body, op, [shape[dim] for dim in group], [source.sizes[outer]])
        for dim in reversed(group):
            strides[dim] = step
            step = mul(step, parenthesize(shape[dim]))
    body.define_memref(op.result, source.pointer, shape, strides)


@emitter("memref.cast", "memref.memory_space_cast", "memref.assume_alignment")
def _memref_cast(body: Body, op: Operation) -> None:
    source = body.memref(op.operands[0])
    if op.results:
        type_ = op.results[0].type
        assert isinstance(type_, MemRefType)
        size_checks.check_cast(body, op, source, type_)
        body.define_memref(op.results[0], source.pointer, source.sizes, source.strides)


@emitter("memref.transpose")
def _transpose(body: Body, op: Operation) -> None:
    source, permutation = body.memref(op.operands[0]), op.properties["permutation"]
    assert isinstance(permutation, AffineMapAttr)
    order = [expr.position for expr in permutation.data.results if isinstance(expr, AffineDimExpr)]
    extents, strides = [source.sizes[dim] for dim in order], [source.strides[dim] for dim in order]
    body.define_memref(op.results[0], source.pointer, extents, strides)


def whole_buffer(value: SSAValue) -> SSAValue | None:
    """The allocation, global or argument of an entry that a memref is a view of; None if the text does not
    show it."""
    value = base_memref(value)
    if isinstance(value, OpResult):
        is_whole = value.op.name in ("memref.alloc", "memref.alloca", "memref.get_global")
    else:
        is_whole = isinstance(value.owner, Block) and isinstance(value.owner.parent_op(), func.FuncOp)
    return value if is_whole else None


@emitter("memref.reinterpret_cast")
def _reinterpret(body: Body, op: Operation) -> None:
    assert isinstance(op, memref.ReinterpretCastOp)
    offset = _mixed(body, op.static_offsets.get_values(), op.offsets)[0]
    extents = _mixed(body, op.static_sizes.get_values(), op.sizes)
    strides = _mixed(body, op.static_strides.get_values(), op.strides)
    _check_recast(body, op, offset, extents, strides)
    pointer = add(buffer_pointer(body, op, op.source), parenthesize(offset))
    body.define_memref(op.result, pointer, extents, strides)


def _check_recast(
    body: Body, op: memref.ReinterpretCastOp, offset: str, extents: Sequence[str], strides: Sequence[str]
) -> None:
    """Refuse a view that leaves its buffer. An argument of a body may be a part of a buffer, so only its
    sizes are checked here; in builds with checks its pointer knows the buffer."""
    if size_checks.known_integers([offset, *extents, *strides]) is not None and body.checked:
        return  # accesses are checked when they happen
    buffer = whole_buffer(op.source)
    if buffer is None:
        size_checks.check_sizes(body, op, extents)
    else:
        size_checks.check_view(body, op, offset, extents, strides, body.memref(buffer).extent)


@emitter("memref.reshape")
def _reshape(body: Body, op: Operation) -> None:
    """The result is dense. Its type gives the static extents, and the shape operand the others."""
    source, type_ = body.memref(op.operands[0]), op.results[0].type
    if not isinstance(type_, MemRefType):
        raise unsupported(op, f"the result has type {type_}: give it a rank")
    extents = [
        str(n) if n != types.DYNAMIC else body.emit_variable(_extent(body, op, dim), "extent")
        for dim, n in enumerate(type_.get_shape())
    ]
    strides = ["1"] * len(extents)
    for dim in range(len(extents) - 2, -1, -1):
        strides[dim] = mul(strides[dim + 1], extents[dim + 1])
    size_checks.check_shape(body, op, extents, source.sizes)
    body.define_memref(op.results[0], source.pointer, extents, strides)


def _extent(body: Body, op: Operation, dim: int) -> str:
    """C++ text of an element of the shape operand."""
    return memory.read_at(body, op, op.operands[1], [memory.AccessIndex(str(dim), (dim, dim))])


@emitter("memref.view")
def _view(body: Body, op: Operation) -> None:
    source, shift, *sizes_operands = op.operands
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    dynamic = iter(body.texts(sizes_operands))
    extents = [str(n) if n != types.DYNAMIC else next(dynamic) for n in type_.get_shape()]
    strides = ["1"] * len(extents)
    for dim in range(len(extents) - 2, -1, -1):
        strides[dim] = mul(strides[dim + 1], parenthesize(extents[dim + 1]))
    element = types.scalar(type_.element_type)
    view, width = body.memref(source), types.byte_width(type_.element_type)
    size_checks.check_byte_view(body, op, body.text(shift), extents, width, view.extent)
    moved = f"{view.pointer} + {parenthesize(body.text(shift))}"
    pointer = (
        f"vnpu::recast<{element}>({moved})" if body.checked else f"reinterpret_cast<{element} *>({moved})"
    )
    body.define_memref(op.results[0], pointer, extents, strides)


@emitter("memref.get_global")
def _get_global(body: Body, op: Operation) -> None:
    assert isinstance(op, memref.GetGlobalOp)
    type_ = op.memref.type
    assert isinstance(type_, MemRefType)
    strides = [str(s) for s in types.memref_strides(type_)]
    pointer = global_pointer(body.file, op.name_.root_reference.data)
    body.define_memref(op.memref, pointer, [str(n) for n in type_.get_shape()], strides)


# ---- read, change, write ----

_COMBINED = {
    "addf": "add", "addi": "add", "mulf": "mul", "muli": "mul", "maximumf": "maximumf",
    "minimumf": "minimumf", "maxnumf": "maxnumf", "minnumf": "minnumf", "maxs": "maxsi", "maxu": "maxui",
    "mins": "minsi", "minu": "minui", "ori": "ori", "andi": "andi", "xori": "xori",
}  # fmt: skip


def combined(kind: str, scalar: str, old: str, value: str) -> str:
    """C++ text of two scalars combined by a kind of ATOMIC_KINDS, such as `addf`."""
    return value if kind == "assign" else f"vnpu::{_COMBINED[kind]}<{scalar}>({old}, {value})"


@emitter("memref.atomic_rmw")
def _atomic(body: Body, op: Operation) -> None:
    """Gives the old element. A tile runs by itself between two waits, so nothing can come between."""
    assert isinstance(op, AtomicRMWOp)
    scalar, kind = types.scalar(op.value.type), ATOMIC_KINDS[op.kind.value.data]
    body.define(op.result, memory.read(body, op, op.memref, op.indices))
    new = combined(kind, scalar, body.text(op.result), body.text(op.value))
    body.emit_line(memory.write(body, op, op.memref, op.indices, new))


@emitter("memref.generic_atomic_rmw")
def _generic_atomic(body: Body, op: Operation) -> None:
    """Gives the new element."""
    (buffer, *indices), block = op.operands, op.regions[0].block
    body.define(block.args[0], memory.read(body, op, buffer, indices))
    body.operations(block)
    assert block.last_op is not None
    (new,) = block.last_op.operands
    body.values[op.results[0]] = body.values[new]
    body.emit_line(memory.write(body, op, buffer, indices, body.text(new)))


@emitter("memref.prefetch")
def _prefetch(body: Body, op: Operation) -> None:
    """A hint that changes nothing."""


# ---- what a memref is made of ----


@emitter("memref.rank")
def _rank(body: Body, op: Operation) -> None:
    rank = len(body.memref(op.operands[0]).sizes)
    body.alias(op.results[0], str(rank))


@emitter("memref.extract_aligned_pointer_as_index")
def _address(body: Body, op: Operation) -> None:
    """The address of the buffer under a view, as in MLIR's descriptors: the offset is not in it."""
    pointer = buffer_pointer(body, op, op.operands[0])
    pointer = f"vnpu::raw({pointer})" if body.checked else pointer
    body.define(op.results[0], f"reinterpret_cast<vnpu::i64>({pointer})")


@emitter("memref.extract_strided_metadata")
def _metadata(body: Body, op: Operation) -> None:
    view = body.memref(op.operands[0])
    buffer, offset, *rest = op.results
    body.define_memref(buffer, buffer_pointer(body, op, op.operands[0]), [], [])
    body.alias(offset, body.emit_variable(offset_of(body, op, op.operands[0]), "offset"))
    for result, text in zip(rest, (*view.sizes, *view.strides), strict=True):
        body.alias(result, text)


@emitter("memref.alloca_scope")
def _scope(body: Body, op: Operation) -> None:
    """Buffers of the stack stay until the body around ends. No program can notice that."""
    block = op.regions[0].block
    body.operations(block)
    assert block.last_op is not None
    for result, value in zip(op.results, block.last_op.operands, strict=True):
        body.values[result] = body.values[value]
