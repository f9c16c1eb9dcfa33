"""RMSNorm as mlir-air's registry ran it: squares by way of a scratch buffer, products in bf16, row by row.

Ours (kernel_builder/kernels/rms_norm.py) keeps f32 in three parts, which is more work. These programs are
timed and not run.
"""

from __future__ import annotations

from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import KernelModule, require_multiple

LANES = 16
EPS = 1e-5


def build_board_rms_norm(rows: int, cols: int, columns: int) -> KernelModule:
    """x and out (rows, cols), weight (cols,) bf16; columns: of cores. Raises IllegalShapeError."""
    require_multiple("board_rms_norm", "rows", rows, columns, "rows of the cores")
    require_multiple("board_rms_norm", "cols", cols, LANES, "elements of a vector")
    k, share = Kernel("board_rms_norm"), rows // columns
    x = k.argument("x", (rows, cols), bf16, Role.INPUT)
    weight = k.argument("weight", (cols,), bf16, Role.WEIGHT)
    out = k.argument("out", (rows, cols), bf16, Role.OUTPUT)
    with k.launch(), k.segment("norm_segment"), k.herd(columns, 1, name="norm_herd") as (tx, _):
        l1_x, l1_out, l1_weight = (k.alloc(L1, (cols,), bf16, f"l1_{name}") for name in ("x", "out", "w"))
        sums, square = k.alloc(L1, (LANES,), f32, "sums"), k.alloc(L1, (LANES,), bf16, "square")
        k.dma(l1_weight, weight)
        for own in k.loop(share):
            k.dma(l1_x, x[tx * share + own, :])
            k.store(sums, k.constant(0.0, f32, LANES))
            for j in k.loop(0, cols, LANES):
                some = k.load(l1_x[j : j + LANES])
                k.store(square, some * some)
                k.store(sums, k.load(sums) + k.load(square).to(f32))
            mean = k.load(sums).reduce("add") * (1.0 / cols)
            scale = (mean + EPS).rsqrt().to(bf16).broadcast(LANES)
            for j in k.loop(0, cols, LANES):
                lanes = slice(j, j + LANES)
                k.store(l1_out[lanes], k.load(l1_x[lanes]) * scale * k.load(l1_weight[lanes]))
            k.dma(out[tx * share + own, :], l1_out)
    return k.finish()
