"""out = x rounded to bf16 as mlir-air's GEMMs in two launches do it: runs of 2048 elements on eight cores.

Ours (kernel_builder/kernels/narrow.py) moves rows. These programs are timed and not run.
"""

from __future__ import annotations

from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import KernelModule, require_multiple

COLUMNS, RUN, LANES = 8, 2048, 16


def build_board_cast(m: int, n: int) -> KernelModule:
    """x (m, n) f32, out (m, n) bf16. Raises IllegalShapeError."""
    require_multiple("board_cast", "m n", m * n, COLUMNS * RUN, "runs of all cores")
    k, share = Kernel("board_cast"), m * n // COLUMNS
    x, out = k.argument("x", (m, n), f32, Role.INPUT), k.argument("out", (m, n), bf16, Role.OUTPUT)
    x_share, out_share = (each.reshape(COLUMNS, share) for each in (x, out))
    with k.launch(), k.segment("cast_segment"), k.herd(COLUMNS, 1, name="cast_herd") as (tx, _):
        l1_x, l1_out = k.alloc(L1, (RUN,), f32, "l1_x"), k.alloc(L1, (RUN,), bf16, "l1_out")
        for at in k.loop(0, share, RUN):
            k.dma(l1_x, x_share[tx, at : at + RUN])
            for j in k.loop(0, RUN, LANES):
                k.store(l1_out[j : j + LANES], k.load(l1_x[j : j + LANES]).to(bf16))
            k.dma(out_share[tx, at : at + RUN], l1_out)
    return k.finish()
