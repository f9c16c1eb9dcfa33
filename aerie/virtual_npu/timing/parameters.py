"""The parameters of the timing model of NPU2: one table with the value, unit, source and range of each.

A parameter stands for one mechanism of the array (a clock, a width, a latency), never for one of our kernels.
Where several boards differ, the value is that of the registry of mlir-air (Strix, "RyzenAI-npu4", turbo), and
the range covers the others. No value was measured by us: we have no board.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from aerie.virtual_npu.errors import OptionError

MAX_PARAMETERS = 25
"""The limit that keeps this a model of mechanisms."""


def _parameter(value: float, unit: str, low: float, high: float, meaning: str, source: str) -> Any:
    about = {"unit": unit, "low": low, "high": high, "meaning": meaning, "source": source}
    return field(default=value, metadata=about)


@dataclass(frozen=True)
class Parameters:
    """What the model knows of the board. `dataclasses.replace` makes another set; `describe()` is the table.

    Raises OptionError for a value outside its range.
    """

    clock_ghz: float = _parameter(
        1.808,
        "GHz",
        0.4,
        2.0,
        "clock of the array",
        "measured 1.808 (destevez.net, May 2026); 1.57 to 1.8 by others; Linux amdxdna npu4_regs.c to 1.8",
    )
    native_macs: float = _parameter(
        32.0,
        "MAC/cycle",
        20,
        32,
        "bf16 product mmul 4x8x8 in the inner loop of a C++ kernel, of a core",
        "6144 vector cycles for 64x64x48 (trace of vegah/Npu-Embeddings b4a7deb2e, task 0049)",
    )
    bfp16_macs: float = _parameter(
        341.0,
        "MAC/cycle",
        120,
        512,
        "bf16 product 8x8x8 through block floats in the inner loop of a C++ kernel, of a core",
        "576 vector cycles for 64x64x48 (trace of vegah/Npu-Embeddings b4a7deb2e)",
    )
    product_block_cycles: float = _parameter(
        70.0,
        "cycles",
        20,
        120,
        "loading, rounding and storing the 2x2 blocks of sums that a C++ product holds at once",
        "1669 cycles beside the products for 24 blocks, 952 - 384 for 8 (vegah/Npu-Embeddings, traces)",
    )
    text_product_macs: float = _parameter(
        256.0,
        "MAC/cycle",
        60,
        256,
        "bf16 product 8x8x8 in a loop of the text, of a core",
        "fit: GEMM of direct codegen (mlir-air kernel_registry); 256 is what block floats can do (IRON)",
    )
    int8_macs: float = _parameter(
        343.0,
        "MAC/cycle",
        200,
        512,
        "int8 product, of a core",
        "209.9 to 450.6 of 512 (arXiv 2512.13282 tables 1 and 3)",
    )
    vector_memory_cycles: float = _parameter(
        0.8,
        "cycles",
        0.5,
        7,
        "one vector load or store in a loop of the text; two loads and a store go at once",
        "fit with loop_cycles: GEMM of direct codegen, 5.94 TFLOP/s (mlir-air kernel_registry)",
    )
    vector_arithmetic_cycles: float = _parameter(
        1.1,
        "cycles",
        1,
        12,
        "one vector operation in a loop of the text, beside its latency, which loop_cycles has",
        "fit with loop_cycles: EltwiseAdd, 17 to 18 cycles for 16 sums (mlir-air kernel_registry)",
    )
    loop_cycles: float = _parameter(
        13.0,
        "cycles",
        3,
        20,
        "one iteration of a loop on a core beside its operations: branch, latency of the first load and of "
        "the last operation",
        "fit with vector_arithmetic_cycles, from branch 3 + load 5 + operation 5 (AIE2, xdna-emu)",
    )
    kernel_op_cycles: float = _parameter(
        1.4,
        "cycles",
        1,
        4,
        "one vector operation of a C++ kernel, whose loops are pipelined",
        "140 bundles of an inner body of q4_k.h (mlir-air fused_decode/kernels)",
    )
    call_cycles: float = _parameter(
        15.0,
        "cycles",
        10,
        200,
        "a call of a C++ kernel",
        "fit: RoPE of 64 and 128 elements a call (mlir-air kernel_registry)",
    )
    special_cycles: float = _parameter(
        14.0,
        "cycles",
        4,
        40,
        "exp2, tanh, division or root of one vector",
        "softmax of 16 keys: 478 to 528 cycles (mlir-air DFlashFeasibility)",
    )
    scalar_cycles: float = _parameter(
        6.0,
        "cycles",
        1,
        20,
        "one scalar operation with its latency",
        "data memory latency 5 on AIE2 (xdna-emu)",
    )
    lock_cycles: float = _parameter(
        18.0,
        "cycles",
        3,
        60,
        "from the end of a transfer to the core that waits for it",
        "15 + 3 cycles on NPU1 (xdna-emu phase C)",
    )
    stream_bytes: float = _parameter(
        4.0,
        "bytes/cycle",
        4,
        8,
        "one channel of a core's DMA, and the stream from a memtile to it",
        "7.0 GB/s for each core of a GEMV on 2, 4 and 8 columns (IRON)",
    )
    shim_bytes: float = _parameter(
        4.94,
        "bytes/cycle",
        3.5,
        8,
        "one channel of a shim DMA, and the channel of a memtile at its other end",
        "35.7 GB/s of four channels that feed memtiles (mlir-air fused_decode/README.md, dual MM2S)",
    )
    cascade_bytes: float = _parameter(
        64.0,
        "bytes/cycle",
        32,
        64,
        "the cascade between two cores",
        "512 bits for each step (mlir-aie device model)",
    )
    bd_cycles: float = _parameter(
        20.0,
        "cycles",
        1,
        100,
        "one buffer descriptor of a core or memtile",
        "8 to 16 cycles in a chain, 13 to 21 through a memtile (xdna-emu, NPU1)",
    )
    shim_task_cycles: float = _parameter(
        325.0,
        "cycles",
        100,
        1400,
        "one task of a shim channel",
        "325 MM2S, 179 S2MM for each task, 1330 for the first (xdna-emu, NPU1)",
    )
    issue_cycles: float = _parameter(
        520.0,
        "cycles",
        0.0,
        1000,
        "the controller's write of one task of a shim channel, one task after the other",
        "520 from one queue write to the next (xdna-emu, NPU1)",
    )
    ddr_gb_s: float = _parameter(
        71.8,
        "GB/s",
        30,
        90,
        "DDR, reads and writes of all channels",
        "slope of EltwiseAdd over 9 sizes (mlir-air kernel_registry); memcpy 63 to 70 (IRON PR 195)",
    )
    ddr_burst_bytes: float = _parameter(
        17.0,
        "bytes",
        0,
        256,
        "what each contiguous run costs beside its own bytes",
        "fit: RoPE on 2 to 8 columns (mlir-air kernel_registry)",
    )
    dispatch_us: float = _parameter(
        82.0,
        "us",
        20,
        480,
        "the host's start of a program and its answer",
        "fit: programs of least work, RoPE of 8 rows 80 to 83 (mlir-air kernel_registry)",
    )
    load_us: float = _parameter(
        1.1,
        "us",
        0.2,
        8,
        "each lock of a launch's design, which is loaded before the launch if the program has another one",
        "GELU and additions in an ELF of several launches (mlir-air smolvla/docs/profile.md 2.2); 7.2 us "
        "between contexts (vegah/Npu-Embeddings, research/notes/0004)",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value, about = getattr(self, one.name), one.metadata
            if not (math.isfinite(value) and about["low"] <= value <= about["high"]):
                raise OptionError(
                    f"{one.name} = {value:g} {about['unit']} is outside {about['low']:g} to "
                    f"{about['high']:g}, the range that the timing model has sources for: give a value in it"
                )

    def describe(self) -> list[Mapping[str, Any]]:
        """The table: name, value, unit, low, high, meaning and source of each parameter."""
        return [{"name": one.name, "value": getattr(self, one.name), **one.metadata} for one in fields(self)]


DEFAULT = Parameters()
"""The values of the table."""
