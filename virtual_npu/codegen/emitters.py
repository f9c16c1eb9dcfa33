"""Every file of emitters, by importing them: each registers what it emits."""

from virtual_npu.codegen import (
    air,
    arith,
    control,
    lanes,
    linalg,
    memref,
    numbers,
    tokens,
    vector,
)

__all__ = ["air", "arith", "control", "lanes", "linalg", "memref", "numbers", "tokens", "vector"]
