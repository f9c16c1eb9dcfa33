"""out = x * rsqrt(mean(x**2) + eps) * weight, row by row: the norms of a Llama.

Numerics are those of Hugging Face's LlamaRMSNorm in bf16: squares, sum, mean, rsqrt and x * rsqrt in f32,
that rounded to bf16, then the product with the weight rounded to bf16 again. Two roundings, on purpose.
Gemma's and OLMo 2's norms keep f32 up to the product and round once (round_once); Gemma's multiplies with
1 + weight (weight_offset), which in bf16 would lose most of the weight.

The forms are those that upstream lowers for AIE2P (docs/dev/lowering.md), which has no product of f32
vectors. So the scale is split into three bf16 numbers whose sum it is, bit for bit, and x meets each in a
multiply-add of bf16 with an f32 sum. The split is made in vectors of equal lanes: a core rounds vectors, and
a scalar only by way of one. The product with the weight is one of bf16 vectors: the unit makes it in f32 and
rounds it once. The sum of squares stands in L1 from step to step and is no value that a loop carries, for
mlir-air records that those go wrong where the loop around is double-buffered.

Rows (prefill): eight cores in a row (herd 8x1), each with its own rows, a few per DMA. Every core reads the
weight once. Rows too long to stand in L1 five times go one by one and are normalized where they lie: a loop
of DMAs after another loop, in one over the rows, is left unfolded by aircc, and aiecc then fails on it.
Buffers of whole rows have sizes that are multiples of 64 bytes, so that the sums, which lie behind them, are
aligned to their vector of 512 bits.

Vector (decode, rows=None): every core reads the whole vector, because each needs its mean, and writes its own
slice.

Heads (QK-norm): a row is as many parts as there are heads, each normalized by itself with the one weight. The
parts of all rows are then what the cores share, as rows are.

The weight comes in over the second input channel of a core, so two L3 streams in and one out.

The mean is a product with 1/cols: a scalar division costs more stack than a core has by default (about 1152
bytes against 1024, mlir-air's xrt.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import Buffer, View
from aerie.kernel_builder.dsl import L1, Kernel, Role, Value, bf16, f32, fma
from aerie.kernel_builder.index import Index
from aerie.kernel_builder.spec import (
    Allowance,
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
"""Lanes of one vector operation: 512 bits of f32."""
MAX_ROWS, RUN_LENGTH = 8, 2048
"""Most rows of one DMA, or elements where these are more rows."""
PARTS = 3
"""bf16 numbers that make an f32: 8 of its 24 bits each, however the core rounds."""
MAX_PIECE = 2048
"""Most columns of a long row that come and go at once."""


def l1_elements(device: DeviceModel) -> int:
    """bf16 numbers that fit L1 besides the sums and -1."""
    return (device.l1_budget - LANES * (f32.itemsize + 2 * bf16.itemsize)) // bf16.itemsize


def max_row_length(device: DeviceModel = NPU2) -> int:
    """The most columns: of a row that is all there is, x must fit with as much of the weight and of out."""
    return l1_elements(device) // 3 // LANES * LANES


def build(
    rows: int | None,
    cols: int,
    eps: float = 1e-5,
    herd_x: int | None = None,
    heads: int = 1,
    round_once: bool = False,
    weight_offset: int = 0,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """x and out are (rows, heads * cols) bf16, or (heads * cols,) where rows is None; weight is (cols,) bf16.

    round_once: only the product with the weight is rounded to bf16. weight_offset: what is added to the
    weight, in f32; 0, or 1 with round_once.
    cols, what is normalized together, is a multiple of 32 (16 where it is all there is), at most
    `max_row_length`. herd_x, the number of cores, divides rows * heads (or then cols / 16) and is by default
    the largest such number a row of cores has. Raises IllegalShapeError.
    """
    require_multiple("rms_norm", "heads", heads, 1, "there must be a head")
    if weight_offset not in (0, 1) or (weight_offset and not round_once):
        raise IllegalShapeError(
            f"rms_norm: weight_offset={weight_offset} with round_once={round_once}; use 0, or 1 with "
            "round_once=True, which keeps 1 + weight in f32"
        )
    parts = heads if rows is None else rows * heads
    alone = rows is None and heads == 1
    if alone:
        require_multiple("rms_norm", "cols", cols, LANES, "a core works on 16 elements at a time")
    else:
        require_multiple("rms_norm", "cols", cols, 2 * LANES, "a row fills whole vectors of 512 bits")
    if cols > (max_cols := max_row_length(device)):
        raise IllegalShapeError(
            f"rms_norm: cols={cols} does not fit L1, where a row is held three times; use at most {max_cols}"
        )
    work, unit = (cols // LANES, "blocks of 16 elements") if alone else (parts, "rows")
    if alone and herd_x is None and cols % (2 * LANES) == 0:
        work = cols // (2 * LANES)  # shares of whole vectors of 512 bits, behind which the sums lie aligned
    herd_x = cores("rms_norm", unit, work, herd_x, device)
    shape = (heads * cols,) if rows is None else (rows, heads * cols)
    k = Kernel("rms_norm", device)
    x = k.argument("x", shape, bf16, Role.INPUT)
    weight = k.argument("weight", (cols,), bf16, Role.WEIGHT)
    out = k.argument("out", shape, bf16, Role.OUTPUT)
    x_parts, out_parts = (x, out) if heads == 1 else (each.reshape(parts, cols) for each in (x, out))
    with k.launch(), k.segment("rms_norm_segment"), k.herd(herd_x, 1, name="rms_norm_herd") as (tx, _):
        # Rows that fit five times go whole: x and out doubled, and the weight.
        form = _vector if alone else _rows if 5 * cols <= l1_elements(device) else _long_rows
        form(k, x_parts, weight, out_parts, _Norm(eps, round_once, weight_offset), herd_x, tx)
    return k.finish()


class _Norm(NamedTuple):
    """What is computed, as build() has it."""

    eps: float
    round_once: bool
    weight_offset: int


def _rows(k: Kernel, x: View, weight: Buffer, out: View, norm: _Norm, herd_x: int, tx: Index) -> None:
    """Each core normalizes its own rows, `group` of them per DMA."""
    rows, cols = x.shape
    share = rows // herd_x
    max_rows = max(MAX_ROWS, RUN_LENGTH // cols)
    group = largest_divisor(share, max(1, min(max_rows, (l1_elements(k.device) - cols) // (4 * cols))))
    l1_weight = k.alloc(L1, (cols,), bf16, "l1_weight")
    l1_x, l1_out = (k.alloc(L1, (group, cols), bf16, name) for name in ("l1_x", "l1_out"))
    constants = _l1_constants(k)
    k.dma(l1_weight, weight)
    for at in k.loop(0, share, group, unwraps=True):
        window = slice(tx * share + at, tx * share + at + group)
        k.dma(l1_x, x[window, :])
        for row in k.loop(group):
            scale = _inverse_rms(k, l1_x[row, :], constants, norm.eps)
            for j in k.loop(0, cols, LANES):
                lanes = slice(j, j + LANES)
                scaled = _scaled(k, l1_x[row, lanes], scale)
                k.store(l1_out[row, lanes], _weighted(k, scaled, l1_weight[lanes], norm, constants))
        k.dma(out[window, :], l1_out)


def _long_rows(k: Kernel, x: View, weight: Buffer, out: View, norm: _Norm, herd_x: int, tx: Index) -> None:
    """Each core normalizes its own rows, in pieces, twice: the second time with the sums of the first.

    L1 has no room for x and out, which the compiler doubles. In place each direction of a DMA would have its
    own locks, and the next row could come while one is still being sent (static check, in-place). A loop
    over x between two loops of transfers would be kept on the launch's side, which stage 8 refuses.
    """
    rows, cols = x.shape
    whole = 2 * LANES  # a vector of 512 bits
    piece = whole * largest_divisor(cols // whole, MAX_PIECE // whole)
    l1_weight = k.alloc(L1, (cols,), bf16, "l1_weight")
    l1_x, l1_out = (k.alloc(L1, (piece,), bf16, name) for name in ("l1_x", "l1_out"))
    constants = _l1_constants(k)
    k.dma(l1_weight, weight)
    for own in k.loop(rows // herd_x, unwraps=True):
        row = tx * (rows // herd_x) + own
        for _ in k.loop(2):
            # The first time of no sums: what comes of it is written over the second time.
            scale = _scale(k, cols, constants, norm.eps)
            for start in k.loop(0, cols, piece):
                window = slice(start, start + piece)
                k.dma(l1_x, x[row, window])
                for j in k.loop(0, piece, LANES):
                    lanes = slice(j, j + LANES)
                    _add_squares(k, l1_x[lanes], constants)
                    scaled = _scaled(k, l1_x[lanes], scale)
                    own_weight = l1_weight[start + j : start + j + LANES]
                    k.store(l1_out[lanes], _weighted(k, scaled, own_weight, norm, constants))
                k.dma(out[row, window], l1_out)
        k.store(constants.sums, k.constant(0.0, f32, LANES))


def _vector(k: Kernel, x: View, weight: Buffer, out: View, norm: _Norm, herd_x: int, tx: Index) -> None:
    """Each core reads all of x for the mean, and writes its slice of the result."""
    (cols,) = x.shape
    share = cols // herd_x
    l1_x = k.alloc(L1, (cols,), bf16, "l1_x")
    l1_weight, l1_out = (k.alloc(L1, (share,), bf16, name) for name in ("l1_weight", "l1_out"))
    window = slice(tx * share, tx * share + share)
    k.dma(l1_x, x)
    k.dma(l1_weight, weight[window])
    constants = _l1_constants(k)
    scale = _inverse_rms(k, l1_x, constants, norm.eps)
    for j in k.loop(0, share, LANES):
        lanes = slice(j, j + LANES)
        own = slice(tx * share + j, tx * share + j + LANES)
        k.store(l1_out[lanes], _weighted(k, _scaled(k, l1_x[own], scale), l1_weight[lanes], norm, constants))
    k.dma(out[window], l1_out)


class L1Constants(NamedTuple):
    """The constants in L1: 16 f32 sums, zero between rows, and two rows of 16 times -1."""

    sums: Buffer
    minus_one: Buffer


def _l1_constants(k: Kernel) -> L1Constants:
    """Allocated outside of any loop, so that the compiler keeps one buffer of each.

    Everything that is rounded depends on the sums, so the rounding mode is set here. -1 comes from L1, where
    a loop writes it: mlir-aie would widen a constant that it sees to f32, and AIE2P does not multiply f32.
    """
    constants = L1Constants(
        k.alloc(L1, (LANES,), f32, "l1_sums"), k.alloc(L1, (2, LANES), bf16, "l1_minus_one")
    )
    k.round_to_even(constants.sums)
    k.store(constants.sums, k.constant(0.0, f32, LANES))
    for i in k.loop(2):
        k.store(constants.minus_one[i, :], k.constant(-1.0, bf16, LANES))
    return constants


def _inverse_rms(k: Kernel, row: View, constants: L1Constants, eps: float) -> list[Value]:
    """rsqrt(mean(row**2) + eps) in f32, in parts. The 16 interleaved sums are zero before and after."""
    for j in k.loop(0, row.shape[0], LANES):
        _add_squares(k, row[j : j + LANES], constants)
    return _scale(k, row.shape[0], constants, eps)


def _add_squares(k: Kernel, lanes: View, constants: L1Constants) -> None:
    some = k.load(lanes).to(f32)
    k.store(constants.sums, fma(some, some, k.load(constants.sums)))


def _scale(k: Kernel, cols: int, constants: L1Constants, eps: float) -> list[Value]:
    """rsqrt(mean + eps) of the sums, which are zero afterwards, in parts."""
    mean = k.load(constants.sums).reduce("add") * (1.0 / cols)
    k.store(constants.sums, k.constant(0.0, f32, LANES))
    return _parts((mean + eps).rsqrt().broadcast(LANES), k.load(constants.minus_one[0, :]).to(f32))


def _parts(value: Value, minus_one: Value) -> list[Value]:
    """Vectors of bf16 numbers whose sum is `whole`, largest first; each is the rounded rest.

    All lanes are equal: a core rounds vectors, and a scalar would be converted to one and back. Subtracting a
    part is adding -1 times it, which is exact; mlir-aie would simplify a difference with a value that was
    just rounded and widened to whole - whole.
    """
    parts = [value.to(bf16)]
    while len(parts) < PARTS:
        value = fma(parts[-1].to(f32), minus_one, value)
        parts.append(value.to(bf16))
    return parts


def _scaled(k: Kernel, x: View, scale: list[Value]) -> Value:
    """16 elements of x * scale in f32, the smallest part first."""
    factor, product = k.load(x).to(f32), k.constant(0.0, f32, LANES)
    for part in reversed(scale):
        product = fma(factor, part.to(f32), product)
    return product


def _weighted(k: Kernel, scaled: Value, weight: View, norm: _Norm, constants: L1Constants) -> Value:
    """16 elements of the result, from x * scale."""
    if not norm.round_once:
        return scaled.to(bf16) * k.load(weight)
    wide, product = k.load(weight).to(f32), scaled if norm.weight_offset else k.constant(0.0, f32, LANES)
    for part in reversed(_parts(scaled, k.load(constants.minus_one[0, :]).to(f32))):
        product = fma(part.to(f32), wide, product)
    return product.to(bf16)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """LlamaRMSNorm, or with round_once Olmo2RMSNorm and Gemma3RMSNorm, in bf16, with the mean in f32 by
    numpy's own order of summation."""
    weight = arrays["weight"].astype(np.float32)
    x = arrays["x"].astype(np.float32).reshape(-1, weight.size)
    mean = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    normed = x * (np.float32(1) / np.sqrt(mean + np.float32(parameters["eps"])))
    if not parameters.get("round_once", False):
        normed = normed.astype(bf16.numpy).astype(np.float32)
    weighted = normed * (weight + np.float32(parameters.get("weight_offset", 0)))
    return {"out": weighted.astype(bf16.numpy).reshape(arrays["x"].shape)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows (or a vector) of up to 1024 columns, or of up to 8 heads of up to 160."""
    rows = int(rng.integers(1, 65)) if rng.random() < 0.75 else None
    heads = int(rng.integers(2, 9)) if rng.random() < 0.25 else 1
    cols = 2 * LANES * int(rng.integers(1, 33 if heads == 1 else 6))
    once = bool(rng.random() < 0.5)
    form = {"round_once": once, "weight_offset": int(once and rng.integers(2))}
    return {"rows": rows, "cols": cols, "eps": float(rng.choice([1e-5, 1e-6])), "heads": heads, **form}


KERNEL = KernelSpec(
    name="rms_norm",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "cols": 256, "eps": 1e-5},
        {"rows": None, "cols": 256, "eps": 1e-5},
        {"rows": 16, "cols": 2048, "eps": 1e-5},
        {"rows": None, "cols": 2048, "eps": 1e-5},
        {"rows": 5, "cols": 96, "eps": 1e-6},
        {"rows": 16, "cols": 8192, "eps": 1e-5},
        {"rows": None, "cols": 8192, "eps": 1e-5},
        {"rows": 16, "cols": 128, "eps": 1e-6, "heads": 16},
        {"rows": None, "cols": 128, "eps": 1e-6, "heads": 8},
        {"rows": 16, "cols": 640, "eps": 1e-6, "round_once": True, "weight_offset": 1},
        {"rows": 16, "cols": 8192, "eps": 1e-6, "round_once": True},
        {"rows": None, "cols": 640, "eps": 1e-6, "round_once": True, "weight_offset": 1},
    ),
    tolerance=Tolerance(
        2**-6,
        0.0,
        "the sum's order and rsqrt differ in the last bits of f32, which can move each of the two roundings "
        "to bf16 by one step (2**-7 relative)",
        max_differing_share=0.01,
    ),
    random_case=random_case,
    allowance=Allowance(
        5e-3,
        0.05,
        "the accuracy of the core's inverse square root is not published; mlir-air measured a share of "
        "4.2e-3 to 4.6e-3 for the whole kernel (kernel_registry/details, RMSNorm)",
    ),
)
