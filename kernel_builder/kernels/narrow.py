"""out = x rounded from f32 to bf16: what follows a GEMM with f32 result where bf16 is wanted.

Eight cores in a row, each with its own share of the rows, as in eltwise_add.py. No matrix product shares its
cores, so they set the rounding mode (`Kernel.round_to_even`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32
from aerie.kernel_builder.spec import (
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    cores,
    largest_divisor,
    require_multiple,
)

LANES = 16
"""Elements rounded at a time: one 512-bit accumulator of f32."""
RUN_LENGTH = 2048
"""Most elements of one DMA: a double-buffered run takes 24 KiB of L1, in and out."""


def build(rows: int, cols: int, herd_x: int | None = None, *, device: DeviceModel = NPU2) -> KernelModule:
    """x is (rows, cols) f32, out (rows, cols) bf16; cols is a multiple of 16.

    herd_x, the number of cores, divides the rows and is by default the largest such number a row has.
    Raises IllegalShapeError.
    """
    require_multiple("narrow", "cols", cols, LANES, "a core rounds 16 elements at a time")
    herd_x = cores("narrow", "rows", rows, herd_x, device)
    k = Kernel("narrow", device)
    x = k.argument("x", (rows, cols), f32, Role.INPUT)
    out = k.argument("out", (rows, cols), bf16, Role.OUTPUT)
    share = rows * cols // herd_x
    run = largest_divisor(share, RUN_LENGTH, LANES)
    x_share, out_share = (each.reshape(herd_x, share) for each in (x, out))
    with k.launch(), k.segment("narrow_segment"), k.herd(herd_x, 1, name="narrow_herd") as (tx, _):
        l1_x, l1_out = k.alloc(L1, (run,), f32, "l1_x"), k.alloc(L1, (run,), bf16, "l1_out")
        for at in k.loop(0, share, run, unwraps=True):
            k.dma(l1_x, x_share[tx, at : at + run])
            k.round_to_even(l1_out)
            for j in k.loop(0, run, LANES):
                k.store(l1_out[j : j + LANES], k.load(l1_x[j : j + LANES]).to(bf16))
            k.dma(out_share[tx, at : at + run], l1_out)
    return k.finish()


def reference(_: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Rounded to nearest, ties to even."""
    return {"out": arrays["x"].astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows of up to 1024 columns."""
    return {"rows": int(rng.integers(1, 65)), "cols": LANES * int(rng.integers(1, 65))}


KERNEL = KernelSpec(
    name="narrow",
    build=build,
    reference=reference,
    cases=({"rows": 64, "cols": 256}, {"rows": 3, "cols": 48}),
    tolerance=Tolerance(0.0, 0.0, "one rounding of the same number: bit-identical"),
    random_case=random_case,
)
