"""The points of a launch that stay in loops of the host's instruction sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aerie.air_dialect.ops import LaunchOp
from aerie.device.transfers import extents


def host_loop_trips(launch: LaunchOp, tiling: Sequence[int] | None) -> int:
    """The number of points of a launch that stay in loops of the host's sequence.

    `air-opt-shim-dma-bds` unrolls the outer loops of a launch that is tiled: a dimension that has a tile size
    keeps the largest factor of its trips that is no larger; those without one stay whole.
    """
    sizes = extents(launch)
    tiles = (*(tiling or ()), *[None] * len(sizes))
    return math.prod(loop_trips(size, tile) for size, tile in zip(sizes, tiles, strict=False))


def loop_trips(size: int, tile: int | None) -> int:
    """The trips of one dimension of a launch that stay in a loop: at most `tile`, if it is not None."""
    return size if tile is None else max(factor for factor in range(1, tile + 1) if size % factor == 0)
