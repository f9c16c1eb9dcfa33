"""Faults planted in the C++ that reads blocks: against a reading of the blocks in plain numpy, each shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aerie.kernel_builder.weight_blocks import Q4, quantise
from tests.kernels_cc.host_compiler import KERNELS

pytestmark = pytest.mark.slow

SOURCE, ROWS, COLUMNS, UNPACKED = KERNELS / "weight_blocks.cc", 32, 256, 64
FAULTS = {
    "nibbles swapped": (
        "const Rows column_weights = of_rows.weights(codes.column(c));",
        "Rows column_weights = of_rows.weights(codes.column(c));\n"
        "        for (unsigned r = 0; r < plane_rows; r += 2) { const bfloat16 even = column_weights.get(r); "
        "column_weights.set(column_weights.get(r + 1), r); column_weights.set(even, r + 1); }",
    ),
    "planes swapped": ("codes_at + plane * plane_bytes", "codes_at + (1 - plane) * plane_bytes"),
    "the scale of the next group": ("scales = load_rows(at);", "scales = load_rows(at + 2 * rows);"),
    "the minimum's sign": ("Sums(load_rows(at + minima_at))", "Sums(aie::neg(load_rows(at + minima_at)))"),
    "groups of 64 read as 32": ("(group * rows + plane", "(group / 2 * rows + plane"),
    "weights rounded down": ("aie::rounding_mode::conv_even", "aie::rounding_mode::floor"),
    "padding read as weights": ("k - first < columns ? k - first : columns", "columns"),
}
"""By what is wrong: a text of the source, and what stands in its place."""


def weights_of(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The 32 x 256 weights of a block of 4 bits, number by number."""
    scales, minima = block[:1024].view(bfloat16).astype(np.float32).reshape(2, 8, ROWS)
    found = np.zeros((ROWS, COLUMNS), np.float32)
    for row in range(ROWS):
        for column in range(COLUMNS):
            byte = block[1024 + (row // 16 * COLUMNS + column) * 8 + row % 16 // 2]
            code, group = int(byte) >> 4 * (row % 2) & 15, column // 32
            found[row, column] = scales[group, row] * np.float32(code) + minima[group, row]
    return found.astype(bfloat16)


def shown(api: Any) -> list[str]:
    """Which results of two blocks side by side, of which the second ends after 64 columns, are wrong."""
    rng, k = np.random.default_rng(3), COLUMNS + 64
    drawn = quantise(rng.normal(0, 1, (ROWS, 2 * COLUMNS)).astype(np.float32), Q4)  # more than k: padding
    blocks = drawn.pack().reshape(-1)
    weights = np.hstack([weights_of(block) for block in blocks.reshape(2, -1)])
    wrong = []
    for first in range(0, COLUMNS, UNPACKED):
        made = np.zeros(ROWS * UNPACKED, bfloat16)
        api.unpack_blocks_bf16(first, blocks, made)
        rows = made.reshape(4, UNPACKED, 8).transpose(0, 2, 1).reshape(ROWS, UNPACKED)
        if rows.tobytes() != np.ascontiguousarray(weights[:, first : first + UNPACKED]).tobytes():
            wrong.append("weights")
    x = np.ones(2 * COLUMNS, bfloat16)
    x[:k] = rng.normal(0, 1, k).astype(bfloat16)
    sums, y = np.zeros((ROWS, 64), np.float32), np.zeros(ROWS, bfloat16)
    api.matvec_blocks_f32(2, 0, k, blocks, x, sums)
    api.matvec_block_rows_bf16(sums, y)
    exact = weights[:, :k].astype(float) @ x[:k].astype(float)
    if not np.allclose(y.astype(float), exact, rtol=2**-7, atol=1e-4):
        wrong.append("product")
    return wrong


def test_the_source_reads_blocks_right(build_cc: Any) -> None:
    assert shown(build_cc(SOURCE, {"WEIGHT_BITS": 4})) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(fault: str, build_cc: Any, tmp_path: Path) -> None:
    right, wrong = FAULTS[fault]
    text = SOURCE.read_text()
    assert right in text
    changed = tmp_path / SOURCE.name
    changed.write_text(text.replace(right, wrong))
    found = shown(build_cc(changed, {"WEIGHT_BITS": 4}))
    assert ("product" if fault == "padding read as weights" else "weights") in found
