"""Tensors that are computed from what a file holds, and quantised ones, which stay so on the device.

A quantised tensor stands for bf16 weights, those of `GroupedWeights.to_bf16`, and is read as these wherever a
tensor of bf16 is read: whole, by rows, by parts. What is packed for the device stands for the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from aerie.common.cpu_count import cpu_count
from aerie.common.errors import UserError
from aerie.engine.errors import WeightsError
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.quantisers import quantise_q4_1, quantise_q8_0
from aerie.engine.tensors import DTYPES, RowReader, Tensor, read_in_chunks, round_into
from aerie.kernel_builder.weight_blocks import BLOCK_ROWS, GROUP, Q4, Q8, Bytes, GroupedWeights, WeightBlock

KINDS = ("auto", "bf16", "q8", "q4")
"""What weights may be asked for as. `auto`: AUTO_KEEPS_QUANTISED says; `q8` and `q4`: blocks of
the files stay blocks, and matrices that they have as bf16, F16 or F32 are quantised when they are read."""
AUTO_KEEPS_QUANTISED = False
"""Whether `auto` leaves quantised weights quantised on the device, else they become bf16."""

CHUNK_BYTES = 1 << 20
"""Of float32 values that a thread computes at a time."""
MAX_THREADS = 8
"""Threads that compute the values of a tensor, which takes far longer than to read them."""


def check_kind(kind: str) -> None:
    """Raises UserError for what is none of KINDS."""
    if kind not in KINDS:
        raise UserError(f"weights is {kind!r}; give one of {', '.join(KINDS)}")


class ValueSource(Protocol):
    """A matrix that is computed from what a file holds."""

    @property
    def unit(self) -> int:
        """Rows that are best read together."""

    @property
    def value_bits(self) -> float:
        """Bits of the file for each value, with what it is scaled with."""

    def values(self, first: int, rows: int) -> F32Array:
        """The values of some of its rows, exact, float32 (rows, columns). Raises WeightsError."""

    def check_scales(self) -> None:
        """Raises WeightsError if what the values are scaled with in the file is not finite."""


class GroupSource(ValueSource, Protocol):
    """A matrix whose rows are groups with a scale each, for blocks of a kind."""

    @property
    def block(self) -> WeightBlock: ...

    def groups(self, first: int, rows: int) -> GroupedWeights:
        """Some of its rows, (rows, columns). Raises WeightsError."""


class PackedBlocks(Protocol):
    """A matrix in blocks that was packed before."""

    @property
    def mapped(self) -> Bytes:
        """The blocks, uint8 (block rows, block columns, bytes), read-only."""

    def read_into(self, out: Bytes) -> None:
        """Fill `out`, of this shape. Raises WeightsError."""

    def part(self, begin: int, end: int) -> PackedBlocks:
        """Those of some block rows."""


@dataclass(frozen=True)
class ComputedTensor(Tensor):
    """A tensor whose values a source computes; read as bf16 it is they, rounded. dtype: what the file calls
    it. row, column: where in the source this part begins. `start` and `pitch` mean nothing."""

    source: ValueSource | None = None
    row: int = 0
    column: int = 0

    @property
    def is_supported(self) -> bool:
        return True

    def transposed(self) -> Tensor:
        raise NotImplementedError(f"the columns of {self.name} are not read alone")

    def part(self, first: int, rows: int) -> ComputedTensor:
        return replace(self, shape=(rows, *self.shape[1:]), row=self.row + first)

    def columns(self, first: int, count: int) -> ComputedTensor:
        return replace(self, shape=(self.shape[0], count), column=self.column + first)

    def rows_into(self, out: BF16Array, first: int) -> None:
        self._in_pieces(partial(self._read, out, first), len(out))

    def opened(self) -> RowReader:
        return _RowsOf(self)

    @property
    def stored_bytes(self) -> int:
        assert self.source is not None
        return round(self.source.value_bits * math.prod(self.shape) / 8)

    def exact(self, first: int, rows: int) -> F32Array:
        """The values of some rows as the file has them, without any rounding."""
        assert self.source is not None
        values = self.source.values(self.row + first, rows).reshape(rows, -1)
        return values[:, self.column : self.column + math.prod(self.shape[1:])].reshape(rows, *self.shape[1:])

    def check_scales(self) -> None:
        assert self.source is not None
        self.source.check_scales()

    def _read(self, out: BF16Array, first: int, piece: slice) -> None:
        values = self.exact(first + piece.start, piece.stop - piece.start)
        round_into(self, values, out[piece])

    def _in_pieces(self, work: Callable[[slice], None], rows: int, multiple: int = 1) -> None:
        """Have threads do `work` for pieces of `rows` rows."""
        assert self.source is not None
        threads = min(MAX_THREADS, cpu_count())
        unit = math.lcm(multiple, self.source.unit)
        read_in_chunks(work, rows, 4 * math.prod(self.shape[1:]), CHUNK_BYTES, unit, threads)


@dataclass(frozen=True)
class QuantisedTensor(ComputedTensor):
    """A matrix in groups. Read as bf16 it is the weights that its blocks stand for. blocks: what it is when
    it is packed, if that was done before."""

    source: GroupSource | None = None
    blocks: PackedBlocks | None = field(default=None, compare=False)

    @property
    def block(self) -> WeightBlock:
        """The kind of block that it is packed in."""
        assert self.source is not None
        return self.source.block

    @property
    def kind(self) -> str:
        return self.block.name

    @property
    def device_bytes(self) -> int:
        return math.prod(self.block.shape(*self.shape))

    def dequantised(self) -> ComputedTensor:
        """The same tensor as bf16 on the device: the values of the file, rounded."""
        about = {name: getattr(self, name) for name in ComputedTensor.__dataclass_fields__}
        return ComputedTensor(**about)

    def part(self, first: int, rows: int) -> QuantisedTensor:
        is_whole = first % BLOCK_ROWS == 0 and (rows % BLOCK_ROWS == 0 or first + rows == self.shape[0])
        begin, end = first // BLOCK_ROWS, -(-(first + rows) // BLOCK_ROWS)
        blocks = self.blocks.part(begin, end) if self.blocks and is_whole else None
        return replace(self, shape=(rows, *self.shape[1:]), row=self.row + first, blocks=blocks)

    def columns(self, first: int, count: int) -> ComputedTensor:
        """`count` of its columns from `first` on: quantised where they begin with a group, else bf16."""
        part = replace(self, shape=(self.shape[0], count), column=self.column + first, blocks=None)
        if part.column % GROUP == 0:
            return part
        about = {name: getattr(self, name) for name in Tensor.__dataclass_fields__}
        whole = ComputedTensor(**about, source=_Dequantised(self), row=0, column=0)
        return whole.columns(first, count)

    def groups(self, first: int, rows: int) -> GroupedWeights:
        """Some of its rows in groups. Raises WeightsError, also for scales that are no finite numbers."""
        assert self.source is not None
        whole = self.source.groups(self.row + first, rows)
        part = _columns(whole, self.column, self.shape[1])
        self._check_finite(part, first)
        return part

    def grouped(self) -> GroupedWeights:
        """All of it in groups."""
        return self.groups(0, self.shape[0])

    def to_bf16(self) -> BF16Array:
        """The weights that it stands for, bf16 (rows, columns)."""
        return self.read()

    def packed(self) -> Bytes:
        """All of it in blocks, uint8 `block.shape(rows, columns)`, to be read only."""
        if self.blocks is not None:
            return self.blocks.mapped
        out = np.empty(self.block.shape(*self.shape), np.uint8)
        self.pack_into(out)
        return out

    def pack_into(self, out: Bytes) -> None:
        """Fill `out`, uint8 `block.shape(rows, columns)`, with all of it in blocks. Raises WeightsError."""

        if self.blocks is not None:
            self.blocks.read_into(out)
            return

        def pack(piece: slice) -> None:
            blocks = out[piece.start // BLOCK_ROWS : -(-piece.stop // BLOCK_ROWS)]
            blocks[...] = self.groups(piece.start, piece.stop - piece.start).pack()

        self._in_pieces(pack, self.shape[0], BLOCK_ROWS)

    def _read(self, out: BF16Array, first: int, piece: slice) -> None:
        out[piece] = self.groups(first + piece.start, piece.stop - piece.start).to_bf16()

    def _check_finite(self, part: GroupedWeights, first: int) -> None:
        for what, values in (("scale", part.scales), ("minimum", part.minima)):
            if values is None or np.isfinite(wide := widen(values)).all():
                continue
            row, group = (int(at) for at in np.argwhere(~np.isfinite(wide))[0])
            raise WeightsError(
                f"tensor {self.name} in {self.path} has the {what} {wide[row, group]} in row {first + row}, "
                f"columns from {GROUP * group} on; scales and minima must be finite numbers: the file is "
                "damaged, fetch it again"
            )


def _columns(whole: GroupedWeights, first: int, count: int) -> GroupedWeights:
    """Columns from `first` on, which begins a group."""
    groups = slice(first // GROUP, -(-(first + count) // GROUP))
    minima = None if whole.minima is None else whole.minima[:, groups]
    return GroupedWeights(whole.block, whole.codes[:, first : first + count], whole.scales[:, groups], minima)


@dataclass(frozen=True)
class QuantisedOnReading:
    """A bf16 tensor that is quantised when it is read. quantise: from values (rows, columns)."""

    tensor: Tensor
    block: WeightBlock
    quantise: Callable[[F32Array], GroupedWeights]
    unit: int = 1

    @property
    def value_bits(self) -> float:
        return 8 * DTYPES[self.tensor.dtype].itemsize

    def values(self, first: int, rows: int) -> F32Array:
        out = np.empty((rows, *self.tensor.shape[1:]), bf16)
        if rows == 1:
            self.tensor.opened().row(out[0], first)
        else:
            self.tensor.rows_into(out, first)
        return widen(out)

    def groups(self, first: int, rows: int) -> GroupedWeights:
        return self.quantise(self.values(first, rows))

    def check_scales(self) -> None:
        """There are none in the file; those that are made are checked when they are."""


QUANTISERS = {"q8": (Q8, quantise_q8_0), "q4": (Q4, quantise_q4_1)}


def as_kind(tensor: Tensor, kind: str) -> Tensor:
    """A tensor of a checkpoint as `kind`, one of KINDS, asks for it on the device.

    Vectors stay bf16, and what the file has quantised is not quantised again.
    """
    if isinstance(tensor, QuantisedTensor):
        keeps = AUTO_KEEPS_QUANTISED if kind == "auto" else kind != "bf16"
        return tensor if keeps else tensor.dequantised()
    is_plain = tensor.dtype in DTYPES and len(tensor.shape) == 2
    return quantised(tensor, kind) if kind in QUANTISERS and is_plain else tensor


def quantised(tensor: Tensor, kind: str) -> QuantisedTensor:
    """A bf16 matrix that is quantised when it is read, as `q8` or `q4`."""
    block, quantise = QUANTISERS[kind]
    about = {name: getattr(tensor, name) for name in Tensor.__dataclass_fields__}
    return QuantisedTensor(**about, source=QuantisedOnReading(tensor, block, quantise))


@dataclass(frozen=True)
class _Dequantised:
    """The weights that a quantised tensor stands for, as values."""

    tensor: QuantisedTensor
    unit: int = 1

    @property
    def value_bits(self) -> float:
        assert self.tensor.source is not None
        return self.tensor.source.value_bits

    def values(self, first: int, rows: int) -> F32Array:
        return widen(self.tensor.groups(first, rows).to_bf16())

    def check_scales(self) -> None:
        self.tensor.check_scales()


@dataclass(frozen=True)
class _RowsOf:
    """Reads single rows of a tensor, in this thread: others take longer to start than a row takes."""

    tensor: ComputedTensor

    def row(self, out: BF16Array, number: int) -> None:
        self.tensor._read(out[None], number, slice(0, 1))
