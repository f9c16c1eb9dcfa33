"""out = a short causal convolution of each column, bf16: what LFM2 has in most layers in place of attention.

Each row comes with the rows before it that it reads, the oldest first, as the host gathers them from the
pages of the row's sequence. So rows are independent: a row has the same bits whatever rows stand beside it.

Eight cores in a row (herd 8x1), each with its own columns of all rows: it takes its part of the weight once,
over one of its input channels, and rows in groups over the other. One token (rows=None) is one row. The
compute is `short_conv.cc`: products and their sum in f32, rounded once.
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
from aerie.kernel_builder.values import ExternalFunction

LANES = 16
"""Elements of one vector operation in short_conv.cc."""
RUN_LENGTH = 4096
"""Preferred elements of one DMA of rows: two of them, and their results, take 24 KiB of L1 at most."""
TAPS = 3
"""Rows that a result is made of, its own included: those of the published models."""


def max_core_columns(taps: int = TAPS, device: DeviceModel = NPU2) -> int:
    """The most columns of a core: the weight, and what a row reads and its result, double-buffered."""
    return int(device.l1_budget) // ((3 * taps + 2) * bf16.itemsize) // LANES * LANES


def core_columns(cols: int, device: DeviceModel = NPU2) -> int:
    """The columns of a core, if cols is a multiple of 16 and as many cores as possible share it."""
    return cols // cores("short_conv", "blocks of 16 elements", cols // LANES, None, device)


def build(
    rows: int | None,
    cols: int,
    taps: int = TAPS,
    herd_x: int | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """rows are (rows, taps, cols) bf16, or (taps, cols) where rows is None; weight is (taps, cols), out is
    (rows, cols) or (cols,).

    cols is a multiple of 16. herd_x, the number of cores, divides cols / 16 and is by default the largest
    such number a row of cores has; a core's share of cols is at most `max_core_columns`. Raises
    IllegalShapeError.
    """
    require_multiple("short_conv", "cols", cols, LANES, "a core takes 16 elements at a time")
    require_multiple("short_conv", "taps", taps, 1, "a result is made of a row at least")
    count = 1 if rows is None else rows
    require_multiple("short_conv", "rows", count, 1, "there must be a row")
    herd_x = cores("short_conv", "blocks of 16 elements", cols // LANES, herd_x, device)
    own_cols, max_columns = cols // herd_x, max_core_columns(taps, device)
    if own_cols > max_columns:
        raise IllegalShapeError(
            f"short_conv: cols={cols} leaves {own_cols} for each of {herd_x} cores, and L1 holds "
            f"{max_columns} with {taps} taps; use at most {max_columns * device.columns} that "
            f"{device.columns} cores share"
        )
    lead = () if rows is None else (rows,)
    k = Kernel("short_conv", device)
    x = k.argument("rows", (*lead, taps, cols), bf16, Role.INPUT)
    weight = k.argument("weight", (taps, cols), bf16, Role.WEIGHT)
    out = k.argument("out", (*lead, cols), bf16, Role.OUTPUT)
    x_rows, out_rows = x.reshape(count, taps, cols), out.reshape(count, cols)
    group = largest_divisor(count, max(1, RUN_LENGTH // (taps * own_cols)))
    convolve = _external(k, group, own_cols, taps)
    with k.launch(), k.segment("short_conv_segment"), k.herd(herd_x, 1, name="short_conv_herd") as (tx, _):
        own = slice(tx * own_cols, tx * own_cols + own_cols)
        l1_weight = k.alloc(L1, (taps, own_cols), bf16, "l1_weight")
        l1_x = k.alloc(L1, (group, taps, own_cols), bf16, "l1_x")
        l1_out = k.alloc(L1, (group, own_cols), bf16, "l1_out")
        k.dma(l1_weight, weight[:, own])
        for at in k.loop(0, count, group):
            k.dma(l1_x, x_rows[at : at + group, :, own])
            convolve(l1_x, l1_weight, l1_out, group, own_cols)
            k.dma(out_rows[at : at + group, own], l1_out)
    return k.finish()


def _external(k: Kernel, group: int, cols: int, taps: int) -> ExternalFunction:
    """short_conv.cc under its own symbol for these sizes."""
    buffers = [L1(sizes, bf16) for sizes in ((group, taps, cols), (taps, cols), (group, cols))]
    symbol = f"short_conv_bf16_{group}x{taps}x{cols}"
    return k.external(
        symbol,
        f"{symbol}.o",
        [*buffers, i32, i32],
        source="short_conv.cc",
        defines={"short_conv_bf16": symbol, "CONV_TAPS": taps},
    )


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Products and their sum in f32, from the oldest tap on, rounded once to bf16."""
    rows, weight = (arrays[name].astype(np.float32) for name in ("rows", "weight"))
    total = rows[..., 0, :] * weight[0]
    for tap in range(1, parameters.get("taps", TAPS)):
        total = total + rows[..., tap, :] * weight[tap]
    return {"out": total.astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows (or one) of up to 1024 columns."""
    rows = int(rng.integers(1, 65)) if rng.random() < 0.75 else None
    return {"rows": rows, "cols": LANES * int(rng.integers(1, 65)), "taps": int(rng.integers(1, 5))}


KERNEL = KernelSpec(
    name="short_conv",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "cols": 256},
        {"rows": None, "cols": 1024},
        {"rows": 8, "cols": 2048},
        {"rows": 3, "cols": 48, "taps": 4},
        {"rows": 16, "cols": 1536, "herd_x": 4},
    ),
    tolerance=Tolerance(
        0.0, 0.0, "products of bf16, exact in f32, summed in one order and rounded once: bit-identical"
    ),
    random_case=random_case,
)
