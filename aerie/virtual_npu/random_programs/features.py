"""What is written into drawn programs, with what upstream's tools are known to say of it, and who says so.

Verdicts were seen with mlir-air e972f294 and mlir-aie 7e00b579, or follow from the file named. A feature that
the tools take stands beside one that they refuse wherever the two look alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from aerie.device.lowering import evidence as by
from aerie.device.npu2 import (
    ALLOCATION,
    DIALECT,
    DMA_TO_CHANNEL,
    INSTRUCTIONS,
    LOWERING,
    REGISTRY,
    SHIFT_LOWERING,
    SHIFTS,
    SHRINK,
    TARGET_MODEL,
    TO_AIE,
    XRT_BACKEND,
)
from aerie.virtual_npu.random_programs.shapes import CHANNEL, DIRECT, DMA, ProgramShape, resized

Write = Callable[[ProgramShape, random.Random], ProgramShape]
Fits = Callable[[ProgramShape], bool]


class ExpectedVerdict(IntEnum):
    """What becomes of a program; WRONG: the tools take it, and it cannot work."""

    ACCEPTED = 0
    WRONG = 1
    REFUSED = 2


@dataclass(frozen=True)
class ProgramFeature:
    """name: what it is. part: what of a form it changes, so that two of one part exclude each other. source:
    who says what becomes of it. fits: the forms that it can be written into. write: the form with it."""

    name: str
    part: str
    verdict: ExpectedVerdict
    source: str
    fits: Fits
    write: Write


def _any(_: ProgramShape) -> bool:
    return True


def _of_channels(shape: ProgramShape) -> bool:
    return shape.by == CHANNEL and shape.way == DIRECT


def _of_several(shape: ProgramShape) -> bool:
    return _of_channels(shape) and shape.cores > 1


def _dmas_of_l3(shape: ProgramShape) -> bool:
    return shape.by == DMA and shape.way == DIRECT


def _changed(**changes: object) -> Write:
    return lambda shape, _: replace(shape, **changes)  # type: ignore[arg-type]


# ---- who moves what ----

IS_FIRST = "%first = arith.cmpi eq, AXIS, %c0 : index\nscf.if %first {\nMOVE}\n"
IS_AFFINE = "affine.if affine_set<(d0) : (d0 == 0)>(AXIS) {\nMOVE}\n"


def _axis(shape: ProgramShape) -> str:
    return "%x" if shape.columns > 1 else "%y"


def _branch(text: str) -> Write:
    return lambda shape, _: replace(shape, branch=text.replace("AXIS", _axis(shape)))


def _moves() -> Iterator[ProgramFeature]:
    several = lambda shape: _dmas_of_l3(shape) and shape.cores > 1  # noqa: E731
    refused, accepted = ExpectedVerdict.REFUSED, ExpectedVerdict.ACCEPTED
    yield ProgramFeature(
        "DMA of L3 in an scf.if", "branch", refused, DMA_TO_CHANNEL, several, _branch(IS_FIRST)
    )
    yield ProgramFeature(
        "DMA of L3 in an affine.if", "branch", accepted, DMA_TO_CHANNEL, several, _branch(IS_AFFINE)
    )
    idle: Write = lambda shape, _: replace(shape, low=shape.trips)  # noqa: E731
    yield ProgramFeature("loop of no trips", "low", refused, INSTRUCTIONS, _dmas_of_l3, idle)
    many: Write = lambda shape, chance: replace(shape, points=chance.choice((256, 300, 512)))  # noqa: E731
    yield ProgramFeature(
        "many points", "points", accepted, REGISTRY, lambda f: f.trips < 3 and f.tile < 100, many
    )


# ---- channels ----


def _more_put(shape: ProgramShape, chance: random.Random) -> ProgramShape:
    size = (shape.columns + chance.choice((1, 2)), shape.rows)
    return replace(shape, bundle=size, over=size)


def _turned(shape: ProgramShape, _: random.Random) -> ProgramShape:
    turned = replace(shape, bundle=(shape.rows, shape.columns), over=(shape.rows, shape.columns))
    return replace(turned, get_at="%y, %x")


def _first_only(shape: ProgramShape, _: random.Random) -> ProgramShape:
    return replace(shape, over=None, put_at="%c0, %c0")


def _one_for_all(shape: ProgramShape, _: random.Random) -> ProgramShape:
    return replace(shape, bundle=(1, 1), over=None, put_at="%c0, %c0", get_at="%c0, %c0")


def _too_few(shape: ProgramShape, _: random.Random) -> ProgramShape:
    size = (shape.columns, 1) if shape.rows > 1 else (1, 1)
    return replace(shape, bundle=size, over=size)


def _last_alone(shape: ProgramShape, chance: random.Random) -> ProgramShape:
    size = (chance.choice((2, 3)), chance.choice((1, 2)))
    at = f"%c{size[0] - 1 if size[0] == 2 else 1}, %c{size[1] - 1}"
    return replace(shape, bundle=size, over=None, put_at=at, get_at=at)


def _channels() -> Iterator[ProgramFeature]:
    refused, accepted, wrong = ExpectedVerdict.REFUSED, ExpectedVerdict.ACCEPTED, ExpectedVerdict.WRONG
    yield ProgramFeature("members that no core gets", "members", refused, ALLOCATION, _of_channels, _more_put)
    yield ProgramFeature(
        "first member alone is put", "members", refused, ALLOCATION, _of_several, _first_only
    )
    uneven: Fits = lambda shape: _of_several(shape) and shape.columns != shape.rows  # noqa: E731
    yield ProgramFeature(
        "indices swapped on one side", "members", refused, ALLOCATION, uneven, _changed(get_at="%y, %x")
    )
    yield ProgramFeature("indices swapped on both sides", "members", accepted, TO_AIE, _of_several, _turned)
    yield ProgramFeature(
        "one member for several cores", "members", wrong, ALLOCATION, _of_several, _one_for_all
    )
    larger: Fits = lambda shape: _of_several(shape) and shape.rows > 1  # noqa: E731
    yield ProgramFeature("cores beyond the bundle", "members", wrong, TO_AIE, larger, _too_few)
    single: Fits = lambda shape: _of_channels(shape) and shape.cores == 1  # noqa: E731
    yield ProgramFeature("a late member alone", "members", refused, LOWERING, single, _last_alone)
    for old in ("dma_stream", "dma_packet"):
        named: Fits = lambda shape: shape.by == CHANNEL  # noqa: E731
        yield ProgramFeature(f"channel type {old}", "kind", refused, DIALECT, named, _changed(kind=old))
    yield ProgramFeature("packets", "kind", accepted, ALLOCATION, single, _changed(kind="npu_dma_packet"))


# ---- sizes ----


def _freed(name: str, type_: str) -> str:
    return f"memref.dealloc {name} : {type_}\n"


def _filled(name: str, element: str, extent: int) -> str:
    """A buffer of the core, full of ones."""
    type_ = f"memref<{extent}x{element}, 2>"
    return (
        f"{name} = memref.alloc() : {type_}\n"
        f"{name}_one = arith.constant {'1' if element[0] == 'i' else '1.0'} : {element}\n"
        f"{name}_end = arith.constant {extent} : index\n"
        f"scf.for %z = %c0 to {name}_end step %c1 {{\nmemref.store {name}_one, {name}[%z] : {type_}\n}}\n"
    )


def _bytes_more(low: int, high: int) -> Write:
    """Another buffer of the core, which it looks at."""

    def write(shape: ProgramShape, chance: random.Random) -> ProgramShape:
        words = chance.randrange(low, high, 64) // 4
        type_ = f"memref<{words}xi32, 2>"
        store = f"%word = arith.constant 1 : i32\nmemref.store %word, %more[%c0] : {type_}\n"
        made = f"%more = memref.alloc() : {type_}\n"
        return replace(shape, work=f"{made}{store}{_freed('%more', type_)}")

    return write


def _given_sizes(shape: ProgramShape, _: random.Random) -> ProgramShape:
    near = f"memref<?x{shape.element}, 2>"
    made = f"%given = memref.alloc(%c{shape.tile}) : {near}\n%near = memref.cast %given : {near} to TYPE\n"
    return replace(shape, made=made)


def _unlike_buffers(shape: ProgramShape, _: random.Random) -> ProgramShape:
    """40 KiB for the cores of the first column, or row, and as much for the next."""
    axis, type_ = _axis(shape), "memref<10240xi32, 2>"
    buffers = "".join(
        f"affine.if affine_set<(d0) : (d0 - {at} == 0)>({axis}) {{\n%big = memref.alloc() : {type_}\n"
        f"%word{at} = arith.constant 1 : i32\nmemref.store %word{at}, %big[%c0] : {type_}\n"
        f"{_freed('%big', type_)}}}\n"
        for at in (0, 1)
    )
    return replace(shape, work=buffers)


def _part_of_a_buffer(shape: ProgramShape, _: random.Random) -> ProgramShape:
    """A buffer of 256 KiB of which a part is read, which aircc makes that small."""
    big, part = f"memref<65536x{shape.element}, 2>", f"[%c0] [%c{shape.tile}] [%c1]"
    move = f"air.dma_memcpy_nd (%big{part}, %c{part}) : ({big}, ARRAY)\n"
    return replace(shape, work=f"%big = memref.alloc() : {big}\n{move}{_freed('%big', big)}")


def _sizes() -> Iterator[ProgramFeature]:
    refused, accepted = ExpectedVerdict.REFUSED, ExpectedVerdict.ACCEPTED
    yield ProgramFeature("L1 too small", "work", refused, TARGET_MODEL, _any, _bytes_more(65536, 131072))
    yield ProgramFeature("L1 well filled", "work", accepted, TARGET_MODEL, _any, _bytes_more(1024, 24576))
    yield ProgramFeature(
        "constant sizes of a dynamic type", "made", accepted, TO_AIE, lambda f: f.by == CHANNEL, _given_sizes
    )
    several: Fits = lambda shape: shape.cores > 1 and shape.trips == 1  # noqa: E731
    yield ProgramFeature("buffers of unlike cores", "work", accepted, TO_AIE, several, _unlike_buffers)
    yield ProgramFeature("a buffer used in part", "work", accepted, SHRINK, _dmas_of_l3, _part_of_a_buffer)
    staged: Fits = lambda shape: shape.by == DMA  # noqa: E731
    tall: Write = lambda shape, _: resized(shape, shape.columns, 5)  # noqa: E731
    wide: Write = lambda shape, _: resized(shape, 9, 1)  # noqa: E731
    yield ProgramFeature("five rows", "herd", refused, TARGET_MODEL, staged, tall)
    yield ProgramFeature("nine columns", "herd", refused, TARGET_MODEL, staged, wide)


# ---- what a core computes ----


def _reads(at: tuple[int, ...], lanes: int) -> Write:
    """A vector of a buffer of the core, at an element of it or through a view that begins there."""

    def write(shape: ProgramShape, chance: random.Random) -> ProgramShape:
        element, begin = "bf16", chance.choice(at)
        vector, buffer = f"vector<{lanes}x{element}>", f"memref<256x{element}, 2>"
        text = f"{_filled('%table', element, 256)}%none = arith.constant 0.0 : {element}\n"
        if chance.random() < 0.5:
            view = f"memref<128x{element}, strided<[1], offset: {begin}>, 2>"
            text += f"%view = memref.subview %table[{begin}] [128] [1] : {buffer} to {view}\n"
            text += (
                f"%got = vector.transfer_read %view[%c0], %none {{in_bounds = [true]}} : {view}, {vector}\n"
            )
        else:
            text += f"%from = arith.constant {begin} : index\n"
            read = "vector.transfer_read %table[%from], %none {in_bounds = [true]}"
            text += f"%got = {read} : {buffer}, {vector}\n"
        return replace(shape, work=text + _freed("%table", buffer))

    return write


def _scalar(divisor: str) -> str:
    type_ = "memref<16xf32, 2>"
    return (
        f"{_filled('%cell', 'f32', 16)}%num = memref.load %cell[%c0] : {type_}\n{divisor}"
        f"%quo = arith.divf %num, %den : f32\nmemref.store %quo, %cell[%c1] : {type_}\n"
    ) + _freed("%cell", type_)


def _vector(op: str, element: str, lanes: int) -> Write:
    buffer, vector = f"memref<64x{element}, 2>", f"vector<{lanes}x{element}>"
    load = f"{_filled('%cells', element, 64)}%one = vector.load %cells[%c0] : {buffer}, {vector}\n"
    store = f"vector.store %two, %cells[%c0] : {buffer}, {vector}\n"
    return _changed(work=f"{load}%two = {op} %one, %one : {vector}\n{store}{_freed('%cells', buffer)}")


def _division(shape: ProgramShape, _: random.Random) -> ProgramShape:
    return replace(shape, work=_scalar("%den = memref.load %cell[%c1] : memref<16xf32, 2>\n"))


def _by_a_power(shape: ProgramShape, chance: random.Random) -> ProgramShape:
    power = chance.choice(("2.0", "0.25", "-8.0", "1024.0"))
    return replace(shape, work=_scalar(f"%den = arith.constant {power} : f32\n"))


def _work() -> Iterator[ProgramFeature]:
    refused, accepted = ExpectedVerdict.REFUSED, ExpectedVerdict.ACCEPTED
    yield ProgramFeature(
        "16 lanes that want a shift", "work", refused, SHIFT_LOWERING, _any, _reads((8, 24, 40), 16)
    )
    yield ProgramFeature(
        "32 lanes that want a shift", "work", accepted, SHIFTS, _any, _reads((8, 24, 40), 32)
    )
    yield ProgramFeature("16 lanes in their place", "work", accepted, SHIFTS, _any, _reads((0, 16, 48), 16))
    yield ProgramFeature("a scalar division", "work", accepted, XRT_BACKEND, _any, _division)
    yield ProgramFeature("a division by a power of two", "work", accepted, XRT_BACKEND, _any, _by_a_power)
    for op, element, lanes, verdict, source in (
        ("arith.addf", "f32", 8, refused, by.WIDTHS),
        ("arith.addi", "i32", 8, refused, by.WIDTHS),
        ("arith.divf", "bf16", 16, refused, by.OPS),
        ("arith.mulf", "bf16", 16, accepted, by.MUL),
        ("arith.maximumf", "bf16", 32, accepted, by.MAX),
        ("arith.addf", "f32", 16, accepted, by.ADD),
    ):
        name = f"{op} of {lanes} x {element}"
        yield ProgramFeature(name, "work", verdict, source, _any, _vector(op, element, lanes))


FEATURES: tuple[ProgramFeature, ...] = (*_moves(), *_channels(), *_sizes(), *_work())
"""Everything that can be written into a program."""
