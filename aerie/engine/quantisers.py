"""Quantisers: from values to groups of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.kernel_builder.weight_blocks import GROUP, Q4, Q8, GroupedWeights


def quantise_q8(values: F32Array) -> GroupedWeights:
    """Values (rows, columns) in 8 bits: of each group the largest magnitude is 127 scales. Codes are rounded
    to nearest, for the scale that bf16 holds."""
    groups = _in_groups(values)
    with np.errstate(all="ignore"):  # what is not finite stays so in the scale, and is refused there
        scales = (np.abs(groups).max(axis=2) / np.float32(127)).astype(bf16)
        codes = np.rint(groups * _inverse(widen(scales))[..., None])
        codes = np.nan_to_num(codes).clip(-127, 127).astype(np.int8)
    return GroupedWeights(Q8, _flat(codes, values), scales, None)


def _in_groups(values: F32Array) -> F32Array:
    """(rows, columns) as (rows, groups, 32), the last group filled up with the last column."""
    missing = -values.shape[1] % GROUP
    whole = np.pad(values, ((0, 0), (0, missing)), mode="edge") if missing else values
    return whole.reshape(len(values), -1, GROUP)


def _flat(codes: NDArray[Any], values: F32Array) -> NDArray[Any]:
    return codes.reshape(len(values), -1)[:, : values.shape[1]]


def _inverse(scales: F32Array) -> F32Array:
    """1 / scales, and 0 where a scale is 0."""
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


def quantise_q4_1(values: F32Array) -> GroupedWeights:
    """Values (rows, columns) in 4 bits with minima, by the rule of llama.cpp's Q4_1 (ggml-quants.c,
    quantize_row_q4_1_ref), with scales and minima in float16 first, as a file has them."""
    groups = _in_groups(values)
    with np.errstate(all="ignore"):
        minima = groups.min(axis=2)
        scales = (groups.max(axis=2) - minima) / np.float32(15)
        codes = (groups - minima[..., None]) * _inverse(scales)[..., None] + np.float32(0.5)
        codes = np.nan_to_num(codes).astype(np.uint8).clip(0, 15)
    return GroupedWeights(Q4, _flat(codes, values), _as_stored(scales), _as_stored(minima))


def quantise_q8_0(values: F32Array) -> GroupedWeights:
    """Values (rows, columns) in 8 bits by the rule of llama.cpp's Q8_0 (ggml-quants.c,
    quantize_row_q8_0_ref), with scales in float16 first, as a file has them."""
    groups = _in_groups(values)
    with np.errstate(all="ignore"):
        scales = np.abs(groups).max(axis=2) / np.float32(127)
        codes = _rounded(np.nan_to_num(groups * _inverse(scales)[..., None])).astype(np.int8)
    return GroupedWeights(Q8, _flat(codes, values), _as_stored(scales), None)


def _rounded(values: F32Array) -> F32Array:
    """Values to nearest, halves away from zero, as C's roundf does."""
    whole = np.trunc(values)
    return whole + np.copysign(np.abs(values - whole) >= np.float32(0.5), values)


def _as_stored(values: F32Array) -> BF16Array:
    """Values through float16 to bf16."""
    return values.astype(np.float16).astype(bf16)
