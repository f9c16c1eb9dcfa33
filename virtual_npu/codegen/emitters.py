"""Every file of emitters, by importing them: each registers what it emits."""

from virtual_npu.codegen import (
    affine,
    air,
    arith,
    functions,
    gathers,
    lanes,
    linalg,
    masks,
    memref,
    numbers,
    relayout,
    rewritten,
    scf,
    tokens,
    vector,
)

__all__ = [
    "affine",
    "air",
    "arith",
    "functions",
    "gathers",
    "lanes",
    "linalg",
    "masks",
    "memref",
    "numbers",
    "relayout",
    "rewritten",
    "scf",
    "tokens",
    "vector",
]
