"""The GEMV of a weight in blocks (weight_blocks.py): out = weight @ x, with the bits of its weights in bf16.

Cores in a row, each with its own rows of blocks: they are one run of memory, so a core's DMA reads it from
end to end, some blocks of a row at a time. A core keeps x, and 64 partial sums of each of 32 rows in f32, as
the GEMV of bf16 keeps 64 of a row. It adds them up after the last block of a row.
"""

from __future__ import annotations

from aerie.device.npu2 import DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError, byte
from aerie.kernel_builder.buffers import CoreBuffers, l1_bytes
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32, i32
from aerie.kernel_builder.spec import KernelModule, largest_divisor, require_multiple
from aerie.kernel_builder.values import ExternalFunction, OptLevel
from aerie.kernel_builder.weight_blocks import (
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    FUNCTIONS,
    PLANE_ROWS,
    PLANES,
    SOURCE,
    WeightBlock,
)

LANES = 64
"""Partial sums of a row; k is a multiple of it."""
TRANSFER_BYTES = 16 * 1024
"""Preferred size of one transfer of blocks; it is double-buffered."""


def build(
    m: int, k: int, block: WeightBlock, herd_m: int | None, optimize: OptLevel, device: DeviceModel
) -> KernelModule:
    """weight is `block.shape(m, k)` bytes, x is (k,) bf16, out is (m,) bf16.

    k is a multiple of 64, m of 32. herd_m: cores, which share the m / 32 rows of blocks evenly (default: the
    most). Raises IllegalShapeError.
    """
    require_multiple("gemv", "k", k, LANES, f"a row has {LANES} partial sums")
    require_multiple("gemv", "m", m, BLOCK_ROWS, f"rows of a {block.name} block")
    block_rows, block_columns, _ = block.shape(m, k)
    herd_m = cores(block_rows, herd_m, device)
    at_once = blocks_at_once(k, block, device.l1_budget)
    buffers = l1_buffers(k, at_once, block)
    kernel = Kernel("gemv", device)
    weight = kernel.argument("weight", block.shape(m, k), byte, Role.WEIGHT)
    x = kernel.argument("x", (k,), bf16, Role.INPUT)
    out = kernel.argument("out", (m,), bf16, Role.OUTPUT)
    add, finish = _functions(kernel, block, k, at_once, buffers, optimize)
    with kernel.launch(), kernel.segment("gemv_segment"), kernel.herd(herd_m, 1, name="gemv_herd") as (tx, _):
        l1 = kernel.alloc_each(buffers)
        kernel.dma(l1["l1_x"], x)
        share = block_rows // herd_m
        for i in kernel.loop(share, unwraps=True):
            row = tx * share + i
            for at in kernel.loop(0, block_columns, at_once, unwraps=True):
                kernel.dma(l1["l1_weight"], weight[row, at : at + at_once, :])
                add(at_once, at * BLOCK_COLUMNS, k, l1["l1_weight"], l1["l1_x"], l1["l1_sums"])
            finish(l1["l1_sums"], l1["l1_out"])
            kernel.dma(out[row * BLOCK_ROWS : row * BLOCK_ROWS + BLOCK_ROWS], l1["l1_out"])
    return kernel.finish()


def l1_buffers(k: int, at_once: int, block: WeightBlock) -> CoreBuffers:
    """The buffers of a core. aircc keeps a third copy of the blocks if the number of transfers is odd."""
    trips = -(-k // BLOCK_COLUMNS) // at_once
    copies = 1 if trips == 1 else 2 + trips % 2
    return {
        "l1_x": (L1((k,), bf16), 1),
        "l1_weight": (L1((at_once, block.nbytes), byte), max(2, copies)),
        "l1_sums": (L1((PLANES, LANES, PLANE_ROWS), f32), 1),
        "l1_out": (L1((BLOCK_ROWS,), bf16), 2),
    }


def blocks_at_once(k: int, block: WeightBlock, budget: int) -> int:
    """Blocks of a row that one transfer brings. Raises IllegalShapeError for an x that leaves them no room.

    budget: bytes of L1 for buffers.
    """
    across = -(-k // BLOCK_COLUMNS)
    preferred = largest_divisor(across, max(1, TRANSFER_BYTES // block.nbytes))
    for at_once in range(preferred, 0, -1):
        if across % at_once == 0 and l1_bytes(l1_buffers(k, at_once, block)) <= budget:
            return at_once
    used = l1_bytes(l1_buffers(k, 1, block))
    raise IllegalShapeError(
        f"gemv: x of k={k} elements beside blocks of {block.name} takes {used} bytes of L1, a core has "
        f"{budget}; use a k of at most {max_row_length(block, budget)}"
    )


def max_row_length(block: WeightBlock, budget: int) -> int:
    """The longest x that fits L1 beside three copies of a block."""
    free = budget - l1_bytes(l1_buffers(3 * BLOCK_COLUMNS, 1, block)) + 3 * BLOCK_COLUMNS * bf16.itemsize
    return free // bf16.itemsize // LANES * LANES


def cores(block_rows: int, herd_m: int | None, device: DeviceModel) -> int:
    """The number of cores that share rows of blocks, as given or the most. Raises IllegalShapeError."""
    most = largest_divisor(block_rows, device.columns)
    if herd_m is None:
        return most
    if not 1 <= herd_m <= device.columns or block_rows % herd_m:
        raise IllegalShapeError(
            f"gemv: herd_m={herd_m} cores cannot share {block_rows} rows of blocks evenly in "
            f"{device.columns} columns; use {most}"
        )
    return herd_m


def _functions(
    kernel: Kernel, block: WeightBlock, k: int, at_once: int, buffers: CoreBuffers, optimize: OptLevel
) -> tuple[ExternalFunction, ExternalFunction]:
    weight, x, sums, out = (buffers[name][0] for name in ("l1_weight", "l1_x", "l1_sums", "l1_out"))
    suffix = f"{block.name}_{at_once}x{k}"
    names = {name: f"{name}_{suffix}" for name in FUNCTIONS}
    defines = {"WEIGHT_BITS": block.bits, **names}
    built = f"weight_blocks_{suffix}.o"
    add, finish, _ = names.values()
    return (
        kernel.external(add, built, [i32, i32, i32, weight, x, sums], SOURCE, defines, optimize),
        kernel.external(finish, built, [sums, out], SOURCE, defines, optimize),
    )
