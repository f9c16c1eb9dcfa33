"""Blocks of GGUF files as groups of weights for the device.

Codes of Q4_0, Q4_1, Q4_K, Q5_0 and Q8_0 stay as they are; only scales and minima are rounded to bf16 (that of
Q4_0 is -8 scales, exactly). Q5_1 and Q5_K have minima, and Q6_K has scales for 16 columns, which the blocks
of 8 bits have not: these are quantised again, to 8 bits. Layouts: ggml-quants.c and ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.gguf.block_tensors import BlockTensor, dequantize_blocks, read_heads
from aerie.engine.numerics import F32Array, bf16
from aerie.engine.quantised import QuantisedTensor
from aerie.engine.quantisers import quantise_q8
from aerie.kernel_builder.weight_blocks import GROUP, Q4, Q8, GroupedWeights, WeightBlock

Blocks = NDArray[np.uint8]


class Parts(NamedTuple):
    """What blocks are made of. codes: (blocks, values); scales, minima: float32 (blocks, values / 32)."""

    codes: NDArray[Any]
    scales: F32Array
    minima: F32Array | None = None


@dataclass(frozen=True)
class BlockGroups:
    """The rows of a tensor in blocks, as groups. tensor: the whole of it."""

    tensor: BlockTensor

    @property
    def unit(self) -> int:
        return max(1, self.tensor.permuted_head)

    @property
    def value_bits(self) -> float:
        return 8 * self.tensor.block_type.size / self.tensor.block_type.values

    @cached_property
    def block(self) -> WeightBlock:
        return _BLOCKS[self.tensor.block_type.name]

    def values(self, first: int, rows: int) -> F32Array:
        def dequantize(raw: Blocks) -> F32Array:
            return dequantize_blocks(raw.reshape(-1), self.tensor.block_type).reshape(len(raw), -1)

        return read_heads(self.tensor, first, rows, dequantize)

    def check_scales(self) -> None:
        self.tensor.check_scales()

    def groups(self, first: int, rows: int) -> GroupedWeights:
        split = _SPLIT.get(self.tensor.block_type.name)
        if split is None:
            return quantise_q8(self.values(first, rows))
        raw = read_heads(self.tensor, first, rows, lambda raw: raw)
        parts = split(raw.reshape(-1, self.tensor.block_type.size))
        minima = None if parts.minima is None else _bf16(parts.minima).reshape(rows, -1)
        codes, scales = parts.codes.reshape(rows, -1), _bf16(parts.scales).reshape(rows, -1)
        return GroupedWeights(self.block, codes, scales, minima)


def quantised_block_tensor(tensor: BlockTensor) -> QuantisedTensor | None:
    """The same tensor, quantised on the device; None for one whose type has no block there. tensor: a whole
    matrix, not a part."""
    if tensor.block_type.name not in _BLOCKS or len(tensor.shape) != 2:
        return None
    about = (tensor.path, tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.pitch)
    return QuantisedTensor(*about, rounding=tensor.rounding, source=BlockGroups(tensor))


def _bf16(values: F32Array) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype(bf16)


def _half(raw: Blocks, at: int) -> F32Array:
    """The float16 at byte `at` of each block, float32 (blocks, 1)."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Blocks) -> NDArray[np.uint8]:
    """The low nibbles of bytes (..., n), then the high ones: (..., 2 n)."""
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _q4_0(raw: Blocks) -> Parts:
    scales = _half(raw, 0)
    return Parts(_nibbles(raw[:, 2:]), scales, -8 * _bf16(scales).astype(np.float32))


def _q4_1(raw: Blocks) -> Parts:
    return Parts(_nibbles(raw[:, 4:]), _half(raw, 0), _half(raw, 2))


def _q4_k(raw: Blocks) -> Parts:
    scales, minima = _k_scales(raw[:, 4:16])
    codes = _nibbles(raw[:, 16:].reshape(len(raw), 4, GROUP))
    return Parts(codes.reshape(len(raw), -1), _half(raw, 0) * scales, -_half(raw, 2) * minima)


def _k_scales(raw: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The 8 scales and minima of 6 bits in 12 bytes: the first four of each in the low bits of 4 bytes, the
    last four in nibbles of the last 4 bytes and the high bits of the others."""
    low, middle, nibbles = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate((low & 63, (nibbles & 15) | low >> 6 << 4), axis=1)
    minima = np.concatenate((middle & 63, nibbles >> 4 | middle >> 6 << 4), axis=1)
    return scales, minima


def _q5_0(raw: Blocks) -> Parts:
    high = np.unpackbits(raw[:, 2:6], axis=1, bitorder="little")
    codes = (_nibbles(raw[:, 6:]) | high << 4).view(np.int8) - np.int8(16)
    return Parts(codes, _half(raw, 0))


def _q8_0(raw: Blocks) -> Parts:
    return Parts(raw[:, 2:].view(np.int8), _half(raw, 0))


_SPLIT: dict[str, Callable[[Blocks], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
}
"""The types whose codes stay as they are."""
_BLOCKS = {"Q4_0": Q4, "Q4_1": Q4, "Q4_K": Q4} | dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"), Q8)
