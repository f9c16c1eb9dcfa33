"""Arrays of any type in files of safetensors: words, codes, scales. Shapes and types are checked here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.errors import WeightsError
from aerie.engine.numerics import F32Array, bf16
from aerie.engine.tensors import Tensor, TensorFile

RAW_DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": bf16,
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
}
FLOATS = ("BF16", "F16", "F32")
WORDS = ("I32", "U32")
WORD_BITS = 32
MAX_VALUES = 1 << 22
"""Of a small tensor that is read whole."""

FETCH = "the file is damaged, or was made by another version of the tool: fetch it again"


def companion(tensors: Mapping[str, Tensor], name: str, of: Tensor) -> Tensor:
    """The tensor `name`, which belongs to `of`. Raises WeightsError."""
    if name not in tensors:
        raise WeightsError(
            f"tensor {name} is missing, and {of.name} in {of.path} cannot be read without it; {FETCH}"
        )
    return tensors[name]


def check_array(tensor: Tensor, dtypes: tuple[str, ...], shape: tuple[int, ...], why: str) -> None:
    """Raises WeightsError for another type or shape. why: what asks for this shape."""
    if tensor.dtype not in dtypes:
        raise WeightsError(
            f"tensor {tensor.name} in {tensor.path} has dtype {tensor.dtype}, and {why} asks for "
            f"{' or '.join(dtypes)}; {FETCH}"
        )
    if tensor.shape != shape:
        raise WeightsError(
            f"tensor {tensor.name} in {tensor.path} has shape {shape_text(tensor.shape)}, and {why} asks for "
            f"{shape_text(shape)}; {FETCH}"
        )


def check_matrix(tensor: Tensor, dtypes: tuple[str, ...]) -> None:
    """Raises WeightsError for what is no matrix of one of these types."""
    if tensor.dtype not in dtypes or len(tensor.shape) != 2 or not math.prod(tensor.shape):
        raise WeightsError(
            f"tensor {tensor.name} in {tensor.path} is {tensor.dtype} of shape {shape_text(tensor.shape)}, "
            f"and a matrix of {' or '.join(dtypes)} is wanted; {FETCH}"
        )


def shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def read_slice(tensor: Tensor, rows: slice | None = None, columns: slice | None = None) -> NDArray[Any]:
    """Some rows and columns of a matrix as they are in the file. Raises WeightsError."""
    dtype, (height, width) = RAW_DTYPES[tensor.dtype], tensor.shape
    rows, columns = rows or slice(0, height), columns or slice(0, width)
    out = np.empty((rows.stop - rows.start, columns.stop - columns.start), dtype)
    at = tensor.start + (rows.start * width + columns.start) * dtype.itemsize
    with TensorFile(tensor) as file:
        if out.shape[1] == width:
            file.bytes_into(_bytes_of(out), at)
        else:
            for number, row in enumerate(out):
                file.bytes_into(_bytes_of(row), at + number * width * dtype.itemsize)
    return out


def read_flat(tensor: Tensor, first: int, count: int) -> NDArray[Any]:
    """`count` elements from element `first` on, whatever the tensor's shape. Raises WeightsError."""
    dtype = RAW_DTYPES[tensor.dtype]
    out = np.empty(count, dtype)
    with TensorFile(tensor) as file:
        file.bytes_into(_bytes_of(out), tensor.start + first * dtype.itemsize)
    return out


def read_small(tensor: Tensor) -> NDArray[Any]:
    """All elements of a small tensor, flat. Raises WeightsError."""
    count = math.prod(tensor.shape)
    if tensor.dtype not in RAW_DTYPES or count > MAX_VALUES:
        raise WeightsError(
            f"tensor {tensor.name} in {tensor.path} is {tensor.dtype} of shape {shape_text(tensor.shape)}, "
            f"which no tool writes; {FETCH}"
        )
    return read_flat(tensor, 0, count)


def check_finite(tensor: Tensor) -> None:
    """Raises WeightsError where scales, or what else counts as such, are no finite numbers."""
    width = max(1, math.prod(tensor.shape[1:]))
    at_once = max(1, MAX_VALUES // width)
    rows = tensor.shape[0] if tensor.shape else 1
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        values = read_flat(tensor, first * width, count * width).astype(np.float32)
        if not np.isfinite(values).all():
            at = int(np.argmin(np.isfinite(values)))
            raise WeightsError(
                f"tensor {tensor.name} in {tensor.path} holds {values[at]} in row {first + at // width}, "
                f"column {at % width}, and scales must be finite numbers; {FETCH}"
            )


def fields(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The fields of `bits` bits, 4 or 8, in words of 32 bits, the low ones first: (..., n) to
    (..., n * 32 / bits)."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    return np.stack((octets & 15, octets >> 4), axis=-1).reshape(*octets.shape[:-1], -1)


def wide(values: NDArray[Any]) -> F32Array:
    """Float values of a file in float32, exactly."""
    return values.astype(np.float32)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)
