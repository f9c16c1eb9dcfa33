"""c = a @ b as vegah/Npu-Embeddings ran it: cores that never stop, and two of each buffer in L1 and in L2.

A core takes tile after tile of c. A row of cores shares a tile of a, a column one of b, each by a memtile.
The four tiles of c of a column meet in its memtile, and leave together while the cores work on
(experiments/m5-pretiled-gemm/gemm_pretiled.py there). A point of the launch is what the host enters at a
time: a block of rows of all columns. These programs are timed and not run.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerie.kernel_builder.buffers import Buffer
from aerie.kernel_builder.dsl import L1, L2, Channel, Index, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import KernelModule, require_multiple
from benchmarks.board_times.board_gemm import BLOCK, BoardGemm


@dataclass(frozen=True)
class _Streams:
    """The channels of the three matrices: between L3 and L2, and between L2 and L1."""

    a: tuple[Channel, Channel]
    b: tuple[Channel, Channel]
    c: tuple[Channel, Channel]


def build_streamed_gemm(m: int, k: int, n: int, how: BoardGemm) -> KernelModule:
    """a (m, k) and b (k, n) bf16, b stored tile by tile, c (m, n) of `how.out`. Raises IllegalShapeError."""
    for name, extent, piece in (("m", m, how.l2_m), ("k", k, how.tile_k_l1), ("n", n, how.l2_n)):
        require_multiple("streamed_gemm", name, extent, piece, "the tiles of all cores")
    kernel = Kernel("streamed_gemm")
    a = kernel.argument("a", (m, k), bf16, Role.INPUT)
    b_shape = (k // how.tile_k_l1, n // how.tile_n, how.tile_k_l1, how.tile_n)
    b = kernel.argument("b", b_shape, bf16, Role.WEIGHT)
    c = kernel.argument("c", (m, n), how.out, Role.OUTPUT)
    steps, turns = k // how.tile_k_l1, n // how.l2_n
    streams = _streams(kernel, how)
    with kernel.launch(m // how.l2_m) as (block,):
        _enter(kernel, how, streams, (a, b, c), block)
        with kernel.segment("streamed_gemm_segment"):
            _pass_on(kernel, how, streams, steps, turns)
            _compute(kernel, how, streams, steps, turns)
    return kernel.finish()


def _streams(kernel: Kernel, how: BoardGemm) -> _Streams:
    columns, rows = how.cores
    return _Streams(
        (kernel.channel("a_l2", rows), kernel.channel("a_l1", 1, rows, broadcast=(columns, rows))),
        (kernel.channel("b_l2", columns), kernel.channel("b_l1", columns, 1, broadcast=(columns, rows))),
        (kernel.channel("c_l3", columns), kernel.channel("c_l2", columns, rows)),
    )


def _enter(
    kernel: Kernel, how: BoardGemm, streams: _Streams, matrices: tuple[Buffer, Buffer, Buffer], block: Index
) -> None:
    """What enters and leaves L3 for one block of rows."""
    (columns, rows), (a, b, c) = how.cores, matrices
    for turn in kernel.loop(0, b.shape[1], columns):
        for column in range(columns):
            left = (turn + column) * how.tile_n
            kernel.get(streams.c[0][column], c[_span(block, how.l2_m), left : left + how.tile_n])
        for at in kernel.loop(b.shape[0]):
            for row in range(rows):
                top = block * how.l2_m + row * how.tile_m
                kernel.put(streams.a[0][row], a[top : top + how.tile_m, _span(at, how.tile_k_l1)])
            for column in range(columns):
                kernel.put(streams.b[0][column], b[at, turn + column, :, :])


def _pass_on(kernel: Kernel, how: BoardGemm, streams: _Streams, steps: int, turns: int) -> None:
    """What the memtiles do."""
    columns, rows = how.cores
    of_a = [kernel.alloc(L2, (how.tile_m, how.tile_k_l1), bf16, f"a{row}") for row in range(rows)]
    of_b = [kernel.alloc(L2, (how.tile_k_l1, how.tile_n), bf16, f"b{column}") for column in range(columns)]
    of_c = [kernel.alloc(L2, (how.l2_m, how.tile_n), how.out, f"c{column}") for column in range(columns)]
    for _ in kernel.loop(turns):
        for _ in kernel.loop(steps):
            for row, tile in enumerate(of_a):
                kernel.get(streams.a[0][row], tile)
                blocks = tile.blocks(how.block_rows, BLOCK)
                kernel.put(streams.a[1][0, row], blocks)
            for column, tile in enumerate(of_b):
                kernel.get(streams.b[0][column], tile)
                kernel.put(streams.b[1][column, 0], tile)
        for column, tile in enumerate(of_c):
            for row in range(rows):
                kernel.get(streams.c[1][column, row], tile[row * how.tile_m : (row + 1) * how.tile_m, :])
            kernel.put(streams.c[0][column], tile)


def _compute(kernel: Kernel, how: BoardGemm, streams: _Streams, steps: int, turns: int) -> None:
    """What a core does."""
    of_a, of_b, of_c = (how.tile_m, how.tile_k_l1), (how.tile_k_l1, how.tile_n), (how.tile_m, how.tile_n)
    in_c = L1(of_c, f32)
    clear = kernel.external("zero_f32", "mm.o", [in_c])
    operands = [L1(of_a, bf16), L1(of_b, bf16), in_c]
    product = kernel.external(f"matmul_{how.block_rows}x{BLOCK}x{BLOCK}_bf16_f32", "mm.o", operands)
    narrow = kernel.external("narrow_f32_bf16", "mm.o", [in_c, L1(of_c, bf16)])
    with kernel.herd(*how.cores, name="streamed_gemm_herd") as (column, row):
        l1_a, l1_b = kernel.alloc(L1, of_a, bf16, "l1_a"), kernel.alloc(L1, of_b, bf16, "l1_b")
        sums = kernel.alloc(L1, of_c, f32, "sums")
        result = sums if how.out is f32 else kernel.alloc(L1, of_c, how.out, "rounded")
        for _ in kernel.loop(turns):
            clear(sums)
            for _ in kernel.loop(steps):
                kernel.get(streams.a[1][column, row], l1_a)
                kernel.get(streams.b[1][column, row], l1_b)
                product(l1_a, l1_b, sums)
            if result is not sums:
                narrow(sums, result)
            kernel.put(streams.c[1][column, row], result)


def _span(number: Index, size: int) -> slice:
    return slice(number * size, number * size + size)
