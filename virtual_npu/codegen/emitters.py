"""Every file of emitters, by importing them: each registers what it emits."""

from virtual_npu.codegen import (
    affine_ops,
    air,
    arith,
    branches,
    control,
    gathers,
    lanes,
    linalg,
    masks,
    memref,
    numbers,
    relayout,
    tokens,
    vector,
)

__all__ = [
    "affine_ops",
    "air",
    "arith",
    "branches",
    "control",
    "gathers",
    "lanes",
    "linalg",
    "masks",
    "memref",
    "numbers",
    "relayout",
    "tokens",
    "vector",
]
