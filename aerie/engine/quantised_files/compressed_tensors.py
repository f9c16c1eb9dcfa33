"""compressed-tensors, pack-quantized: words along the inputs, zeros in words along the outputs.

Codes and zeros are signed, and stored with half of their range added; without zeros they are zero
(compressed_tensors, compressors/pack_quantized).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aerie.engine.errors import WeightsError
from aerie.engine.quantised_files.affine import AffineRows, affine_tensor
from aerie.engine.quantised_files.raw import (
    FETCH,
    WORD_BITS,
    WORDS,
    check_array,
    check_matrix,
    companion,
    fields,
    read_slice,
    read_small,
    shape_text,
    wide,
)
from aerie.engine.quantised_files.settings import Settings
from aerie.engine.tensors import Tensor

SUFFIX = ".weight_packed"
COMPANIONS = (".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")
SCALES = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class CompressedReader:
    """codes: (out, in * bits / 32); zeros: (out * bits / 32, groups); scales: (out, groups)."""

    codes: Tensor
    zeros: Tensor | None
    scales: Tensor
    bits: int
    columns: int
    unit: int = 32

    @property
    def scale_tensors(self) -> Sequence[Tensor]:
        return (self.scales,)

    @property
    def zero_bits(self) -> int:
        return 0 if self.zeros is None else self.bits

    def read(self, first: int, rows: int) -> AffineRows:
        outputs = slice(first, first + rows)
        codes = fields(read_slice(self.codes, outputs), self.bits)[:, : self.columns]
        scales = wide(read_slice(self.scales, outputs))
        return AffineRows(codes, scales, self._zeros(first, scales.shape))

    def _zeros(self, first: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        if self.zeros is None:
            return np.full(shape, 1 << (self.bits - 1), np.uint8)
        per_word = WORD_BITS // self.bits
        begin, end = first // per_word, -(-(first + shape[0]) // per_word)
        stored = fields(read_slice(self.zeros, slice(begin, end)).T, self.bits)
        return stored[:, first - begin * per_word :][:, : shape[0]].T


def tensor_of(name: str, tensors: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """The matrix whose codes are `name`. Raises WeightsError."""
    codes, stem, bits = tensors[name], name.removesuffix(SUFFIX), settings.bits
    check_matrix(codes, WORDS)
    scales, about = (companion(tensors, stem + suffix, codes) for suffix in COMPANIONS[:2])
    rows, columns = _shape(about, codes, bits)
    group_size = settings.group_of(columns)
    groups = -(-columns // group_size)
    why = f"{rows}x{columns} in groups of {group_size}"
    check_array(scales, SCALES, (rows, groups), why)
    zeros = tensors.get(f"{stem}.weight_zero_point")
    if zeros is not None:
        check_array(zeros, WORDS, (-(-rows * bits // WORD_BITS), groups), why)
    if f"{stem}.weight_g_idx" in tensors:
        raise WeightsError(
            f"tensor {stem}.weight_g_idx in {codes.path} says that the columns of a group lie anywhere "
            "(actorder group), which is not read: fetch a checkpoint without it"
        )
    reader = CompressedReader(codes, zeros, scales, bits, columns)
    return affine_tensor(codes, (rows, columns), reader, settings.method, bits, group_size)


def _shape(about: Tensor, codes: Tensor, bits: int) -> tuple[int, int]:
    """Rows and columns by the tensor that says them. Raises WeightsError where the codes are others."""
    check_array(about, ("I64", "I32"), (2,), "the shape of a matrix")
    rows, columns = (int(size) for size in read_small(about))
    if rows < 1 or columns < 1 or codes.shape != (rows, -(-columns * bits // WORD_BITS)):
        raise WeightsError(
            f"tensor {codes.name} in {codes.path} has shape {shape_text(codes.shape)}, and {about.name} says "
            f"that it is a matrix of {rows}x{columns} in {bits} bits; {FETCH}"
        )
    return rows, columns
