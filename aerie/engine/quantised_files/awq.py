"""AWQ, version gemm: words along the outputs, of 4 bits in an order of their own; matrices lie (in, out).

Field p of a word holds output 0, 2, 4, 6, 1, 3, 5, 7 of its eight (AutoAWQ, awq/utils/packing_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aerie.engine.quantised_files.affine import AffineRows, affine_tensor
from aerie.engine.quantised_files.raw import (
    WORDS,
    check_array,
    check_matrix,
    companion,
    fields,
    read_slice,
    wide,
)
from aerie.engine.quantised_files.settings import Settings
from aerie.engine.tensors import Tensor

SUFFIX = ".qweight"
COMPANIONS = (".qzeros", ".scales")
SCALES = ("F16", "BF16", "F32")
PER_WORD = 8
FIELD_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AWQReader:
    """codes: (in, out / 8); zeros: (groups, out / 8); scales: (groups, out)."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    unit: int = 1024

    @property
    def scale_tensors(self) -> Sequence[Tensor]:
        return (self.scales,)

    @property
    def zero_bits(self) -> int:
        return 4

    def read(self, first: int, rows: int) -> AffineRows:
        scales = read_slice(self.scales, columns=slice(first, first + rows))
        return AffineRows(
            self._outputs(self.codes, first, rows), wide(scales).T, self._outputs(self.zeros, first, rows)
        )

    def _outputs(self, words: Tensor, first: int, rows: int) -> NDArray[np.uint8]:
        """Fields of some outputs: (rows, rows of `words`)."""
        begin, end = first // PER_WORD, -(-(first + rows) // PER_WORD)
        stored = fields(read_slice(words, columns=slice(begin, end)), 4).reshape(-1, end - begin, PER_WORD)
        ordered = stored.transpose(1, 2, 0)[:, FIELD_OF_OUTPUT].reshape(-1, len(stored))
        return ordered[first - begin * PER_WORD :][:rows]


def tensor_of(name: str, tensors: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """The matrix whose codes are `name`. Raises WeightsError."""
    codes, stem = tensors[name], name.removesuffix(SUFFIX)
    check_matrix(codes, WORDS)
    zeros, scales = (companion(tensors, stem + suffix, codes) for suffix in COMPANIONS)
    columns, rows = codes.shape[0], codes.shape[1] * PER_WORD
    group_size = settings.group_of(columns)
    groups = -(-columns // group_size)
    why = f"{rows}x{columns} in groups of {group_size}"
    check_array(scales, SCALES, (groups, rows), why)
    check_array(zeros, WORDS, (groups, rows // PER_WORD), why)
    return affine_tensor(
        codes, (rows, columns), AWQReader(codes, zeros, scales), settings.method, 4, group_size
    )
