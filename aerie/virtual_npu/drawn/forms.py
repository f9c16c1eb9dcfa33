"""The shapes that programs are drawn in, and their text.

A program reads an array of L3 in tiles, each core computes on its own, and results go to another array. Data
travel by DMAs or channels, straight between L3 and cores or staged in L2. Every shape drawn here is one that
upstream's own examples have (docs/explanation/lowering.md), within the limits of the device.
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
class Form:
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


def draw_form(chance: random.Random) -> Form:
    """A shape that the tools take."""
    by, way = chance.choice((DMA, CHANNEL)), chance.choice((DIRECT, STAGED))
    element = chance.choice(tuple(LANES))
    # of a bundle that leaves one L2 buffer nothing is drawn
    columns, rows = (1, 1) if (by, way) == (CHANNEL, STAGED) else chance.choice(GRIDS)
    return Form(
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


def text_of(form: Form, name: str) -> str:
    """The program's AIR text."""
    array = _type(form, form.point * form.points)
    launch = _block(
        f"air.launch (%t) in (%all=%points) args(%a=%source, %o=%target) : {array}, {array}",
        f"{_numbers(form)}{_host(form) if form.by == CHANNEL else ''}"
        + _block(
            f"air.segment @seg args(%u=%t, %b=%a, %p=%o) : index, {array}, {array}", _segment(form, array)
        ),
    )
    points = f"%points = arith.constant {form.points} : index\n"
    body = _block(f"func.func @{name}(%source: {array}, %target: {array})", f"{points}{launch}return\n")
    return f"{_declared(form) if form.by == CHANNEL else ''}{body}"


def _block(head: str, body: str) -> str:
    return f"{head} {{\n{indent(body, '  ')}}}\n"


def _type(form: Form, extent: int, space: int = 0) -> str:
    return f"memref<{extent}x{form.element}{f', {space}' if space else ''}>"


def _numbers(form: Form) -> str:
    wanted = {0, 1, 8, 16, 64, form.columns, form.rows, form.tile, form.trips, form.low, form.point}
    wanted |= {form.tile * form.cores, *(form.over or ()), LANES[form.element]}
    return "".join(f"%c{number} = arith.constant {number} : index\n" for number in sorted(wanted))


def _declared(form: Form) -> str:
    kind = f' {{channel_type = "{form.kind}"}}' if form.kind else ""
    names = ("in", "out") if form.way == DIRECT else ("in", "out", "down", "up")
    return "".join(f"air.channel @{name} {list(form.bundle)}{kind}\n" for name in names)


def _move(way: str, channel: str, at: str, buffer: str, type_: str, part: str = "[] [] []") -> str:
    return f"air.channel.{way} @{channel}[{at}] ({buffer}{part}) : ({type_})\n"


def _host(form: Form) -> str:
    """What the launch puts into the channels and gets from them."""
    array = _type(form, form.point * form.points)
    if form.way == STAGED:
        part = f"[%at] [%c{form.point}] [%c1]"
        begin = f"%at = affine.apply affine_map<(d0) -> (d0 * {form.point})>(%t)\n"
        move = _move("put", "in", "%c0, %c0", "%a", array, part)
        return begin + move + _move("get", "out", "%c0, %c0", "%o", array, part)
    at = f"((d0 * {form.trips} + d1) * {form.cores} + d2 * {form.rows} + d3) * {form.tile}"
    ids = "%i, %j" if form.over else "%c0, %c0"
    begin = f"%at = affine.apply affine_map<(d0, d1, d2, d3) -> ({at})>(%t, %k, {ids})\n"
    part = f"[%at] [%c{form.tile}] [%c1]"
    made = "".join(
        _block(
            f"scf.for %k = %c0 to %c{form.trips} step %c1",
            begin + _move(way, name, form.put_at, arg, array, part),
        )
        for way, name, arg in (("put", "in", "%a"), ("get", "out", "%o"))
    )
    if form.over is None:
        return made
    ends = ", ".join(f"%c{extent}" for extent in form.over)
    return _block(f"scf.parallel (%i, %j) = (%c0, %c0) to ({ends}) step (%c1, %c1)", f"{made}scf.reduce\n")


def _segment(form: Form, array: str) -> str:
    numbers = _numbers(form)
    if form.way == DIRECT:
        given = f"args(%v=%u, %c=%b, %q=%p) : index, {array}, {array}"
        return numbers + _herd(form, given, array, array)
    middle = _type(form, form.point, 1)
    made = f"%l = memref.alloc() : {middle}\n%m = memref.alloc() : {middle}\n"
    freed = f"memref.dealloc %l : {middle}\nmemref.dealloc %m : {middle}\n"
    if form.by == CHANNEL:
        part = f"[%k] [%c{form.tile}] [%c1]"
        down, up = (
            _block(
                f"scf.for %k = %c0 to %c{form.point} step %c{form.tile}",
                _move(way, name, "%c0, %c0", at, middle, part),
            )
            for way, name, at in (("put", "down", "%l"), ("get", "up", "%m"))
        )
        fetch, store = (
            _move(way, name, "%c0, %c0", at, middle)
            for way, name, at in (("get", "in", "%l"), ("put", "out", "%m"))
        )
        return numbers + made + fetch + down + _herd(form, "", middle, middle) + up + store + freed
    begin = f"%at = affine.apply affine_map<(d0) -> (d0 * {form.point})>(%u)\n"
    part = f"[%at] [%c{form.point}] [%c1]"
    fetch = _dma("%l", "", middle, "%b", part, array)
    store = _dma("%p", part, array, "%m", "", middle)
    given = f"args(%c=%l, %q=%m) : {middle}, {middle}"
    return numbers + made + begin + fetch + _herd(form, given, middle, middle) + store + freed


def _dma(to: str, to_part: str, to_type: str, source: str, part: str, type_: str) -> str:
    whole = "[] [] []"
    return f"air.dma_memcpy_nd ({to}{to_part or whole}, {source}{part or whole}) : ({to_type}, {type_})\n"


def _herd(form: Form, given: str, source: str, target: str) -> str:
    near = _type(form, form.tile, 2)
    made = form.made.replace("TYPE", near) + f"%done = memref.alloc() : {near}\n"
    if form.by == CHANNEL:
        names = ("in", "out") if form.way == DIRECT else ("down", "up")
        begin = ""
        fetch = _move("get", names[0], form.get_at, "%near", near)
        store = _move("put", names[1], form.get_at, "%done", near)
    else:
        launch = f"d0 * {form.trips} + " if form.way == DIRECT else ""
        at = f"((({launch}d1) * {form.cores} + d2 * {form.rows} + d3) * {form.tile})"
        first = "%v" if form.way == DIRECT else "%c0"
        begin = f"%at = affine.apply affine_map<(d0, d1, d2, d3) -> {at}>({first}, %k, %x, %y)\n"
        part = f"[%at] [%c{form.tile}] [%c1]"
        fetch = _dma("%near", "", near, "%c", part, source)
        store = _dma("%q", part, target, "%done", "", near)
    inside = (
        begin
        + form.branch.replace("MOVE", fetch)
        + form.work.replace("ARRAY", source)
        + _computed(form, near)
        + store
    )
    freed = f"memref.dealloc %near : {near}\nmemref.dealloc %done : {near}\n"
    loop = _block(f"scf.for %k = %c{form.low} to %c{form.trips} step %c1", made + inside + freed)
    sizes = f"(%sx=%c{form.columns}, %sy=%c{form.rows})"
    return _block(f"air.herd @herd tile (%x, %y) in {sizes} {given}", _numbers(form) + loop)


def _computed(form: Form, near: str) -> str:
    """The sum of a tile with itself, or a copy of it, in vectors."""
    lanes, kind = LANES[form.element], "f" if form.element in ("bf16", "f32") else "i"
    vector = f"vector<{lanes}x{form.element}>"
    zero = f"%zero = arith.constant {'0.0' if kind == 'f' else '0'} : {form.element}\n"
    read = f"%r = vector.transfer_read %near[%e], %zero {{in_bounds = [true]}} : {near}, {vector}\n"
    add = f"%s = arith.add{kind} %r, %r : {vector}\n" if form.adds else ""
    result = "%s" if form.adds else "%r"
    write = f"vector.transfer_write {result}, %done[%e] {{in_bounds = [true]}} : {vector}, {near}\n"
    loop = _block(f"scf.for %e = %c0 to %c{form.tile} step %c{lanes}", read + add + write)
    return zero + (_block("scf.for %again = %c0 to %c1 step %c1", loop) if form.depth > 1 else loop)


def enlarged(form: Form, columns: int, rows: int) -> Form:
    """The same shape on a herd of another size."""
    return replace(form, columns=columns, rows=rows, bundle=(columns, rows), over=(columns, rows))
