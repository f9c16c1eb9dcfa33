"""out = weight @ x, bf16 with f32 accumulation: the projections of decode, and the LM head.

Eight cores in a row (herd 8x1), each with its own contiguous block of output rows. A core takes x once and
keeps it; its rows of the weight stream past it, `m_input` at a time, straight from L3: every weight is read
once and by one core, so a stop in a memtile would buy nothing. Results leave in runs of `tile_m`. One input
channel of a core carries the weight and the other x. The product is bound by the DMA of the weight.

A row that does not fit L1 beside x comes in pieces of `k_piece` elements, and its 64 partial sums stay in L1,
in f32, from piece to piece. Pieces are of one row at a time, so the weight is still read in memory order, and
they are summed in the order of k: whatever the piece, the result has the same bits.

The compute is `mv.cc`, and for pieces `mv_pieces.cc`. Symbols are renamed for each tile shape, so that
products of different shapes can stand in one program: MLIR declares a function with the shapes of its
buffers, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder import quantised_gemv
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import Buffer, CoreBuffers, l1_bytes
from aerie.kernel_builder.dsl import L1, Index, Kernel, Role, bf16, f32, i32
from aerie.kernel_builder.spec import (
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    divisors,
    largest_divisor,
    require_multiple,
)
from aerie.kernel_builder.values import ArgumentType, ExternalFunction, OptLevel
from aerie.kernel_builder.weight_blocks import BF16, random_weight, weight_block, weight_of

LANES = 64
"""Elements of one vector step, and partial sums of a row; k is a multiple of it."""
TILE_M = 8
"""Preferred rows of one result run. One number for all m keeps the shapes of a program's products equal."""
MAX_TILE_M = 2 * TILE_M
"""Most rows of a run if a core's share is not a multiple of TILE_M."""
OPTIMIZE = OptLevel(
    "O2",
    "what upstream builds its mv.cc with (mlir-air programming_examples/matrix_vector_multiplication/bf16/"
    "Makefile)",
)
WEIGHT_BYTES = 16 * 1024
"""Preferred size of one weight transfer: long enough for the DMA, and it is double-buffered."""


def build(
    m: int,
    k: int,
    tile_m: int | None = None,
    m_input: int | None = None,
    herd_m: int | None = None,
    k_piece: int | None = None,
    weight: str = BF16,
    herd_y: int | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """weight is (m, k) bf16 in Hugging Face's layout (out, in), x is (k,) bf16, out is (m,) bf16.

    k is a multiple of 64, m of 2. herd_m: cores; m / herd_m is even (default: the most). tile_m: rows
    of one result transfer, even, divides m / herd_m. m_input: rows of one weight transfer, divides tile_m.
    k_piece: elements of each, a multiple of 64 that divides k (default: all, or for rows that do not fit L1
    the most that do); less than k only where m_input is 1. weight: its kind, `bf16` or a block's
    (weight_blocks.py): then it is packed, m is a multiple of 32, and tile_m, m_input and k_piece are not
    given. herd_y: rows of cores, for a weight in blocks only (default: 1). Raises IllegalShapeError.
    """
    if block := weight_block("gemv", weight):
        if (tile_m, m_input, k_piece) != (None, None, None):
            raise IllegalShapeError(
                f"gemv: tile_m, m_input and k_piece cut rows, and a weight of kind {weight} comes in blocks; "
                "leave them out"
            )
        return quantised_gemv.build(m, k, block, herd_m, herd_y, OPTIMIZE, device)
    if herd_y not in (None, 1):
        raise IllegalShapeError(
            f"gemv: herd_y={herd_y} rows of cores would wait, since the DMA limits a product of bf16; leave "
            "herd_y out, or give a weight in blocks"
        )
    require_multiple("gemv", "k", k, LANES, "mv.cc steps through 64 elements at a time")
    require_multiple("gemv", "m", m, 2, "a DMA moves pairs of bf16")
    herd_m = _cores(m, herd_m, device)
    tile_m = _tile(m // herd_m, tile_m)
    m_input, k_piece = _weight_transfer(k, tile_m, m_input, k_piece, device.l1_budget)
    buffers = _l1_buffers(k, tile_m, m_input, k_piece)
    kernel = Kernel("gemv", device)
    matrix = kernel.argument("weight", (m, k), bf16, Role.WEIGHT)
    x = kernel.argument("x", (k,), bf16, Role.INPUT)
    out = kernel.argument("out", (m,), bf16, Role.OUTPUT)
    product = _Rows(kernel, buffers) if k_piece == k else _Pieces(kernel, buffers)
    with kernel.launch(), kernel.segment("gemv_segment"), kernel.herd(herd_m, 1, name="gemv_herd") as (tx, _):
        l1 = kernel.alloc_each(buffers)
        kernel.dma(l1["l1_x"], x)
        for run in kernel.loop(0, m // herd_m, tile_m, unwraps=True):
            first = tx * (m // herd_m) + run
            product.run(matrix, first, l1)
            kernel.dma(out[first : first + tile_m], l1["l1_out"])
    return kernel.finish()


def _l1_buffers(k: int, tile_m: int, m_input: int, k_piece: int) -> CoreBuffers:
    """The buffers of a core: x; weight and result, double-buffered; and for a row in pieces its sums, of
    which aircc keeps a third copy if the number of pieces is odd.
    """
    x, out = (L1((k,), bf16), 1), (L1((tile_m,), bf16), 2)
    if k_piece == k:
        return {"l1_x": x, "l1_weight": (L1((m_input, k), bf16), 2), "l1_out": out}
    sums, copies = (L1((LANES,), f32), 1), 3 if k // k_piece % 2 else 2
    return {"l1_x": x, "l1_weight": (L1((k_piece,), bf16), copies), "l1_sums": sums, "l1_out": out}


class _Rows:
    """Computes a run of results from whole rows of the weight, `m_input` per transfer."""

    def __init__(self, kernel: Kernel, buffers: CoreBuffers) -> None:
        weight, x, out = (buffers[name][0] for name in ("l1_weight", "l1_x", "l1_out"))
        (self.m_input, self.k), (self.tile_m,) = weight.shape, out.shape
        self.kernel = kernel
        shape = f"{self.m_input}x{self.k}_{self.tile_m}"
        names = ("matvec_vectorized_bf16_bf16", "linalg_fill_bf16")
        defines = {"DIM_M_OUTPUT": self.tile_m, **{name: f"{name}_{shape}" for name in names}}
        types: list[ArgumentType] = [i32, i32, i32, weight, x, out]
        symbol, built = f"{names[0]}_{shape}", f"mv_{shape}.o"
        self.matvec = kernel.external(symbol, built, types, "mv.cc", defines, OPTIMIZE)

    def run(self, weight: Buffer, first: Index, l1: Mapping[str, Buffer]) -> None:
        for row in self.kernel.loop(0, self.tile_m, self.m_input):
            self.kernel.dma(l1["l1_weight"], weight[first + row : first + row + self.m_input, :])
            self.matvec(self.m_input, self.k, row, l1["l1_weight"], l1["l1_x"], l1["l1_out"])


class _Pieces:
    """Computes a run of results from rows in pieces of `k_piece` elements."""

    def __init__(self, kernel: Kernel, buffers: CoreBuffers) -> None:
        piece, x, out, sums = (buffers[name][0] for name in ("l1_weight", "l1_x", "l1_out", "l1_sums"))
        (self.k_piece,), (self.k,), (self.tile_m,) = piece.shape, x.shape, out.shape
        self.kernel = kernel
        self.add = self._external("matvec_piece_bf16_f32", [i32, i32, piece, x, sums])
        self.finish = self._external("matvec_row_f32_bf16", [i32, sums, out])

    def _external(self, name: str, types: list[ArgumentType]) -> ExternalFunction:
        shape = f"{self.k_piece}of{self.k}_{self.tile_m}"
        names = ("matvec_piece_bf16_f32", "matvec_row_f32_bf16")
        defines = {each: f"{each}_{shape}" for each in names}
        symbol, built = f"{name}_{shape}", f"mv_{shape}.o"
        return self.kernel.external(symbol, built, types, "mv_pieces.cc", defines, OPTIMIZE)

    def run(self, weight: Buffer, first: Index, l1: Mapping[str, Buffer]) -> None:
        for row in self.kernel.loop(self.tile_m):
            for at in self.kernel.loop(0, self.k, self.k_piece):
                self.kernel.dma(l1["l1_weight"], weight[first + row, at : at + self.k_piece])
                self.add(self.k_piece, at, l1["l1_weight"], l1["l1_x"], l1["l1_sums"])
            self.finish(row, l1["l1_sums"], l1["l1_out"])


def _cores(m: int, herd_m: int | None, device: DeviceModel) -> int:
    max_cores = largest_divisor(m // 2, device.columns)
    if herd_m is None:
        return max_cores
    if not 1 <= herd_m <= device.columns or m % (2 * herd_m):
        raise IllegalShapeError(
            f"gemv: herd_m={herd_m} cores cannot share m={m} rows in even numbers in {device.columns} "
            f"columns; use {max_cores}"
        )
    return herd_m


def _tile(share: int, tile_m: int | None) -> int:
    default = TILE_M if share % TILE_M == 0 else largest_divisor(share, MAX_TILE_M, 2)
    if tile_m is None:
        return default
    if tile_m <= 0 or tile_m % 2 or share % tile_m:
        raise IllegalShapeError(
            f"gemv: tile_m={tile_m} is no even divisor of the {share} rows of a core; use {default}"
        )
    return tile_m


def _weight_transfer(
    k: int, tile_m: int, m_input: int | None, k_piece: int | None, budget: int
) -> tuple[int, int]:
    """m_input and k_piece, as given or chosen: whole rows if one fits, else pieces of one.

    budget: bytes of L1 for buffers.
    """
    default = largest_divisor(tile_m, max(1, WEIGHT_BYTES // (k * bf16.itemsize)))
    rows = default if m_input is None else m_input
    if rows <= 0 or tile_m % rows:
        raise IllegalShapeError(f"gemv: m_input={m_input} does not divide tile_m={tile_m}; use {default}")
    if k_piece is not None:
        return _check_piece(k, tile_m, 1 if m_input is None and k_piece < k else rows, k_piece, budget)
    used = l1_bytes(_l1_buffers(k, tile_m, rows, k))
    if used <= budget:
        return rows, k
    if rows > 1:
        raise IllegalShapeError(
            f"gemv: k={k} with m_input={rows} and tile_m={tile_m} takes {used} bytes of L1, a core has "
            f"{budget}; use m_input={default}"
        )
    return rows, _piece(k, tile_m, budget)


def _check_piece(k: int, tile_m: int, rows: int, k_piece: int, budget: int) -> tuple[int, int]:
    """Refuse a piece that does not divide the row evenly, is of several rows, or does not fit."""
    if k_piece <= 0 or k_piece % LANES or k % k_piece:
        raise IllegalShapeError(
            f"gemv: k_piece={k_piece} is no divisor of k={k} that is a multiple of {LANES}; "
            f"use {_piece(k, tile_m, budget)}"
        )
    if rows > 1 and k_piece < k:
        raise IllegalShapeError(
            f"gemv: m_input={rows} rows at a time come whole, and k_piece={k_piece} is less than k={k}; "
            f"use m_input=1, or k_piece={k}"
        )
    used = l1_bytes(_l1_buffers(k, tile_m, rows, k_piece))
    if used > budget:
        raise IllegalShapeError(
            f"gemv: k={k} in pieces of k_piece={k_piece} takes {used} bytes of L1, a core has "
            f"{budget}; use k_piece={_piece(k, tile_m, budget)}"
        )
    return rows, k_piece


def _piece(k: int, tile_m: int, budget: int) -> int:
    """The largest piece of a row that fits L1 beside x, up to the preferred size of a transfer."""
    longest = _max_row_length(tile_m, budget)
    if k > longest:
        raise IllegalShapeError(
            f"gemv: x of k={k} elements leaves no room in L1 for a piece of a row (a core has "
            f"{budget} bytes); use a k of at most {longest}"
        )
    pieces = range(LANES, min(k, WEIGHT_BYTES // bf16.itemsize) + 1, LANES)
    fitting = (p for p in pieces if k % p == 0 and l1_bytes(_l1_buffers(k, tile_m, 1, p)) <= budget)
    return max(fitting, default=LANES)


def _max_row_length(tile_m: int, budget: int) -> int:
    """The longest x that fits with the shortest piece of a row, double-buffered."""
    shortest = 2 * LANES
    free = budget - l1_bytes(_l1_buffers(shortest, tile_m, 1, LANES))
    return (shortest + free // bf16.itemsize) // LANES * LANES


def max_row_length(device: DeviceModel = NPU2) -> int:
    """The largest k that is supported for every m."""
    return _max_row_length(MAX_TILE_M, device.l1_budget)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The product in f32, rounded once to bf16."""
    weight = weight_of(parameters, arrays["weight"], parameters["m"], parameters["k"])
    product = np.asarray(weight.astype(np.float32) @ arrays["x"].astype(np.float32))
    return {"out": product.astype(bf16.numpy)}


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Standard normal numbers, the weight of the kind that is asked for."""
    m, k = parameters["m"], parameters["k"]
    weight = random_weight(parameters, rng, m, k)
    return {"weight": weight, "x": rng.standard_normal((k,)).astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 512 rows of up to 1024 elements, whole or in pieces, on any legal number of cores."""
    m, steps = 2 * int(rng.integers(1, 257)), int(rng.integers(1, 17))
    legal = [herd for herd in range(1, NPU2.columns + 1) if m % (2 * herd) == 0]
    case = {"m": m, "k": LANES * steps, "herd_m": int(rng.choice(legal))}
    if rng.random() < 0.25:
        case["k_piece"] = LANES * largest_divisor(steps, int(rng.integers(1, steps + 1)))
    return case


def schedules(parameters: Parameters) -> Iterator[dict[str, int]]:
    """Rows of a result run and of a weight transfer to try, but short transfers; of a weight in blocks the
    cores."""
    m, k = parameters["m"], parameters["k"]
    if weight_block("gemv", parameters.get("weight", BF16)):
        yield from ({"herd_m": herd_m} for herd_m in divisors(m, NPU2.columns))
        yield from ({"herd_y": herd_y} for herd_y in range(2, NPU2.rows + 1))
        return
    for tile_m in divisors(m // _cores(m, parameters.get("herd_m"), NPU2), 4 * TILE_M, 2):
        for rows in divisors(tile_m, tile_m):
            if rows * k * bf16.itemsize >= WEIGHT_BYTES // 2:
                yield {"tile_m": tile_m, "m_input": rows}


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
        {"m": 32, "k": 14336},
        {"m": 128, "k": 256, "tile_m": 4, "m_input": 2, "herd_m": 4},
        {"m": 64, "k": 576, "k_piece": 192},
        {"m": 576, "k": 576, "weight": "q4"},
        {"m": 512, "k": 576, "weight": "q4", "herd_m": 2, "herd_y": 4},
        {"m": 64, "k": 896, "weight": "q8"},
    ),
    tolerance=Tolerance(
        2.0**-7,
        1e-4,
        "sums in another order: the f32 sums differ in their last bits, so a bf16 result may round the other "
        "way (2^-7); where terms cancel the absolute error of the sum remains (1e-4 for k of a few thousand)",
    ),
    random_case=random_case,
    random_inputs=random_inputs,
    schedules=schedules,
)
