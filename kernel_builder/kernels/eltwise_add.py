"""out = a + b, or a + b * scale, bf16: the residual adds.

Eight cores in a row (herd 8x1), each with its own share of the rows (or, for a vector, of the elements). Each
streams its share in runs: a and b come in over the core's two input channels, out leaves over its output
channel. Three L3 streams per core are what keeps this at one row of cores: 8 cores already take all 16 shim
channels that read. The sum is bound by DMA, not by arithmetic.

The scale is a number of the model that is known when the kernel is built. It is split into bf16 numbers whose
sum it is, as rms_norm.py splits its own, because AIE2P has no product of f32 vectors. The product is rounded
to bf16, as Hugging Face's is, and then added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.buffers import Buffer
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32, fma
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
"""Elements of one vector add: 256 bits of bf16, the width mlir-aie lowers `arith.addf` for."""
RUN_LENGTH = 2048
"""Most elements of one DMA: three double-buffered runs take 24 KiB of L1."""


PARTS = 3
"""bf16 numbers that make a scale in f32: 8 of its 24 bits each."""


def build(
    rows: int | None,
    cols: int,
    herd_x: int | None = None,
    scale: float = 1.0,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """a, b and out are (rows, cols) bf16, or (cols,) where rows is None. scale: what b is multiplied with.

    cols is a multiple of 16. herd_x, the number of cores, divides the rows (vector form: cols / 16) and is by
    default the largest such number a row has. Raises IllegalShapeError.
    """
    require_multiple("eltwise_add", "cols", cols, LANES, "a core adds 16 elements at a time")
    shape = (cols,) if rows is None else (rows, cols)
    work, unit = (cols // LANES, "blocks of 16 elements") if rows is None else (rows, "rows")
    herd_x = cores("eltwise_add", unit, work, herd_x, device)
    k = Kernel("eltwise_add", device)
    a = k.argument("a", shape, bf16, Role.INPUT)
    b = k.argument("b", shape, bf16, Role.INPUT)
    out = k.argument("out", shape, bf16, Role.OUTPUT)
    share = (rows or 1) * cols // herd_x
    run = largest_divisor(share, RUN_LENGTH, LANES)
    a_share, b_share, out_share = (x.reshape(herd_x, share) for x in (a, b, out))
    with k.launch(), k.segment("eltwise_add_segment"), k.herd(herd_x, 1, name="eltwise_add_herd") as (tx, _):
        l1_a, l1_b, l1_out = (k.alloc(L1, (run,), bf16, name) for name in ("l1_a", "l1_b", "l1_out"))
        parts = _l1_parts(k, scale)
        for at in k.loop(0, share, run, unwraps=True):
            k.dma(l1_a, a_share[tx, at : at + run])
            k.dma(l1_b, b_share[tx, at : at + run])
            k.round_to_even(l1_out)
            _scale(k, l1_b, parts)
            for j in k.loop(0, run, LANES):
                lanes = slice(j, j + LANES)
                k.store(l1_out[lanes], k.load(l1_a[lanes]) + k.load(l1_b[lanes]))
            k.dma(out_share[tx, at : at + run], l1_out)
    return k.finish()


def scale_parts(scale: float) -> list[float]:
    """bf16 numbers whose sum is the scale in f32, the largest first; none for 1."""
    parts, rest = list[float](), np.float32(scale)
    while scale != 1 and rest and len(parts) < PARTS:
        parts.append(float(rest.astype(bf16.numpy)))
        rest -= np.float32(parts[-1])
    return parts


def _l1_parts(k: Kernel, scale: float) -> list[Buffer]:
    """Each part in all lanes, in L1, where a loop writes it: mlir-aie would widen a constant that it sees to
    f32, and AIE2P does not multiply f32."""
    buffers = []
    for number, part in enumerate(scale_parts(scale)):
        buffers.append(k.alloc(L1, (2, LANES), bf16, f"l1_scale_{number}"))
        for i in k.loop(2):
            k.store(buffers[-1][i, :], k.constant(part, bf16, LANES))
    return buffers


def _scale(k: Kernel, l1_b: Buffer, parts: list[Buffer]) -> None:
    """Multiply by the scale in place: products summed in f32, the smallest first, and rounded.

    The sum reads them in a loop of its own: where it follows at once, mlir-aie leaves the rounding out.
    """
    for j in k.loop(0, l1_b.shape[0], LANES) if parts else ():
        lanes = slice(j, j + LANES)
        wide, product = k.load(l1_b[lanes]).to(f32), k.constant(0.0, f32, LANES)
        for part in reversed(parts):
            product = fma(wide, k.load(part[0, :]).to(f32), product)
        k.store(l1_b[lanes], product.to(bf16))


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The sum in f32, rounded once to bf16, of b or of its rounded product."""
    a, b = (arrays[name].astype(np.float32) for name in "ab")
    parts = scale_parts(parameters.get("scale", 1.0))
    if parts:
        products = (b * np.float32(part) for part in reversed(parts))
        b = sum(products, np.zeros_like(b)).astype(bf16.numpy).astype(np.float32)
    return {"out": (a + b).astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows (or a vector) of up to 1024 columns."""
    rows = int(rng.integers(1, 65)) if rng.random() < 0.75 else None
    scale = float(rng.choice([1.0, 1.0, 0.22, 0.25]))
    return {"rows": rows, "cols": LANES * int(rng.integers(1, 65)), "scale": scale}


KERNEL = KernelSpec(
    name="eltwise_add",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "cols": 256},
        {"rows": None, "cols": 256},
        {"rows": 128, "cols": 768},
        {"rows": 3, "cols": 48},
        {"rows": None, "cols": 2048},
        {"rows": 64, "cols": 256, "scale": 0.22},
        {"rows": None, "cols": 256, "scale": 0.22},
        {"rows": 3, "cols": 48, "scale": 0.5},
    ),
    tolerance=Tolerance(0.0, 0.0, "the same products and additions, each rounded once: bit-identical"),
    random_case=random_case,
)
