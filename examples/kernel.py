"""Write a kernel, out = a + 2 b, and run it on the virtual NPU: eight cores, eight rows each.

Run: python examples/kernel.py

    MLIR: ... lines
    right: True
"""

import numpy as np
from ml_dtypes import bfloat16

from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16
from aerie.kernel_builder.testing import run

ROWS, COLS, LANES = 64, 256, 16

k = Kernel("add_twice")
a = k.argument("a", (ROWS, COLS), bf16, Role.INPUT)
b = k.argument("b", (ROWS, COLS), bf16, Role.INPUT)
out = k.argument("out", (ROWS, COLS), bf16, Role.OUTPUT)
with k.launch(), k.segment("add_segment"), k.herd(8, 1, name="add_herd") as (tx, _):
    l1_a, l1_b, l1_out = (k.alloc(L1, (COLS,), bf16) for _ in range(3))
    for row in k.loop(ROWS // 8):
        k.dma(l1_a, a[tx * 8 + row, :])
        k.dma(l1_b, b[tx * 8 + row, :])
        k.round_to_even(l1_out)  # how the core rounds from here on
        for j in k.loop(0, COLS, LANES):
            lanes = slice(j, j + LANES)
            twice = k.load(l1_b[lanes]) + k.load(l1_b[lanes])
            k.store(l1_out[lanes], k.load(l1_a[lanes]) + twice)
        k.dma(out[tx * 8 + row, :], l1_out)
kernel = k.finish()
print("MLIR:", kernel.text.count("\n"), "lines")

rng = np.random.default_rng(0)
x, y = (rng.integers(-50, 50, (ROWS, COLS)).astype(bfloat16) for _ in range(2))
result = run(kernel, {"a": x, "b": y})["out"]
print("right:", np.array_equal(result, x + y + y))
