"""How a product of a weight in blocks (weight_blocks.py) is divided among the cores.

As in gemm_tiles.py, but that a core has whole blocks of the weight, 32 columns of c or some times that, and
that K goes block by block. A block comes to a core whole, and is unpacked some columns at a time. Where the
last block of a row has padding, a core gets a whole row of blocks at once, so that all steps of K are equal.
Sums over K are made in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from aerie.device.npu2 import DeviceModel
from aerie.kernel_builder import gemm_tiles
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.dsl import bf16, f32
from aerie.kernel_builder.gemm_tiles import MMUL_BLOCK, GemmTiles
from aerie.kernel_builder.spec import divisors, largest_divisor, require_multiple
from aerie.kernel_builder.weight_blocks import BLOCK_COLUMNS, BLOCK_ROWS, WeightBlock

COLUMNS_STEP = 64
"""k is a multiple of it, and so are the columns that a core unpacks at a time."""
MAX_TILE_N = 64
MAX_PIECES = 18
"""Maximum pieces in which a memtile sends a row of blocks' columns of a to cores (gemm_tiles.MAX_PIECES)."""
CONSTANTS_BYTES = 1024
"""L1 that stays free for the constants of weight_blocks.cc."""


def choose_tiles(
    m: int, k: int, n: int, block: WeightBlock, device: DeviceModel, given: Mapping[str, int | None]
) -> GemmTiles:
    """The tiles of `gemm`, with the overrides tile_m, tile_n, herd_m and herd_n.

    Raises IllegalShapeError if a shape or tile is not supported.
    """
    _check_shape("gemm", m, k, n, given)
    tile_m, tile_n = given.get("tile_m"), given.get("tile_n")
    herd_m = given.get("herd_m") or largest_divisor(m // (tile_m or MMUL_BLOCK), device.columns)
    herd_n = given.get("herd_n") or largest_divisor(n // (tile_n or BLOCK_ROWS), device.rows)
    tile_m = tile_m or largest_divisor(m // herd_m, gemm_tiles.MAX_TILE_M, MMUL_BLOCK)
    tiles = _largest(GemmTiles(tile_m, 0, 0, tile_n or n // herd_n, herd_m, herd_n), k, tile_n, block, device)
    _check(tiles, m, n, block, device)
    return tiles


def choose_row_tiles(
    m: int, k: int, n: int, block: WeightBlock, device: DeviceModel, given: Mapping[str, int | None]
) -> GemmTiles:
    """The tiles of `gemm_rows`, with the overrides tile_n, herd_x and herd_y. Raises IllegalShapeError."""
    _check_shape("gemm_rows", m, k, n, given)
    gemm_tiles.check_rows(m)
    x, y = gemm_tiles.whole_array(m, n, given, device, BLOCK_ROWS)
    tile_n = given.get("tile_n")
    whole = GemmTiles(m, 0, 0, tile_n or n // (x * y), x, y, rows_are_shared=True)
    tiles = _largest(whole, k, tile_n, block, device)
    _check(tiles, m, n, block, device)
    return tiles


def schedules(m: int, n: int) -> Iterator[dict[str, int]]:
    """Tiles to try for a GEMM."""
    rows = divisors(m, gemm_tiles.MAX_TRIED_TILE_M, MMUL_BLOCK)
    for tile_m, tile_n in itertools.product(rows, divisors(n, gemm_tiles.MAX_TRIED_TILE_N, BLOCK_ROWS)):
        yield {"tile_m": tile_m, "tile_n": tile_n}


def row_schedules(n: int) -> Iterator[dict[str, int]]:
    """Tiles to try for a product of few rows."""
    return ({"tile_n": tile_n} for tile_n in divisors(n, gemm_tiles.MAX_TILE_N, BLOCK_ROWS))


def _largest(
    whole: GemmTiles, k: int, tile_n: int | None, block: WeightBlock, device: DeviceModel
) -> GemmTiles:
    """The widest tiles that fit L1, then those that unpack most columns at a time, or the smallest.

    whole: as if a core computed all of its columns at once.
    """
    depth = BLOCK_COLUMNS if k % BLOCK_COLUMNS == 0 else k
    widths = [tile_n] if tile_n else [w for w in (MAX_TILE_N, BLOCK_ROWS) if whole.tile_n % w == 0]
    most = COLUMNS_STEP if depth == BLOCK_COLUMNS else 3 * COLUMNS_STEP
    pieces = [p for p in range(most, 0, -COLUMNS_STEP) if depth % p == 0 and depth // p <= MAX_PIECES]
    tiles = [
        GemmTiles(whole.tile_m, depth, p, w, whole.herd_x, whole.herd_y, bf16, whole.rows_are_shared)
        for w, p in itertools.product(widths, pieces or [COLUMNS_STEP])
    ]
    budget = device.l1_budget - CONSTANTS_BYTES
    return next((each for each in tiles if l1_bytes(each, k, block) <= budget), tiles[-1])


def l1_bytes(tiles: GemmTiles, k: int, block: WeightBlock) -> int:
    """L1 bytes of a core: the accumulator and its copy, a twice, unpacked columns of b, and blocks of b, once
    if all come at once, else twice, or three times if their number is odd.
    """
    sums = tiles.tile_m * tiles.tile_n * (f32.itemsize + bf16.itemsize)
    inputs = (_copies(tiles.tile_k_l2 // tiles.tile_k_l1) * tiles.tile_m + tiles.tile_n) * tiles.tile_k_l1
    across = -(-tiles.tile_k_l2 // BLOCK_COLUMNS)
    blocks = _copies(k // tiles.tile_k_l2) * across * (tiles.tile_n // BLOCK_ROWS)
    return sums + inputs * bf16.itemsize + blocks * block.nbytes


def _copies(trips: int) -> int:
    """Copies that aircc makes of a buffer that a loop of so many trips fills."""
    return 1 if trips == 1 else 2 + trips % 2


def _check_shape(kernel: str, m: int, k: int, n: int, given: Mapping[str, int | None]) -> None:
    require_multiple(kernel, "m", m, MMUL_BLOCK, "the matrix unit works on 8x8 blocks")
    require_multiple(kernel, "k", k, COLUMNS_STEP, "columns that are unpacked together")
    require_multiple(kernel, "n", n, BLOCK_ROWS, "rows of a block of the weight")
    require_multiple(kernel, "tile_n", given.get("tile_n") or BLOCK_ROWS, BLOCK_ROWS, "whole blocks")
    if given.get("tile_k_l1") or given.get("tile_k_l2"):
        raise IllegalShapeError(
            f"{kernel}: tile_k_l1 and tile_k_l2 cut K, and a weight in blocks comes block by block; leave "
            "them out"
        )


def _check(tiles: GemmTiles, m: int, n: int, block: WeightBlock, device: DeviceModel) -> None:
    kernel = "gemm_rows" if tiles.rows_are_shared else "gemm"
    require_multiple(kernel, "m", m, tiles.l2_m, "rows of the tiles of all cores")
    require_multiple(kernel, "n", n, tiles.l2_n, "columns of the tiles of all cores")
    for side, blocks in (("m", m // tiles.l2_m), ("n", n // tiles.l2_n)):
        if blocks > device.repeat_limit:
            raise IllegalShapeError(
                f"{kernel}: {side} makes {blocks} blocks, a launch has at most {device.repeat_limit} in one "
                f"direction; pad {side} so that more cores share it"
            )
    if (used := l1_bytes(tiles, tiles.tile_k_l2, block)) > device.l1_budget:
        raise IllegalShapeError(
            f"{kernel}: tiles of {tiles.tile_m}x{tiles.tile_n} beside blocks of {block.name} for "
            f"{tiles.tile_k_l2} columns take {used} bytes of L1, {device.l1_budget} are free on a core; use "
            f"tile_n={BLOCK_ROWS}, fewer rows, or a k that is a multiple of {BLOCK_COLUMNS}"
        )
