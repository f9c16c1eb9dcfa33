"""GPTQ: words of consecutive inputs, zeros in words along the outputs, a matrix that lies (in, out).

Version 1 stores a zero less one, to which one is added modulo the field, version 2 the zero itself
(GPTQModel, nn_modules/qlinear/__init__.py and utils/model.py). With act-order the columns of a group lie
anywhere (g_idx), and it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.engine.errors import WeightsError
from aerie.engine.quantised_files.affine import AffineRows, affine_tensor
from aerie.engine.quantised_files.raw import (
    WORD_BITS,
    WORDS,
    check_array,
    check_matrix,
    companion,
    fields,
    read_slice,
    read_small,
    wide,
)
from aerie.engine.quantised_files.settings import Settings
from aerie.engine.tensors import Tensor

SUFFIX = ".qweight"
COMPANIONS = (".qzeros", ".scales", ".g_idx")
SCALES = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class GPTQReader:
    """codes: (in * bits / 32, out); zeros: (groups, out * bits / 32); scales: (groups, out)."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    bits: int
    is_v1: bool
    unit: int = 256

    @property
    def scale_tensors(self) -> Sequence[Tensor]:
        return (self.scales,)

    @property
    def zero_bits(self) -> int:
        return self.bits

    def read(self, first: int, rows: int) -> AffineRows:
        outputs, per_word = slice(first, first + rows), WORD_BITS // self.bits
        words = read_slice(self.codes, columns=outputs)
        codes = fields(np.ascontiguousarray(words.T), self.bits)
        begin, end = first // per_word, -(-(first + rows) // per_word)
        zeros = fields(read_slice(self.zeros, columns=slice(begin, end)), self.bits)
        zeros = zeros[:, first - begin * per_word :][:, :rows]
        if self.is_v1:
            zeros = (zeros + np.uint8(1)) & np.uint8(2**self.bits - 1)
        return AffineRows(codes, wide(read_slice(self.scales, columns=outputs)).T, zeros.T)


def tensor_of(name: str, tensors: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """The matrix whose codes are `name`. Raises WeightsError."""
    codes, stem, bits = tensors[name], name.removesuffix(SUFFIX), settings.bits
    check_matrix(codes, WORDS)
    zeros, scales = (companion(tensors, stem + suffix, codes) for suffix in COMPANIONS[:2])
    columns, rows = codes.shape[0] * WORD_BITS // bits, codes.shape[1]
    group_size = settings.group_of(columns)
    groups = -(-columns // group_size)
    why = f"{rows}x{columns} in groups of {group_size}"
    check_array(scales, SCALES, (groups, rows), why)
    check_array(zeros, WORDS, (groups, -(-rows * bits // WORD_BITS)), why)
    _check_order(stem, tensors, codes, columns, group_size, settings)
    reader = GPTQReader(codes, zeros, scales, bits, settings.is_v1)
    return affine_tensor(codes, (rows, columns), reader, settings.method, bits, group_size)


def _check_order(
    stem: str, tensors: Mapping[str, Tensor], of: Tensor, columns: int, group_size: int, settings: Settings
) -> None:
    """Raises WeightsError for act-order."""
    order = tensors.get(f"{stem}.g_idx")
    if order is None:
        if not settings.is_ordered:
            return
        raise WeightsError(
            f"{of.name} in {of.path} has act-order (desc_act), and its g_idx, which says it, is missing: "
            "fetch a checkpoint without act-order"
        )
    check_array(order, ("I32", "I64"), (columns,), f"a matrix of {columns} inputs")
    found = read_small(order)
    wanted = np.arange(columns) // group_size
    if not np.array_equal(found, wanted):
        at = int(np.argmax(found != wanted))
        raise WeightsError(
            f"tensor {order.name} in {order.path} puts input {at} in group {found[at]}, and without "
            f"act-order it is in group {wanted[at]}; act-order (desc_act) is not read: fetch a checkpoint "
            "without it"
        )
