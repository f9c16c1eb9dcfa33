"""How far the NPU may be from the virtual NPU beyond a kernel's tolerance, and why.

A kernel's own tolerance allows for another order of an f32 sum and for the last rounding that this tips. The
virtual NPU models two things of the core besides: block floating point, and the rounding mode. What it does
not model is listed here, each bound with its reason. A kernel that is not listed has nothing of the kind: its
numbers are sums, products and roundings of bf16, which the core makes as any CPU does.

mlir-air's own checks (programming_examples/kernel_registry/details) are wider, and compare with f32
references: rtol 1.6e-2 and atol 1.5e-3 for a GEMM, atol 8e-2 for SiLU, 5e-2 for RoPE, 1e-1 for
FlashAttention. Held to the virtual NPU on the very same inputs, less will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernel_builder.spec import Array


@dataclass(frozen=True)
class Allowance:
    """share: most mean |got - want| / mean |want|. largest: most |got - want|, times the rms of its row."""

    share: float
    largest: float
    reason: str

    def mask(self, got: Array, want: Array) -> Array:
        """Which elements are farther off than `largest`; a NaN or infinity always is."""
        left, right = got.astype(np.float64), want.astype(np.float64)
        scale = np.sqrt((right**2).mean(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(left - right) <= self.largest * scale))


_BLOCKS = (
    "how the core rounds a block's mantissas and sums its products is not published; against f32, blocks "
    "cost a share of 9.0e-3 to 9.6e-3 (mlir-air's measurements, kernel_builder/numerics.py), so another way "
    "of making them stays within that of ours"
)

ALLOWANCES: Mapping[str, Allowance] = {
    "gemm": Allowance(1e-2, 0.06, _BLOCKS),
    "gemm_f32": Allowance(1e-2, 0.06, _BLOCKS),
    "flash_attention": Allowance(
        1e-2,
        0.1,
        "the accuracy of the core's exp2 is not published, and it weighs every row of v; mlir-air measured "
        "3.8e-2 to 5.5e-2 for a kernel that keeps its statistics in bf16, where ours has f32",
    ),
    "swiglu": Allowance(
        1e-2,
        0.1,
        "the accuracy of the core's exp2 is not published; mlir-air measured a share of 1.0e-2 for the same "
        "function by way of tanh (kernel_registry/details/SiLU_Mul_bf16.md)",
    ),
    "rms_norm": Allowance(
        5e-3,
        0.05,
        "the accuracy of the core's inverse square root is not published; mlir-air measured a share of "
        "4.2e-3 to 4.6e-3 for the whole kernel (kernel_registry/details, RMSNorm)",
    ),
}
"""By kernel."""
