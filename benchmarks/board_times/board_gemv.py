"""out = weight @ x as mlir-air's registry ran it: rows of the weight stop in a memtile on their way.

A point of the launch fills L2 with `tile_m` rows for each core, and the cores empty it, `m_input` rows at a
time, each time with all of x. Results leave through L2. These programs are timed and not run: the C++
function is upstream's.
"""

from __future__ import annotations

from aerie.kernel_builder.dsl import L1, L2, Kernel, Role, bf16, i32
from aerie.kernel_builder.spec import KernelModule, require_multiple


def build_board_gemv(m: int, k: int, columns: int, tile_m: int, m_input: int) -> KernelModule:
    """weight (m, k), x (k,) and out (m,) bf16. Raises IllegalShapeError."""
    require_multiple("board_gemv", "m", m, columns * tile_m, "the rows of a point")
    require_multiple("board_gemv", "tile_m", tile_m, m_input, "the rows of a transfer")
    kernel = Kernel("board_gemv")
    weight = kernel.argument("weight", (m, k), bf16, Role.WEIGHT)
    x = kernel.argument("x", (k,), bf16, Role.INPUT)
    out = kernel.argument("out", (m,), bf16, Role.OUTPUT)
    rows, share, results = L1((m_input, k), bf16), L1((k,), bf16), L1((tile_m,), bf16)
    matvec = kernel.external("matvec_vectorized_bf16_bf16", "mv.o", [i32, i32, i32, rows, share, results])
    with kernel.launch(m // (columns * tile_m)) as (point,), kernel.segment("board_gemv_segment"):
        l2_weight = kernel.alloc(L2, (columns * tile_m, k), bf16, "l2_weight")
        l2_out = kernel.alloc(L2, (columns * tile_m,), bf16, "l2_out")
        first = point * (columns * tile_m)
        kernel.dma(l2_weight, weight[first : first + columns * tile_m, :])
        with kernel.herd(columns, 1, name="board_gemv_herd") as (tx, _):
            l1_x = kernel.alloc(L1, (k,), bf16, "l1_x")
            l1_weight = kernel.alloc(L1, (m_input, k), bf16, "l1_weight")
            l1_out = kernel.alloc(L1, (tile_m,), bf16, "l1_out")
            for row in kernel.loop(0, tile_m, m_input):
                kernel.dma(l1_x, x)
                at = tx * tile_m + row
                kernel.dma(l1_weight, l2_weight[at : at + m_input, :])
                matvec(m_input, k, row, l1_weight, l1_x, l1_out)
            kernel.dma(l2_out[tx * tile_m : tx * tile_m + tile_m], l1_out)
        kernel.dma(out[first : first + columns * tile_m], l2_out)
    return kernel.finish()
