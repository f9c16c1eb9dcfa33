"""out = gelu(x), bf16: an element-wise kernel on two dimensions of cores, as mlir-air measured it.

No model's program has it as a kernel of its own; it is here because its times are published. The program is
timed and not run: there is no C++ of ours for the function.
"""

from __future__ import annotations

from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, i32
from aerie.kernel_builder.spec import KernelModule, require_multiple


def build_gelu(n: int, columns: int, rows: int, tile: int) -> KernelModule:
    """x and out are (n,) bf16, shared by columns x rows cores in runs of `tile` elements.

    Raises IllegalShapeError if n is no multiple of all runs.
    """
    require_multiple("gelu", "n", n, columns * rows * tile, "runs of all cores")
    k = Kernel("gelu")
    x = k.argument("x", (n,), bf16, Role.INPUT)
    out = k.argument("out", (n,), bf16, Role.OUTPUT)
    share = n // (columns * rows)
    x_share, out_share = (each.reshape(columns * rows, share) for each in (x, out))
    run = L1((tile,), bf16)
    gelu = k.external("gelu_bf16", "gelu.o", [run, run, i32])
    with k.launch(), k.segment("gelu_segment"), k.herd(columns, rows, name="gelu_herd") as (tx, ty):
        l1_x, l1_out = (k.alloc(L1, (tile,), bf16, name) for name in ("l1_x", "l1_out"))
        core = tx * rows + ty
        for at in k.loop(0, share, tile):
            k.dma(l1_x, x_share[core, at : at + tile])
            gelu(l1_x, l1_out, tile)
            k.dma(out_share[core, at : at + tile], l1_out)
    return k.finish()
