"""c = a @ b, bf16 in and f32 out: nothing is rounded to bf16.

The GEMM of gemm.py whose accumulator is the output. The L1 that the rounded copy would take goes into tiles
twice as high. An f32 block of c does not fit one descriptor, so it leaves L2 a row of cores at a time.

No model's program uses it; it is a form whose error on the NPU is published: see kernel_builder/numerics.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel_builder.dsl import f32
from kernel_builder.kernels import gemm
from kernel_builder.spec import Array, KernelModule, KernelSpec, Parameters, Tolerance


def build(
    m: int,
    k: int,
    n: int,
    tile_m: int | None = None,
    tile_k_l2: int | None = None,
    tile_k_l1: int | None = None,
    tile_n: int | None = None,
    herd_m: int | None = None,
    herd_n: int | None = None,
    b_transposed: bool = False,
) -> KernelModule:
    """a (m, k), b (k, n), or (n, k) where b_transposed, bf16, c (m, n) f32; m, k and n are multiples of 8.

    What is None is chosen by `gemm.choose_tiles`. Raises IllegalShapeError.
    """
    tiles = gemm.choose_tiles(
        m,
        k,
        n,
        f32,
        tile_m=tile_m,
        tile_k_l2=tile_k_l2,
        tile_k_l1=tile_k_l1,
        tile_n=tile_n,
        herd_m=herd_m,
        herd_n=herd_n,
    )
    return gemm.product("gemm_f32", m, k, n, tiles, b_transposed)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32 by numpy."""
    return {"c": gemm.exact_product(parameters, arrays)}


KERNEL = KernelSpec(
    name="gemm_f32",
    build=build,
    reference=reference,
    cases=(
        {"m": 64, "k": 256, "n": 128},
        {"m": 512, "k": 128, "n": 512},
        {"m": 24, "k": 40, "n": 88},
        {"m": 64, "k": 256, "n": 128, "b_transposed": True},
    ),
    tolerance=Tolerance(1e-5, 1e-4, "f32 sums of the same products in another order"),
    random_case=gemm.random_case,
)
