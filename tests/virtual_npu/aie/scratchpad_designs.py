"""A design whose core, descriptor and sequence get what a host has written to a scratchpad."""

from __future__ import annotations

import numpy as np

DESIGN = """
aiex.scratchpad_parameter @skip : i32
aiex.scratchpad_parameter @factor : i16
aiex.scratchpad_parameter @half : bf16
aie.device(npu2) @scratch {
  %shim = aie.tile(0, 0)
  %core = aie.tile(0, 2)
  %data = aie.buffer(%core) {sym_name = "data"} : memref<8xi32>
  %more = aie.buffer(%core) {sym_name = "more"} : memref<2xi32> = dense<[7, 65536]>
  %free = aie.lock(%core, 0) {init = 1 : i32, sym_name = "free"}
  %full = aie.lock(%core, 1) {init = 0 : i32, sym_name = "full"}
  %done = aie.lock(%core, 2) {init = 0 : i32, sym_name = "done"}
  aie.flow(%shim, DMA : 0, %core, DMA : 0)
  aie.flow(%core, DMA : 0, %shim, DMA : 0)
  aie.core(%core) {
    %factor = aiex.read_scratchpad_parameter @factor : i16
    %half = aiex.read_scratchpad_parameter @half : bf16
    %f = arith.extsi %factor : i16 to i32
    %h = arith.fptosi %half : bf16 to i32
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    aie.use_lock(%full, AcquireGreaterEqual, 1)
    scf.for %i = %c0 to %c8 step %c1 {
      %x = memref.load %data[%i] : memref<8xi32>
      %y = arith.muli %x, %f : i32
      %z = arith.addi %y, %h : i32
      memref.store %z, %data[%i] : memref<8xi32>
    }
    %low = memref.load %more[%c0] : memref<2xi32>
    %high = memref.load %more[%c1] : memref<2xi32>
    memref.store %low, %data[%c0] : memref<8xi32>
    memref.store %high, %data[%c1] : memref<8xi32>
    aie.use_lock(%done, Release, 1)
    aie.end
  }
  aie.mem(%core) {
    %0 = aie.dma_start(S2MM, 0, ^in, ^next)
  ^in:
    aie.use_lock(%free, AcquireGreaterEqual, 1)
    aie.dma_bd(%data : memref<8xi32>)
    aie.use_lock(%full, Release, 1)
    aie.next_bd ^in
  ^next:
    %1 = aie.dma_start(MM2S, 0, ^out, ^end)
  ^out:
    aie.use_lock(%done, AcquireGreaterEqual, 1)
    aie.dma_bd(%data : memref<8xi32>)
    aie.use_lock(%free, Release, 1)
    aie.next_bd ^out
  ^end:
    aie.end
  }
  aie.shim_dma_allocation @in(%shim, MM2S, 0)
  aie.shim_dma_allocation @out(%shim, S2MM, 0)
  aie.runtime_sequence @scratch(%a: memref<64xi32>, %n: i64, %b: memref<8xi32>)
      attributes {emit_parameter_sync_preamble = true} {
    aiex.npu.update_from_scratchpad<mul>
      {state_table_idx = 0 : ui8, func_arg = 3 : ui32, buffer = @more, address = 0 : ui32}
    %start = arith.trunci %n : i64 to i32
    %to = aiex.dma_configure_task_for @in {
      aie.dma_bd(%a : memref<64xi32> offset = %start len = 8) {offset_parameter = @skip}
      aie.end
    }
    %from = aiex.dma_configure_task_for @out {
      aie.dma_bd(%b : memref<8xi32> offset = 0 len = 8)
      aie.end
    } {issue_token = true}
    aiex.dma_start_task(%to)
    aiex.dma_start_task(%from)
    aiex.dma_await_task(%from)
  }
}
"""
MODULE = f"module {{\n{DESIGN}\n}}"
SKIP, FACTOR, START = 6, -3, 10
WORDS = np.zeros(32, np.uint32)
WORDS[:3] = SKIP, (FACTOR & 0xFFFF) << 2, 0x4020 << 2  # bf16 2.5
WANTED = np.arange(64, dtype=np.int32)[START + SKIP :][:8] * FACTOR + 2
WANTED[:2] = (4 + 3 * SKIP) & ~3, 65536  # the firmware clears the lowest two bits before and after
