"""c = a @ b, bf16 in and out, f32 in between: every projection of a prefill.

    launch (n / (herd_n tile_n), m / (herd_m tile_m))      one c block of the whole array per point
      segment   L2: a (herd_m tile_m, tile_k_l2), b (tile_k_l2, herd_n tile_n), c
                L1: the accumulator, f32, one (tile_m, tile_n) slab per core
        herd                         clear the accumulator
        for k in 0..K by tile_k_l2   a, b: L3 -> L2
          herd                       for k in 0..tile_k_l2 by tile_k_l1
                                       a, b: L2 -> L1 in 8x8 blocks; accumulate 8x8x8 products
        herd                         round the accumulator to bf16; L1 -> L2
        c: L2 -> L3

The three herds have one name, so they are one herd of cores in three phases. The accumulator is allocated in
the segment because it outlives the K loop there; its leading dimensions are the tile ids, so each core owns
its slab. This is the schedule that mlir-air's own bf16 GEMM is known to run with on NPU2.

L2 holds plain row-major pieces of L3. The 8x8 blocks that the matrix unit wants are cut by the memtile's DMA
on the way to L1, which can walk four dimensions; on the way back the core's DMA walks three. Blocks stand
column by column: a as (K/8, M/8, 8, 8), b as (N/8, K/8, 8, 8), the accumulator as (N/8, M/8, 8, 8). The loop
over k holds 2x2 blocks of it (`accumulator_blocks`), so that each block of a and b is read, and converted to
block floats, once for two products, with four sums at a time. They are carried in one dimension each, the
only form that upstream's GEMMs are known to carry.

With b_transposed, b is (n, k): a weight as Hugging Face stores it, (out, in), and as a GEMV reads it, so that
one copy serves prefill and decode. A DMA cannot transpose 16-bit elements, whose innermost stride is 1, and
the core's compiler takes no product by a transposed matrix. So rows of b come to L2 and blocks (n 8, k 8) to
L1, each where its block (k 8, n 8) is wanted, and `transpose_blocks.cc` transposes them there, in place.
mlir-aie's C++ product of such blocks transposes each one before use (aie_kernels/aie2p/mm_b_col_maj.cc).

The grid's inner dimension is m: the blocks of a pass by one block of b, which on a CPU stays in the cache.

The products of one output element are summed in the order of k whatever m is, since the K tiles are chosen
from k alone: rows of a padded prompt come out bit for bit the same at any compiled length.

`gemm_f32` is the same kernel with the accumulator for a result. The L1 that the rounded copy would take goes
into tiles twice as high. An f32 block of c does not fit one descriptor, so it leaves L2 a row of cores at a
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder import gemm_tiles, quantised_tiles
from aerie.kernel_builder.arguments import DType, IllegalShapeError, byte
from aerie.kernel_builder.buffers import Buffer, View
from aerie.kernel_builder.dsl import L1, L2, Index, Kernel, Role, bf16, contract, f32, i32
from aerie.kernel_builder.gemm_tiles import MMUL_BLOCK, GemmTiles, choose_tiles
from aerie.kernel_builder.spec import (
    Allowance,
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
)
from aerie.kernel_builder.values import ArgumentType, ExternalFunction, OptLevel
from aerie.kernel_builder.weight_blocks import (
    BF16,
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    FUNCTIONS,
    GROUP,
    SOURCE,
    WeightBlock,
    random_weight,
    weight_block,
    weight_of,
)

OPTIMIZE = OptLevel(
    "O2",
    "what upstream builds the C++ kernels of its models with, a matrix product among them (mlir-air "
    "programming_examples/llms/shared/infra/external_kernels.py)",
)


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
    weight: str = BF16,
    *,
    out: DType = bf16,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """a (m, k), b (k, n), or (n, k) where b_transposed, bf16, c (m, n); m, k and n are multiples of 8.

    c is bf16 (the kernel `gemm`), or f32 where `out` is (`gemm_f32`). What is None is chosen by
    `choose_tiles`. The layout of b changes no bit. weight: the kind of b, `bf16` or a block's
    (weight_blocks.py): then b is an (n, k) packed, k is a multiple of 64 and n of 32. Raises
    IllegalShapeError.
    """
    overrides = {"tile_m": tile_m, "tile_k_l2": tile_k_l2, "tile_k_l1": tile_k_l1, "tile_n": tile_n}
    if block := weight_block("gemm", weight):
        if not b_transposed or out is not bf16:
            raise IllegalShapeError(
                f"gemm: a weight of kind {weight} is packed from (n, k), and the result is bf16; give "
                "b_transposed=True"
            )
        tiles = quantised_tiles.choose_tiles(
            m, k, n, block, device, {**overrides, "herd_m": herd_m, "herd_n": herd_n}
        )
        return write_quantised(Kernel("gemm", device), tiles, m, k, n, block)
    tiles = choose_tiles(m, k, n, out, device, **overrides, herd_m=herd_m, herd_n=herd_n)
    kernel = Kernel("gemm_f32" if out is f32 else "gemm", device)
    return write_kernel(kernel, tiles, m, k, n, b_transposed)


def write_kernel(
    kernel: Kernel, tiles: GemmTiles, m: int, k: int, n: int, b_transposed: bool
) -> KernelModule:
    """Write the product with these tiles; see `build`."""
    out = tiles.out
    a = kernel.argument("a", (m, k), bf16, Role.INPUT)
    b = kernel.argument("b", _b_shape((k,), (n,), b_transposed), bf16, Role.WEIGHT)
    c = kernel.argument("c", (m, n), out, Role.OUTPUT)
    transpose = _transpose(kernel, tiles) if b_transposed else None
    with kernel.launch(n // tiles.l2_n, m // tiles.l2_m) as (lj, li), kernel.segment("gemm_segment"):
        rows = slice(li * tiles.l2_m, li * tiles.l2_m + tiles.l2_m)
        columns = slice(lj * tiles.l2_n, lj * tiles.l2_n + tiles.l2_n)
        l2_a = kernel.alloc(L2, (tiles.l2_m, tiles.tile_k_l2), bf16, "l2_a")
        l2_b = kernel.alloc(L2, _b_shape((tiles.tile_k_l2,), tiles.l2_columns, b_transposed), bf16, "l2_b")
        l2_c = kernel.alloc(L2, (tiles.l2_m, *tiles.l2_columns), out, "l2_c")
        slab = (tiles.tile_n // MMUL_BLOCK, tiles.tile_m // MMUL_BLOCK, MMUL_BLOCK, MMUL_BLOCK)
        accumulator = kernel.alloc(L1, (tiles.herd_x, tiles.herd_y, *slab), f32, "accumulator")
        _clear(kernel, tiles, accumulator)
        for at in kernel.loop(0, k, tiles.tile_k_l2):
            depth = slice(at, at + tiles.tile_k_l2)
            kernel.dma(l2_a, a[rows, depth])
            block_of_b = b[columns, depth] if b_transposed else b[depth, columns]
            kernel.dma(l2_b, block_of_b.reshape(*l2_b.shape))
            _accumulate(kernel, tiles, l2_a, l2_b, accumulator, transpose)
        _drain(kernel, tiles, accumulator, l2_c)
        kernel.dma(c[rows, columns].reshape(*l2_c.shape), l2_c)
    return kernel.finish()


def write_quantised(
    kernel: Kernel, tiles: GemmTiles, m: int, k: int, n: int, block: WeightBlock
) -> KernelModule:
    """Write the product by a weight in blocks with these tiles; see `build`."""
    a = kernel.argument("a", (m, k), bf16, Role.INPUT)
    b = kernel.argument("b", block.shape(n, k), byte, Role.WEIGHT)
    c = kernel.argument("c", (m, n), tiles.out, Role.OUTPUT)
    depth, blocks = tiles.tile_k_l2, tiles.l2_n // BLOCK_ROWS
    across, unpack = -(-depth // BLOCK_COLUMNS), _unpack(kernel, tiles, block)
    with kernel.launch(n // tiles.l2_n, m // tiles.l2_m) as (lj, li), kernel.segment("gemm_segment"):
        rows = slice(li * tiles.l2_m, li * tiles.l2_m + tiles.l2_m)
        columns = slice(lj * tiles.l2_n, lj * tiles.l2_n + tiles.l2_n)
        down = slice(lj * blocks, lj * blocks + blocks)
        *outer, width = tiles.l2_columns
        l2_a = kernel.alloc(L2, (tiles.l2_m, depth), bf16, "l2_a")
        l2_b = kernel.alloc(L2, (*outer, width // BLOCK_ROWS, across, block.nbytes), byte, "l2_b")
        l2_c = kernel.alloc(L2, (tiles.l2_m, *tiles.l2_columns), tiles.out, "l2_c")
        slab = (tiles.tile_n // MMUL_BLOCK, tiles.tile_m // MMUL_BLOCK, MMUL_BLOCK, MMUL_BLOCK)
        accumulator = kernel.alloc(L1, (tiles.herd_x, tiles.herd_y, *slab), f32, "accumulator")
        _clear(kernel, tiles, accumulator)
        for at in kernel.loop(k // depth):
            kernel.dma(l2_a, a[rows, at * depth : at * depth + depth])
            of_b = b[down, at * across : at * across + across, :]
            kernel.dma(l2_b, of_b.reshape(*l2_b.shape))
            _accumulate_blocks(kernel, tiles, l2_a, l2_b, accumulator, unpack)
        _drain(kernel, tiles, accumulator, l2_c)
        kernel.dma(c[rows, columns].reshape(*l2_c.shape), l2_c)
    return kernel.finish()


def _unpack(kernel: Kernel, tiles: GemmTiles, block: WeightBlock) -> ExternalFunction:
    """The function that unpacks columns of a core's blocks, under its own symbol for this size."""
    down, across = tiles.tile_n // BLOCK_ROWS, -(-tiles.tile_k_l2 // BLOCK_COLUMNS)
    suffix = f"{block.name}_{down}x{across}_{tiles.tile_k_l1}"
    names = {name: f"{name}_{suffix}" for name in FUNCTIONS}
    built = {
        "WEIGHT_BITS": block.bits,
        "UNPACKED_BLOCKS": down,
        "UNPACKED_ACROSS": across,
        "UNPACKED_GROUPS": tiles.tile_k_l1 // GROUP,
    }
    blocks = L1((down, across, block.nbytes), byte)
    side = (tiles.tile_n // MMUL_BLOCK, tiles.tile_k_l1 // MMUL_BLOCK)
    types: list[ArgumentType] = [i32, blocks, L1((*side, MMUL_BLOCK, MMUL_BLOCK), bf16)]
    *_, unpack = names.values()
    return kernel.external(unpack, f"weight_blocks_{suffix}.o", types, SOURCE, {**built, **names}, OPTIMIZE)


def _accumulate_blocks(
    kernel: Kernel,
    tiles: GemmTiles,
    l2_a: Buffer,
    l2_b: Buffer,
    accumulator: Buffer,
    unpack: ExternalFunction,
) -> None:
    """accumulator += a @ b over one L2 tile of K: the blocks come to a core whole."""
    with kernel.herd(tiles.herd_x, tiles.herd_y, name="gemm_herd") as (tx, ty):
        m, k, n = (extent // MMUL_BLOCK for extent in (tiles.tile_m, tiles.tile_k_l1, tiles.tile_n))
        down, (*_, across, nbytes) = tiles.tile_n // BLOCK_ROWS, l2_b.shape
        l1_a = kernel.alloc(L1, (k, m, MMUL_BLOCK, MMUL_BLOCK), bf16, "l1_a")
        l1_blocks = kernel.alloc(L1, (down, across, nbytes), byte, "l1_blocks")
        l1_b = kernel.alloc(L1, (n, k, MMUL_BLOCK, MMUL_BLOCK), bf16, "l1_b")
        *outer, _ = tiles.core_columns(tx, ty)
        kernel.dma(l1_blocks, l2_b[*outer, ty * down : ty * down + down, :, :])
        for at in kernel.loop(0, tiles.tile_k_l2, tiles.tile_k_l1):
            piece = l2_a[tiles.core_rows(tx), at : at + tiles.tile_k_l1]
            kernel.dma(l1_a, piece.blocks(MMUL_BLOCK, MMUL_BLOCK).permute(1, 0, 2, 3))
            unpack(at, l1_blocks, l1_b)
            _add_tile(kernel, tiles, l1_a, l1_b, accumulator[tx, ty])


def _clear(kernel: Kernel, tiles: GemmTiles, accumulator: Buffer) -> None:
    """accumulator = 0."""
    with kernel.herd(tiles.herd_x, tiles.herd_y, name="gemm_herd") as (tx, ty):
        zero = kernel.constant(0.0, f32, MMUL_BLOCK, MMUL_BLOCK)
        for j in kernel.loop(tiles.tile_n // MMUL_BLOCK):
            for i in kernel.loop(tiles.tile_m // MMUL_BLOCK):
                kernel.store(accumulator[tx, ty, j, i], zero)


def _b_shape(k: tuple[int, ...], n: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return (*n, *k) if transposed else (*k, *n)


def _transpose(kernel: Kernel, tiles: GemmTiles) -> ExternalFunction:
    """transpose_blocks.cc for l1_b, under its own symbol for this size."""
    name, (n, k) = "transpose_blocks_bf16", (tiles.tile_n // MMUL_BLOCK, tiles.tile_k_l1 // MMUL_BLOCK)
    symbol, built = f"{name}_{n}x{k}", f"transpose_blocks_{n}x{k}.o"
    defines = {"TRANSPOSED_BLOCKS": n * k, name: symbol}
    buffer = L1((n, k, MMUL_BLOCK, MMUL_BLOCK), bf16)
    return kernel.external(symbol, built, [buffer], "transpose_blocks.cc", defines, OPTIMIZE)


def _accumulate(
    kernel: Kernel,
    tiles: GemmTiles,
    l2_a: Buffer,
    l2_b: Buffer,
    accumulator: Buffer,
    transpose: ExternalFunction | None,
) -> None:
    """accumulator += a @ b over one L2 tile of K. `transpose` makes (k, n) blocks of b if it is (n, k)."""
    with kernel.herd(tiles.herd_x, tiles.herd_y, name="gemm_herd") as (tx, ty):
        m, k, n = (extent // MMUL_BLOCK for extent in (tiles.tile_m, tiles.tile_k_l1, tiles.tile_n))
        l1_a = kernel.alloc(L1, (k, m, MMUL_BLOCK, MMUL_BLOCK), bf16, "l1_a")
        l1_b = kernel.alloc(L1, (n, k, MMUL_BLOCK, MMUL_BLOCK), bf16, "l1_b")
        own_rows, own_columns = tiles.core_rows(tx), tiles.core_columns(tx, ty)
        for at in kernel.loop(0, tiles.tile_k_l2, tiles.tile_k_l1):
            depth = slice(at, at + tiles.tile_k_l1)
            kernel.dma(l1_a, l2_a[own_rows, depth].blocks(MMUL_BLOCK, MMUL_BLOCK).permute(1, 0, 2, 3))
            if transpose is None:
                kernel.dma(l1_b, l2_b[depth, *own_columns].blocks(MMUL_BLOCK, MMUL_BLOCK).permute(1, 0, 2, 3))
            else:
                kernel.dma(l1_b, l2_b[*own_columns, depth].blocks(MMUL_BLOCK, MMUL_BLOCK))
                transpose(l1_b)
            _add_tile(kernel, tiles, l1_a, l1_b, accumulator[tx, ty])


def _add_tile(kernel: Kernel, tiles: GemmTiles, l1_a: Buffer, l1_b: Buffer, accumulator: View) -> None:
    """accumulator += a @ b over one L1 tile of K."""
    for j in kernel.loop(0, tiles.tile_n // MMUL_BLOCK, tiles.accumulator_columns):
        for i in kernel.loop(0, tiles.tile_m // MMUL_BLOCK, tiles.accumulator_rows):
            _add_blocks(kernel, tiles, (i, j), l1_a, l1_b, accumulator)


def _add_blocks(
    kernel: Kernel, tiles: GemmTiles, at: tuple[Index, Index], l1_a: Buffer, l1_b: Buffer, accumulator: View
) -> None:
    """accumulator_rows x accumulator_columns blocks, from block (i, j) on, += a @ b over one L1 tile of K."""
    i, j = at
    grid = list(itertools.product(range(tiles.accumulator_columns), range(tiles.accumulator_rows)))
    blocks = [accumulator[j + column, i + row] for column, row in grid]
    totals = [kernel.carried(kernel.load(block).reshape(MMUL_BLOCK * MMUL_BLOCK)) for block in blocks]
    for p in kernel.loop(0, tiles.tile_k_l1 // MMUL_BLOCK, carry=totals):
        rows = [kernel.load(l1_a[p, i + row]) for row in range(tiles.accumulator_rows)]
        columns = [kernel.load(l1_b[j + column, p]) for column in range(tiles.accumulator_columns)]
        for total, (column, row) in zip(totals, grid, strict=True):
            more = contract(rows[row], columns[column], total.value.reshape(MMUL_BLOCK, MMUL_BLOCK))
            total.set(more.reshape(MMUL_BLOCK * MMUL_BLOCK))
    for block, total in zip(blocks, totals, strict=True):
        kernel.store(block, total.value.reshape(MMUL_BLOCK, MMUL_BLOCK))


def _drain(kernel: Kernel, tiles: GemmTiles, accumulator: Buffer, l2_c: Buffer) -> None:
    """l2_c = accumulator, rounded once unless it is f32, in row-major order."""
    with kernel.herd(tiles.herd_x, tiles.herd_y, name="gemm_herd") as (tx, ty):
        m, n = tiles.tile_m // MMUL_BLOCK, tiles.tile_n // MMUL_BLOCK
        result: View = accumulator[tx, ty]
        if tiles.out is not f32:
            result = kernel.alloc(L1, (n, m, MMUL_BLOCK, MMUL_BLOCK), tiles.out, "rounded")
            for j in kernel.loop(n):
                for i in kernel.loop(m):
                    kernel.store(result[j, i], kernel.load(accumulator[tx, ty, j, i]).to(tiles.out))
        c = l2_c[tiles.core_rows(tx), *tiles.core_columns(tx, ty)]
        if tiles.out is f32:
            # The accumulator goes as it lies: mlir-air takes the walk's sizes for the buffer's where it cuts
            # one down to a core's (air-shrink-memref-sizes-by-access). The memtile's DMA puts it in rows.
            kernel.dma(c.blocks(MMUL_BLOCK, MMUL_BLOCK).permute(1, 0, 2, 3), result)
            return
        # (n, m, 8, 8) walked as (rows, n, 8): the m blocks of 8 rows are one run of rows, 8 elements apart.
        kernel.dma(c, result.reshape(n, tiles.tile_m, MMUL_BLOCK).permute(1, 0, 2))


def exact_product(parameters: Parameters, arrays: Mapping[str, Array]) -> Array:
    """a @ b, or a @ b.T where b is transposed, in f32: summed in f64, so that no CPU's order shows."""
    n, k = parameters.get("n", 0), parameters.get("k", 0)
    b = weight_of(parameters, arrays["b"], n, k).astype(np.float64)
    product = arrays["a"].astype(np.float64) @ (b.T if parameters.get("b_transposed") else b)
    return product.astype(np.float32)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32, rounded once to bf16."""
    return {"c": exact_product(parameters, arrays).astype(bf16.numpy)}


def reference_f32(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32."""
    return {"c": exact_product(parameters, arrays)}


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Standard normal numbers, b of the kind that is asked for."""
    m, k, n = parameters["m"], parameters["k"], parameters["n"]
    b = random_weight(parameters, rng, *((n, k) if parameters.get("b_transposed") else (k, n)))
    return {"a": rng.standard_normal((m, k)).astype(bf16.numpy), "b": b}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Multiples of 8 up to 256 rows, 512 deep and 512 columns, b in either layout."""
    m, k, n = (MMUL_BLOCK * int(rng.integers(1, most)) for most in (33, 65, 65))
    return {"m": m, "k": k, "n": n, "b_transposed": bool(rng.integers(2))}


def schedules(parameters: Parameters, out: DType = bf16) -> Iterator[dict[str, int]]:
    """Tiles to try."""
    m, k, n = (parameters[name] for name in "mkn")
    if weight_block("gemm", parameters.get("weight", BF16)):
        return quantised_tiles.schedules(m, n)
    return gemm_tiles.schedules(m, k, n, out)


BLOCKS = Allowance(
    1e-2,
    0.06,
    "how the core rounds a block's mantissas and sums its products is not published; against f32, blocks "
    "cost a share of 9.0e-3 to 9.6e-3 (mlir-air's measurements, kernel_builder/published_errors.py), so "
    "another way of making them stays within that of ours",
)

KERNEL = KernelSpec(
    name="gemm",
    build=build,
    reference=reference,
    cases=(
        {"m": 64, "k": 256, "n": 128},
        {"m": 64, "k": 256, "n": 256},
        {"m": 128, "k": 256, "n": 768},
        {"m": 64, "k": 768, "n": 256},
        {"m": 256, "k": 2048, "n": 512},
        {"m": 8, "k": 8, "n": 8},
        {"m": 24, "k": 40, "n": 88},
        {"m": 64, "k": 64, "n": 64, "tile_m": 8, "tile_n": 16, "tile_k_l1": 16, "tile_k_l2": 32, "herd_m": 4},
        {"m": 64, "k": 256, "n": 256, "b_transposed": True},
        {"m": 24, "k": 40, "n": 88, "b_transposed": True},
        {"m": 128, "k": 2048, "n": 512, "b_transposed": True},
        {"m": 64, "k": 576, "n": 192, "b_transposed": True, "weight": "q4"},
        {"m": 64, "k": 256, "n": 96, "b_transposed": True, "weight": "q8"},
    ),
    tolerance=Tolerance(
        2**-7,
        1e-3,
        "one rounding to bf16 moves by a step (2**-7 relative) where the order of the f32 sum tips it; near "
        "zero, where products cancel, the sums differ by f32 rounding of the products themselves",
        max_differing_share=0.01,
    ),
    random_case=random_case,
    random_inputs=random_inputs,
    rows="m",
    sums_may_reorder=True,
    allowance=BLOCKS,
    schedules=schedules,
)

KERNEL_F32 = KernelSpec(
    name="gemm_f32",
    summary="c = a @ b, bf16 in and f32 out: nothing is rounded to bf16.",
    build=partial(build, out=f32),
    reference=reference_f32,
    cases=(
        {"m": 64, "k": 256, "n": 128},
        {"m": 512, "k": 128, "n": 512},
        {"m": 24, "k": 40, "n": 88},
        {"m": 64, "k": 256, "n": 128, "b_transposed": True},
    ),
    tolerance=Tolerance(1e-5, 1e-4, "f32 sums of the same products in another order"),
    random_case=random_case,
    random_inputs=random_inputs,
    rows="m",
    sums_may_reorder=True,
    allowance=BLOCKS,
    schedules=partial(schedules, out=f32),
)
"""No model's program uses it: its error on the NPU is published (kernel_builder/published_errors.py)."""
