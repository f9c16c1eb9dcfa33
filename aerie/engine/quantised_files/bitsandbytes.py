"""bitsandbytes: nf4 and fp4, whose codes stand for the values of a table, and int8 with a scale for each row.

A table has no blocks on the device, and so these weights become bf16 there. The elements of the flattened
matrix lie two in a byte, the first in the high nibble; 64 of them share a scale (absmax). With double
quantisation that scale is itself a code of 8 bits of a table, times the scale of 256 of them, plus an offset
(bitsandbytes, functional.py and backends/default/ops.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.errors import WeightsError
from aerie.engine.numerics import F32Array, bf16
from aerie.engine.quantised import ComputedTensor, QuantisedTensor
from aerie.engine.quantised_files.raw import (
    FETCH,
    check_array,
    check_finite,
    check_matrix,
    companion,
    read_flat,
    read_slice,
    read_small,
    shape_text,
    wide,
)
from aerie.engine.quantised_files.settings import Settings
from aerie.engine.tensors import Tensor
from aerie.kernel_builder.weight_blocks import GROUP, Q8, GroupedWeights, WeightBlock

STATE = ".quant_state.bitsandbytes__"
FOUR_BITS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{STATE}nf4", f"{STATE}fp4")
EIGHT_BITS = (".SCB", ".weight_format")
CODES_OF_SCALE = 256
MAX_STATE_BYTES = 1 << 16
RANGE = np.float32(127)


class State:
    """What the JSON beside a matrix says of it. Raises WeightsError for what no version writes."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        try:
            content = bytes(read_small(tensor).astype(np.uint8))
            self._entries = json.loads(content if len(content) <= MAX_STATE_BYTES else b"")
            self.shape = tuple(self._size(size) for size in self._entries["shape"])
            self.block = self._size(self._entries["blocksize"])
            self.nested_block = self._size(self._entries.get("nested_blocksize", 1))
            self.offset = float(self._entries.get("nested_offset", 0))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise self._refused("is no JSON with shape and blocksize") from None
        if len(self.shape) != 2 or not math.isfinite(self.offset):
            raise self._refused(f"says shape {shape_text(self.shape)} and offset {self.offset}")

    def _size(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise ValueError
        return value

    def _refused(self, what: str) -> WeightsError:
        return WeightsError(f"tensor {self._tensor.name} in {self._tensor.path} {what}; {FETCH}")


@dataclass(frozen=True)
class TableSource:
    """codes: uint8 (elements / 2, 1). scales: absmax, float, or codes of `nested`: its table and scales."""

    codes: Tensor
    table: Tensor
    scales: Tensor
    state: State
    nested: tuple[Tensor, Tensor] | None = None
    unit: int = 1

    @property
    def value_bits(self) -> float:
        block, nested = self.state.block, self.state.nested_block
        return 4 + (32 / block if self.nested is None else (8 + 32 / nested) / block)

    def check_scales(self) -> None:
        for tensor in (self.table, *(self.nested or (self.scales,))):
            check_finite(tensor)

    def values(self, first: int, rows: int) -> F32Array:
        columns, size = self.state.shape[1], self.state.block
        begin, count = first * columns, rows * columns
        octets = read_flat(self.codes, begin // 2, -(-(begin + count) // 2) - begin // 2)
        codes = np.stack((octets >> 4, octets & 15), axis=-1).reshape(-1)[begin % 2 :][:count]
        block = begin // size
        scales = self._scales(block, -(-(begin + count) // size) - block)
        spread = np.repeat(scales, size)[begin - block * size :][:count]
        with np.errstate(all="ignore"):
            values: F32Array = self._table[codes] * spread
        return values.reshape(rows, columns)

    @cached_property
    def _table(self) -> F32Array:
        return wide(read_small(self.table))

    def _scales(self, first: int, count: int) -> F32Array:
        stored = read_flat(self.scales, first, count)
        if self.nested is None:
            return wide(stored)
        table, scales = (wide(read_small(each)) for each in self.nested)
        outer = scales[np.arange(first, first + count) // self.state.nested_block]
        with np.errstate(all="ignore"):
            found: F32Array = table[stored] * outer + np.float32(self.state.offset)
        return found


@dataclass(frozen=True)
class RowScaleSource:
    """codes: int8 (out, in). scales: float32 (out,), of which a code is a 127th."""

    codes: Tensor
    scales: Tensor
    unit: int = 32
    block: WeightBlock = Q8

    @property
    def value_bits(self) -> float:
        return 8 + 32 / self.codes.shape[1]

    def check_scales(self) -> None:
        check_finite(self.scales)

    def values(self, first: int, rows: int) -> F32Array:
        with np.errstate(all="ignore"):
            return self._codes(first, rows).astype(np.float32) * self._scales(first, rows)

    def groups(self, first: int, rows: int) -> GroupedWeights:
        with np.errstate(all="ignore"):
            scales = self._scales(first, rows).astype(bf16)
        groups = -(-self.codes.shape[1] // GROUP)
        return GroupedWeights(Q8, self._codes(first, rows), np.repeat(scales, groups, axis=1), None)

    def _codes(self, first: int, rows: int) -> NDArray[np.int8]:
        return read_slice(self.codes, slice(first, first + rows))

    def _scales(self, first: int, rows: int) -> F32Array:
        return wide(read_flat(self.scales, first, rows))[:, None] / RANGE


def tensor_of(name: str, tensors: Mapping[str, Tensor], _settings: Settings) -> Tensor:
    """The matrix whose scales are `name`, which ends with .absmax or .SCB. Raises WeightsError."""
    stem = name.removesuffix(".absmax")
    return _table_tensor(stem, tensors) if stem != name else _row_tensor(name, tensors)


def _table_tensor(stem: str, tensors: Mapping[str, Tensor]) -> Tensor:
    scales, codes = tensors[f"{stem}.absmax"], companion(tensors, stem, tensors[f"{stem}.absmax"])
    table = companion(tensors, f"{stem}.quant_map", codes)
    found = next(
        (f"{stem}{STATE}{kind}" for kind in ("nf4", "fp4") if f"{stem}{STATE}{kind}" in tensors), None
    )
    state = State(companion(tensors, found or f"{stem}{STATE}nf4", codes))
    elements = math.prod(state.shape)
    why = f"{shape_text(state.shape)} in blocks of {state.block}"
    check_array(codes, ("U8",), (-(-elements // 2), 1), why)
    check_array(table, ("F32",), (16,), why)
    blocks, nested = -(-elements // state.block), None
    if scales.dtype == "U8":
        nested = (
            companion(tensors, f"{stem}.nested_quant_map", codes),
            companion(tensors, f"{stem}.nested_absmax", codes),
        )
        check_array(nested[0], ("F32",), (CODES_OF_SCALE,), why)
        check_array(nested[1], ("F32",), (-(-blocks // state.nested_block),), why)
    check_array(scales, ("U8",) if nested else ("F32",), (blocks,), why)
    kind = (found or "").rpartition("__")[2]
    about = (codes.path, codes.name, f"bitsandbytes {kind}", state.shape, codes.start, state.shape[1])
    return ComputedTensor(
        *about, rounding=codes.rounding, source=TableSource(codes, table, scales, state, nested)
    )


def _row_tensor(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    scales, stem = tensors[name], name.removesuffix("SCB")
    codes = companion(tensors, f"{stem}weight", scales)
    check_matrix(codes, ("I8",))
    check_array(scales, ("F32",), codes.shape[:1], f"a matrix of {shape_text(codes.shape)}")
    about = (codes.path, codes.name, "bitsandbytes int8", codes.shape, codes.start, codes.shape[1])
    return QuantisedTensor(*about, rounding=codes.rounding, source=RowScaleSource(codes, scales))
