"""Matrices whose groups of columns have a scale, and a zero or a bias, in whatever order a tool stores them.

A weight is scale * (code - zero), or scale * code + bias. For the device the scale is rounded to bf16, and so
is the minimum, which is -zero times that scale. Scales of more than 32 columns are repeated. In 8 bits the
zero is subtracted from the code; in a row where that leaves 8 bits, and where there is a bias, the values
are quantised again. Each row is decided alone, so that a row is the same in whatever piece it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aerie.engine.numerics import F32Array, bf16
from aerie.engine.quantised import ComputedTensor, QuantisedTensor
from aerie.engine.quantised_files.raw import RAW_DTYPES, check_finite
from aerie.engine.quantisers import quantise_q8
from aerie.engine.tensors import Tensor
from aerie.kernel_builder.weight_blocks import GROUP, Q4, Q8, GroupedWeights, WeightBlock


class AffineRows(NamedTuple):
    """Some rows of a matrix. codes: uint8 (rows, columns). scales, zeros, biases: (rows, groups); one of the
    last two is None."""

    codes: NDArray[np.uint8]
    scales: F32Array
    zeros: NDArray[Any] | None = None
    biases: F32Array | None = None


class AffineReader(Protocol):
    """How a tool stores a matrix."""

    @property
    def unit(self) -> int:
        """Rows that are best read together."""

    @property
    def scale_tensors(self) -> Sequence[Tensor]:
        """What must hold finite numbers."""

    @property
    def zero_bits(self) -> int:
        """Bits of a group's zero in the file; 0 where it has none."""

    def read(self, first: int, rows: int) -> AffineRows:
        """Some rows of the matrix. Raises WeightsError."""


@dataclass(frozen=True)
class AffineSource:
    """A matrix as a source of values and groups. group_size: columns that share a scale."""

    reader: AffineReader
    bits: int
    group_size: int

    @property
    def unit(self) -> int:
        return self.reader.unit

    @property
    def value_bits(self) -> float:
        scales = sum(8 * RAW_DTYPES[each.dtype].itemsize for each in self.reader.scale_tensors)
        return self.bits + (scales + self.reader.zero_bits) / self.group_size

    @property
    def block(self) -> WeightBlock:
        return Q4 if self.bits == 4 else Q8

    def check_scales(self) -> None:
        for tensor in self.reader.scale_tensors:
            check_finite(tensor)

    def values(self, first: int, rows: int) -> F32Array:
        return self._values(self.reader.read(first, rows))

    def groups(self, first: int, rows: int) -> GroupedWeights:
        read = self.reader.read(first, rows)
        return self._four_bits(read) if self.bits == 4 else self._eight_bits(read)

    def _values(self, read: AffineRows) -> F32Array:
        scales = self._spread(read.scales, read, 1)
        codes = read.codes.astype(np.float32)
        with np.errstate(all="ignore"):
            if read.biases is not None:
                values: F32Array = scales * codes + self._spread(read.biases, read, 1)
            else:
                assert read.zeros is not None
                values = scales * (codes - self._spread(read.zeros.astype(np.float32), read, 1))
        return values

    def _four_bits(self, read: AffineRows) -> GroupedWeights:
        with np.errstate(all="ignore"):  # what is not finite is refused by who asks
            scales = read.scales.astype(bf16)
            if read.biases is not None:
                minima = read.biases.astype(bf16)
            else:
                assert read.zeros is not None
                minima = (scales.astype(np.float32) * -read.zeros.astype(np.float32)).astype(bf16)
        return GroupedWeights(
            Q4, read.codes, self._spread(scales, read, GROUP), self._spread(minima, read, GROUP)
        )

    def _eight_bits(self, read: AffineRows) -> GroupedWeights:
        if read.zeros is None:
            return quantise_q8(self._values(read))
        codes = read.codes.astype(np.int16) - self._spread(read.zeros.astype(np.int16), read, 1)
        fits = ((codes >= -128) & (codes <= 127)).all(axis=1)
        with np.errstate(all="ignore"):
            scales = self._spread(read.scales.astype(bf16), read, GROUP)
        kept = GroupedWeights(Q8, codes.astype(np.int8), scales, None)
        return kept if fits.all() else _chosen(fits[:, None], kept, quantise_q8(self._values(read)))

    def _spread(self, values: NDArray[Any], read: AffineRows, width: int) -> NDArray[Any]:
        """Values of groups for every `width` columns."""
        count = -(-read.codes.shape[1] // width)
        if self.group_size == width:
            return values[:, :count]
        return np.repeat(values, -(-self.group_size // width), axis=1)[:, :count]


def _chosen(rows: NDArray[np.bool_], kept: GroupedWeights, others: GroupedWeights) -> GroupedWeights:
    """Rows of `kept` where `rows` says so, (rows, 1), else of `others`, which has no minima either."""
    codes = np.where(rows, kept.codes, others.codes)
    return GroupedWeights(Q8, codes, np.where(rows, kept.scales, others.scales), None)


def affine_tensor(
    of: Tensor, shape: tuple[int, int], reader: AffineReader, method: str, bits: int, group_size: int
) -> ComputedTensor:
    """The matrix of `shape` that `of` is the codes of: quantised, or bf16 where a group of the device would
    have several scales. method: by what name config.json has the tool."""
    source = AffineSource(reader, bits, group_size)
    about = (of.path, of.name, f"{method} {bits} bits", shape, of.start, shape[1])
    if group_size % GROUP and group_size < shape[1]:
        return ComputedTensor(*about, rounding=of.rounding, source=source)
    return QuantisedTensor(*about, rounding=of.rounding, source=source)
