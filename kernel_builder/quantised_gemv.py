"""The GEMV of a weight in blocks (weight_blocks.py): out = weight @ x, with the bits of its weights in bf16.

Cores in a row, each with its own rows of blocks: they are one run of memory, so a core's DMA reads it from
end to end, some blocks of a row at a time. A core keeps x, and 64 partial sums of each of 32 rows in f32, as
the GEMV of bf16 keeps 64 of a row. It adds them up after the last block of a row.

To unpack takes a core longer than its DMA to bring the blocks. So several rows of cores can share them
(herd_y). There are more of these than ways to L3: a memtile takes what the cores above it need, a row of
blocks for each, hands them on, and collects their results, in each point of the launch. (A loop of the
segment in place of points would let a memtile take the next row meanwhile; mlir-air e972f294 makes a text of
it that deadlocks.) A core does the same in the same order, so that no bit changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.device.npu2 import DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError, byte
from aerie.kernel_builder.buffers import Buffer, CoreBuffers, View, l1_bytes
from aerie.kernel_builder.dsl import L1, L2, Kernel, Role, bf16, f32, i32
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
    m: int,
    k: int,
    block: WeightBlock,
    herd_m: int | None,
    herd_y: int | None,
    optimize: OptLevel,
    device: DeviceModel,
) -> KernelModule:
    """weight is `block.shape(m, k)` bytes, x is (k,) bf16, out is (m,) bf16.

    k is a multiple of 64, m of 32. herd_m columns of herd_y cores share the m / 32 rows of blocks evenly
    (default: the most columns of one core). Raises IllegalShapeError.
    """
    require_multiple("gemv", "k", k, LANES, f"a row has {LANES} partial sums")
    require_multiple("gemv", "m", m, BLOCK_ROWS, f"rows of a {block.name} block")
    block_rows = m // BLOCK_ROWS
    herd_m, herd_y = cores(block_rows, herd_m, herd_y or 1, device)
    _check_points((herd_m, herd_y), block.shape(m, k), device)
    at_once = blocks_at_once(k, block, device.l1_budget)
    buffers = l1_buffers(k, at_once, block)
    kernel = Kernel("gemv", device)
    weight = kernel.argument("weight", block.shape(m, k), byte, Role.WEIGHT)
    x = kernel.argument("x", (k,), bf16, Role.INPUT)
    out = kernel.argument("out", (m,), bf16, Role.OUTPUT)
    row = _Row(kernel, _functions(kernel, block, k, at_once, buffers, optimize), at_once, k)
    if herd_y > 1:
        _write_by_memtiles(row, buffers, (weight, x, out), (herd_m, herd_y))
        return kernel.finish()
    with kernel.launch(), kernel.segment("gemv_segment"), kernel.herd(herd_m, 1, name="gemv_herd") as (tx, _):
        l1 = kernel.alloc_each(buffers)
        kernel.dma(l1["l1_x"], x)
        share = block_rows // herd_m
        for i in kernel.loop(share, unwraps=True):
            number = tx * share + i
            results = out[number * BLOCK_ROWS : number * BLOCK_ROWS + BLOCK_ROWS]
            row.compute(l1, weight[number, :, :], results)
    return kernel.finish()


@dataclass(frozen=True)
class _Row:
    """A row of blocks times x on a core, `at_once` blocks for each transfer."""

    kernel: Kernel
    functions: tuple[ExternalFunction, ExternalFunction]
    at_once: int
    k: int

    def compute(self, l1: Mapping[str, Buffer], blocks: View, results: View) -> None:
        """The row's results, one for each row of its blocks."""
        add, finish = self.functions
        for at in self.kernel.loop(0, blocks.shape[0], self.at_once, unwraps=True):
            self.kernel.dma(l1["l1_weight"], blocks[at : at + self.at_once, :])
            add(self.at_once, at * BLOCK_COLUMNS, self.k, l1["l1_weight"], l1["l1_x"], l1["l1_sums"])
        finish(l1["l1_sums"], l1["l1_out"])
        self.kernel.dma(results, l1["l1_out"])


def _write_by_memtiles(
    row: _Row, buffers: CoreBuffers, matrices: tuple[Buffer, Buffer, Buffer], herd: tuple[int, int]
) -> None:
    """A row of blocks for each core at a time, which is a point of the launch."""
    kernel, (weight, x, out), (columns, rows) = row.kernel, matrices, herd
    block_rows, across, nbytes = weight.shape
    share = block_rows // (columns * rows)
    blocks = weight.reshape(columns, rows, share, across, nbytes)
    results = out.reshape(columns, rows, share, BLOCK_ROWS)
    with kernel.launch(share) as (i,), kernel.segment("gemv_segment"):
        l2_weight = kernel.alloc(L2, (columns, rows, across, nbytes), byte, "l2_weight")
        l2_out = kernel.alloc(L2, (columns, rows, BLOCK_ROWS), bf16, "l2_out")
        kernel.dma(l2_weight, blocks[:, :, i, :, :])
        with kernel.herd(columns, rows, name="gemv_herd") as (tx, ty):
            l1 = kernel.alloc_each(buffers)
            kernel.dma(l1["l1_x"], x)
            row.compute(l1, l2_weight[tx, ty, :, :], l2_out[tx, ty, :])
        kernel.dma(results[:, :, i, :], l2_out)


def _check_points(herd: tuple[int, int], weight: tuple[int, int, int], device: DeviceModel) -> None:
    """Raise IllegalShapeError if a memtile cannot hold a row of blocks for each core above it, or if a
    launch has too many points.

    weight: the shape of the weight in blocks.
    """
    (columns, rows), (block_rows, across, nbytes) = herd, weight
    used = rows * (across * nbytes + BLOCK_ROWS * bf16.itemsize)
    if rows > 1 and used > device.l2_bytes:
        raise IllegalShapeError(
            f"gemv: a row of blocks for each of herd_y={rows} cores and its results take {used} bytes of a "
            f"memtile, which has {device.l2_bytes}; use a smaller herd_y"
        )
    if rows > 1 and (points := block_rows // (columns * rows)) > device.repeat_limit:
        raise IllegalShapeError(
            f"gemv: {columns}x{rows} cores make {points} points of {block_rows} rows of blocks, and a launch "
            f"has at most {device.repeat_limit}; use herd_y=1"
        )


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


def cores(block_rows: int, herd_m: int | None, herd_y: int, device: DeviceModel) -> tuple[int, int]:
    """Columns and rows of the cores that share rows of blocks, as given or the most columns. Raises
    IllegalShapeError."""
    if not 1 <= herd_y <= device.rows or block_rows % herd_y:
        raise IllegalShapeError(
            f"gemv: herd_y={herd_y} rows of cores cannot share {block_rows} rows of blocks evenly in "
            f"{device.rows} rows; use {largest_divisor(block_rows, device.rows)}"
        )
    most = largest_divisor(block_rows // herd_y, device.columns)
    if herd_m is None:
        return most, herd_y
    if not 1 <= herd_m <= device.columns or block_rows // herd_y % herd_m:
        raise IllegalShapeError(
            f"gemv: herd_m={herd_m} cores cannot share {block_rows // herd_y} rows of blocks evenly in "
            f"{device.columns} columns; use {most}"
        )
    return herd_m, herd_y


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
