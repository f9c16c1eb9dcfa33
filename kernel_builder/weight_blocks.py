"""Weight blocks: how a matrix lies in memory for the cores, one table for every kind.

A block is 32 rows of 256 columns. Blocks of a matrix lie row by row of blocks, so that those of a core's rows
are one run of memory. 32 columns of a row are a group: they share a scale and, in q4, a minimum. A code is an
unsigned number of 4 bits (q4) or a signed one of 8 (q8), and stands for

    bf16(scale * code + minimum)

with scale and minimum in bf16. The product is exact in f32; the sum is rounded to f32, as in an accumulator
of a core, and then to bf16, both to even. Codes lie in two planes of 16 rows each, column by column; in q4
the byte k of a column holds row 2k in its low nibble and row 2k+1 in the high one. This is the block of 5120
bytes that mlir-air's decode reads (programming_examples/fused_decode/proj_qmm_pack.py), and the one of 8704
bytes that OpenFlowLM describes (src/open_qwen36/pools.hpp).

A matrix whose sides are no multiples of 32 and 256 is padded with codes, scales and minima of zero. So
padding is +0.0, except in a group within which a row ends: there it is the minimum. Kernels multiply it with
zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from aerie.kernel_builder.arguments import IllegalShapeError

BLOCK_ROWS = 32
BLOCK_COLUMNS = 256
GROUP = 32
"""Columns of a row that share a scale."""
PLANE_ROWS = 16
GROUPS = BLOCK_COLUMNS // GROUP
PLANES = BLOCK_ROWS // PLANE_ROWS

Bytes = NDArray[np.uint8]
Codes = NDArray[np.uint8] | NDArray[np.int8]
Array = NDArray[Any]


@dataclass(frozen=True)
class WeightBlock:
    """A kind of block. bits: of a code, 4 unsigned or 8 signed. has_minima: groups have minima."""

    name: str
    bits: int
    has_minima: bool

    @property
    def scales_bytes(self) -> int:
        """Bytes of the scales, bf16 (8 groups, 32 rows), at the begin of a block; minima lie after them."""
        return GROUPS * BLOCK_ROWS * 2

    @property
    def codes_offset(self) -> int:
        """Bytes before the codes."""
        return self.scales_bytes * (2 if self.has_minima else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.codes_offset + BLOCK_ROWS * BLOCK_COLUMNS * self.bits // 8

    @property
    def code_range(self) -> tuple[int, int]:
        """The least and the greatest code."""
        return (0, 15) if self.bits == 4 else (-128, 127)

    def shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """The shape of a packed matrix: block rows, block columns, bytes."""
        return -(-rows // BLOCK_ROWS), -(-columns // BLOCK_COLUMNS), self.nbytes


Q4 = WeightBlock("q4", 4, has_minima=True)
Q8 = WeightBlock("q8", 8, has_minima=False)
WEIGHT_BLOCKS = {block.name: block for block in (Q4, Q8)}
"""By name. A weight that lies in rows of bf16, as Hugging Face stores it, has none: its kind is `bf16`."""
BF16 = "bf16"
KINDS = (BF16, *WEIGHT_BLOCKS)
"""The kinds of a weight."""


def weight_block(kernel: str, kind: str) -> WeightBlock | None:
    """The block of a kind; None for `bf16`. kernel: for the message. Raises IllegalShapeError for others."""
    if kind not in KINDS:
        raise IllegalShapeError(
            f"{kernel}: weight={kind!r} is no kind of a weight, so nothing says how it lies; use one of "
            f"{', '.join(KINDS)}"
        )
    return WEIGHT_BLOCKS.get(kind)


@dataclass(frozen=True)
class GroupedWeights:
    """A quantised matrix of any size. codes: (rows, columns), uint8 for q4 and int8 for q8. scales, minima:
    bf16 (rows, ceil(columns / 32)); minima is None where the block has none.
    """

    block: WeightBlock
    codes: Codes
    scales: Array
    minima: Array | None

    def to_bf16(self) -> Array:
        """The weights that the codes stand for, bf16 (rows, columns)."""
        columns = self.codes.shape[1]
        scales = np.repeat(self.scales.astype(np.float32), GROUP, axis=1)[:, :columns]
        weights = scales * self.codes
        if self.minima is not None:
            weights += np.repeat(self.minima.astype(np.float32), GROUP, axis=1)[:, :columns]
        return weights.astype(ml_dtypes.bfloat16)

    def pack(self) -> Bytes:
        """The matrix in blocks, uint8 of `block.shape(rows, columns)`."""
        down, across, nbytes = self.block.shape(*self.codes.shape)
        packed = np.empty((down, across, nbytes), np.uint8)
        size, start = self.block.scales_bytes, self.block.codes_offset
        packed[..., :size] = _pack_groups(self.scales, down, across)
        if self.minima is not None:
            packed[..., size:start] = _pack_groups(self.minima, down, across)
        packed[..., start:] = _pack_codes(self.codes, down, across, self.block.bits)
        return packed


def unpack(block: WeightBlock, packed: Bytes, rows: int, columns: int) -> GroupedWeights:
    """The matrix of (rows, columns) that lies in `packed`; the inverse of `GroupedWeights.pack`."""
    down, across, _ = block.shape(rows, columns)
    size, start = block.scales_bytes, block.codes_offset
    groups = -(-columns // GROUP)
    scales = _unpack_groups(packed[..., :size])[:rows, :groups]
    minima = _unpack_groups(packed[..., size:start])[:rows, :groups] if block.has_minima else None
    codes = _unpack_codes(packed[..., start:].reshape(down, across, -1), block.bits)[:rows, :columns]
    return GroupedWeights(block, codes, scales, minima)


def _padded(array: Array, rows: int, columns: int) -> Array:
    padded = np.zeros((rows, columns), array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded


def _pack_groups(values: Array, down: int, across: int) -> Bytes:
    """bf16 (rows, groups) as bytes of blocks: [8 groups][32 rows]."""
    whole = _padded(values.view(np.uint16), down * BLOCK_ROWS, across * GROUPS)
    blocks = whole.reshape(down, BLOCK_ROWS, across, GROUPS).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(blocks).reshape(down, across, -1).view(np.uint8)


def _unpack_groups(packed: Bytes) -> Array:
    down, across, _ = packed.shape
    values = np.ascontiguousarray(packed).view(np.uint16).reshape(down, across, GROUPS, BLOCK_ROWS)
    whole = values.transpose(0, 3, 1, 2).reshape(down * BLOCK_ROWS, across * GROUPS)
    return np.ascontiguousarray(whole).view(ml_dtypes.bfloat16)


def _pack_codes(codes: Codes, down: int, across: int, bits: int) -> Bytes:
    """Codes (rows, columns) as bytes of blocks: [2 planes][256 columns][16 rows], two rows a byte in q4."""
    whole = _padded(codes.view(np.uint8), down * BLOCK_ROWS, across * BLOCK_COLUMNS)
    blocks = whole.reshape(down, PLANES, PLANE_ROWS, across, BLOCK_COLUMNS).transpose(0, 3, 1, 4, 2)
    if bits == 4:
        blocks = blocks[..., 0::2] | blocks[..., 1::2] << 4
    return np.ascontiguousarray(blocks).reshape(down, across, -1)


def _unpack_codes(packed: Bytes, bits: int) -> Codes:
    down, across, _ = packed.shape
    blocks = packed.reshape(down, across, PLANES, BLOCK_COLUMNS, -1)
    if bits == 4:
        blocks = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*blocks.shape[:4], PLANE_ROWS)
    whole = blocks.transpose(0, 2, 4, 1, 3).reshape(down * BLOCK_ROWS, across * BLOCK_COLUMNS)
    codes: Codes = np.ascontiguousarray(whole)
    return codes if bits == 4 else codes.view(np.int8)


# ---- for kernels ----

SOURCE = "weight_blocks.cc"
FUNCTIONS = ("matvec_blocks_f32", "matvec_block_rows_bf16", "unpack_blocks_bf16")
"""The functions of SOURCE."""


def quantise(weights: Array, block: WeightBlock) -> GroupedWeights:
    """The nearest codes of weights (rows, columns), float32, with the scales that reach their extremes.

    q4: the minimum is the least weight of a group, a step a 15th of its range. q8: a step is a 127th of the
    largest magnitude. Both are rounded to bf16 first. Groups of equal weights have steps of zero.
    """
    rows, columns = weights.shape
    groups = -(-columns // GROUP)
    cut = np.full((rows, groups * GROUP), np.nan, np.float32)
    cut[:, :columns] = weights
    cut = cut.reshape(rows, groups, GROUP)
    low, high = np.nanmin(cut, axis=2), np.nanmax(cut, axis=2)
    minima = low.astype(ml_dtypes.bfloat16) if block.has_minima else None
    step = (high - low) / 15 if block.has_minima else np.maximum(-low, high) / 127
    scales = step.astype(ml_dtypes.bfloat16)
    offset = 0 if minima is None else minima.astype(np.float32)[..., None]
    wide = scales.astype(np.float32)[..., None]
    steps = np.divide(cut - offset, wide, out=np.zeros_like(cut), where=wide != 0)
    least, greatest = block.code_range
    codes = np.clip(np.nan_to_num(np.rint(steps)), least, greatest)
    dtype = np.uint8 if block.bits == 4 else np.int8
    return GroupedWeights(block, codes.reshape(rows, -1)[:, :columns].astype(dtype), scales, minima)


def random_weight(parameters: Mapping[str, Any], rng: np.random.Generator, rows: int, columns: int) -> Array:
    """A kernel's weight of standard normal numbers: (rows, columns) bf16, or packed as its kind asks."""
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    block = WEIGHT_BLOCKS.get(parameters.get("weight", BF16))
    return quantise(weights, block).pack() if block else weights.astype(ml_dtypes.bfloat16)


def weight_of(parameters: Mapping[str, Any], weight: Array, rows: int, columns: int) -> Array:
    """A kernel's weight as bf16 (rows, columns), whatever its kind."""
    block = WEIGHT_BLOCKS.get(parameters.get("weight", BF16))
    return unpack(block, weight, rows, columns).to_bf16() if block else weight
