"""Rotary position embedding, half-split (Hugging Face): lane i of a head turns with lane i + head_dim / 2.

Prefill: eight cores in a row (herd 8x1), each with its own positions. Decode (rows=None): one position, one
core. A core takes a position's row of the table over one input channel, its heads over the other, and sends
the rotated heads out. Its loop counts from 0: where a loop's bounds come of the tile's id, mlir-air moves its
DMAs out of the herd without the index of their channel (air-dma-to-channel), and then refuses them. The
table's row is cosines, then sines, head_dim / 2 of each, so it is a plain (rows, head_dim) array. The compute
is `rope_halfsplit.cc`; its symbol is renamed for each shape of a row, because queries and keys have different
numbers of heads and stand in one program.

Partial rotary (rotary_dim < head_dim): the first rotary_dim elements of a head turn as a head of that size
does, the others pass, and the table's rows are rotary_dim wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, i32
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
from aerie.kernel_builder.values import ArgumentType, ExternalFunction, OptLevel

OPTIMIZE = OptLevel(
    "O2",
    "what upstream builds its rope with; at O1 upstream's hangs in its fused decode "
    "(mlir-air programming_examples/llms/qwen25_3b_q4/Makefile)",
)
HALF_LANES = 32
"""head_dim is a multiple of this: rope_halfsplit.cc rotates 16 lanes of each half at a time."""


def build(
    rows: int | None,
    n_heads: int,
    head_dim: int,
    herd_x: int | None = None,
    rotary_dim: int | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """x and out are (rows, n_heads * head_dim) bf16, lut is (rows, rotary_dim) bf16; rows=None drops that
    axis.

    head_dim is a multiple of 32, and so is rotary_dim, which is head_dim by default. herd_x, the number
    of cores, divides the rows and is by default the largest such number a row has; the vector form has
    one core. Raises IllegalShapeError.
    """
    require_multiple("rope", "head_dim", head_dim, HALF_LANES, "16 lanes of each half turn at a time")
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    require_multiple("rope", "rotary_dim", rotary_dim, HALF_LANES, "16 lanes of each half turn at a time")
    if rotary_dim > head_dim:
        raise IllegalShapeError(
            f"rope: rotary_dim={rotary_dim} of the head_dim={head_dim} elements of a head cannot turn; use "
            f"at most {head_dim}"
        )
    require_multiple("rope", "n_heads", n_heads, 1, "there must be a head")
    herd_x = _cores(rows, herd_x, device)
    heads = _heads_at_once(n_heads, head_dim, device.l1_budget)
    row = () if rows is None else (rows,)
    k = Kernel("rope", device)
    x = k.argument("x", (*row, n_heads * head_dim), bf16, Role.INPUT)
    lut = k.argument("lut", (*row, rotary_dim), bf16, Role.LUT)
    out = k.argument("out", (*row, n_heads * head_dim), bf16, Role.OUTPUT)
    rope = _external(k, heads, head_dim, rotary_dim)
    count = rows or 1
    x_chunks, out_chunks = (v.reshape(count, n_heads // heads, heads * head_dim) for v in (x, out))
    with k.launch(), k.segment("rope_segment"), k.herd(herd_x, 1, name="rope_herd") as (tx, _):
        l1_lut = k.alloc(L1, (rotary_dim,), bf16, "l1_lut")
        l1_x, l1_out = (k.alloc(L1, (heads * head_dim,), bf16, name) for name in ("l1_x", "l1_out"))
        for own in k.loop(count // herd_x, unwraps=True):
            at = tx * (count // herd_x) + own
            k.dma(l1_lut, lut.reshape(count, lut.size // count)[at, :])
            for chunk in k.loop(0, n_heads // heads, unwraps=True):
                k.dma(l1_x, x_chunks[at, chunk])
                rope(l1_x, l1_lut, l1_out, heads, head_dim)
                k.dma(out_chunks[at, chunk], l1_out)
    return k.finish()


def _external(k: Kernel, heads: int, head_dim: int, rotary_dim: int) -> ExternalFunction:
    part = {} if rotary_dim == head_dim else {"ROPE_ROTARY_DIM": rotary_dim}
    name = f"rope_{heads}x{head_dim}" + "".join(f"_{width}" for width in part.values())
    heads_type, row_type = L1((heads * head_dim,), bf16), L1((rotary_dim,), bf16)
    types: list[ArgumentType] = [heads_type, row_type, heads_type, i32, i32]
    return k.external(name, f"{name}.o", types, "rope_halfsplit.cc", {"rope": name, **part}, OPTIMIZE)


def _cores(rows: int | None, herd_x: int | None, device: DeviceModel) -> int:
    if rows is not None:
        return cores("rope", "rows", rows, herd_x, device)
    if herd_x not in (None, 1):
        raise IllegalShapeError(f"rope: herd_x={herd_x} cores for the one position of rows=None; use 1")
    return 1


def _heads_at_once(n_heads: int, head_dim: int, budget: int) -> int:
    """The most heads whose input and output, double-buffered, fit L1 with the table's row."""
    head_bytes = head_dim * bf16.itemsize
    max_heads = (budget - 2 * head_bytes) // (4 * head_bytes)
    if max_heads < 1:
        raise IllegalShapeError(
            f"rope: a head of head_dim={head_dim} does not fit L1, where it is held six times; "
            f"use at most {budget // (6 * bf16.itemsize) // HALF_LANES * HALF_LANES}"
        )
    return largest_divisor(n_heads, max_heads)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Products and their sum in f32, rounded once to bf16."""
    x, lut = (arrays[name].astype(np.float32) for name in ("x", "lut"))
    half = lut.shape[-1] // 2
    heads = x.reshape(*x.shape[:-1], parameters["n_heads"], parameters["head_dim"])
    cos, sin = (table[..., None, :] for table in (lut[..., :half], lut[..., half:]))
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    rotated = np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)
    return {"out": rotated.reshape(x.shape).astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 positions (or one) of up to 8 heads."""
    rows = int(rng.integers(1, 65)) if rng.random() < 0.75 else None
    head_dim = int(rng.choice([32, 64, 96, 128]))
    rotary_dim = HALF_LANES * int(rng.integers(1, head_dim // HALF_LANES + 1))
    return {
        "rows": rows,
        "n_heads": int(rng.integers(1, 9)),
        "head_dim": head_dim,
        "rotary_dim": rotary_dim if rng.random() < 0.25 else head_dim,
    }


KERNEL = KernelSpec(
    name="rope",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "n_heads": 4, "head_dim": 64},
        {"rows": 64, "n_heads": 2, "head_dim": 64},
        {"rows": None, "n_heads": 4, "head_dim": 64},
        {"rows": None, "n_heads": 32, "head_dim": 64},
        {"rows": 24, "n_heads": 8, "head_dim": 128},
        {"rows": 16, "n_heads": 3, "head_dim": 32, "herd_x": 2},
        {"rows": 24, "n_heads": 8, "head_dim": 128, "rotary_dim": 96},
        {"rows": None, "n_heads": 3, "head_dim": 64, "rotary_dim": 32},
    ),
    tolerance=Tolerance(
        0.0, 0.0, "two products of bf16, exact in f32, and one sum, rounded once: bit-identical"
    ),
    random_case=random_case,
)
