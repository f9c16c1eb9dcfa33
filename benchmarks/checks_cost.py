"""What checks cost: each kernel, with and without, in one process; prints times and their ratio.

    python benchmarks/checks_cost.py [KERNEL ...]

The medians of seven rounds, both kinds in turn. Times depend on the machine; the ratio is what to look at.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aerie import virtual_npu
from aerie.kernel_builder.kernels import all_kernels
from aerie.virtual_npu import arrays

ROUNDS = 7
SHAPES: dict[str, dict[str, Any]] = {
    "eltwise_add": {"rows": 2048, "cols": 2048},
    "flash_attention": {"lq": 512, "lk": 512, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64},
    "gemm": {"m": 512, "k": 512, "n": 512},
    "gemv": {"m": 2048, "k": 2048},
    "rms_norm": {"rows": 2048, "cols": 2048},
    "rope": {"rows": 2048, "n_heads": 32},
    "swiglu": {"rows": 2048, "cols": 2048},
}


def median_times(text: str) -> list[float]:
    """Seconds of a run without and with checks."""
    times: list[list[float]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        libraries = []
        for checks in (False, True):
            path = Path(folder) / f"{checks}.so"
            virtual_npu.build(text, path, options=virtual_npu.BuildOptions(checks=checks))
            libraries.append(virtual_npu.Library(path))
        entry = next(iter(libraries[0].entries.values()))
        given = arrays.random_arrays(entry, 1)
        for _ in range(ROUNDS):
            for library, spent in zip(libraries, times, strict=True):
                values = [array.copy() for array in given]
                started = time.perf_counter()
                arrays.run_entry(library, entry, values)
                spent.append(time.perf_counter() - started)
    return [statistics.median(spent) for spent in times]


def main(names: list[str]) -> None:
    """Measure the kernels named, or all that have a shape here."""
    print(f"{'kernel':16} {'off, ms':>9} {'on, ms':>9} {'ratio':>6}")
    for name in names or SHAPES:
        spec = all_kernels()[name]
        kernel = spec.build(**{**spec.cases[0], **SHAPES[name]})
        off, on = median_times(kernel.text)
        print(f"{name:16} {off * 1e3:9.2f} {on * 1e3:9.2f} {on / off:6.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
