"""out = silu(gate) * up, or gelu(gate) * up, bf16: the activation between the gate, up and down projections.

Without an activation it is gate * up, the gates around a short convolution; with a sigmoid, the gate of
attention's output.

Eight cores in a row (herd 8x1), each with its own share of the rows (or, for a vector, of the elements),
streamed in runs: gate and up come in over a core's two input channels, out leaves over its output channel.
Three L3 streams per core keep this at one row of cores. The compute is `silu_and_mul.cc`: silu in f32 from
exp2 and a reciprocal, rounded to bf16, then the product, rounded again, as Hugging Face does in bf16. gelu is
its tanh form, which is a sigmoid too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.activations import GELU, NO_ACTIVATION, SIGMOID, SILU
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, i32
from aerie.kernel_builder.spec import (
    Allowance,
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    cores,
    largest_divisor,
    require_multiple,
)
from aerie.kernel_builder.values import ExternalFunction, OptLevel

OPTIMIZE = OptLevel(
    "O2",
    "what upstream builds its silu_and_mul.cc with (mlir-air programming_examples/silu_and_mul/Makefile)",
)
LANES = 16
"""Elements of one vector step of silu_and_mul.cc."""
MACROS: Mapping[str, dict[str, str]] = {
    SILU: {},
    GELU: {"GELU": "1"},
    SIGMOID: {"SIGMOID": "1"},
    NO_ACTIVATION: {"NO_ACTIVATION": "1"},
}
"""What silu_and_mul.cc is built with, by activation."""
RUN_LENGTH = 4096
"""Most elements of one DMA: three double-buffered runs take 48 KiB of L1."""


def build(
    rows: int | None,
    cols: int,
    herd_x: int | None = None,
    activation: str = SILU,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """gate, up and out are (rows, cols) bf16, or (cols,) where rows is None. activation: SILU, GELU,
    SIGMOID or NO_ACTIVATION.

    cols is a multiple of 16. herd_x, the number of cores, divides the rows (vector form: cols / 16) and is by
    default the largest such number a row has. Raises IllegalShapeError.
    """
    require_multiple("swiglu", "cols", cols, LANES, "a core takes 16 elements at a time")
    if activation not in MACROS:
        raise IllegalShapeError(
            f"swiglu: activation={activation!r}; there are {', '.join(map(repr, MACROS))}"
        )
    work, unit = (cols // LANES, "blocks of 16 elements") if rows is None else (rows, "rows")
    herd_x = cores("swiglu", unit, work, herd_x, device)
    shape = (cols,) if rows is None else (rows, cols)
    k = Kernel("swiglu", device)
    gate = k.argument("gate", shape, bf16, Role.INPUT)
    up = k.argument("up", shape, bf16, Role.INPUT)
    out = k.argument("out", shape, bf16, Role.OUTPUT)
    share = (rows or 1) * cols // herd_x
    run = largest_divisor(share, RUN_LENGTH, LANES)
    activate = _external(k, run, activation)
    gate_share, up_share, out_share = (v.reshape(herd_x, share) for v in (gate, up, out))
    with k.launch(), k.segment("swiglu_segment"), k.herd(herd_x, 1, name="swiglu_herd") as (tx, _):
        l1_gate, l1_up, l1_out = (k.alloc(L1, (run,), bf16, name) for name in ("l1_gate", "l1_up", "l1_out"))
        for at in k.loop(0, share, run, unwraps=True):
            k.dma(l1_gate, gate_share[tx, at : at + run])
            k.dma(l1_up, up_share[tx, at : at + run])
            activate(l1_gate, l1_up, l1_out, run)
            k.dma(out_share[tx, at : at + run], l1_out)
    return k.finish()


def _external(k: Kernel, run: int, activation: str) -> ExternalFunction:
    """silu_and_mul.cc under its own symbol for this activation and run length."""
    buffer, macros = L1((run,), bf16), MACROS[activation]
    name = f"{activation.partition('_')[0]}_and_mul"
    return k.external(
        f"{name}_bf16_{run}",
        f"{name}_{run}.o",
        [buffer, buffer, buffer, i32],
        source="silu_and_mul.cc",
        defines=macros | {"silu_and_mul_bf16": f"{name}_bf16_{run}"},
        optimize=OPTIMIZE,
    )


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The activation in f32, rounded to bf16; the product with up, rounded again."""
    gate, up = (arrays[name].astype(np.float64) for name in ("gate", "up"))
    activation, twice = parameters.get("activation", SILU), gate
    if activation == GELU:
        twice = np.sqrt(8 / np.pi) * (gate + 0.044715 * gate**3)
    sigmoid = 1 / (1 + np.exp(-twice))
    factor = {NO_ACTIVATION: gate, SIGMOID: sigmoid}.get(activation, gate * sigmoid)
    activated = factor.astype(np.float32).astype(bf16.numpy)
    return {"out": (activated.astype(np.float32) * up.astype(np.float32)).astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 64 rows (or a vector) of up to 1024 columns."""
    rows = int(rng.integers(1, 65)) if rng.random() < 0.75 else None
    activation = str(rng.choice([*MACROS]))
    return {"rows": rows, "cols": LANES * int(rng.integers(1, 65)), "activation": activation}


KERNEL = KernelSpec(
    name="swiglu",
    build=build,
    reference=reference,
    cases=(
        {"rows": 64, "cols": 768},
        {"rows": None, "cols": 768},
        {"rows": None, "cols": 8192},
        {"rows": 3, "cols": 48},
        {"rows": 16, "cols": 2048, "herd_x": 4},
        {"rows": 64, "cols": 768, "activation": GELU},
        {"rows": None, "cols": 2048, "activation": GELU},
        {"rows": 8, "cols": 1024, "activation": SIGMOID},
        {"rows": 8, "cols": 1024, "activation": NO_ACTIVATION},
        {"rows": None, "cols": 1024, "activation": NO_ACTIVATION},
    ),
    tolerance=Tolerance(
        2.0**-6,
        1e-30,
        "exp2 on the core gives bf16 (2^-8), so silu may round to a neighbour (2^-7), and the product with "
        "it (2^-7 more)",
    ),
    random_case=random_case,
    allowance=Allowance(
        1e-2,
        0.1,
        "the accuracy of the core's exp2 is not published; mlir-air measured a share of 1.0e-2 for the same "
        "function by way of tanh (kernel_registry/details/SiLU_Mul_bf16.md)",
    ),
)
