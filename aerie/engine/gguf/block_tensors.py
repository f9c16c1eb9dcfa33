"""A tensor of a GGUF file that lies in blocks, or whose rows lie in another order.

The values of blocks are those of gguf.quants, and are rounded to bf16 as the values of all files are.
Queries and keys of some architectures lie head by head as the pairs that RoPE turns: rows 0 and hd/2 of a
head are neighbours in the file, then 1 and hd/2 + 1, where transformers has the halves one after the other
(llama.cpp, conversion/llama.py, `permute`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.common.cpu_count import cpu_count
from aerie.engine.errors import WeightsError
from aerie.engine.gguf.block_types import READ, BlockType
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.tensors import CONVERTED, RowReader, Tensor, TensorFile, read_in_chunks, round_into

CHUNK_BYTES = 1 << 20
"""Of float32 values that a thread makes of blocks at a time."""
MAX_THREADS = 8
"""Threads that make values of a tensor's blocks, which takes far longer than to read them."""


@dataclass(frozen=True)
class BlockTensor(Tensor):
    """As Tensor. start: the byte at which its first head, or row, begins in the file, of which rows have
    `pitch` values. permuted_head: rows of a head, where they are permuted in the file; 0 where they are not.
    row, column: where this part of it begins.
    """

    block_type: BlockType = READ[0]
    permuted_head: int = 0
    row: int = 0
    column: int = 0

    @property
    def is_supported(self) -> bool:
        return True

    @property
    def stored_bytes(self) -> int:
        return math.prod(self.shape) // self.block_type.values * self.block_type.size

    @property
    def row_bytes(self) -> int:
        return self.pitch // self.block_type.values * self.block_type.size

    def transposed(self) -> Tensor:
        raise NotImplementedError("rows of blocks have no columns to read alone")

    def part(self, first: int, rows: int) -> BlockTensor:
        return replace(self, shape=(rows, *self.shape[1:]), row=self.row + first)

    def columns(self, first: int, count: int) -> BlockTensor:
        return replace(self, shape=(self.shape[0], count), column=self.column + first)

    def rows_into(self, out: BF16Array, first: int) -> None:
        part = self.part(first, len(out))
        unit, width = max(1, self.permuted_head), 4 * self.pitch
        threads = min(MAX_THREADS, cpu_count())
        with _BlockFile(part) as file:
            read_in_chunks(partial(file.read_rows, out), len(out), width, CHUNK_BYTES, unit, threads)

    def check_scales(self) -> None:
        threads = min(MAX_THREADS, cpu_count())
        if self.block_type.scales_at:
            with _BlockFile(self) as file:
                read_in_chunks(file.check_scales, self.shape[0], self.row_bytes, CHUNK_BYTES, 1, threads)

    def opened(self) -> RowReader:
        return _BlockFile(self)


class _BlockFile(TensorFile):
    """The open file of a tensor in blocks."""

    _tensor: BlockTensor

    def read_rows(self, out: BF16Array, piece: slice) -> None:
        """Some rows of the tensor into those of `out`."""
        self._rows(out[piece], piece.start)

    def row(self, out: BF16Array, number: int) -> None:
        self._rows(out[None], number)

    def check_scales(self, piece: slice) -> None:
        """Raises WeightsError if a scale or minimum in some rows of the file is not finite."""
        tensor = self._tensor
        rows, kind = piece.stop - piece.start, tensor.block_type
        raw = np.empty((rows * tensor.row_bytes // kind.size, kind.size), np.uint8)
        self.bytes_into(memoryview(raw.reshape(-1).data), tensor.start + piece.start * tensor.row_bytes)
        for at in kind.scales_at:
            scales = np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16)[:, 0]
            finite = np.isfinite(scales)
            if not finite.all():
                block = int(np.argmin(finite))
                row, column = divmod(block, tensor.pitch // kind.values)
                raise WeightsError(
                    f"tensor {tensor.name} in {tensor.path} has a scale of {scales[block]} ({kind.name}, row "
                    f"{piece.start + row} of the file, columns from {column * kind.values} on); scales must "
                    "be finite numbers: the file is damaged, fetch it again"
                )

    def _rows(self, out: BF16Array, first: int) -> None:
        """As many rows as `out` has, from row `first` on: whole heads, as many as a core's cache holds."""
        tensor = self._tensor
        unit, start = max(1, tensor.permuted_head), tensor.row + first
        stop, at_once = start + len(out), max(1, CONVERTED // (unit * tensor.pitch)) * unit
        for begin in range(start // unit * unit, stop, at_once):
            end = min(begin + at_once, -(-stop // unit) * unit)
            values = self._values(begin, end - begin)
            low, high = max(begin, start), min(end, stop)
            into = out[low - start : high - start]
            round_into(tensor, values[low - begin : high - begin].reshape(into.shape), into)

    def _values(self, first: int, rows: int) -> F32Array:
        """Rows of whole heads, in transformers' order: (rows, columns)."""
        tensor = self._tensor
        values = self.heads(first, rows, lambda raw: dequantize_blocks(raw.reshape(-1), tensor.block_type))
        columns = tensor.shape[1] if len(tensor.shape) > 1 else 1
        return values[:, tensor.column : tensor.column + columns]

    def heads(
        self, first: int, rows: int, convert: Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """What `convert` makes of the bytes of rows of whole heads, (rows, bytes), in transformers' order."""
        tensor = self._tensor
        raw = np.empty((rows, tensor.row_bytes), np.uint8)
        self.bytes_into(memoryview(raw.reshape(-1).data), tensor.start + first * tensor.row_bytes)
        values = convert(raw).reshape(rows, -1)
        if not tensor.permuted_head:
            return values
        pairs = values.reshape(-1, tensor.permuted_head // 2, 2, values.shape[1])
        return pairs.swapaxes(1, 2).reshape(values.shape)


def read_heads(
    tensor: BlockTensor,
    first: int,
    rows: int,
    convert: Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """What `convert` makes of the bytes of some rows, (rows, bytes): (rows, any), in transformers' order.

    Whole heads are read where rows are permuted within them. Raises WeightsError.
    """
    unit = max(1, tensor.permuted_head)
    begin, end = first // unit * unit, -(-(first + rows) // unit) * unit
    with _BlockFile(tensor) as file:
        return file.heads(begin, end - begin, convert)[first - begin : first - begin + rows]


def dequantize_blocks(raw: npt.NDArray[np.uint8], kind: BlockType) -> F32Array:
    """The values of blocks, (values,), from their bytes, (bytes,)."""
    import gguf

    with np.errstate(all="ignore"):  # a scale may be anything; the logits tell where it is no number
        values: F32Array = gguf.quants.dequantize(raw[None], gguf.GGMLQuantizationType(kind.number))
    return values.reshape(-1)
