"""What aircc is told of programs, beyond what every program needs: each flag with its reason and its source.

All is taken from upstream's sources and practice; none of our programs has been compiled by aircc yet.

Not given, and why. `--omit-while-true-loop`: a core's program runs again for every call, and upstream keeps
the loop in every program of several launches (mlir-air programming_examples/llms/shared/infra/
backend_presets.py). `--bf16-emulation`: it would round the operands of f32 vector arithmetic to bf16, and the
kernels write none that needs it (docs/hardware.md, Forms). `--use-lock-race-condition-fix`: upstream's GEMV
alone is built with it, in its own example and not in the decode programs (backend_presets.py says False).
`--coalesce-shim-dma`: only for transfers marked `air.preserve_shim_dma_order`, and there are none.
`--air-channel-multiplexing`, `--omit-auto-broadcast`: no launch needs more channels than there are.
`--air-runtime-loop-tiling-sizes` for the decode programs: upstream gives 16 to tile a grid of launch steps.
Ours are launches of one step, in which a core's rows of the weight are one run of memory: untiled, the loops
around a transfer fold into its descriptor (mlir-air mlir/include/air/Transform/Passes.td,
air-opt-shim-dma-bds).
"""

from __future__ import annotations

from multi_launch_builder.program import CompileOption
from virtual_npu.static.device import NPU2

PREFILL = "mlir-air programming_examples/llms/llama32_1b/llama32_1b_prefill.py"

STACK = CompileOption(
    f"--stack-size={NPU2.program_stack_bytes}",
    "the stack lies right below a core's buffers, and one that outgrows its size spoils them without a word: "
    "1024 bytes, aircc's default until September 2026, were too few for upstream's own attention and matrix "
    "product with Peano 22, whose NaN came from there; 2048 is the default since",
    "mlir-air pull requests 1547 and 1980, programming_examples/matrix_multiplication/bf16/run.py",
)


def tiled(*sizes: int, reason: str, source: str) -> tuple[CompileOption, ...]:
    """How many steps of a launch's grid, outermost first, are sent to the shim before it is waited for."""
    return tuple(CompileOption(f"--air-runtime-loop-tiling-sizes={size}", reason, source) for size in sizes)


GEMM_GRID = tiled(
    2,
    2,
    reason="the transfers of a GEMM's grid need more descriptors than the shim's 16: two by two steps are "
    "under way, then their descriptors are free again",
    source=PREFILL,
)
ATTENTION_GRID = tiled(
    1,
    1,
    reason="one step of the grid at a time: a step's own loops over the keys fill the shim's descriptors",
    source=PREFILL,
)
ONE_COPY = CompileOption(
    "--omit-ping-pong-transform=all",
    "K and V tiles alternate on one channel, so one is loaded while the other is computed on: a second copy "
    "of each would take L1 and gain nothing; mlir-air's own attention kernels are built this way",
    PREFILL,
)
