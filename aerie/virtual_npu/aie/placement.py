"""Gives logical tiles their place. What a design computes does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import Attribute

from aerie.air_dialect.aie.array import TILE_KINDS, DeviceOp, LogicalTileOp, TileOp
from aerie.virtual_npu.codegen.op_errors import unsupported

Place = tuple[int, int]


def place_logical_tiles(device: DeviceOp) -> None:
    """Put an aie.tile in place of each logical tile: the first free one of its kind, column by column.

    Raises UnsupportedOpError where no tile is left.
    """
    taken = {op.place for op in device.body.block.ops if isinstance(op, TileOp)}
    for op in list(device.body.block.ops):
        if isinstance(op, LogicalTileOp):
            place = next((one for one in _places(device, op) if one not in taken), None)
            if place is None:
                raise unsupported(op, f"the device has no {op.kind.data} left: give tiles, or use fewer")
            taken.add(place)
            _replace(op, place)


def _places(device: DeviceOp, op: LogicalTileOp) -> Iterator[Place]:
    first, last = TILE_KINDS[op.kind.data]
    for column in range(device.columns) if op.col is None else (op.col.value.data,):
        for row in range(first, last + 1) if op.row is None else (op.row.value.data,):
            yield column, row


def _replace(op: LogicalTileOp, place: Place) -> None:
    properties: dict[str, Attribute] = {
        name: IntegerAttr(number, i32) for name, number in zip(("col", "row"), place, strict=True)
    }
    tile = TileOp(result_types=[op.result.type], properties=properties, attributes=op.attributes)
    assert op.parent is not None
    op.parent.insert_op_before(tile, op)
    op.result.replace_all_uses_with(tile.result)
    op.parent.erase_op(op)
