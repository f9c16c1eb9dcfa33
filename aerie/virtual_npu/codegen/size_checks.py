"""Checks of sizes, offsets, steps and positions that are known only at run time (include/vnpu/sizes.h).

Builds without checks have them too: a program is data, and must not reach memory that is not its own by what
it computes a size from. What is known when the program is built costs nothing: it is compared here, and a
check is emitted for it only where it fails, so that it fails when it is reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import MemRefType, ModuleOp, VectorType
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, MemRef
from aerie.virtual_npu.codegen.cpp_text import is_integer, mul, parenthesize
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.op_errors import unsupported
from aerie.virtual_npu.codegen.tokens import suspend
from aerie.virtual_npu.errors import UnsupportedTypeError

# ---- what is known ----


def known_integer(text: str) -> int | None:
    """The number that a C++ text is; None for one that is known only at run time."""
    return int(text) if is_integer(text) else None


def known_integers(texts: Sequence[str]) -> list[int] | None:
    """The numbers that all of the texts are; None where one is known only at run time."""
    numbers = [known_integer(text) for text in texts]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None


def _braces(texts: Sequence[str]) -> str:
    return f"{{{', '.join(texts)}}}"


def _check(body: Body, op: Operation, function: str, *arguments: str) -> None:
    body.emit_line(f"vnpu::{function}({', '.join([body.site(op), *arguments])});")


# ---- buffers and views of them ----

MAX_BYTES = 1 << 46
"""kMostBytes in include/vnpu/sizes.h."""
MAX_GLOBAL_BYTES = 1 << 26
MAX_LANES = 1 << 16


def check_buffer(body: Body, op: Operation, view: MemRef, copies: int) -> None:
    """Check the extents of a buffer that is allocated."""
    known, bytes_ = known_integers(view.sizes), types.byte_width(view.type.element_type) * copies
    if known is None or min(known, default=0) < 0 or prod(known) * bytes_ > MAX_BYTES:
        _check(body, op, "check_buffer", _braces(view.sizes), str(bytes_))


def check_sizes(body: Body, op: Operation, sizes: Sequence[str]) -> None:
    """Check that no size is negative."""
    for dim, size in enumerate(sizes):
        known = known_integer(size)
        if known is None or known < 0:
            _check(body, op, "check_size", str(dim), size)


def check_subview(
    body: Body, op: Operation, dim: int, offset: str, size: str, step: str, extent: str
) -> None:
    """Check the part of a dimension that a subview is."""
    _check(body, op, "check_part", str(dim), offset, size, step, extent)


def check_view(
    body: Body, op: Operation, offset: str, sizes: Sequence[str], strides: Sequence[str], extent: str
) -> None:
    """Check a view of a whole buffer of so many elements."""
    _check(body, op, "check_view", offset, _braces(sizes), _braces(strides), extent)


def check_byte_view(
    body: Body, op: Operation, first: str, sizes: Sequence[str], element: int, extent: str
) -> None:
    """Check a view of a buffer of bytes."""
    known = known_integers([first, *sizes, extent])
    if known is not None:
        begin, *shape, end = known
        if begin >= 0 and begin % element == 0 and begin + prod(shape) * element <= end:
            return
    _check(body, op, "check_bytes", first, _braces(sizes), str(element), extent)


def check_cast(body: Body, op: Operation, source: MemRef, type_: MemRefType) -> None:
    """Check that a memref has the extents and strides that another type of it says."""
    lists = (
        ("size", source.sizes, type_.get_shape()),
        ("stride", source.strides, types.memref_strides(type_)),
    )
    for what, texts, expected in lists:
        for dim, (text, number) in enumerate(zip(texts, expected, strict=True)):
            if number != types.DYNAMIC and text != str(number):
                _check(body, op, "check_promised", f'"{what}"', str(dim), text, str(number))


def check_shape(body: Body, op: Operation, sizes: Sequence[str], count: Sequence[str]) -> None:
    """Check that sizes make up as many elements as other sizes."""
    known, expected = known_integers(sizes), known_integers(count)
    if known is None or expected is None or prod(known) != prod(expected) or min(known, default=0) < 0:
        _check(body, op, "check_shape", _braces(sizes), " * ".join(count) or "1")


def check_dense(body: Body, op: Operation, sizes: Sequence[str], strides: Sequence[str]) -> None:
    """Check that dimensions lie one in the other without gaps, so that they can be one."""
    for dim in range(len(sizes) - 1):
        inner = f"{parenthesize(strides[dim + 1])} * {parenthesize(sizes[dim + 1])}"
        if known_integers([strides[dim], strides[dim + 1], sizes[dim + 1]]) is None and strides[dim] != mul(
            parenthesize(strides[dim + 1]), parenthesize(sizes[dim + 1])
        ):
            expected = f"{sizes[dim]} < 2 || {sizes[dim + 1]} < 2 ? {strides[dim]} : {inner}"
            _check(body, op, "check_promised", '"stride"', str(dim), strides[dim], expected)


# ---- loops, grids, positions ----


def check_step(body: Body, op: Operation, text: str) -> None:
    """Check the step of a loop."""
    known = known_integer(text)
    if known is None or known <= 0:
        _check(body, op, "check_step", text)


_MAX_SHORT_TRIPS = 1 << 24
"""A loop that is known to take no more steps ends soon."""


def declare_heartbeat(body: Body, op: Operation, bounds: Sequence[str] = ()) -> str:
    """Declare, with checks, the heartbeat of a loop that may take long (include/vnpu/heartbeat.h); gives its
    name. bounds: its low, high and step, where it has those."""
    known = known_integers(bounds) if bounds else None
    if not body.heartbeat or (known is not None and known[1] - known[0] <= _MAX_SHORT_TRIPS * known[2]):
        return ""
    name = body.fresh("v_beat")
    body.emit_line(f"{body.heartbeat} {name}({body.site(op)});")
    return name


def emit_beat(body: Body, heartbeat: str, remaining: str) -> None:
    """Emit what begins an iteration: the call of the loop's heartbeat, if it has one, and in a sequencer with
    checks the pause of a loop that is far ahead of what it issued.

    remaining: C++ text of the maximum number of iterations to come.
    """
    if heartbeat:
        body.emit_line(f"{heartbeat}.beat({remaining});")
    if body.checked and body.mode is BodyMode.SEQUENCER:
        with body.block("if (sequencer.is_ahead())"):
            suspend(body, "sequencer.pause()")


def check_points(body: Body, op: Operation, sizes: Sequence[str]) -> None:
    """Check the sizes of a grid."""
    known = known_integers(sizes)
    if known is None or min(known, default=0) < 0 or prod(known) >= 1 << 63:
        _check(body, op, "check_points", _braces(sizes))


def checked_divisor(body: Body, op: Operation, text: str) -> str:
    """C++ text of an extent to divide by, checked where it is not known."""
    known = known_integer(text)
    is_good = known is not None and known > 0
    return text if is_good else f"vnpu::checked_divisor({body.site(op)}, {text})"


def checked_positions(body: Body, op: Operation, places: Sequence[str], extents: Sequence[int]) -> list[str]:
    """C++ text of the coordinates of a lane, each checked where it is not known to be one."""
    checked = []
    for dim, (place, extent) in enumerate(zip(places, extents, strict=False)):
        known = known_integer(place)
        inside = known is not None and 0 <= known < extent
        call = f"vnpu::checked_position({body.site(op)}, {dim}, {place}, {extent})"
        checked.append(place if inside else call)
    return checked


def checked_offset(body: Body, offsets: Sequence[str], strides: Sequence[str], plain: str) -> str:
    """C++ text of where a transfer begins, `plain` where it is known. It does not wrap around, so that what
    is refused is what the program says; without checks, and with strides that are known, it may, and is
    refused or inside all the same."""
    if known_integers(strides if not body.checked else [*offsets, *strides]) is not None:
        return plain
    return f"vnpu::offset_in({_braces(offsets)}, {_braces(strides)})"


# ---- types ----


def check_type_sizes(module: ModuleOp) -> None:
    """Raises UnsupportedOpError for a memref that no memory holds, or a vector that no core has."""
    for op in walk(module):
        arguments = [a for region in op.regions for block in region.blocks for a in block.args]
        inputs = op.properties.get("function_type")
        outer = [] if inputs is None else getattr(inputs, "inputs", ())
        for type_ in (*(value.type for value in (*op.results, *arguments)), *outer):
            _check_type_size(op, type_)
        if op.name == "memref.global":
            _check_type_size(op, op.properties["type"], MAX_GLOBAL_BYTES)


def _check_type_size(op: Operation, type_: Attribute, max_bytes: int = MAX_BYTES) -> None:
    if isinstance(type_, VectorType) and prod(type_.get_shape()) > MAX_LANES:
        count = prod(type_.get_shape())
        raise unsupported(op, f"{attribute_text(type_)} has {count} elements: {MAX_LANES} are the most")
    if not isinstance(type_, MemRefType):
        return
    known = [size for size in type_.get_shape() if size != types.DYNAMIC]
    try:
        bytes_ = prod(known) * types.byte_width(type_.element_type)
    except UnsupportedTypeError:  # whoever uses it says so
        return
    if bytes_ > max_bytes or max(known, default=0) > MAX_BYTES:
        raise unsupported(op, f"{attribute_text(type_)} takes {bytes_} bytes: {max_bytes} are the most")
