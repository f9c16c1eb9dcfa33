"""Designs with object FIFOs of the rarer forms; all in one module, built once."""

from __future__ import annotations

from tests.virtual_npu.aie.designs import FIFO, adder, through

VIA_DMA = f"""
  aie.device(npu2) @via_dma {{
    %shim = aie.tile(0, 0)
    %first = aie.tile(0, 2)
    %second = aie.tile(0, 3)
    aie.objectfifo @in(%shim, {{%first}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @between(%first, {{%second}}, [1, 3]) {{via_DMA = true}} : {FIFO.format(8)}
    aie.objectfifo @out(%second, {{%shim}}, 2 : i32) : {FIFO.format(8)}
    {adder("%first", "in", "between", 4, 10)}
    {adder("%second", "between", "out", 4, 100)}
    {through("via_dma", 32)}
  }}
"""
"""Two cores that share memory, and a DMA between them all the same."""

INITIAL = f"""
  aie.device(npu2) @initial {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    aie.objectfifo @in(%shim, {{%core}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @out(%core, {{%shim}}, 2 : i32) : {FIFO.format(8)}
      = [dense<[1, 2, 3, 4, 5, 6, 7, 8]> : memref<8xi32>, dense<9> : memref<8xi32>]
    {adder("%core", "in", "out", 2, 50)}
    {through("initial", 16, 32)}
  }}
"""
"""Two objects that lie in a FIFO before its producer begins."""

FROM_STREAM = f"""
  aie.device(npu2) @from_stream {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    aie.objectfifo @in(%shim, {{%core dimensionsFromStream [<size = 2, stride = 1>, <size = 4, stride = 2>]}},
      2 : i32) : {FIFO.format(8)}
    aie.objectfifo @out(%core dimensionsToStream [<size = 4, stride = 1>, <size = 2, stride = 4>], {{%shim}},
      2 : i32) : {FIFO.format(8)}
    {adder("%core", "in", "out", 2, 0)}
    {through("from_stream", 16)}
  }}
"""
"""Words that a core gets in another order, and sends in one more."""

UNLOCKED = f"""
  aie.device(npu2) @unlocked {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    aie.objectfifo @in(%shim, {{%mem}}, 1 : i32) {{disable_synchronization = true}} : {FIFO.format(8)}
    aie.objectfifo @out(%mem, {{%shim}}, 1 : i32) {{disable_synchronization = true}} : {FIFO.format(8)}
    aie.objectfifo.link [@in] -> [@out]([] [])
    {through("unlocked", 8)}
  }}
"""
"""A memtile that waits for nobody: it sends what it holds, here zeros, before it has got anything."""

MODULE = "\n".join(["module {", VIA_DMA, INITIAL, FROM_STREAM, UNLOCKED, "}"])
