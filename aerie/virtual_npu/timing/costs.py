"""What something takes, in counts of the parameters that price it: counted once, priced often."""

from __future__ import annotations

from operator import add
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.virtual_npu.timing.parameters import Parameters

RATES = ("native_macs", "bfp16_macs", "text_product_macs", "int8_macs")
"""Of these a cost has what is divided by them."""
PRICES = (
    *("vector_memory_cycles", "vector_arithmetic_cycles", "loop_cycles", "kernel_op_cycles", "call_cycles"),
    *("product_block_cycles", "special_cycles", "scalar_cycles", "lock_cycles", "bd_cycles"),
    "shim_task_cycles",
    "issue_cycles",
    *RATES,
)
"""The parameters that are paid in cycles; the first count of a cost is of cycles themselves."""

Cost: TypeAlias = "tuple[float, ...]"
"""How many plain cycles, then how many of each of PRICES."""
NOTHING: Cost = (0.0,) * (1 + len(PRICES))


def cost(cycles: float = 0.0, **counts: float) -> Cost:
    """So many cycles, and so many times each parameter that is named."""
    return (cycles, *(counts.pop(name, 0.0) for name in PRICES))


def total(one: Cost, other: Cost) -> Cost:
    """Both."""
    return tuple(map(add, one, other))


def prices(parameters: Parameters) -> NDArray[np.float64]:
    """Cycles for each count of a cost."""
    values = (getattr(parameters, name) for name in PRICES)
    each = (1 / value if name in RATES else value for name, value in zip(PRICES, values, strict=True))
    return np.array([1.0, *each])
