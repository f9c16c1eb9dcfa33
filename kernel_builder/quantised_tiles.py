"""How a product of a weight in blocks (weight_blocks.py) is divided among the cores.

As in gemm_tiles.py, but that a core has whole blocks of the weight, 32 columns of c or some times that, and
that K goes block by block: a block comes to a core whole, and is unpacked some columns at a time. Sums over K
are made in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerie.device.npu2 import DeviceModel
from aerie.kernel_builder import gemm_tiles
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.dsl import bf16, f32
from aerie.kernel_builder.gemm_tiles import MMUL_BLOCK, GemmTiles
from aerie.kernel_builder.spec import largest_divisor, require_multiple
from aerie.kernel_builder.weight_blocks import BLOCK_COLUMNS, BLOCK_ROWS, WeightBlock

UNPACKED_COLUMNS = 64
"""Columns of the weight that a core unpacks at a time; k is a multiple of it."""
MAX_TILE_N = 64
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
    tile_n = tile_n or _tile_n(n // herd_n, tile_m, k, block, device)
    tiles = GemmTiles(tile_m, BLOCK_COLUMNS, UNPACKED_COLUMNS, tile_n, herd_m, herd_n)
    _check(tiles, m, k, n, block, device)
    return tiles


def choose_row_tiles(
    m: int, k: int, n: int, block: WeightBlock, device: DeviceModel, given: Mapping[str, int | None]
) -> GemmTiles:
    """The tiles of `gemm_rows`, with the overrides tile_n, herd_x and herd_y. Raises IllegalShapeError."""
    _check_shape("gemm_rows", m, k, n, given)
    gemm_tiles.check_rows(m)
    herd_x, herd_y = gemm_tiles.whole_array(m, n, given, device, BLOCK_ROWS)
    tile_n = given.get("tile_n") or _tile_n(n // (herd_x * herd_y), m, k, block, device)
    tiles = GemmTiles(m, BLOCK_COLUMNS, UNPACKED_COLUMNS, tile_n, herd_x, herd_y, rows_are_shared=True)
    _check(tiles, m, k, n, block, device)
    return tiles


def l1_bytes(tiles: GemmTiles, k: int, block: WeightBlock) -> int:
    """L1 bytes of a core: the accumulator and its copy, a twice, unpacked columns of b, and blocks of b,
    twice, or three times if their number is odd.
    """
    sums = tiles.tile_m * tiles.tile_n * (f32.itemsize + bf16.itemsize)
    inputs = (2 * tiles.tile_m + tiles.tile_n) * tiles.tile_k_l1 * bf16.itemsize
    across = k // BLOCK_COLUMNS
    copies = 2 + across % 2 if across > 1 else 2
    return sums + inputs + copies * tiles.tile_n // BLOCK_ROWS * block.nbytes


def _tile_n(extent: int, tile_m: int, k: int, block: WeightBlock, device: DeviceModel) -> int:
    """The widest tile that fits L1, of those that divide the extent."""
    for width in range(MAX_TILE_N, BLOCK_ROWS, -BLOCK_ROWS):
        tiles = GemmTiles(tile_m, BLOCK_COLUMNS, UNPACKED_COLUMNS, width, 1, 1)
        if extent % width == 0 and l1_bytes(tiles, k, block) <= device.l1_budget - CONSTANTS_BYTES:
            return width
    return BLOCK_ROWS


def _check_shape(kernel: str, m: int, k: int, n: int, given: Mapping[str, int | None]) -> None:
    require_multiple(kernel, "m", m, MMUL_BLOCK, "the matrix unit works on 8x8 blocks")
    require_multiple(kernel, "k", k, UNPACKED_COLUMNS, "columns that are unpacked together")
    require_multiple(kernel, "n", n, BLOCK_ROWS, "rows of a block of the weight")
    require_multiple(kernel, "tile_n", given.get("tile_n") or BLOCK_ROWS, BLOCK_ROWS, "whole blocks")
    if given.get("tile_k_l1") or given.get("tile_k_l2"):
        raise IllegalShapeError(
            f"{kernel}: tile_k_l1 and tile_k_l2 cut K, and a weight in blocks comes block by block; leave "
            "them out"
        )


def _check(tiles: GemmTiles, m: int, k: int, n: int, block: WeightBlock, device: DeviceModel) -> None:
    kernel = "gemm_rows" if tiles.rows_are_shared else "gemm"
    require_multiple(kernel, "m", m, tiles.l2_m, "rows of the tiles of all cores")
    require_multiple(kernel, "n", n, tiles.l2_n, "columns of the tiles of all cores")
    for side, blocks in (("m", m // tiles.l2_m), ("n", n // tiles.l2_n)):
        if blocks > device.repeat_limit:
            raise IllegalShapeError(
                f"{kernel}: {side} makes {blocks} blocks, a launch has at most {device.repeat_limit} in one "
                f"direction; pad {side} so that more cores share it"
            )
    if (used := l1_bytes(tiles, k, block)) > device.l1_budget:
        raise IllegalShapeError(
            f"{kernel}: tiles of {tiles.tile_m}x{tiles.tile_n} beside blocks of {block.name} take {used} "
            f"bytes of L1, {device.l1_budget} are free on a core; use tile_n={BLOCK_ROWS}"
        )
