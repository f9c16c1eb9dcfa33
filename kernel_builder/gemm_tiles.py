"""How a matrix product is cut for the cores: tiles of c, and pieces of K on their way through L2 and L1.

The K tiles depend on k alone, so that an element of c is summed alike whatever rows it is made with. Where a
CPU sums several blocks of K at once, those of a core's tile are summed so (vector_sums.py): tiles are whole
goes wherever k is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import DType, IllegalShapeError
from aerie.kernel_builder.dsl import Index, bf16, f32
from aerie.kernel_builder.spec import largest_divisor, require_multiple
from aerie.virtual_npu.codegen.vector_sums import GROUP_STEPS

BLOCK = 8
"""The matrix unit multiplies 8x8 by 8x8 (AIE2P bf16)."""
MAX_TILE_M, MAX_TILE_N = 32, 128
"""Upstream's best tile for a bf16 result rounded once: a larger one leaves no L1 for the rounded copy."""
MAX_TILE_M_F32 = 64
"""Upstream's best for an f32 result, which has no such copy."""
MAX_TILE_K_L1, MAX_TILE_K_L2 = 32, 256
MAX_PIECES = 18
"""Descriptors that one memtile channel takes at most to send K in pieces to L1. A memtile has 24 for its even
channels, and 24 for the odd ones; what comes in from L3 and the way of c take up to six."""
MAX_ROWS = 32
"""Rows of a product whose cores all have all of them: as many as a core of a GEMM has."""
MAX_ROWS_TILE_N, MAX_ROWS_TILE_K_L1 = 64, 64
"""What leaves room for 32 rows, and has four cores' weights twice in one memtile."""
MAX_ROWS_PIECES = 8
"""As MAX_PIECES, of two channels of one parity: a memtile feeds the four cores above it."""
MAX_HELD = 4
"""Accumulators that a loop over K holds. An 8x8 block of f32 is 2048 bits; a core has five such registers
(llvm-aie AIE2PRegisterInfo.td, dm0 to dm4), and blocks of a and b pass through the fifth to block floats.
Upstream's GEMM holds 2x2 as well (mlir-air programming_examples/matrix_multiplication/bf16/run.py)."""


@dataclass(frozen=True)
class Tiles:
    """How a product is cut: one core makes (tile_m, tile_n) of c; K comes to L2 and then L1 in pieces.

    herd_x x herd_y cores share m and n, one side each; where the rows are `shared`, every core has all of
    them, and n is cut for all cores.
    """

    tile_m: int
    tile_k_l2: int
    tile_k_l1: int
    tile_n: int
    herd_x: int
    herd_y: int
    out: DType = bf16
    shared: bool = False

    @property
    def l2_m(self) -> int:
        """Rows of c that the whole herd makes."""
        return self.tile_m * (1 if self.shared else self.herd_x)

    @property
    def l2_n(self) -> int:
        """Columns of c that the whole herd makes."""
        return self.tile_n * (self.herd_x * self.herd_y if self.shared else self.herd_y)

    @property
    def l2_columns(self) -> tuple[int, ...]:
        """How the columns of that lie in L2; where the rows are shared, a column of cores has a part of its
        own, which air-split-l2-memref puts into the memtile below it."""
        return (self.herd_x, self.tile_n * self.herd_y) if self.shared else (self.l2_n,)

    def own_rows(self, tx: Index) -> slice:
        """The rows in L2 that the cores of column tx use."""
        row = Index.of(0) if self.shared else tx * self.tile_m
        return slice(row, row + self.tile_m)

    def own_columns(self, tx: Index, ty: Index) -> tuple[Index | slice, ...]:
        """The columns in L2 that core (tx, ty) uses."""
        columns = slice(ty * self.tile_n, ty * self.tile_n + self.tile_n)
        return (tx, columns) if self.shared else (columns,)

    @property
    def held_m(self) -> int:
        """Blocks down that one loop over K holds."""
        return held_blocks(self.tile_m // BLOCK, self.tile_n // BLOCK)[0]

    @property
    def held_n(self) -> int:
        """Blocks along that one loop over K holds."""
        return held_blocks(self.tile_m // BLOCK, self.tile_n // BLOCK)[1]

    @property
    def l1_bytes(self) -> int:
        """L1 of one core: f32 accumulator, its bf16 copy, and a and b twice (the compiler double-buffers)."""
        inputs = (self.tile_m + self.tile_n) * self.tile_k_l1 * bf16.itemsize
        copy = 0 if self.out is f32 else self.out.itemsize
        return self.tile_m * self.tile_n * (f32.itemsize + copy) + 2 * inputs

    @property
    def l2_bytes(self) -> int:
        """L2 of the segment: a, b twice, c once."""
        inputs = (self.l2_m + self.l2_n) * self.tile_k_l2 * bf16.itemsize
        return self.l2_m * self.l2_n * self.out.itemsize + 2 * inputs


def held_blocks(m: int, n: int) -> tuple[int, int]:
    """How many blocks down and along a loop over K holds, of a tile of m x n blocks.

    As many as there are accumulators for, and then the most square: r x c of them take r + c blocks of a and
    b, each converted to block floats once, for r c products.
    """
    shapes = itertools.product(range(1, MAX_HELD + 1), repeat=2)
    fit = [(r, c) for r, c in shapes if r * c <= MAX_HELD and m % r == 0 and n % c == 0]
    return max(fit, key=lambda shape: (shape[0] * shape[1], -sum(shape)))


def max_tile_m(out: DType) -> int:
    """The highest tile whose buffers fit L1 beside the widest."""
    return MAX_TILE_M_F32 if out is f32 else MAX_TILE_M


def blocks(extent: int, most_cores: int, widest: int) -> int:
    """Launch trips that the default tiles make of m or n, a multiple of 8."""
    herd = largest_divisor(extent // BLOCK, most_cores)
    return extent // (herd * largest_divisor(extent // herd, widest, BLOCK))


def serves_rows(m: int, device: DeviceModel = NPU2) -> bool:
    """Whether the default tiles cut m, a multiple of 8, into no more blocks than a launch has trips."""
    return blocks(m, device.columns, MAX_TILE_M) <= device.repeat_limit


def serves_columns(n: int, device: DeviceModel = NPU2) -> bool:
    """Whether the default tiles cut n, a multiple of 8, into no more blocks than a launch has trips."""
    return blocks(n, device.rows, MAX_TILE_N) <= device.repeat_limit


def nearest(
    extent: int, step: int, serves: Callable[[int, DeviceModel], bool], device: DeviceModel = NPU2
) -> int:
    """The multiple of `step` nearest to `extent`, itself one, that the default tiles serve."""
    around = (extent + sign * step * far for far in itertools.count() for sign in (-1, 1))
    return next(candidate for candidate in around if candidate > 0 and serves(candidate, device))


def choose_tiles(
    m: int, k: int, n: int, out: DType = bf16, device: DeviceModel = NPU2, **given: int | None
) -> Tiles:
    """The largest tiles that divide the shape, with what is given kept; the K tiles depend on k alone.

    Raises IllegalShapeError, with the nearest legal numbers, for a shape or tile that cannot be served.
    """
    for name, extent in (("m", m), ("k", k), ("n", n)):
        require_multiple("gemm", name, extent, BLOCK, "the matrix unit works on 8x8 blocks")
    for name in ("tile_m", "tile_k_l1", "tile_n"):
        require_multiple("gemm", name, given.get(name) or BLOCK, BLOCK, "whole 8x8 blocks")
    herd_m = given.get("herd_m") or _spread("m", m, given.get("tile_m"), device.columns)
    herd_n = given.get("herd_n") or _spread("n", n, given.get("tile_n"), device.rows)
    tile_k_l1 = given.get("tile_k_l1") or largest_divisor(given.get("tile_k_l2") or k, MAX_TILE_K_L1, BLOCK)
    tiles = Tiles(
        tile_m=given.get("tile_m") or _tile("m", m, herd_m, max_tile_m(out)),
        tile_k_l2=given.get("tile_k_l2") or _tile_k_l2(k, tile_k_l1, MAX_PIECES),
        tile_k_l1=tile_k_l1,
        tile_n=given.get("tile_n") or _tile("n", n, herd_n, MAX_TILE_N),
        herd_x=herd_m,
        herd_y=herd_n,
        out=out,
    )
    _check_division(tiles, m, k, n, device)
    _check_memory("gemm", tiles, device)
    return tiles


def choose_row_tiles(m: int, k: int, n: int, device: DeviceModel = NPU2, **given: int | None) -> Tiles:
    """The tiles of a product of few rows: all of them in every core, n spread over the whole array.

    Raises IllegalShapeError, with what is legal, for a shape or tile that cannot be served.
    """
    for name, extent in (("m", m), ("k", k), ("n", n)):
        require_multiple("gemm_rows", name, extent, BLOCK, "the matrix unit works on 8x8 blocks")
    if m > MAX_ROWS:
        raise IllegalShapeError(
            f"gemm_rows: m={m} rows, and a core holds at most {MAX_ROWS} beside its weights; use {MAX_ROWS}, "
            "or gemm, whose cores share the rows"
        )
    herd_x, herd_y = _whole_array(m, n, given, device)
    whole = GROUP_STEPS if k % GROUP_STEPS == 0 else BLOCK
    tile_k_l1 = given.get("tile_k_l1") or largest_divisor(k, MAX_ROWS_TILE_K_L1, whole)
    tiles = Tiles(
        tile_m=m,
        tile_k_l2=given.get("tile_k_l2") or _tile_k_l2(k, tile_k_l1, MAX_ROWS_PIECES),
        tile_k_l1=tile_k_l1,
        tile_n=given.get("tile_n") or largest_divisor(n // (herd_x * herd_y), MAX_ROWS_TILE_N, BLOCK),
        herd_x=herd_x,
        herd_y=herd_y,
        shared=True,
    )
    _check_row_tiles(tiles, k, n, device)
    return tiles


def _whole_array(m: int, n: int, given: Mapping[str, int | None], device: DeviceModel) -> tuple[int, int]:
    """Columns and rows of cores that share n, as given or the best: first as many sums as a core can hold,
    then as many cores, then more columns than rows, as each column has its own way to memory."""
    width = given.get("tile_n") or BLOCK
    require_multiple("gemm_rows", "n", n, width, "tile_n")
    grid = itertools.product(range(1, device.columns + 1), range(1, device.rows + 1))
    legal = [(x, y) for x, y in grid if n // width % (x * y) == 0]

    def worth(cores: tuple[int, int]) -> tuple[int, ...]:
        tile_n = given.get("tile_n") or largest_divisor(n // math.prod(cores), MAX_ROWS_TILE_N, BLOCK)
        return math.prod(held_blocks(m // BLOCK, tile_n // BLOCK)), math.prod(cores), cores[0]

    best = max(legal, key=worth)
    asked = given.get("herd_x") or best[0], given.get("herd_y") or best[1]
    if asked not in legal:
        raise IllegalShapeError(
            f"gemm_rows: {asked[0]}x{asked[1]} cores cannot share n={n} in tiles of {width} on an array of "
            f"{device.columns}x{device.rows}; use {best[0]}x{best[1]}"
        )
    return asked


def _check_row_tiles(tiles: Tiles, k: int, n: int, device: DeviceModel) -> None:
    require_multiple("gemm_rows", "tile_k_l2", tiles.tile_k_l2, tiles.tile_k_l1, "whole L1 tiles")
    require_multiple("gemm_rows", "k", k, tiles.tile_k_l2, "whole L2 tiles")
    require_multiple("gemm_rows", "n", n, tiles.l2_n, "the tiles of all cores")
    if n // tiles.l2_n > device.repeat_limit:
        raise IllegalShapeError(
            f"gemm_rows: n={n} makes {n // tiles.l2_n} blocks of {tiles.l2_n}, a launch has at most "
            f"{device.repeat_limit}; pad n to a multiple of {device.columns * device.rows * BLOCK}"
        )
    _check_memory("gemm_rows", tiles, device)


def _tile_k_l2(k: int, tile_k_l1: int, most: int) -> int:
    """The deepest L2 tile whose pieces of K a memtile has descriptors for, at most `most`; an even number of
    tiles makes k, or one, where there is such a tile.

    aircc makes two copies of the buffers that a loop over K fills, and of their transfers, and a third where
    the number of its trips is odd (air-unroll-loop-for-pipelining leaves the last one over).
    """
    limit = max(MAX_TILE_K_L2, tile_k_l1)
    largest_divisor(k, limit, tile_k_l1)
    legal = [t for t in range(tile_k_l1, limit + 1, tile_k_l1) if k % t == 0]
    copies = {t: 1 if t == k else 2 + k // t % 2 for t in legal}
    fit = [t for t in legal if copies[t] * (t // tile_k_l1) <= most]
    return max(fit, key=lambda t: (copies[t] < 3, t))


def _spread(side: str, extent: int, tile: int | None, most: int) -> int:
    """The most cores along one side that divide it in tiles (8 wide where no tile is given)."""
    width = tile or BLOCK
    require_multiple("gemm", side, extent, width, f"tile_{side}")
    return largest_divisor(extent // width, most)


def _tile(side: str, extent: int, herd: int, limit: int) -> int:
    """The widest tile, in blocks of 8, of which `herd` divide the extent."""
    require_multiple("gemm", side, extent, herd * BLOCK, f"herd_{side}={herd} cores of 8x8 blocks")
    return largest_divisor(extent // herd, limit, BLOCK)


def _check_division(tiles: Tiles, m: int, k: int, n: int, device: DeviceModel) -> None:
    """Refuse tiles that do not divide the shape, or make more cores or blocks than there may be."""
    for side, herd, most in (("m", tiles.herd_x, device.columns), ("n", tiles.herd_y, device.rows)):
        if not 1 <= herd <= most:
            raise IllegalShapeError(
                f"gemm: herd_{side}={herd}, but {device.name} has {most}; use 1 to {most}"
            )
    require_multiple("gemm", "m", m, tiles.l2_m, "herd_m * tile_m; otherwise rows would be left out")
    require_multiple("gemm", "n", n, tiles.l2_n, "herd_n * tile_n; otherwise columns would be left out")
    for side, extent, block, serves in (
        ("m", m, tiles.l2_m, serves_rows),
        ("n", n, tiles.l2_n, serves_columns),
    ):
        if extent // block > device.repeat_limit:
            legal = nearest(extent, BLOCK, serves, device)
            advice = "let the tiles be chosen" if legal == extent else f"use {legal}"
            raise IllegalShapeError(
                f"gemm: {side}={extent} makes {extent // block} blocks of {block}, a launch has at most "
                f"{device.repeat_limit} in one direction; {advice}"
            )
    require_multiple("gemm", "tile_k_l2", tiles.tile_k_l2, tiles.tile_k_l1, "whole L1 tiles")
    require_multiple("gemm", "k", k, tiles.tile_k_l2, "whole L2 tiles")


def _check_memory(kernel: str, tiles: Tiles, device: DeviceModel) -> None:
    """Refuse tiles whose buffers do not fit a core or the memtiles."""
    if tiles.l1_bytes > device.l1_budget:
        rows = tiles.tile_m if tiles.shared else max_tile_m(tiles.out)
        depth, width = (MAX_ROWS_TILE_K_L1, MAX_ROWS_TILE_N) if tiles.shared else (MAX_TILE_K_L1, MAX_TILE_N)
        raise IllegalShapeError(
            f"{kernel}: tiles {tiles.tile_m}x{tiles.tile_k_l1}x{tiles.tile_n} take {tiles.l1_bytes} bytes of "
            f"L1, {device.l1_budget} are free on a core; use at most {rows}x{depth}x{width}"
        )
    if tiles.l2_bytes > device.l2_total_bytes:
        raise IllegalShapeError(
            f"{kernel}: tile_k_l2={tiles.tile_k_l2} takes {tiles.l2_bytes} bytes of L2, {device.name} has "
            f"{device.l2_total_bytes}; use at most {MAX_TILE_K_L2}"
        )
