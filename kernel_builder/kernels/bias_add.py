"""out = x + bias in every row, bf16: the biases of Qwen2's queries, keys and values.

Eight cores in a row (herd 8x1), each with its own columns of all rows: it takes its part of the bias once,
over one of its input channels, and rows in groups over the other. One token (rows=None) is one row.

x is a product that was rounded to bf16, so a sum is rounded a second time; Hugging Face's linear layer adds
the bias before its one rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16
from aerie.kernel_builder.kernels import eltwise_add
from aerie.kernel_builder.kernels.eltwise_add import LANES
from aerie.kernel_builder.spec import (
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    cores,
    largest_divisor,
    require_multiple,
)

RUN_LENGTH = 2048
"""Preferred elements of one DMA: two double-buffered runs take 16 KiB of L1."""


def max_core_columns(device: DeviceModel = NPU2) -> int:
    """The most columns of a core: the bias, and a row in and out, double-buffered."""
    return int(device.l1_budget) // (5 * bf16.itemsize) // LANES * LANES


def core_columns(cols: int, device: DeviceModel = NPU2) -> int:
    """The columns of a core, if cols is a multiple of 16 and as many cores as possible share it."""
    return cols // cores("bias_add", "blocks of 16 elements", cols // LANES, None, device)


def build(
    rows: int | None, cols: int, herd_x: int | None = None, *, device: DeviceModel = NPU2
) -> KernelModule:
    """x and out are (rows, cols) bf16, or (cols,) where rows is None; bias is (cols,) bf16.

    cols is a multiple of 16. herd_x, the number of cores, divides cols / 16 and is by default the largest
    such number a row of cores has; a core's share of cols is at most `max_core_columns`. Raises
    IllegalShapeError.
    """
    require_multiple("bias_add", "cols", cols, LANES, "a core adds 16 elements at a time")
    herd_x = cores("bias_add", "blocks of 16 elements", cols // LANES, herd_x, device)
    own_cols, max_columns = cols // herd_x, max_core_columns(device)
    if own_cols > max_columns:
        raise IllegalShapeError(
            f"bias_add: cols={cols} leaves {own_cols} for each of {herd_x} cores, and L1 holds "
            f"{max_columns} five times; use at most {max_columns * device.columns} that {device.columns} "
            "cores share"
        )
    count = 1 if rows is None else rows
    require_multiple("bias_add", "rows", count, 1, "there must be a row")
    k, shape = Kernel("bias_add", device), (cols,) if rows is None else (rows, cols)
    x = k.argument("x", shape, bf16, Role.INPUT)
    bias = k.argument("bias", (cols,), bf16, Role.WEIGHT)
    out = k.argument("out", shape, bf16, Role.OUTPUT)
    x_rows, out_rows = (each.reshape(count, cols) for each in (x, out))
    group = largest_divisor(count, max(1, RUN_LENGTH // own_cols))
    with k.launch(), k.segment("bias_add_segment"), k.herd(herd_x, 1, name="bias_add_herd") as (tx, _):
        own = slice(tx * own_cols, tx * own_cols + own_cols)
        l1_bias = k.alloc(L1, (own_cols,), bf16, "l1_bias")
        l1_x, l1_out = (k.alloc(L1, (group, own_cols), bf16, name) for name in ("l1_x", "l1_out"))
        k.dma(l1_bias, bias[own])
        for at in k.loop(0, count, group, unwraps=True):
            k.dma(l1_x, x_rows[at : at + group, own])
            k.round_to_even(l1_out)
            for row in k.loop(group):
                for j in k.loop(0, own_cols, LANES):
                    lanes = slice(j, j + LANES)
                    k.store(l1_out[row, lanes], k.load(l1_x[row, lanes]) + k.load(l1_bias[lanes]))
            k.dma(out_rows[at : at + group, own], l1_out)
    return k.finish()


def reference(_: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The sum in f32, rounded once to bf16."""
    total = arrays["x"].astype(np.float32) + arrays["bias"].astype(np.float32)
    return {"out": total.astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows (or a vector) of up to 1024 columns."""
    case = eltwise_add.random_case(rng)
    return {name: case[name] for name in ("rows", "cols")}


KERNEL = KernelSpec(
    name="bias_add",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "cols": 256},
        {"rows": None, "cols": 896},
        {"rows": 8, "cols": 128},
        {"rows": 3, "cols": 48},
        {"rows": 16, "cols": 8192},
    ),
    tolerance=eltwise_add.KERNEL.tolerance,
    random_case=random_case,
)
