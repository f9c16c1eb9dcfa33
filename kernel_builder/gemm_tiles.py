"""How a matrix product is divided among the cores: tiles of c, and pieces of K on their way through L2 and
L1.

The K tiles depend on k alone, so that an element of c is summed in the same order whatever its rows. If a CPU
sums several blocks of K at once, it does so within a core's tile (vector_sums.py): tiles are multiples of
that where k is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import DType, IllegalShapeError
from aerie.kernel_builder.dsl import Index, bf16, f32
from aerie.kernel_builder.spec import divisors, largest_divisor, require_multiple
from aerie.virtual_npu.codegen.vector_sums import GROUP_STEPS

MMUL_BLOCK = 8
"""The matrix unit multiplies 8x8 by 8x8 (AIE2P bf16)."""
MAX_TILE_M, MAX_TILE_N = 32, 128
"""Upstream's best tile for a bf16 result rounded once: a larger one leaves no L1 for the rounded copy."""
MAX_TILE_M_F32 = 64
"""Upstream's best for an f32 result, which has no such copy."""
MAX_TILE_K_L1, MAX_TILE_K_L2 = 32, 256
MAX_TRIED_TILE_M, MAX_TRIED_TILE_N, MAX_TRIED_TILE_K_L1 = 128, 256, 64
"""The largest tiles that a tuner tries."""
MAX_PIECES = 18
"""Maximum descriptors with which one memtile channel sends K in pieces to L1. A memtile has 24 for its even
channels, and 24 for the odd ones; the input from L3 and the path of c take up to six.
"""
MAX_ROWS = 32
"""Rows of a product in which every core has all rows: as many as a core of a GEMM has."""
MAX_ROWS_TILE_N, MAX_ROWS_TILE_K_L1 = 64, 64
"""Leaves room for 32 rows, and has four cores' weights twice in one memtile."""
MAX_ROWS_PIECES = 8
"""As MAX_PIECES, for two channels of one parity: a memtile feeds the four cores above it."""
MAX_ACCUMULATORS = 4
"""Accumulators of a loop over K. An 8x8 block of f32 is 2048 bits; a core has five such registers (llvm-aie
AIE2PRegisterInfo.td, dm0 to dm4), and blocks of a and b pass through the fifth to block floats. Upstream's
GEMM uses 2x2 as well (mlir-air programming_examples/matrix_multiplication/bf16/run.py).
"""


@dataclass(frozen=True)
class GemmTiles:
    """How a product is divided: one core computes (tile_m, tile_n) of c; K comes to L2 and then L1 in pieces.

    herd_x x herd_y cores share m and n, one side each. With `rows_are_shared` every core has all rows, and n
    is divided among all cores.
    """

    tile_m: int
    tile_k_l2: int
    tile_k_l1: int
    tile_n: int
    herd_x: int
    herd_y: int
    out: DType = bf16
    rows_are_shared: bool = False

    @property
    def l2_m(self) -> int:
        """Rows of c that the whole herd computes."""
        return self.tile_m * (1 if self.rows_are_shared else self.herd_x)

    @property
    def l2_n(self) -> int:
        """Columns of c that the whole herd computes."""
        return self.tile_n * (self.herd_x * self.herd_y if self.rows_are_shared else self.herd_y)

    @property
    def l2_columns(self) -> tuple[int, ...]:
        """The layout of those columns in L2. With rows_are_shared each column of cores has its own part,
        which air-split-l2-memref puts into the memtile below it.
        """
        return (self.herd_x, self.tile_n * self.herd_y) if self.rows_are_shared else (self.l2_n,)

    def core_rows(self, tx: Index) -> slice:
        """The rows in L2 that the cores of column tx use."""
        row = Index.from_value(0) if self.rows_are_shared else tx * self.tile_m
        return slice(row, row + self.tile_m)

    def core_columns(self, tx: Index, ty: Index) -> tuple[Index | slice, ...]:
        """The columns in L2 that core (tx, ty) uses."""
        columns = slice(ty * self.tile_n, ty * self.tile_n + self.tile_n)
        return (tx, columns) if self.rows_are_shared else (columns,)

    @property
    def accumulator_rows(self) -> int:
        """Blocks, in rows, that one loop over K accumulates."""
        return accumulator_blocks(self.tile_m // MMUL_BLOCK, self.tile_n // MMUL_BLOCK)[0]

    @property
    def accumulator_columns(self) -> int:
        """Blocks, in columns, that one loop over K accumulates."""
        return accumulator_blocks(self.tile_m // MMUL_BLOCK, self.tile_n // MMUL_BLOCK)[1]

    @property
    def l1_bytes(self) -> int:
        """L1 bytes of one core: f32 accumulator, its bf16 copy, and a and b twice (the compiler double-
        buffers).
        """
        inputs = (self.tile_m + self.tile_n) * self.tile_k_l1 * bf16.itemsize
        copy = 0 if self.out is f32 else self.out.itemsize
        return self.tile_m * self.tile_n * (f32.itemsize + copy) + 2 * inputs

    @property
    def l2_bytes(self) -> int:
        """L2 bytes of the segment: a and b twice, c once."""
        inputs = (self.l2_m + self.l2_n) * self.tile_k_l2 * bf16.itemsize
        return self.l2_m * self.l2_n * self.out.itemsize + 2 * inputs


def accumulator_blocks(m: int, n: int) -> tuple[int, int]:
    """Blocks, in rows and columns, that a loop over K accumulates, of a tile of m x n blocks.

    As many as there are accumulators, then the most square: r x c of them need r + c blocks of a and b, each
    converted to block floats once, for r c products.
    """
    shapes = itertools.product(range(1, MAX_ACCUMULATORS + 1), repeat=2)
    fit = [(r, c) for r, c in shapes if r * c <= MAX_ACCUMULATORS and m % r == 0 and n % c == 0]
    return max(fit, key=lambda shape: (shape[0] * shape[1], -sum(shape)))


def max_tile_m(out: DType) -> int:
    """The highest tile whose buffers fit L1 beside the widest one."""
    return MAX_TILE_M_F32 if out is f32 else MAX_TILE_M


def launch_blocks(extent: int, most_cores: int, widest: int) -> int:
    """Launch trips of the default tiles for m or n, a multiple of 8."""
    herd = largest_divisor(extent // MMUL_BLOCK, most_cores)
    return extent // (herd * largest_divisor(extent // herd, widest, MMUL_BLOCK))


def supports_rows(m: int, device: DeviceModel = NPU2) -> bool:
    """Whether the default tiles divide m, a multiple of 8, into no more blocks than a launch has trips."""
    return launch_blocks(m, device.columns, MAX_TILE_M) <= device.repeat_limit


def supports_columns(n: int, device: DeviceModel = NPU2) -> bool:
    """Whether the default tiles divide n, a multiple of 8, into no more blocks than a launch has trips."""
    return launch_blocks(n, device.rows, MAX_TILE_N) <= device.repeat_limit


def nearest_supported(
    extent: int, step: int, serves: Callable[[int, DeviceModel], bool], device: DeviceModel = NPU2
) -> int:
    """The multiple of `step` nearest to `extent` that the default tiles support. extent is a
    multiple itself.
    """
    around = (extent + sign * step * far for far in itertools.count() for sign in (-1, 1))
    return next(candidate for candidate in around if candidate > 0 and serves(candidate, device))


def choose_tiles(
    m: int, k: int, n: int, out: DType = bf16, device: DeviceModel = NPU2, **given: int | None
) -> GemmTiles:
    """The largest tiles that divide the shape, with the overrides; the K tiles depend on k alone.

    Raises IllegalShapeError, with the nearest legal numbers, if a shape or tile is not supported.
    """
    for name, extent in (("m", m), ("k", k), ("n", n)):
        require_multiple("gemm", name, extent, MMUL_BLOCK, "the matrix unit works on 8x8 blocks")
    for name in ("tile_m", "tile_k_l1", "tile_n"):
        require_multiple("gemm", name, given.get(name) or MMUL_BLOCK, MMUL_BLOCK, "whole 8x8 blocks")
    herd_m = given.get("herd_m") or _spread("m", m, given.get("tile_m"), device.columns)
    herd_n = given.get("herd_n") or _spread("n", n, given.get("tile_n"), device.rows)
    tile_k_l1 = given.get("tile_k_l1") or largest_divisor(
        given.get("tile_k_l2") or k, MAX_TILE_K_L1, MMUL_BLOCK
    )
    tiles = GemmTiles(
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


def schedules(
    m: int, k: int, n: int, out: DType = bf16, device: DeviceModel = NPU2
) -> Iterator[dict[str, int]]:
    """Tiles to try for a GEMM: for each height and depth of a core's tile the widest that fits L1, since
    narrower ones only read more. K is cut so that a CPU's sums stay the same (GROUP_STEPS)."""
    depths = divisors(k, MAX_TRIED_TILE_K_L1, GROUP_STEPS if k % GROUP_STEPS == 0 else MMUL_BLOCK)
    heights = divisors(m, MAX_TRIED_TILE_M, MMUL_BLOCK if m % (2 * MMUL_BLOCK) else 2 * MMUL_BLOCK)
    for tile_m, tile_k_l1 in itertools.product(heights, depths):
        widths = [
            tile_n
            for tile_n in divisors(n, MAX_TRIED_TILE_N, MMUL_BLOCK)
            if GemmTiles(tile_m, tile_k_l1, tile_k_l1, tile_n, 1, 1, out).l1_bytes <= device.l1_budget
        ]
        if widths:
            yield {"tile_m": tile_m, "tile_n": widths[-1], "tile_k_l1": tile_k_l1}


def row_schedules(k: int, n: int) -> Iterator[dict[str, int]]:
    """Tiles to try for a product of few rows."""
    depths = divisors(k, MAX_TRIED_TILE_K_L1, GROUP_STEPS if k % GROUP_STEPS == 0 else MMUL_BLOCK)
    for tile_n, tile_k_l1 in itertools.product(divisors(n, MAX_TILE_N, 2 * MMUL_BLOCK), depths):
        yield {"tile_n": tile_n, "tile_k_l1": tile_k_l1}


def choose_row_tiles(m: int, k: int, n: int, device: DeviceModel = NPU2, **given: int | None) -> GemmTiles:
    """The tiles of a product of few rows: every core has all rows, and n is spread over the whole array.

    Raises IllegalShapeError, with the legal values, if a shape or tile is not supported.
    """
    for name, extent in (("m", m), ("k", k), ("n", n)):
        require_multiple("gemm_rows", name, extent, MMUL_BLOCK, "the matrix unit works on 8x8 blocks")
    check_rows(m)
    herd_x, herd_y = whole_array(m, n, given, device)
    multiple = GROUP_STEPS if k % GROUP_STEPS == 0 else MMUL_BLOCK
    tile_k_l1 = given.get("tile_k_l1") or largest_divisor(k, MAX_ROWS_TILE_K_L1, multiple)
    tiles = GemmTiles(
        tile_m=m,
        tile_k_l2=given.get("tile_k_l2") or _tile_k_l2(k, tile_k_l1, MAX_ROWS_PIECES),
        tile_k_l1=tile_k_l1,
        tile_n=given.get("tile_n") or largest_divisor(n // (herd_x * herd_y), MAX_ROWS_TILE_N, MMUL_BLOCK),
        herd_x=herd_x,
        herd_y=herd_y,
        rows_are_shared=True,
    )
    _check_row_tiles(tiles, k, n, device)
    return tiles


def check_rows(m: int) -> None:
    """Raise IllegalShapeError if a core cannot hold m rows beside its weights."""
    if m > MAX_ROWS:
        raise IllegalShapeError(
            f"gemm_rows: m={m} rows, and a core holds at most {MAX_ROWS} beside its weights; use {MAX_ROWS}, "
            "or gemm, whose cores share the rows"
        )


def whole_array(
    m: int, n: int, overrides: Mapping[str, int | None], device: DeviceModel, unit: int = MMUL_BLOCK
) -> tuple[int, int]:
    """Columns and rows of cores that share n, as given or the best: first as many sums as a core can hold,
    then as many cores, then more columns than rows, because each column has its own path to memory.

    unit: columns of n that one core has at least.
    """
    width = overrides.get("tile_n") or unit
    require_multiple("gemm_rows", "n", n, width, "tile_n")
    grid = itertools.product(range(1, device.columns + 1), range(1, device.rows + 1))
    legal = [(x, y) for x, y in grid if n // width % (x * y) == 0]

    def worth(cores: tuple[int, int]) -> tuple[int, ...]:
        tile_n = overrides.get("tile_n") or largest_divisor(n // math.prod(cores), MAX_ROWS_TILE_N, unit)
        return (
            math.prod(accumulator_blocks(m // MMUL_BLOCK, tile_n // MMUL_BLOCK)),
            math.prod(cores),
            cores[0],
        )

    best = max(legal, key=worth)
    chosen = overrides.get("herd_x") or best[0], overrides.get("herd_y") or best[1]
    if chosen not in legal:
        raise IllegalShapeError(
            f"gemm_rows: {chosen[0]}x{chosen[1]} cores cannot share n={n} in tiles of {width} on an array of "
            f"{device.columns}x{device.rows}; use {best[0]}x{best[1]}"
        )
    return chosen


def _check_row_tiles(tiles: GemmTiles, k: int, n: int, device: DeviceModel) -> None:
    require_multiple("gemm_rows", "tile_k_l2", tiles.tile_k_l2, tiles.tile_k_l1, "whole L1 tiles")
    require_multiple("gemm_rows", "k", k, tiles.tile_k_l2, "whole L2 tiles")
    require_multiple("gemm_rows", "n", n, tiles.l2_n, "the tiles of all cores")
    if n // tiles.l2_n > device.repeat_limit:
        raise IllegalShapeError(
            f"gemm_rows: n={n} makes {n // tiles.l2_n} blocks of {tiles.l2_n}, a launch has at most "
            f"{device.repeat_limit}; pad n to a multiple of {device.columns * device.rows * MMUL_BLOCK}"
        )
    _check_memory("gemm_rows", tiles, device)


def _tile_k_l2(k: int, tile_k_l1: int, max_tile: int) -> int:
    """The deepest L2 tile whose pieces of K a memtile has descriptors for, at most `most`. It divides k into
    an even number of tiles, or one, if such a tile exists.

    aircc makes two copies of the buffers that a loop over K fills, and of their transfers, and a third if the
    number of trips is odd (air-unroll-loop-for-pipelining leaves the last one over).
    """
    limit = max(MAX_TILE_K_L2, tile_k_l1)
    largest_divisor(k, limit, tile_k_l1)
    legal = [t for t in range(tile_k_l1, limit + 1, tile_k_l1) if k % t == 0]
    copies = {t: 1 if t == k else 2 + k // t % 2 for t in legal}
    fit = [t for t in legal if copies[t] * (t // tile_k_l1) <= max_tile]
    return max(fit, key=lambda t: (copies[t] < 3, t))


def _spread(side: str, extent: int, tile: int | None, max_cores: int) -> int:
    """The most cores along one side that divide it into tiles (8 wide if no tile is given)."""
    width = tile or MMUL_BLOCK
    require_multiple("gemm", side, extent, width, f"tile_{side}")
    return largest_divisor(extent // width, max_cores)


def _tile(side: str, extent: int, herd: int, limit: int) -> int:
    """The widest tile, a multiple of 8, of which `herd` divide the extent."""
    require_multiple("gemm", side, extent, herd * MMUL_BLOCK, f"herd_{side}={herd} cores of 8x8 blocks")
    return largest_divisor(extent // herd, limit, MMUL_BLOCK)


def _check_division(tiles: GemmTiles, m: int, k: int, n: int, device: DeviceModel) -> None:
    """Refuse tiles that do not divide the shape, or make too many cores or blocks."""
    for side, herd, limit in (("m", tiles.herd_x, device.columns), ("n", tiles.herd_y, device.rows)):
        if not 1 <= herd <= limit:
            raise IllegalShapeError(
                f"gemm: herd_{side}={herd}, but {device.name} has {limit}; use 1 to {limit}"
            )
    require_multiple("gemm", "m", m, tiles.l2_m, "herd_m * tile_m; otherwise rows would be left out")
    require_multiple("gemm", "n", n, tiles.l2_n, "herd_n * tile_n; otherwise columns would be left out")
    for side, extent, block, serves in (
        ("m", m, tiles.l2_m, supports_rows),
        ("n", n, tiles.l2_n, supports_columns),
    ):
        if extent // block > device.repeat_limit:
            legal = nearest_supported(extent, MMUL_BLOCK, serves, device)
            advice = "let the tiles be chosen" if legal == extent else f"use {legal}"
            raise IllegalShapeError(
                f"gemm: {side}={extent} makes {extent // block} blocks of {block}, a launch has at most "
                f"{device.repeat_limit} in one direction; {advice}"
            )
    require_multiple("gemm", "tile_k_l2", tiles.tile_k_l2, tiles.tile_k_l1, "whole L1 tiles")
    require_multiple("gemm", "k", k, tiles.tile_k_l2, "whole L2 tiles")


def _check_memory(kernel: str, tiles: GemmTiles, device: DeviceModel) -> None:
    """Refuse tiles whose buffers do not fit a core or the memtiles."""
    if tiles.l1_bytes > device.l1_budget:
        rows = tiles.tile_m if tiles.rows_are_shared else max_tile_m(tiles.out)
        depth, width = (
            (MAX_ROWS_TILE_K_L1, MAX_ROWS_TILE_N) if tiles.rows_are_shared else (MAX_TILE_K_L1, MAX_TILE_N)
        )
        raise IllegalShapeError(
            f"{kernel}: tiles {tiles.tile_m}x{tiles.tile_k_l1}x{tiles.tile_n} take {tiles.l1_bytes} bytes of "
            f"L1, {device.l1_budget} are free on a core; use at most {rows}x{depth}x{width}"
        )
    if tiles.l2_bytes > device.l2_total_bytes:
        raise IllegalShapeError(
            f"{kernel}: tile_k_l2={tiles.tile_k_l2} takes {tiles.l2_bytes} bytes of L2, {device.name} has "
            f"{device.l2_total_bytes}; use at most {MAX_TILE_K_L2}"
        )
