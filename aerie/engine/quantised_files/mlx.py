"""MLX, affine: words along the inputs, a scale and a bias for each group (mlx, backend/cpu/quantized.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerie.engine.quantised_files.affine import AffineRows, affine_tensor
from aerie.engine.quantised_files.raw import (
    WORD_BITS,
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

SUFFIX = ".scales"
COMPANIONS = (".biases", ".weight")
SCALES = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class MLXReader:
    """codes: (out, in * bits / 32); scales, biases: (out, groups)."""

    codes: Tensor
    scales: Tensor
    biases: Tensor
    bits: int
    unit: int = 32

    @property
    def scale_tensors(self) -> Sequence[Tensor]:
        return self.scales, self.biases

    @property
    def zero_bits(self) -> int:
        return 0

    def read(self, first: int, rows: int) -> AffineRows:
        outputs = slice(first, first + rows)
        scales, biases = (wide(read_slice(each, outputs)) for each in self.scale_tensors)
        return AffineRows(fields(read_slice(self.codes, outputs), self.bits), scales, biases=biases)


def tensor_of(name: str, tensors: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """The matrix whose scales are `name`. Raises WeightsError."""
    scales, stem = tensors[name], name.removesuffix(SUFFIX)
    biases, codes = (companion(tensors, stem + suffix, scales) for suffix in COMPANIONS)
    check_matrix(codes, WORDS)
    bits, group_size = settings.of_module(stem)
    rows, columns = codes.shape[0], codes.shape[1] * WORD_BITS // bits
    group_size = min(group_size or columns, columns)
    why = f"{rows}x{columns} in groups of {group_size}"
    for each in (scales, biases):
        check_array(each, SCALES, (rows, -(-columns // group_size)), why)
    reader = MLXReader(codes, scales, biases, bits)
    return affine_tensor(codes, (rows, columns), reader, settings.method, bits, group_size)
