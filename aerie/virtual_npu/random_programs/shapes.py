"""The shapes that programs are drawn in, and their text.

A program reads an array of L3 in tiles, each core computes on its own, and results go to another array. Data
travel by DMAs or channels, straight between L3 and cores or staged in L2. Every shape drawn here is one that
upstream's own examples have (docs/dev/lowering.md), within the limits of the device.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from textwrap import indent

DIRECT, STAGED = "direct", "staged"
DMA, CHANNEL = "dma", "channel"
LANES = {"bf16": 16, "f32": 16, "i32": 16, "i16": 32, "i8": 64}
"""Element types, and the lanes of the sums that a core has of each."""
GRIDS = ((1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
"""Herds whose L2 buffers aircc cuts for none, and whose streams a shim has channels for."""


@dataclass(frozen=True)
class ProgramShape:
    """What was drawn, and what a feature changed of it; extents are numbers.

    by, way: DMA or CHANNEL, DIRECT or STAGED. element: of the arrays. tile: elements of one core at a time.
    columns, rows: of the herd. points: of the launch. trips: tiles of a core at a point. depth: loops around
    its computation. adds: whether it computes, or copies.
    bundle: extents of the channels; over: of the host's parallel loop, None without one; put_at, get_at:
    indices on the host's side and the core's. kind: the channels' type as written, empty for none.
    low: where the core's loop begins. branch: what stands around the transfer to the core, MOVE in its place.
    made: how the core makes its buffer, TYPE for its type. work: more text on the core, after the transfer,
    with ARRAY for the type of what it reads from.
    """

    by: str
    way: str
    element: str
    tile: int
    columns: int
    rows: int
    points: int
    trips: int
    depth: int
    adds: bool
    bundle: tuple[int, int] = (1, 1)
    over: tuple[int, int] | None = None
    put_at: str = "%i, %j"
    get_at: str = "%x, %y"
    kind: str = ""
    low: int = 0
    branch: str = "MOVE"
    made: str = "%near = memref.alloc() : TYPE\n"
    work: str = ""

    @property
    def words(self) -> dict[str, object]:
        """The shape as plain values."""
        names = ("by", "way", "element", "tile", "columns", "rows", "points", "trips", "depth", "adds")
        return {name: getattr(self, name) for name in names}

    @property
    def cores(self) -> int:
        """The cores of the herd."""
        return self.columns * self.rows

    @property
    def point(self) -> int:
        """Elements of one point of the launch."""
        return self.tile * self.cores * self.trips


def random_shape(chance: random.Random) -> ProgramShape:
    """A shape that the tools take."""
    by, way = chance.choice((DMA, CHANNEL)), chance.choice((DIRECT, STAGED))
    element = chance.choice(tuple(LANES))
    # of a bundle that leaves one L2 buffer nothing is drawn
    columns, rows = (1, 1) if (by, way) == (CHANNEL, STAGED) else chance.choice(GRIDS)
    return ProgramShape(
        by,
        way,
        element,
        tile=LANES[element] * chance.choice((1, 2, 3, 4, 6, 8, 16)),
        columns=columns,
        rows=rows,
        points=chance.choice((1, 1, 2, 4)),
        trips=chance.choice((1, 2, 3, 4, 6)),
        depth=chance.choice((1, 1, 2)),
        adds=chance.random() < 0.7,
        bundle=(columns, rows),
        over=(columns, rows),
    )


# ---- text ----


def program_text(shape: ProgramShape, name: str) -> str:
    """The program's AIR text."""
    array = _type(shape, shape.point * shape.points)
    launch = _block(
        f"air.launch (%t) in (%all=%points) args(%a=%source, %o=%target) : {array}, {array}",
        f"{_numbers(shape)}{_host(shape) if shape.by == CHANNEL else ''}"
        + _block(
            f"air.segment @seg args(%u=%t, %b=%a, %p=%o) : index, {array}, {array}", _segment(shape, array)
        ),
    )
    points = f"%points = arith.constant {shape.points} : index\n"
    body = _block(f"func.func @{name}(%source: {array}, %target: {array})", f"{points}{launch}return\n")
    return f"{_declared(shape) if shape.by == CHANNEL else ''}{body}"


def _block(head: str, body: str) -> str:
    return f"{head} {{\n{indent(body, '  ')}}}\n"


def _type(shape: ProgramShape, extent: int, space: int = 0) -> str:
    return f"memref<{extent}x{shape.element}{f', {space}' if space else ''}>"


def _numbers(shape: ProgramShape) -> str:
    numbers = {0, 1, 8, 16, 64, shape.columns, shape.rows, shape.tile, shape.trips, shape.low, shape.point}
    numbers |= {shape.tile * shape.cores, *(shape.over or ()), LANES[shape.element]}
    return "".join(f"%c{number} = arith.constant {number} : index\n" for number in sorted(numbers))


def _declared(shape: ProgramShape) -> str:
    kind = f' {{channel_type = "{shape.kind}"}}' if shape.kind else ""
    names = ("in", "out") if shape.way == DIRECT else ("in", "out", "down", "up")
    return "".join(f"air.channel @{name} {list(shape.bundle)}{kind}\n" for name in names)


def _move(way: str, channel: str, at: str, buffer: str, type_: str, part: str = "[] [] []") -> str:
    return f"air.channel.{way} @{channel}[{at}] ({buffer}{part}) : ({type_})\n"


def _host(shape: ProgramShape) -> str:
    """What the launch puts into the channels and gets from them."""
    array = _type(shape, shape.point * shape.points)
    if shape.way == STAGED:
        part = f"[%at] [%c{shape.point}] [%c1]"
        begin = f"%at = affine.apply affine_map<(d0) -> (d0 * {shape.point})>(%t)\n"
        move = _move("put", "in", "%c0, %c0", "%a", array, part)
        return begin + move + _move("get", "out", "%c0, %c0", "%o", array, part)
    at = f"((d0 * {shape.trips} + d1) * {shape.cores} + d2 * {shape.rows} + d3) * {shape.tile}"
    ids = "%i, %j" if shape.over else "%c0, %c0"
    begin = f"%at = affine.apply affine_map<(d0, d1, d2, d3) -> ({at})>(%t, %k, {ids})\n"
    part = f"[%at] [%c{shape.tile}] [%c1]"
    made = "".join(
        _block(
            f"scf.for %k = %c0 to %c{shape.trips} step %c1",
            begin + _move(way, name, shape.put_at, arg, array, part),
        )
        for way, name, arg in (("put", "in", "%a"), ("get", "out", "%o"))
    )
    if shape.over is None:
        return made
    ends = ", ".join(f"%c{extent}" for extent in shape.over)
    return _block(f"scf.parallel (%i, %j) = (%c0, %c0) to ({ends}) step (%c1, %c1)", f"{made}scf.reduce\n")


def _segment(shape: ProgramShape, array: str) -> str:
    numbers = _numbers(shape)
    if shape.way == DIRECT:
        given = f"args(%v=%u, %c=%b, %q=%p) : index, {array}, {array}"
        return numbers + _herd(shape, given, array, array)
    middle = _type(shape, shape.point, 1)
    made = f"%l = memref.alloc() : {middle}\n%m = memref.alloc() : {middle}\n"
    freed = f"memref.dealloc %l : {middle}\nmemref.dealloc %m : {middle}\n"
    if shape.by == CHANNEL:
        part = f"[%k] [%c{shape.tile}] [%c1]"
        down, up = (
            _block(
                f"scf.for %k = %c0 to %c{shape.point} step %c{shape.tile}",
                _move(way, name, "%c0, %c0", at, middle, part),
            )
            for way, name, at in (("put", "down", "%l"), ("get", "up", "%m"))
        )
        fetch, store = (
            _move(way, name, "%c0, %c0", at, middle)
            for way, name, at in (("get", "in", "%l"), ("put", "out", "%m"))
        )
        return numbers + made + fetch + down + _herd(shape, "", middle, middle) + up + store + freed
    begin = f"%at = affine.apply affine_map<(d0) -> (d0 * {shape.point})>(%u)\n"
    part = f"[%at] [%c{shape.point}] [%c1]"
    fetch = _dma("%l", "", middle, "%b", part, array)
    store = _dma("%p", part, array, "%m", "", middle)
    given = f"args(%c=%l, %q=%m) : {middle}, {middle}"
    return numbers + made + begin + fetch + _herd(shape, given, middle, middle) + store + freed


def _dma(to: str, to_part: str, to_type: str, source: str, part: str, type_: str) -> str:
    whole = "[] [] []"
    return f"air.dma_memcpy_nd ({to}{to_part or whole}, {source}{part or whole}) : ({to_type}, {type_})\n"


def _herd(shape: ProgramShape, given: str, source: str, target: str) -> str:
    near = _type(shape, shape.tile, 2)
    made = shape.made.replace("TYPE", near) + f"%done = memref.alloc() : {near}\n"
    if shape.by == CHANNEL:
        names = ("in", "out") if shape.way == DIRECT else ("down", "up")
        begin = ""
        fetch = _move("get", names[0], shape.get_at, "%near", near)
        store = _move("put", names[1], shape.get_at, "%done", near)
    else:
        launch = f"d0 * {shape.trips} + " if shape.way == DIRECT else ""
        at = f"((({launch}d1) * {shape.cores} + d2 * {shape.rows} + d3) * {shape.tile})"
        first = "%v" if shape.way == DIRECT else "%c0"
        begin = f"%at = affine.apply affine_map<(d0, d1, d2, d3) -> {at}>({first}, %k, %x, %y)\n"
        part = f"[%at] [%c{shape.tile}] [%c1]"
        fetch = _dma("%near", "", near, "%c", part, source)
        store = _dma("%q", part, target, "%done", "", near)
    inside = (
        begin
        + shape.branch.replace("MOVE", fetch)
        + shape.work.replace("ARRAY", source)
        + _computed(shape, near)
        + store
    )
    freed = f"memref.dealloc %near : {near}\nmemref.dealloc %done : {near}\n"
    loop = _block(f"scf.for %k = %c{shape.low} to %c{shape.trips} step %c1", made + inside + freed)
    sizes = f"(%sx=%c{shape.columns}, %sy=%c{shape.rows})"
    return _block(f"air.herd @herd tile (%x, %y) in {sizes} {given}", _numbers(shape) + loop)


def _computed(shape: ProgramShape, near: str) -> str:
    """The sum of a tile with itself, or a copy of it, in vectors."""
    lanes, kind = LANES[shape.element], "f" if shape.element in ("bf16", "f32") else "i"
    vector = f"vector<{lanes}x{shape.element}>"
    zero = f"%zero = arith.constant {'0.0' if kind == 'f' else '0'} : {shape.element}\n"
    read = f"%r = vector.transfer_read %near[%e], %zero {{in_bounds = [true]}} : {near}, {vector}\n"
    add = f"%s = arith.add{kind} %r, %r : {vector}\n" if shape.adds else ""
    result = "%s" if shape.adds else "%r"
    write = f"vector.transfer_write {result}, %done[%e] {{in_bounds = [true]}} : {vector}, {near}\n"
    loop = _block(f"scf.for %e = %c0 to %c{shape.tile} step %c{lanes}", read + add + write)
    return zero + (_block("scf.for %again = %c0 to %c1 step %c1", loop) if shape.depth > 1 else loop)


def resized(shape: ProgramShape, columns: int, rows: int) -> ProgramShape:
    """The shape on a herd of another size."""
    return replace(shape, columns=columns, rows=rows, bundle=(columns, rows), over=(columns, rows))
