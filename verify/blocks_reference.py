"""What weights in blocks stand for, read a second time: by the gguf package and plain numpy, not by our code.

A weight in a block is bf16(scale * code + minimum), with scale and minimum rounded to bf16. Codes come from
the package: it dequantises blocks whose scales are replaced by 1 and whose minima by 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aerie.engine.numerics import F32Array
from aerie.engine.quantised import AUTO_KEEPS_QUANTISED

Blocks = npt.NDArray[np.uint8]

PLAIN = ("F32", "F16", "BF16")
GROUP = 32
FIXED = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K")
"""Types whose codes stay as they are."""
REQUANTISED = ("Q5_1", "Q5_K", "Q6_K")
"""Types that get new codes, of 8 bits."""
ONE = np.frombuffer(np.float16(1).tobytes(), np.uint8)
UNIT_SCALES = np.array([1] * 4 + [0] * 4 + [1] * 4, np.uint8)
"""Of Q4_K: its 8 scales are 1, its 8 minima 0."""


@dataclass(frozen=True)
class DeviceKind:
    """What weights are on the device: one of quantised.KINDS."""

    name: str = "auto"

    @property
    def keeps_blocks(self) -> bool:
        """Whether what the files have quantised stays so."""
        return AUTO_KEEPS_QUANTISED if self.name == "auto" else self.name != "bf16"

    def of_plain(self, values: F32Array, is_head: bool) -> F32Array:
        """A tensor that the file has in 16 or 32 bits. An LM head has 8 bits where others have 4."""
        if values.ndim != 2 or self.name not in ("q4", "q8"):
            return values
        return quantised(rounded(values), 8 if is_head or self.name == "q8" else 4)

    def of_blocks(self, data: Blocks, kind: Any) -> F32Array:
        """A matrix in blocks of a GGUF type, (rows, columns). data: uint8 (rows, bytes)."""
        import gguf

        if not self.keeps_blocks:
            exact: F32Array = gguf.quants.dequantize(data, kind)
            return exact
        if kind.name in FIXED:
            return fixed_codes(data, kind)
        values: F32Array = gguf.quants.dequantize(data, kind)
        return in_eight_bits(values) if kind.name in REQUANTISED else rounded(values)


def rounded(values: F32Array) -> F32Array:
    """Values to the nearest bf16, halves to even."""
    with np.errstate(all="ignore"):
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def fixed_codes(data: Blocks, kind: Any) -> F32Array:
    """A matrix in blocks whose codes stay: (rows, columns). data: uint8 (rows, bytes)."""
    import gguf

    blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    plain = blocks.copy()
    plain[:, :2] = ONE
    scales, minima = _half(blocks, 0), np.zeros((len(blocks), 1), np.float32)
    if kind.name == "Q4_1":
        plain[:, 2:4], minima = 0, _half(blocks, 2)
    if kind.name == "Q4_K":
        plain[:, 2:4], plain[:, 4:16] = 0, UNIT_SCALES
        of_scale, of_minimum = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
        scales, minima = scales * of_scale, _half(blocks, 2) * -of_minimum.astype(np.float32)
    codes = gguf.quants.dequantize(plain, kind).reshape(len(blocks), -1, GROUP)
    weights = rounded(scales)[..., None] * codes + rounded(minima)[..., None]
    return rounded(weights).reshape(len(data), -1)


def in_eight_bits(values: F32Array) -> F32Array:
    """Values (rows, columns) in 8 bits where a file's codes do not fit: of each group a scale is a 127th of
    the largest magnitude, in bf16, and codes are the nearest, computed in float32."""
    groups = _padded(values).reshape(len(values), -1, GROUP)
    scales = rounded(np.abs(groups).max(axis=2, keepdims=True) / np.float32(127))
    steps = np.where(scales == 0, np.float32(0), np.float32(1) / np.where(scales == 0, 1, scales))
    codes = np.minimum(np.maximum(np.round(groups * steps), -127), 127)
    return rounded(scales * codes).reshape(len(values), -1)[:, : values.shape[1]]


def quantised(values: F32Array, bits: int) -> F32Array:
    """Values (rows, columns) through the gguf package's Q4_1 (4 bits) or Q8_0 (8)."""
    import gguf

    kind = gguf.GGMLQuantizationType.Q4_1 if bits == 4 else gguf.GGMLQuantizationType.Q8_0
    data = gguf.quants.quantize(_padded(values), kind)
    return np.ascontiguousarray(fixed_codes(data, kind)[:, : values.shape[1]])


def _padded(values: F32Array) -> F32Array:
    """Rows filled up to whole groups with their last column, which changes no scale."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % GROUP)), mode="edge")


def _half(blocks: Blocks, at: int) -> F32Array:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)
