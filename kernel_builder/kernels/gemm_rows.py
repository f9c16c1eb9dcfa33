"""c = a @ b.T of 8, 16, 24 or 32 rows: every weight is read from memory once for all of them.

    launch (n / (cores tile_n),)                             one block of c's columns for the whole array
      segment   L2: a (m, tile_k_l2), b (cores tile_n, tile_k_l2), c
                L1: the accumulator, f32, one (m, tile_n) slab per core

The schedule is that of `gemm.py`, and what a core does is the same. There the cores of a column share one
block of b and have rows of their own, of which a prompt's tail, a batch of requests or a draft has too few to
go round: 8 rows would keep 4 of 32 cores busy. Here every core has all rows and columns of its own. What they
all share, a, is small and goes to all of them at once; b comes in as many streams as the array has columns,
one way to memory each, and every element of it goes to one core.

An element of c is summed in the order of k, as in a GEMM: the same row has the same bits in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder import gemm_tiles, quantised_tiles
from aerie.kernel_builder.dsl import Kernel
from aerie.kernel_builder.gemm_tiles import MAX_ROWS, MMUL_BLOCK, choose_row_tiles
from aerie.kernel_builder.kernels import gemm
from aerie.kernel_builder.spec import Array, KernelModule, KernelSpec, Parameters
from aerie.kernel_builder.weight_blocks import BF16, weight_block


def build(
    m: int,
    k: int,
    n: int,
    tile_k_l2: int | None = None,
    tile_k_l1: int | None = None,
    tile_n: int | None = None,
    herd_x: int | None = None,
    herd_y: int | None = None,
    weight: str = BF16,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """a (m, k), b (n, k), c (m, n), all bf16; multiples of 8, m at most 32.

    tile_n: columns of c that a core makes at a time. tile_k_l2, tile_k_l1: how much of K is in a memtile and
    in a core. herd_x, herd_y: columns and rows of cores. What is None is chosen by `choose_row_tiles`.
    weight: the kind of b, as for gemm. Raises IllegalShapeError.
    """
    overrides = {"tile_k_l2": tile_k_l2, "tile_k_l1": tile_k_l1, "tile_n": tile_n}
    overrides |= {"herd_x": herd_x, "herd_y": herd_y}
    if block := weight_block("gemm_rows", weight):
        tiles = quantised_tiles.choose_row_tiles(m, k, n, block, device, overrides)
        return gemm.write_quantised(Kernel("gemm_rows", device), tiles, m, k, n, block)
    tiles = choose_row_tiles(m, k, n, device, **overrides)
    return gemm.write_kernel(Kernel("gemm_rows", device), tiles, m, k, n, b_transposed=True)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32, rounded once to bf16."""
    return gemm.reference({**parameters, "b_transposed": True}, arrays)


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Standard normal numbers, b of the kind that is asked for."""
    return gemm.random_inputs({**parameters, "b_transposed": True}, rng)


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """8 to 32 rows, up to 512 deep and 1024 columns."""
    m, k, n = (MMUL_BLOCK * int(rng.integers(1, most)) for most in (MAX_ROWS // MMUL_BLOCK + 1, 65, 129))
    return {"m": m, "k": k, "n": n}


def schedules(parameters: Parameters) -> Iterator[dict[str, int]]:
    """Tiles to try."""
    if weight_block("gemm_rows", parameters.get("weight", BF16)):
        return quantised_tiles.row_schedules(parameters["n"])
    return gemm_tiles.row_schedules(parameters["k"], parameters["n"])


KERNEL = KernelSpec(
    name="gemm_rows",
    build=build,
    reference=reference,
    cases=(
        {"m": 8, "k": 256, "n": 256},
        {"m": 16, "k": 768, "n": 256},
        {"m": 32, "k": 2048, "n": 512},
        {"m": 24, "k": 40, "n": 88},
        {"m": 8, "k": 896, "n": 128},
        {"m": 8, "k": 576, "n": 192, "weight": "q4"},
        {"m": 16, "k": 768, "n": 64, "weight": "q8"},
    ),
    tolerance=gemm.KERNEL.tolerance,
    random_case=random_case,
    random_inputs=random_inputs,
    rows="m",
    sums_may_reorder=True,
    allowance=gemm.BLOCKS,
    schedules=schedules,
)
