"""c = a @ b as vegah/Npu-Embeddings ran it: cores that never stop, with two of each buffer, c's too.

A core takes tile after tile of c. While one leaves, it works on the next. Memtiles only pass data on, so that
a transfer goes from L3 to the cores here. These programs are timed and not run.
"""

from __future__ import annotations

from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import KernelModule, require_multiple
from benchmarks.board_times.board_gemm import BLOCK, BoardGemm


def build_streamed_gemm(m: int, k: int, n: int, how: BoardGemm) -> KernelModule:
    """a (m, k) and b (k, n) bf16, b stored tile by tile, c (m, n) of `how.out`. Raises IllegalShapeError."""
    for name, extent, piece in (("m", m, how.l2_m), ("k", k, how.tile_k_l1), ("n", n, how.l2_n)):
        require_multiple("streamed_gemm", name, extent, piece, "the tiles of all cores")
    kernel = Kernel("streamed_gemm")
    of_a, of_b, of_c = (how.tile_m, how.tile_k_l1), (how.tile_k_l1, how.tile_n), (how.tile_m, how.tile_n)
    a = kernel.argument("a", (m, k), bf16, Role.INPUT)
    b = kernel.argument("b", (k // how.tile_k_l1, n // how.tile_n, *of_b), bf16, Role.WEIGHT)
    c = kernel.argument("c", (m, n), how.out, Role.OUTPUT)
    in_c = L1(of_c, f32)
    clear = kernel.external("zero_f32", "mm.o", [in_c])
    operands = [L1(of_a, bf16), L1(of_b, bf16), in_c]
    product = kernel.external(f"matmul_{how.block_rows}x{BLOCK}x{BLOCK}_bf16_f32", "mm.o", operands)
    narrow = kernel.external("narrow_f32_bf16", "mm.o", [in_c, L1(of_c, bf16)])
    herd = kernel.herd(*how.cores, name="streamed_gemm_herd")
    with kernel.launch(), kernel.segment("streamed_gemm_segment"), herd as core:
        l1_a, l1_b = kernel.alloc(L1, of_a, bf16, "l1_a"), kernel.alloc(L1, of_b, bf16, "l1_b")
        sums = kernel.alloc(L1, of_c, f32, "sums")
        result = sums if how.out is f32 else kernel.alloc(L1, of_c, how.out, "rounded")
        for i in kernel.loop(0, m, how.l2_m):
            for j in kernel.loop(0, n // how.tile_n, how.l2_n // how.tile_n):
                row, tile = how.first_row(core) + i, how.tile_of_n(core) + j
                rows = slice(row, row + how.tile_m)
                clear(sums)
                for at in kernel.loop(k // how.tile_k_l1):
                    depth = at * how.tile_k_l1
                    kernel.dma(l1_a, a[rows, depth : depth + how.tile_k_l1])
                    kernel.dma(l1_b, b[at, tile, :, :])
                    product(l1_a, l1_b, sums)
                if result is not sums:
                    narrow(sums, result)
                column = tile * how.tile_n
                kernel.dma(c[rows, column : column + how.tile_n], result)
    return kernel.finish()
