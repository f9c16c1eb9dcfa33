"""MLIR's element types as numpy holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMPY_NAMES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "uint16", "i1": "bool", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "index": "int64", "ui8": "uint8", "ui16": "uint16",
    "ui32": "uint32", "ui64": "uint64",
}  # fmt: skip
"""By MLIR element type, the name of the numpy dtype that holds its elements."""


def numbers_of(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The numbers of an array whose elements have an MLIR type: bf16, as ml_dtypes.bfloat16 or as its bits,
    widened to float32, others as they are.
    """
    if dtype != "bf16":
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
