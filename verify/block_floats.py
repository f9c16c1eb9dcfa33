"""Products in block floating point, as the NPU makes those of bf16 blocks (`--numerics bfp16`).

8 numbers along K share an exponent and keep 8-bit mantissas, rounded to nearest even; what goes this way is
told in docs/virtual_npu.md. Here for the yardstick of such steps.
"""

from __future__ import annotations

from typing import Any

BLOCK = 8


def converted(values: Any) -> Any:
    """What block floating point keeps of `values`, float32 (rows, K) with K a multiple of 8."""
    import torch

    blocks = values.reshape(values.shape[0], -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    step = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 7)
    step = torch.where((blocks / step).round().amax(-1, keepdim=True) > 127, 2 * step, step)
    return ((blocks / step).round() * step).reshape(values.shape)


def product(x: Any, weight: Any) -> Any:
    """x @ weight.T, rounded to bf16 once; x is (rows, K), weight (out, K), all float32."""
    import torch

    return torch.nn.functional.linear(converted(x), converted(weight)).bfloat16()
