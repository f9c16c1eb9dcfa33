"""What the timing model has to beat: bytes over bandwidth, operations over peak, a line for each kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.board_times.measurements import FIT, MICROSECONDS, Measurement

BANDWIDTH_GB_S = 66.6
"""memcpy of the whole array (mlir-aie PR 2559)."""
PEAK_TFLOP_S = 29.49
"""2 operations x 256 MAC x 32 cores x 1.8 GHz, the bf16 peak by block floats."""
MIN_FIT_ROWS = 4
"""A line has up to three numbers, so fewer rows would be met by any."""


def work(row: Measurement) -> tuple[float, float] | None:
    """Bytes to and from DDR if each is moved once, and operations; None where the shape does not say."""
    count = WORK.get(row.kernel)
    return count(row.shape, row) if count and row.shape else None


def _gemm(shape: Mapping[str, int], row: Measurement) -> tuple[float, float]:
    m, k, n = (shape[side] for side in "mkn")
    return 2.0 * (m * k + k * n) + (4 if row.dtypes[-1] == "f32" else 2) * m * n, 2.0 * m * k * n


def _attention(shape: Mapping[str, int], row: Measurement) -> tuple[float, float]:
    lq, lk, heads, kv_heads, dim = (shape[name] for name in ["lq", "lk", "n_heads", "n_kv_heads", "head_dim"])
    share = 0.5 if row.variant == "causal" else 1.0
    return 4.0 * dim * (lq * heads + lk * kv_heads), 4.0 * lq * lk * dim * heads * share


WORK = {
    "eltwise_add": lambda shape, _: (6.0 * shape["n"], 1.0 * shape["n"]),
    "silu_mul": lambda shape, _: (6.0 * shape["n"], 5.0 * shape["n"]),
    "gelu": lambda shape, _: (4.0 * shape["n"], 8.0 * shape["n"]),
    "rope": lambda shape, _: (
        6.0 * shape["rows"] * shape["head_dim"],
        3.0 * shape["rows"] * shape["head_dim"],
    ),
    "rms_norm": lambda shape, _: (4.0 * shape["rows"] * shape["cols"], 4.0 * shape["rows"] * shape["cols"]),
    "layer_norm": lambda shape, _: (4.0 * shape["rows"] * shape["cols"], 6.0 * shape["rows"] * shape["cols"]),
    "gemv": lambda shape, _: (
        2.0 * (shape["m"] * shape["k"] + shape["m"] + shape["k"]),
        2.0 * shape["m"] * shape["k"],
    ),
    "gemm_f32": _gemm,
    "gemm_bf16": _gemm,
    "flash_attention": _attention,
}
"""Bytes and operations by class."""


def bytes_over_bandwidth(row: Measurement) -> float | None:
    """Microseconds that the bytes take."""
    amount = work(row)
    return amount[0] / BANDWIDTH_GB_S / 1e3 if amount else None


def operations_over_peak(row: Measurement) -> float | None:
    """Microseconds that the operations take."""
    amount = work(row)
    return amount[1] / PEAK_TFLOP_S / 1e6 if amount else None


class AffineFits:
    """A line for each series of kernels, over bytes and operations, fitted to rows of role `fit` only."""

    def __init__(self, rows: Iterable[Measurement]) -> None:
        by_series = defaultdict(list)
        for row in rows:
            if row.role == FIT and row.unit == MICROSECONDS and work(row):
                by_series[row.series].append(row)
        self._lines = {
            series: _relative_least_squares(chosen)
            for series, chosen in by_series.items()
            if len(chosen) >= MIN_FIT_ROWS
        }

    def __call__(self, row: Measurement) -> float | None:
        """Microseconds by the line of the row's series; None without one, or where it goes below 0."""
        line = self._lines.get(row.series)
        amount = float(np.dot(_terms(row), line)) if line is not None and work(row) else 0.0
        return amount if amount > 0 else None


def _terms(row: Measurement) -> list[float]:
    amount = work(row) or (0.0, 0.0)
    return (
        [1.0, amount[0] / 1e6, amount[1] / 1e9] if row.kernel.startswith("gemm") else [1.0, amount[0] / 1e6]
    )


def _relative_least_squares(rows: Sequence[Measurement]) -> np.ndarray:
    """The numbers of a line that make the squares of relative errors least."""
    terms = np.array([_terms(row) for row in rows])
    times = np.array([row.value for row in rows])
    return np.asarray(np.linalg.lstsq(terms / times[:, None], np.ones(len(rows)), rcond=None)[0])
