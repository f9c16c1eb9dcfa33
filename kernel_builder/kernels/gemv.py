"""out = weight @ x, bf16 with f32 accumulation: the projections of decode, and the LM head.

Eight cores in a row (herd 8x1), each with its own contiguous block of output rows. A core takes x once and
keeps it; its rows of the weight stream past it, `m_input` at a time, straight from L3: every weight is read
once and by one core, so a stop in a memtile would buy nothing. Results leave in runs of `tile_m`. One input
channel of a core carries the weight and the other x. The product is bound by the DMA of the weight.

The compute is `mv.cc`. Its symbols are renamed for each tile shape, so that products of different shapes can
stand in one program: MLIR declares a function with the shapes of its buffers, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel_builder.device import NPU2
from kernel_builder.dsl import L1, Kernel, Role, bf16, i32
from kernel_builder.errors import IllegalShapeError
from kernel_builder.external import ArgumentType, External
from kernel_builder.module import KernelModule
from kernel_builder.shapes import largest_divisor, require_multiple
from kernel_builder.spec import Array, KernelSpec, Parameters, Tolerance

LANES = 64
"""Elements of one vector step of mv.cc; k is a multiple of it."""
TILE_M = 8
"""Preferred rows of one result run. One number for all m keeps the shapes of a program's products alike."""
WEIGHT_BYTES = 16 * 1024
"""Preferred size of one weight transfer: long enough for the DMA, and it is double-buffered."""


def build(
    m: int, k: int, tile_m: int | None = None, m_input: int | None = None, herd_m: int | None = None
) -> KernelModule:
    """weight is (m, k) bf16 in Hugging Face's layout (out, in), x is (k,) bf16, out is (m,) bf16.

    k is a multiple of 64, m of 2. herd_m: cores; m / herd_m is even (default: the most up to 8). tile_m: rows
    of one result transfer, even, divides m / herd_m. m_input: rows of one weight transfer, divides tile_m.
    Raises IllegalShapeError.
    """
    require_multiple("gemv", "k", k, LANES, "mv.cc steps through 64 elements at a time")
    require_multiple("gemv", "m", m, 2, "a DMA moves pairs of bf16")
    herd_m = _cores(m, herd_m)
    share = m // herd_m
    tile_m = _tile(share, tile_m)
    m_input = _rows_at_once(k, tile_m, m_input)
    kernel = Kernel("gemv")
    weight = kernel.argument("weight", (m, k), bf16, Role.WEIGHT)
    x = kernel.argument("x", (k,), bf16, Role.INPUT)
    out = kernel.argument("out", (m,), bf16, Role.OUTPUT)
    matvec = _external(kernel, k, tile_m, m_input)
    with kernel.launch(), kernel.segment("gemv_segment"), kernel.herd(herd_m, 1, name="gemv_herd") as (tx, _):
        l1_x = kernel.alloc(L1, (k,), bf16, "l1_x")
        l1_weight = kernel.alloc(L1, (m_input, k), bf16, "l1_weight")
        l1_out = kernel.alloc(L1, (tile_m,), bf16, "l1_out")
        kernel.dma(l1_x, x)
        for run in kernel.loop(0, share, tile_m):
            first = tx * share + run
            for row in kernel.loop(0, tile_m, m_input):
                kernel.dma(l1_weight, weight[first + row : first + row + m_input, :])
                matvec(m_input, k, row, l1_weight, l1_x, l1_out)
            kernel.dma(out[first : first + tile_m], l1_out)
    return kernel.finish()


def _external(kernel: Kernel, k: int, tile_m: int, m_input: int) -> External:
    """mv.cc under symbols of its own for this shape."""
    shape, matvec, fill = f"{m_input}x{k}_{tile_m}", "matvec_vectorized_bf16_bf16", "linalg_fill_bf16"
    buffers = (L1((m_input, k), bf16), L1((k,), bf16), L1((tile_m,), bf16))
    defines = {"DIM_M_OUTPUT": tile_m, matvec: f"{matvec}_{shape}", fill: f"{fill}_{shape}"}
    types: list[ArgumentType] = [i32, i32, i32, *buffers]
    return kernel.external(f"{matvec}_{shape}", f"mv_{shape}.o", types, source="mv.cc", defines=defines)


def _cores(m: int, herd_m: int | None) -> int:
    most = largest_divisor(m // 2, NPU2.columns)
    if herd_m is None:
        return most
    if not 1 <= herd_m <= NPU2.columns or m % (2 * herd_m):
        raise IllegalShapeError(
            f"gemv: herd_m={herd_m} cores cannot share m={m} rows in even numbers in {NPU2.columns} columns; "
            f"use {most}"
        )
    return herd_m


def _tile(share: int, tile_m: int | None) -> int:
    default = TILE_M if share % TILE_M == 0 else largest_divisor(share, 2 * TILE_M, 2)
    if tile_m is None:
        return default
    if tile_m <= 0 or tile_m % 2 or share % tile_m:
        raise IllegalShapeError(
            f"gemv: tile_m={tile_m} is no even divisor of the {share} rows of a core; use {default}"
        )
    return tile_m


def _l1_bytes(k: int, tile_m: int, m_input: int) -> int:
    """Buffers of a core: x, and double-buffered the weight and the result."""
    return bf16.itemsize * (k + 2 * m_input * k + 2 * tile_m)


def _rows_at_once(k: int, tile_m: int, m_input: int | None) -> int:
    default = largest_divisor(tile_m, max(1, WEIGHT_BYTES // (k * bf16.itemsize)))
    if m_input is None:
        m_input = default
    if m_input <= 0 or tile_m % m_input:
        raise IllegalShapeError(f"gemv: m_input={m_input} does not divide tile_m={tile_m}; use {default}")
    used = _l1_bytes(k, tile_m, m_input)
    if used > NPU2.l1_budget:
        most = (NPU2.l1_budget // bf16.itemsize - 2 * tile_m) // (2 * m_input + 1) // LANES * LANES
        advice = f"use m_input={default}" if m_input > default else f"use a k of at most {most}"
        raise IllegalShapeError(
            f"gemv: k={k} with m_input={m_input} and tile_m={tile_m} takes {used} bytes of L1, a core has "
            f"{NPU2.l1_budget}; {advice}"
        )
    return m_input


def reference(_: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32, rounded once to bf16."""
    product = arrays["weight"].astype(np.float32) @ arrays["x"].astype(np.float32)
    return {"out": product.astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 512 rows of up to 1024 elements, on any legal number of cores."""
    m = 2 * int(rng.integers(1, 257))
    legal = [herd for herd in range(1, NPU2.columns + 1) if m % (2 * herd) == 0]
    return {"m": m, "k": LANES * int(rng.integers(1, 17)), "herd_m": int(rng.choice(legal))}


KERNEL = KernelSpec(
    name="gemv",
    build=build,
    reference=reference,
    cases=(
        {"m": 256, "k": 256},
        {"m": 128, "k": 256},
        {"m": 768, "k": 256},
        {"m": 256, "k": 768},
        {"m": 1024, "k": 2048},
        {"m": 64, "k": 8192},
        {"m": 128, "k": 256, "tile_m": 4, "m_input": 2, "herd_m": 4},
    ),
    tolerance=Tolerance(
        2.0**-7,
        1e-4,
        "sums in another order: the f32 sums differ in their last bits, so a bf16 result may round the other "
        "way (2^-7); where terms cancel the absolute error of the sum remains (1e-4 for k of a few thousand)",
    ),
    random_case=random_case,
)
