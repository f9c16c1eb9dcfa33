"""Designs of the AIE level, each an `aie.device` with sequences of its own; all in one module, built once."""

from __future__ import annotations

_ADD_LOOP = """
      scf.for %i = %c0 to %cn step %c1 {
        %x = memref.load %from[%i] : memref<8xi32>
        %y = arith.addi %x, %k : i32
        memref.store %y, %to[%i] : memref<8xi32>
      }
"""


def adder(tile: str, source: str, dest: str, rounds: int, addend: int) -> str:
    """A core that adds a number to what comes by one object FIFO, and sends it by another one."""
    subview = "!aie.objectfifosubview<memref<8xi32>>"
    return f"""
    aie.core({tile}) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %cn = arith.constant 8 : index
      %rounds = arith.constant {rounds} : index
      %k = arith.constant {addend} : i32
      scf.for %r = %c0 to %rounds step %c1 {{
        %in = aie.objectfifo.acquire @{source}(Consume, 1) : {subview}
        %from = aie.objectfifo.subview.access %in[0] : {subview} -> memref<8xi32>
        %out = aie.objectfifo.acquire @{dest}(Produce, 1) : {subview}
        %to = aie.objectfifo.subview.access %out[0] : {subview} -> memref<8xi32>
        {_ADD_LOOP}
        aie.objectfifo.release @{source}(Consume, 1)
        aie.objectfifo.release @{dest}(Produce, 1)
      }}
      aie.end
    }}
"""


def transfer(argument: str, words: int, name: str, number: int, more: str = "", offset: int = 0) -> str:
    """Words of an argument that has as many, from or to a channel of a shim."""
    return (
        f"aiex.npu.dma_memcpy_nd(%{argument}[0, 0, 0, {offset}][1, 1, 1, {words}][0, 0, 0, 1]{more}) "
        f"{{id = {number} : i64, issue_token = true, metadata = @{name}}} : memref<{words}xi32>"
    )


def through(name: str, words: int, out_words: int | None = None) -> str:
    """A sequence that sends all of one argument by @in, and waits for the other one by @out."""
    back = words if out_words is None else out_words
    return f"""
    aie.runtime_sequence @{name}(%a: memref<{words}xi32>, %b: memref<{back}xi32>) {{
      {transfer("b", back, "out", 0)}
      {transfer("a", words, "in", 1)}
      aiex.npu.dma_wait {{symbol = @out}}
    }}
"""


TURN = f"""
  aie.device(npu2) @turn {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %buffer = aie.buffer(%mem) {{sym_name = "buffer"}} : memref<4x8xi32>
    %free = aie.lock(%mem, 0) {{init = 1 : i32, sym_name = "free"}}
    %full = aie.lock(%mem, 1) {{init = 0 : i32, sym_name = "full"}}
    aie.flow(%shim, DMA : 0, %mem, DMA : 0)
    aie.flow(%mem, DMA : 0, %shim, DMA : 0)
    aie.memtile_dma(%mem) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^in, ^next)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, %one)
      aie.dma_bd(%buffer : memref<4x8xi32> offset = 0 len = 32)
      aie.use_lock(%full, Release, %one)
      aie.next_bd ^in
    ^next:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%buffer : memref<4x8xi32> offset = 0 len = 45 sizes = [8, 4] strides = [1, 8]
        pad [<const_pad_before = 1, const_pad_after = 0>, <const_pad_before = 0, const_pad_after = 1>])
      aie.use_lock(%free, Release, %one)
      aie.next_bd ^out
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    {through("turn", 32, 45)}
  }}
"""
"""Transposes 4 x 8 in a memtile, with a row of zeros before and a column of zeros behind."""

FIFO = "!aie.objectfifo<memref<{}xi32>>"

FIFOS = f"""
  aie.device(npu2) @fifos {{
    %shim = aie.tile(0, 0)
    %first = aie.tile(0, 2)
    %second = aie.tile(0, 3)
    aie.objectfifo @in(%shim, {{%first}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @between(%first, {{%second}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @out(%second, {{%shim}}, [1, 2]) : {FIFO.format(8)}
    {adder("%first", "in", "between", 4, 10)}
    {adder("%second", "between", "out", 4, 100)}
    {through("fifos", 32)}
  }}
"""
"""Two cores one after the other, with shared memory between them."""

PARTS = f"""
  aie.device(npu2) @parts {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %left = aie.tile(0, 2)
    %right = aie.tile(0, 3)
    aie.objectfifo @in(%shim, {{%mem}}, 2 : i32) : {FIFO.format(16)}
    aie.objectfifo @to_left(%mem, {{%left}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @to_right(%mem, {{%right}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @from_left(%left, {{%mem}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @from_right(%right, {{%mem}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @out(%mem, {{%shim}}, 2 : i32) : {FIFO.format(16)}
    aie.objectfifo.link [@in] -> [@to_left, @to_right]([] [0, 8])
    aie.objectfifo.link [@from_left, @from_right] -> [@out]([0, 8] [])
    {adder("%left", "to_left", "from_left", 4, 1)}
    {adder("%right", "to_right", "from_right", 4, 2)}
    {through("parts", 64)}
  }}
"""
"""A memtile cuts objects in two for two cores, and joins what they make of them."""

REPEATS = f"""
  aie.device(npu2) @repeats {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    aie.objectfifo @in(%shim, {{%mem}}, 2 : i32) : {FIFO.format(8)}
    aie.objectfifo @out(%mem, {{%shim}}, 2 : i32) {{repeat_count = 3 : i32}} : {FIFO.format(8)}
    aie.objectfifo.link [@in] -> [@out]([] [])
    {through("repeats", 16, 48)}
  }}
"""
"""A memtile sends each object three times."""

CASCADE = """
  aie.device(npu2) @cascade {
    %shim = aie.tile(0, 0)
    %north = aie.tile(0, 3)
    %south = aie.tile(0, 2)
    %result = aie.buffer(%south) {sym_name = "result"} : memref<16xi32>
    %full = aie.lock(%south, 0) {init = 0 : i32, sym_name = "full"}
    %start = aie.lock(%north, 0) {init = 0 : i32, sym_name = "start"}
    %number = aie.buffer(%north) {sym_name = "number"} : memref<16xi32> = dense<5>
    aie.cascade_flow(%north, %south)
    aie.flow(%south, DMA : 0, %shim, DMA : 0)
    aie.core(%north) {
      %one = arith.constant 1 : i32
      %c0 = arith.constant 0 : index
      aie.use_lock(%start, AcquireGreaterEqual, %one)
      %k = memref.load %number[%c0] : memref<16xi32>
      cf.switch %k : i32, [
        default: ^other,
        5: ^five
      ]
    ^five:
      %v = vector.load %number[%c0] : memref<16xi32>, vector<16xi32>
      aie.put_cascade(%v : vector<16xi32>)
      cf.br ^other
    ^other:
      aie.end
    }
    aie.core(%south) {
      %one = arith.constant 1 : i32
      %c0 = arith.constant 0 : index
      %v = aie.get_cascade() : vector<16xi32>
      %w = arith.addi %v, %v : vector<16xi32>
      vector.store %w, %result[%c0] : memref<16xi32>, vector<16xi32>
      aie.use_lock(%full, Release, %one)
      aie.end
    }
    aie.mem(%south) {
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%result : memref<16xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence @cascade(%b: memref<16xi32>) {
      %seven = arith.constant 7 : i32
      aiex.npu.rtp_write(@number, 3, %seven) : i32
      aiex.set_lock(%start, 1)
      %task = aiex.dma_configure_task_for @out {
        aie.dma_bd(%b : memref<16xi32> offset = 0 len = 16)
        aie.end
      } {issue_token = true}
      aiex.dma_start_task(%task)
      aiex.dma_await_task(%task)
    }
  }
"""
"""A run-time parameter, a lock that the host sets, and a step of a cascade."""


def _send(argument: str, words: int, channel: int, packet: int) -> str:
    """A task of the memtile: a packet of so many words."""
    return f"""
      %t{channel} = aiex.dma_configure_task(%mem, MM2S, {channel}) {{
        aie.dma_bd(%{argument} : memref<64xi32> offset = 0 len = {words})
          {{packet = #aie.packet_info<pkt_type = 0, pkt_id = {packet}>}}
        aie.end
      }}
      aiex.dma_start_task(%t{channel})
"""


def _overrun(words: int) -> str:
    """Packet 0 has so many words more than its receiver takes; packet 1 must pass it."""
    return f"""
    aie.runtime_sequence @overrun_{words}(%b: memref<8xi32>) {{
      {transfer("b", 8, "out", 0)}
      {_send("long", 8 + words, 0, 0)}
      {_send("short", 8, 1, 1)}
      aiex.npu.dma_wait {{symbol = @out}}
    }}
"""


ARBITER = f"""
  aie.device(npu2) @arbiter {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    %long = aie.buffer(%mem) {{sym_name = "long"}} : memref<64xi32> = dense<1>
    %short = aie.buffer(%mem) {{sym_name = "short"}} : memref<64xi32> = dense<2>
    %one_in = aie.buffer(%core) {{sym_name = "one_in"}} : memref<8xi32>
    %two_in = aie.buffer(%core) {{sym_name = "two_in"}} : memref<8xi32>
    %two_full = aie.lock(%core, 0) {{init = 0 : i32, sym_name = "two_full"}}
    aie.switchbox(%mem) {{
      %0 = aie.amsel<0> (0)
      %1 = aie.amsel<1> (0)
      %2 = aie.masterset(North : 0, %0)
      %3 = aie.masterset(North : 1, %1)
      aie.packet_rules(DMA : 0) {{
        aie.rule(31, 0, %0)
      }}
      aie.packet_rules(DMA : 1) {{
        aie.rule(31, 1, %1)
      }}
      aie.connect<North : 0, South : 0>
    }}
    aie.switchbox(%core) {{
      %0 = aie.amsel<2> (0)
      %1 = aie.amsel<2> (1)
      %2 = aie.masterset(DMA : 0, %0)
      %3 = aie.masterset(DMA : 1, %1)
      aie.packet_rules(South : 0) {{
        aie.rule(31, 0, %0)
      }}
      aie.packet_rules(South : 1) {{
        aie.rule(31, 1, %1)
      }}
      aie.connect<DMA : 0, South : 0>
    }}
    aie.switchbox(%shim) {{
      aie.connect<North : 0, South : 2>
    }}
    aie.shim_mux(%shim) {{
      aie.connect<North : 2, DMA : 0>
    }}
    aie.mem(%core) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^one, ^second)
    ^one:
      aie.dma_bd(%one_in : memref<8xi32>)
      aie.next_bd ^end
    ^second:
      %1 = aie.dma_start(S2MM, 1, ^two, ^third)
    ^two:
      aie.dma_bd(%two_in : memref<8xi32>)
      aie.use_lock(%two_full, Release, %one)
      aie.next_bd ^end
    ^third:
      %2 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%two_full, AcquireGreaterEqual, %one)
      aie.dma_bd(%two_in : memref<8xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    {_overrun(5)}
    {_overrun(6)}
  }}
"""
"""Two packets through one arbiter before a core: the first one may be five words too long."""


def _order(name: str, words: int) -> str:
    first = transfer("a", words, "to_a", 1, ", packet = <pkt_id = 0, pkt_type = 0>")
    second = transfer("b", 4, "to_b", 2, ", packet = <pkt_id = 1, pkt_type = 0>")
    return f"""
    aie.runtime_sequence @{name}(%a: memref<{words}xi32>, %b: memref<4xi32>, %r: memref<4xi32>) {{
      {transfer("r", 4, "result", 0)}
      {first}
      {second}
      aiex.npu.dma_wait {{symbol = @result}}
    }}
"""


HEAD_OF_LINE = f"""
  aie.device(npu2) @head_of_line {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %in_a = aie.buffer(%core) {{sym_name = "in_a"}} : memref<1xi32>
    %in_b = aie.buffer(%core) {{sym_name = "in_b"}} : memref<4xi32>
    %free_a = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "free_a"}}
    %full_b = aie.lock(%core, 1) {{init = 0 : i32, sym_name = "full_b"}}
    aie.packet_flow(0) {{
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%core, DMA : 0>
    }}
    aie.packet_flow(1) {{
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%core, DMA : 1>
    }}
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.mem(%core) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^a, ^second)
    ^a:
      aie.use_lock(%free_a, AcquireGreaterEqual, %one)
      aie.dma_bd(%in_a : memref<1xi32>)
      aie.next_bd ^a
    ^second:
      %1 = aie.dma_start(S2MM, 1, ^b, ^third)
    ^b:
      aie.dma_bd(%in_b : memref<4xi32>)
      aie.use_lock(%full_b, Release, %one)
      aie.next_bd ^end
    ^third:
      %2 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%full_b, AcquireGreaterEqual, %one)
      aie.dma_bd(%in_b : memref<4xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @to_a(%shim, MM2S, 0)
    aie.shim_dma_allocation @to_b(%shim, MM2S, 0)
    aie.shim_dma_allocation @result(%shim, S2MM, 0)
    {_order("line_9", 9)}
    {_order("line_10", 10)}
  }}
"""
"""Two receivers behind one channel: eight words beyond the one that the first takes may stand before it."""

FAULTS = f"""
  aie.device(npu2) @faults {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %other = aie.tile(1, 2)
    %in_buffer = aie.buffer(%core) {{sym_name = "in_buffer"}} : memref<8xi32>
    %free = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "free"}}
    %full = aie.lock(%core, 1) {{init = 0 : i32, sym_name = "full"}}
    %go = aie.lock(%other, 0) {{init = 0 : i32, sym_name = "go"}}
    %many = aie.lock(%other, 1) {{init = 0 : i32, sym_name = "many"}}
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.core(%core) {{
      %one = arith.constant 1 : i32
      %two = arith.constant 2 : i32
      aie.use_lock(%full, AcquireGreaterEqual, %two)
      aie.use_lock(%free, Release, %one)
      aie.end
    }}
    aie.core(%other) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %times = arith.constant 64 : index
      %one = arith.constant 1 : i32
      aie.use_lock(%go, AcquireGreaterEqual, %one)
      scf.for %i = %c0 to %times step %c1 {{
        aie.use_lock(%many, Release, %one)
      }}
      aie.end
    }}
    aie.mem(%core) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^in, ^end)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, %one)
      aie.dma_bd(%in_buffer : memref<8xi32>)
      aie.use_lock(%full, Release, %one)
      aie.next_bd ^in
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @nowhere(%shim, MM2S, 1)
    aie.runtime_sequence @lock_count(%a: memref<4096xi32>) {{
      {transfer("a", 4096, "in", 0)}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
    aie.runtime_sequence @queue(%a: memref<4096xi32>) {{
      {transfer("a", 4096, "in", 0)}
      {transfer("a", 4096, "in", 1)}
      {transfer("a", 4096, "in", 2)}
      {transfer("a", 4096, "in", 3)}
      {transfer("a", 4096, "in", 4)}
      {transfer("a", 4096, "in", 5)}
    }}
    aie.runtime_sequence @early_token(%a: memref<1024xi32>) {{
      {transfer("a", 1024, "in", 0)}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
    aie.runtime_sequence @lock_value(%a: memref<8xi32>) {{
      aiex.set_lock(%go, 1)
      {transfer("a", 8, "in", 0)}
      aiex.npu.dma_wait {{symbol = @in}}
      {transfer("a", 8, "in", 1)}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
    aie.runtime_sequence @no_flow(%a: memref<8xi32>) {{
      {transfer("a", 8, "nowhere", 0)}
      aiex.npu.dma_wait {{symbol = @nowhere}}
    }}
    aie.runtime_sequence @outside(%a: memref<8xi32>) {{
      {transfer("a", 8, "in", 0, offset=1)}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
  }}
"""
"""A core that waits for one credit too many, and what a host can do wrong."""

REGISTERS = """
  aie.device(npu2) @registers {
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %parameter = aie.buffer(%core) {address = 1024 : i32, sym_name = "parameter"} : memref<4xi32>
    %values = aie.buffer(%core) {address = 2048 : i32, sym_name = "values"} : memref<8xi32>
    %go = aie.lock(%core, 3) {init = 0 : i32, sym_name = "go"}
    %full = aie.lock(%core, 4) {init = 0 : i32, sym_name = "filled"}
    aie.flow(%shim, DMA : 1, %core, DMA : 0)
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.core(%core) {
      %one = arith.constant 1 : i32
      %c1 = arith.constant 1 : index
      %c0 = arith.constant 0 : index
      aie.use_lock(%go, AcquireGreaterEqual, %one)
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      %x = memref.load %parameter[%c1] : memref<4xi32>
      %y = memref.load %values[%c0] : memref<8xi32>
      %z = arith.addi %x, %y : i32
      memref.store %z, %values[%c0] : memref<8xi32>
      aie.use_lock(%full, Release, 2)
      aie.end
    }
    aie.mem(%core) {
      %0 = aie.dma_start(S2MM, 0, ^in, ^next)
    ^in:
      aie.dma_bd(%values : memref<8xi32>)
      aie.use_lock(%full, Release, 1)
      aie.next_bd ^end
    ^next:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%full, AcquireGreaterEqual, 2)
      aie.dma_bd(%values : memref<8xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }
    memref.global "private" constant @descriptor : memref<8xi32>
      = dense<[8, 4, 0, 1, -1073741824, 33554432, 0, 33554432]>
    aie.runtime_sequence @registers(%a: memref<32xi32>, %b: memref<8xi32>) {
      %data = memref.get_global @descriptor : memref<8xi32>
      aiex.npu.blockwrite(%data) {address = 118816 : ui32} : memref<8xi32>
      %plus = arith.constant 4 : i32
      aiex.npu.address_patch(%plus : i32) {addr = 118820 : ui32, arg_idx = 0 : i32}
      aiex.npu.writebd {bd_id = 2 : i32, buffer_length = 8 : i32, buffer_offset = 0 : i32, column = 0 : i32,
        row = 0 : i32, d0_size = 0 : i32, d0_stride = 0 : i32, d1_size = 0 : i32, d1_stride = 0 : i32,
        d2_stride = 0 : i32, iteration_size = 0 : i32, iteration_stride = 0 : i32, use_next_bd = 0 : i32}
      %zero = arith.constant 0 : i32
      aiex.npu.address_patch(%zero : i32) {addr = 118852 : ui32, arg_idx = 1 : i32}
      %control = arith.constant 119296 : i32
      %controller = arith.constant 3840 : i32
      %mask = arith.constant 7936 : i32
      aiex.npu.maskwrite32(%control, %controller, %mask) : i32, i32, i32
      %two = arith.constant 2 : i32
      aiex.npu.push_queue(0, 0, S2MM : 0) bd_id %two repeat %zero {issue_token = true} : i32, i32
      %queue = arith.constant 119324 : i32
      %bd = arith.constant 1 : i32
      aiex.npu.write32(%queue, %bd) : i32, i32
      %place = arith.constant 1028 : i32
      %value = arith.constant 1000 : i32
      aiex.npu.write32(%place, %value) {column = 0 : i32, row = 2 : i32} : i32, i32
      %lock = arith.constant 127024 : i32
      aiex.npu.write32(%lock, %bd) {column = 0 : i32, row = 2 : i32} : i32, i32
      aiex.npu.sync(%zero, %zero, %zero, %zero, %bd, %bd) : i32, i32, i32, i32, i32, i32
    }
  }
"""
"""Descriptors, queues, a parameter and a lock, by registers: every second word of an argument."""

BUSY = """
  aie.device(npu2) @busy {
    %core = aie.tile(0, 2)
    %free = aie.lock(%core, 0) {init = 1 : i32, sym_name = "free"}
    aie.core(%core) {
      cf.br ^again
    ^again:
      aie.use_lock(%free, AcquireGreaterEqual, 1)
      aie.use_lock(%free, Release, 1)
      cf.br ^again
    }
    aie.runtime_sequence @busy(%a: memref<8xi32>) {
      aiex.set_lock(%free, 1)
    }
  }
"""
"""A core that never waits, and never ends."""

DESIGNS = [TURN, FIFOS, PARTS, REPEATS, CASCADE, ARBITER, HEAD_OF_LINE, FAULTS, REGISTERS, BUSY]
MODULE = "\n".join(["module {", *DESIGNS, "}"])
