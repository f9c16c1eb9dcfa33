"""Element types: one object per type, with its width and its name in numpy and in MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type. `mlir` is its spelling in MLIR text, `itemsize` its width in bytes."""

    name: str
    numpy: Any
    mlir: str

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.numpy).itemsize)

    def __str__(self) -> str:
        return self.name


bf16 = DType("bf16", ml_dtypes.bfloat16, "bf16")
f16 = DType("f16", np.float16, "f16")
f32 = DType("f32", np.float32, "f32")
i1 = DType("i1", np.bool_, "i1")
i8 = DType("i8", np.int8, "i8")
i16 = DType("i16", np.int16, "i16")
i32 = DType("i32", np.int32, "i32")
i64 = DType("i64", np.int64, "i64")

ALL: tuple[DType, ...] = (bf16, f16, f32, i8, i16, i32, i64)
