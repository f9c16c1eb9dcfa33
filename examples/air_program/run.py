"""Run an AIR program on the virtual NPU, check its result, and see what a mistake in it looks like.

Run: python examples/air_program/run.py

    right: True
    double: line 14: air.dma_memcpy_nd in herd @herd (2, 0): the access pattern reaches ...
"""

from pathlib import Path

import numpy as np

from aerie.virtual_npu import Program, ProgramError

text = Path(__file__).with_name("double.mlir").read_text()
x = np.arange(64, dtype=np.float32)

out = Program.from_text(text).run(x, np.zeros_like(x)).outputs[1]
print("right:", np.array_equal(out, 2 * x))

try:
    Program.from_text(text.replace("s0 * 16", "s0 * 32")).run(x, np.zeros_like(x))
except ProgramError as error:
    print(str(error).splitlines()[0])
