"""Where herds stand: sizes, positions, several herds side by side, unrolled segments, trips of launches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.ops import ChannelTransferOp, HerdOp, HierarchyOp, LaunchOp, SegmentOp
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.launches import loop_trips
from aerie.device.npu2 import DIALECT, PLACEMENT, REGISTRY, TARGET_MODEL, TASK_QUEUE, TO_AIE
from aerie.device.report import Fault, Finding, ResourceUsage
from aerie.device.scopes import ArrayConfiguration, CheckedProgram, integer_attribute, op_location
from aerie.device.transfers import extents

Cell = tuple[int, int]
"""(column, row) of a core, from the corner of the segment."""


def check_launches(program: CheckedProgram) -> Iterator[Finding]:
    """Trips of each launch, which upstream runs with more than a repeat count holds."""
    for op in program.module.walk():
        if isinstance(op, LaunchOp):
            most, advice = max(extents(op), default=1), "run it in parts: larger tiles, or several launches"
            yield ResourceUsage(op_location(op), "trips of one dimension", most, None, REGISTRY, advice, op)
            yield from _repeated(program, op)
        if isinstance(op, LaunchOp | SegmentOp | HerdOp):
            yield from _empty(op)


def _repeated(program: CheckedProgram, launch: LaunchOp) -> Iterator[Fault]:
    """Points that stay in one loop of the host, and so may become the repeat count of one task."""
    limit, tiling = program.device.repeat_limit, program.options.loop_tiling or ()
    tiles = (*tiling, *[None] * len(launch.sizes))
    kept = max(map(loop_trips, extents(launch), tiles), default=1)
    if kept > limit:
        message = (
            f"{kept} points of the launch in one dimension: where aircc makes one task of them, its repeat "
            f"count of 8 bits holds {limit}, and a GEMV of more is known to fail on a board; compile with "
            "--air-runtime-loop-tiling-sizes, or run it in parts"
        )
        yield Fault("trips", op_location(launch), message, REGISTRY, launch, certain=False)


def check_bare_herds(program: CheckedProgram) -> Iterator[Finding]:
    """Herds without a launch beside launches: aircc wraps only programs that have none (stitching.py)."""
    for function in program.functions:
        ops = list(function.walk())
        if not any(isinstance(op, LaunchOp) for op in ops):
            continue
        for herd in ops:
            if isinstance(herd, HerdOp) and not any(
                isinstance(parent, LaunchOp) for parent in parent_ops(herd)
            ):
                message = (
                    "a herd without a launch in a function that has launches: airrt-to-npu drops it; put it "
                    "into a launch and a segment"
                )
                yield Fault("bare-herd", op_location(herd), message, TASK_QUEUE, herd)


def _empty(op: HierarchyOp) -> Iterator[Fault]:
    for size in map(constant_int, op.sizes):
        if size is not None and size < 1:
            message = f"an extent of {size}, so nothing would run; make it at least 1"
            yield Fault("extent", op_location(op), message, DIALECT, op)


def check_segments(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Unroll factors, and the part of the array that a segment asks for."""
    segment = scope.segment
    if segment is None:
        return
    yield from _unroll(scope, segment)
    columns = integer_attribute(segment, "x_size")
    if columns is not None:
        reach = (integer_attribute(segment, "x_loc") or 0) + columns
        advice = "make x_loc + x_size smaller"
        yield ResourceUsage(
            scope.place, "columns reached", reach, scope.device.columns, TARGET_MODEL, advice, segment
        )
    row, first = integer_attribute(segment, "y_loc"), scope.device.first_core_row
    last = first + scope.device.rows - 1
    if row is not None and not first <= row <= last:
        message = f"y_loc {row} is no row of cores; they are in rows {first} to {last}"
        yield Fault("placement", scope.place, message, TARGET_MODEL, segment)


def _unroll(scope: ArrayConfiguration, segment: SegmentOp) -> Iterator[Finding]:
    sizes = [constant_int(size) for size in segment.sizes]
    if None in sizes:
        message = "an unroll factor that is no constant; each copy is compiled for itself, so write a number"
        yield Fault("unroll", scope.place, message, TO_AIE, segment)
    if len(sizes) > 1 and (sizes[1] or 1) > 1:
        message = (
            f"unrolled {sizes[1]} times along y; the array is divided by columns only, so unroll along x"
        )
        yield Fault("unroll", scope.place, message, TO_AIE, segment)
    if scope.copies > 1:
        advice = "each copy needs a column; unroll less"
        yield ResourceUsage(
            scope.place, "unrolled copies", scope.copies, scope.device.columns, TO_AIE, advice, segment
        )


def check_herd_sizes(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Columns and rows of each herd, and the cores of all together."""
    transpose = "x counts columns and y rows; swap or split the herd"
    for name, herds in scope.herds.items():
        columns, rows = herd_shape(herds[0])
        place, at = scope.report_name(name), herds[0]
        if len(herds[0].sizes) != 2:
            message = (
                f"{len(herds[0].sizes)} dimension; mlir-air reads two, so write (%x, %y) in (columns, rows)"
            )
            yield Fault("herd-rank", place, message, DIALECT, at)
        yield ResourceUsage(place, "columns (x)", columns, scope.columns, TARGET_MODEL, transpose, at)
        yield ResourceUsage(place, "rows (y)", rows, scope.rows, TARGET_MODEL, transpose, at)
    if scope.herds:
        cores = sum(math.prod(herd_shape(herds[0])) for herds in scope.herds.values())
        advice = "herds of different names run next to each other; give phases of one herd one name"
        limit = scope.columns * scope.rows * scope.copies
        yield ResourceUsage(
            scope.place, "cores", cores * scope.copies, limit, TARGET_MODEL, advice, scope.root
        )


def herd_shape(herd: HerdOp) -> tuple[int, int]:
    """(columns, rows) of a herd."""
    columns, rows = (*extents(herd), 1, 1)[:2]
    return columns, rows


def check_positions(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Herds pinned by x_loc and y_loc, and room for the others beside them."""
    taken: dict[Cell, str] = {}
    free: dict[str, HerdOp] = {}
    for name, herds in scope.herds.items():
        corner = _pin(scope, herds[0])
        if any(_pin(scope, herd) != corner for herd in herds):
            message = "herds of one name are one herd, but their x_loc and y_loc differ; give all the same"
            yield Fault("placement", scope.report_name(name), message, PLACEMENT, herds[0])
        if corner is None:
            free[name] = herds[0]
            continue
        yield from _pinned(scope, name, herds[0], corner, taken)
    if not _has_cascade(scope):
        yield from _room(scope, free, taken)


def _has_cascade(scope: ArrayConfiguration) -> bool:
    """Whether herds are placed next to each other on purpose, by another method than `_room`'s."""
    transfers = (op for op in scope.ops if isinstance(op, ChannelTransferOp))
    return any(scope.program.channel_type(op.chan_name) == "npu_cascade" for op in transfers)


def _pin(scope: ArrayConfiguration, herd: HerdOp) -> Cell | None:
    column, row = integer_attribute(herd, "x_loc"), integer_attribute(herd, "y_loc")
    if column is None or row is None:
        return None
    origin = scope.segment
    left = (integer_attribute(origin, "x_loc") or 0) if origin else 0
    low = (integer_attribute(origin, "y_loc") if origin else None) or scope.device.first_core_row
    return column - left, row - low


def _cells(corner: Cell, size: tuple[int, int]) -> list[Cell]:
    return [(corner[0] + x, corner[1] + y) for x in range(size[0]) for y in range(size[1])]


def _pinned(
    scope: ArrayConfiguration, name: str, herd: HerdOp, corner: Cell, taken: dict[Cell, str]
) -> Iterator[Fault]:
    """mlir-air ignores such a pin with a warning; on the array it cannot be."""
    on_device, place = _on_device(scope, herd), scope.report_name(name)
    cells = _cells(corner, herd_shape(herd)) if on_device else []
    where = f"x_loc {integer_attribute(herd, 'x_loc')}, y_loc {integer_attribute(herd, 'y_loc')}"
    others = {taken[cell] for cell in cells if cell in taken}
    taken.update(dict.fromkeys(cells, name))
    if others:
        message = f"{where} overlaps herd {', '.join(sorted(others))}; move one, or let it be placed"
        yield Fault("placement", place, message, PLACEMENT, herd)
    if on_device and all(0 <= x < scope.columns and 0 <= y < scope.rows for x, y in cells):
        return
    columns, rows = herd_shape(herd)
    whose = "segment" if on_device else scope.device.name
    message = (
        f"{where} puts {columns} x {rows} cores outside of the {whose}'s columns and rows; move it, or "
        "let it be placed"
    )
    above = (integer_attribute(herd, "y_loc") or 0) + rows > scope.device.first_core_row + scope.device.rows
    yield Fault("placement", place, message, PLACEMENT, herd, certain=above)


def _on_device(scope: ArrayConfiguration, herd: HerdOp) -> bool:
    """Whether a pinned herd stands on cores, if not on those of its segment."""
    left, low = integer_attribute(herd, "x_loc") or 0, integer_attribute(herd, "y_loc") or 0
    columns, rows = herd_shape(herd)
    first = scope.device.first_core_row
    fits = left + columns <= scope.device.columns and low + rows <= first + scope.device.rows
    return fits and left >= 0 and low >= first


def _room(scope: ArrayConfiguration, free: dict[str, HerdOp], taken: dict[Cell, str]) -> Iterator[Fault]:
    """Place the rest as mlir-air does: the largest first, from left to right and row by row."""
    grid = (scope.columns, scope.rows)
    waiting = sorted(free.items(), key=lambda item: -math.prod(herd_shape(item[1])))
    for y in range(grid[1]):
        for x in range(grid[0]):
            chosen = next((item for item in waiting if _fits(grid, (x, y), item[1], taken)), None)
            if (x, y) not in taken and chosen is not None:
                waiting.remove(chosen)
                taken.update(dict.fromkeys(_cells((x, y), herd_shape(chosen[1])), chosen[0]))
    for name, herd in waiting:
        columns, rows = herd_shape(herd)
        if columns <= grid[0] and rows <= grid[1] and len(scope.herds) > 1:
            message = (
                f"no room for {columns} x {rows} cores next to the other herds on {grid[0]} x {grid[1]}; "
                "make it or the others smaller, or give x_loc and y_loc to all"
            )
            yield Fault("placement", scope.report_name(name), message, PLACEMENT, herd)


def _fits(grid: tuple[int, int], corner: Cell, herd: HerdOp, taken: dict[Cell, str]) -> bool:
    columns, rows = herd_shape(herd)
    if corner[0] + columns > grid[0] or corner[1] + rows > grid[1]:
        return False
    return not any(cell in taken for cell in _cells(corner, (columns, rows)))
