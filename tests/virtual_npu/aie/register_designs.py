"""Designs of the AIE level about order on the way, tokens, resets, ports of cores and registers."""

from __future__ import annotations

from tests.virtual_npu.aie.designs import transfer


def _crossing_switches(arbiter: int) -> str:
    """The routes of two packets that cross two switches the other way round, the second by this arbiter."""
    ways = {
        1: "%a = aie.amsel<0>(0) %m = aie.masterset(East : 0, %a) "
        "aie.packet_rules(DMA : 0) { aie.rule(31, 1, %a) }",
        2: f"%a = aie.amsel<0>(0) %b = aie.amsel<{arbiter}>(1) %m = aie.masterset(East : 0, %a) "
        "%n = aie.masterset(DMA : 0, %b) aie.packet_rules(West : 0) { aie.rule(31, 1, %a) } "
        "aie.packet_rules(East : 1) { aie.rule(31, 2, %b) }",
        3: f"%a = aie.amsel<0>(0) %b = aie.amsel<{arbiter}>(1) %m = aie.masterset(DMA : 0, %a) "
        "%n = aie.masterset(West : 1, %b) aie.packet_rules(West : 0) { aie.rule(31, 1, %a) } "
        "aie.packet_rules(East : 1) { aie.rule(31, 2, %b) } aie.connect<DMA : 0, South : 1>",
        4: "%b = aie.amsel<0>(0) %n = aie.masterset(West : 1, %b) "
        "aie.packet_rules(DMA : 0) { aie.rule(31, 2, %b) }",
    }
    return "\n".join(f"aie.switchbox(%t{column}) {{ {text} }}" for column, text in ways.items())


def _sender(column: int, packet: int) -> str:
    """A core that sends its buffer as a packet."""
    return f"""
    aie.mem(%t{column}) {{
      %0 = aie.dma_start(MM2S, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%b{column} : memref<32xi32>) {{packet = #aie.packet_info<pkt_type = 0, pkt_id = {packet}>}}
      aie.next_bd ^end
    ^end:
      aie.end
    }}"""


def _crossing(name: str, arbiter: int) -> str:
    """Two packets that cross two switches the other way round, the second one by this arbiter."""
    tiles = "\n".join(
        f"""
    %t{column} = aie.tile({column}, 3)
    %b{column} = aie.buffer(%t{column}) {{sym_name = "b{column}"}} : memref<32xi32> = dense<{column}>"""
        for column in (1, 2, 3, 4)
    )
    return f"""
  aie.device(npu2) @{name} {{
    {tiles}
    %shim = aie.tile(3, 0)
    %memtile = aie.tile(3, 1)
    %below = aie.tile(3, 2)
    {_sender(1, packet=1)}
    {_sender(4, packet=2)}
    %full = aie.lock(%t3, 0) {{init = 0 : i32, sym_name = "full"}}
    aie.mem(%t2) {{
      %0 = aie.dma_start(S2MM, 0, ^bd, ^end)
    ^bd:
      aie.dma_bd(%b2 : memref<32xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.mem(%t3) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^in, ^second)
    ^in:
      aie.dma_bd(%b3 : memref<32xi32>)
      aie.use_lock(%full, Release, %one)
      aie.next_bd ^end
    ^second:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%b3 : memref<32xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    {_crossing_switches(arbiter)}
    aie.switchbox(%below) {{ aie.connect<North : 1, South : 1> }}
    aie.switchbox(%memtile) {{ aie.connect<North : 1, South : 1> }}
    aie.switchbox(%shim) {{ aie.connect<North : 1, South : 2> }}
    aie.shim_dma_allocation @{name}_out(%shim, S2MM, 0)
    aie.runtime_sequence @{name}(%a: memref<32xi32>) {{
      {transfer("a", 32, f"{name}_out", 0)}
      aiex.npu.dma_wait {{symbol = @{name}_out}}
    }}
  }}
"""


def _token_switches(arbiter: int) -> str:
    """The routes of a packet by arbiter 5 of a shim, and of the shim's tokens by this arbiter."""
    return f"""aie.switchbox(%memtile) {{
      aie.connect<South : 3, DMA : 0>
      %a = aie.amsel<0>(0)
      %m = aie.masterset(South : 2, %a)
      aie.packet_rules(DMA : 0) {{ aie.rule(31, 3, %a) }}
    }}
    aie.switchbox(%shim) {{
      aie.connect<South : 3, North : 3>
      %a = aie.amsel<5>(3)
      %b = aie.amsel<{arbiter}>(2)
      %m = aie.masterset(East : 0, %a)
      %n = aie.masterset(South : 0, %b) {{keep_pkt_header = true}}
      aie.packet_rules(North : 2) {{ aie.rule(31, 3, %a) }}
      aie.packet_rules(TileControl : 0) {{ aie.rule(31, 15, %b) }}
    }}
    aie.switchbox(%next) {{
      %a = aie.amsel<0>(0)
      %m = aie.masterset(South : 2, %a)
      aie.packet_rules(West : 0) {{ aie.rule(31, 3, %a) }}
    }}"""


def _tokens(name: str, arbiter: int) -> str:
    """A packet waits for its receiver, and holds arbiter 5 of a shim, whose tokens go by this arbiter."""
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %next = aie.tile(1, 0)
    %memtile = aie.tile(0, 1)
    %ring = aie.buffer(%memtile) {{sym_name = "ring"}} : memref<64xi32>
    %free = aie.lock(%memtile, 0) {{init = 4 : i32, sym_name = "free"}}
    %full = aie.lock(%memtile, 1) {{init = 0 : i32, sym_name = "full"}}
    aie.memtile_dma(%memtile) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(S2MM, 0, ^in, ^second, repeat_count = 3)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, %one)
      aie.dma_bd(%ring : memref<64xi32> offset = 0 len = 16)
        {{iteration = #aie.bd_iteration<size = 4, stride = 16, current = 0>}}
      aie.use_lock(%full, Release, %one)
      aie.next_bd ^end
    ^second:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end, repeat_count = 3)
    ^out:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%ring : memref<64xi32> offset = 0 len = 16)
        {{packet = #aie.packet_info<pkt_type = 0, pkt_id = 3>,
          iteration = #aie.bd_iteration<size = 4, stride = 16, current = 0>}}
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    {_token_switches(arbiter)}
    aie.shim_dma_allocation @{name}_in(%shim, MM2S, 0)
    aie.shim_dma_allocation @{name}_out(%next, S2MM, 0)
    aie.runtime_sequence @{name}(%a: memref<64xi32>, %b: memref<64xi32>) {{
      {transfer("a", 64, f"{name}_in", 0)}
      aiex.npu.dma_wait {{symbol = @{name}_in}}
      {transfer("b", 64, f"{name}_out", 1)}
      aiex.npu.dma_wait {{symbol = @{name}_out}}
    }}
  }}
"""


RESETS = f"""
  aie.device(npu2) @resets {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %count = aie.buffer(%core) {{sym_name = "count"}} : memref<1xi32>
    %out = aie.buffer(%core) {{sym_name = "out"}} : memref<4xi32>
    %never = aie.buffer(%core) {{sym_name = "never"}} : memref<4xi32> = dense<99>
    %free = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "free"}}
    %full = aie.lock(%core, 1) {{init = 0 : i32, sym_name = "full"}}
    %held = aie.lock(%core, 2) {{init = 0 : i32, sym_name = "held"}}
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.core(%core) {{
      %one = arith.constant 1 : i32
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      aie.use_lock(%free, AcquireGreaterEqual, %one)
      %n = memref.load %count[%c0] : memref<1xi32>
      scf.for %i = %c0 to %c4 step %c1 {{
        memref.store %n, %out[%i] : memref<4xi32>
      }}
      %more = arith.addi %n, %one : i32
      memref.store %more, %count[%c0] : memref<1xi32>
      aie.use_lock(%full, Release, %one)
      aie.end
    }}
    aie.mem(%core) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(MM2S, 0, ^wrong, ^end)
    ^wrong:
      aie.use_lock(%held, AcquireGreaterEqual, %one)
      aie.dma_bd(%never : memref<4xi32>) {{bd_id = 0 : i32}}
      aie.next_bd ^right
    ^right:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%out : memref<4xi32>) {{bd_id = 1 : i32}}
      aie.use_lock(%free, Release, %one)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @resets_out(%shim, S2MM, 0)
    aie.runtime_sequence @resets(%a: memref<8xi32>) {{
      %right = arith.constant 1 : i32
      %again = arith.constant 1 : i32
      aiex.dma_channel_reset(%core, MM2S, 0)
      aiex.npu.push_queue(0, 2, MM2S : 0) bd_id %right repeat %again {{issue_token = false}} : i32, i32
      aiex.set_lock(%held, 1)
      {transfer("a", 4, "resets_out", 0).replace("memref<4xi32>", "memref<8xi32>")}
      aiex.npu.dma_wait {{symbol = @resets_out}}
      aiex.core_reset(%core)
      %control = arith.constant 0x32000 : i32
      %enable = arith.constant 1 : i32
      aiex.npu.maskwrite32(%control, %enable, %enable) {{column = 0 : i32, row = 2 : i32}} : i32, i32, i32
      {transfer("a", 4, "resets_out", 1, offset=4).replace("memref<4xi32>", "memref<8xi32>")}
      aiex.npu.dma_wait {{symbol = @resets_out}}
    }}
  }}
"""
"""The channel has begun with the wrong descriptor, and the core runs twice."""

STREAMS = f"""
  aie.device(npu2) @streams {{
    %shim = aie.tile(0, 0)
    %first = aie.tile(0, 2)
    %second = aie.tile(0, 4)
    %out = aie.buffer(%second) {{sym_name = "out"}} : memref<32xi32>
    %full = aie.lock(%second, 0) {{init = 0 : i32, sym_name = "full"}}
    aie.flow(%first, Core : 0, %second, Core : 0)
    aie.flow(%second, DMA : 0, %shim, DMA : 0)
    aie.core(%first) {{
      %port = arith.constant 0 : i32
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c32 = arith.constant 32 : index
      scf.for %i = %c0 to %c32 step %c1 {{
        %x = arith.index_cast %i : index to i32
        aie.put_stream(%port : i32, %x : i32)
      }}
      aie.end
    }}
    aie.core(%second) {{
      %port = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %words = arith.constant WORDS : index
      scf.for %i = %c0 to %words step %c1 {{
        %x = aie.get_stream(%port : i32) : i32
        %y = arith.addi %x, %one : i32
        memref.store %y, %out[%i] : memref<32xi32>
      }}
      aie.use_lock(%full, Release, %one)
      aie.end
    }}
    aie.mem(%second) {{
      %one = arith.constant 1 : i32
      %0 = aie.dma_start(MM2S, 0, ^bd, ^end)
    ^bd:
      aie.use_lock(%full, AcquireGreaterEqual, %one)
      aie.dma_bd(%out : memref<32xi32>)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @streams_out(%shim, S2MM, 0)
    aie.runtime_sequence @streams(%a: memref<32xi32>) {{
      {transfer("a", 32, "streams_out", 0)}
      aiex.npu.dma_wait {{symbol = @streams_out}}
    }}
  }}
"""

TILE_REGISTERS = f"""
  aie.device(npu2) @tile_registers {{
    %shim = aie.tile(0, 0)
    %memtile = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    %passed = aie.buffer(%memtile) {{address = 64 : i32, sym_name = "passed"}} : memref<64xi32>
    %free = aie.lock(%memtile, 0) {{init = 1 : i32, sym_name = "free"}}
    %full = aie.lock(%memtile, 1) {{init = 0 : i32, sym_name = "full"}}
    aie.flow(%shim, DMA : 0, %memtile, DMA : 0)
    aie.flow(%memtile, DMA : 0, %core, DMA : 0)
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    memref.global "private" constant @receive : memref<8xi32>
      = dense<[16, 0x100010, 0, 0, 0, 0, 0, 0x8141FF40]>
    memref.global "private" constant @core_in : memref<6xi32> = dense<[16, 0, 0, 0, 0, 0x2000000]>
    memref.global "private" constant @core_out : memref<6xi32> = dense<[16, 0, 1, 0x10000, 0, 0x2000000]>
    aie.shim_dma_allocation @registers_in(%shim, MM2S, 0)
    aie.shim_dma_allocation @registers_out(%shim, S2MM, 0)
    aie.runtime_sequence @tile_registers(%a: memref<32xi32>, %b: memref<32xi32>) {{
      %r = memref.get_global @receive : memref<8xi32>
      aiex.npu.blockwrite(%r) {{address = 0xA0000 : ui32, column = 0 : i32, row = 1 : i32}} : memref<8xi32>
      %address = arith.constant 0xA0004 : i32
      %itself = arith.constant 0x80010 : i32
      aiex.npu.write32(%address, %itself) {{column = 0 : i32, row = 1 : i32}} : i32, i32
      %receive_queue = arith.constant 0xA0604 : i32
      %zero = arith.constant 0 : i32
      aiex.npu.write32(%receive_queue, %zero) {{column = 0 : i32, row = 1 : i32}} : i32, i32
      aiex.npu.writebd {{bd_id = 1 : i32, buffer_length = 16 : i32, buffer_offset = 64 : i32,
        column = 0 : i32, row = 1 : i32, lock_acq_enable = 1 : i32, lock_acq_id = 65 : i32,
        lock_acq_val = 127 : i32,
        lock_rel_id = 64 : i32, lock_rel_val = 1 : i32, use_next_bd = 1 : i32, next_bd = 1 : i32}}
      %one = arith.constant 1 : i32
      aiex.npu.push_queue(0, 1, MM2S : 0) bd_id %one repeat %zero {{issue_token = false}} : i32, i32
      %i = memref.get_global @core_in : memref<6xi32>
      aiex.npu.blockwrite(%i) {{address = 0x1D000 : ui32, column = 0 : i32, row = 2 : i32}} : memref<6xi32>
      aiex.npu.push_queue(0, 2, S2MM : 0) bd_id %zero repeat %zero {{issue_token = true}} : i32, i32
      {transfer("a", 32, "registers_in", 0)}
      %down = arith.constant 0 : i32
      %two = arith.constant 2 : i32
      aiex.npu.sync(%zero, %two, %zero, %zero, %one, %one) : i32, i32, i32, i32, i32, i32
      %o = memref.get_global @core_out : memref<6xi32>
      aiex.npu.blockwrite(%o) {{address = 0x1D020 : ui32, column = 0 : i32, row = 2 : i32}} : memref<6xi32>
      aiex.npu.push_queue(0, 2, MM2S : 0) bd_id %one repeat %zero {{issue_token = false}} : i32, i32
      {transfer("b", 16, "registers_out", 1).replace("memref<16xi32>", "memref<32xi32>")}
      aiex.npu.dma_wait {{symbol = @registers_out}}
    }}
  }}
"""
"""Descriptors of a memtile that run again and again, and of a core's tile whose memory no buffer names; the
last one sends every second word first: of two dimensions, eight words with a stride of two."""

LOGICAL = """
  aie.device(npu2) @logical {
    %from = aie.logical_tile<ShimNOCTile>(?, ?)
    %to = aie.logical_tile<ShimNOCTile>(?, ?)
    %memtile = aie.logical_tile<MemTile>(1, ?)
    aie.objectfifo @logical_in(%from, {%memtile}, 2 : i32) : !aie.objectfifo<memref<5xi32>>
    aie.objectfifo @logical_out(%memtile dimensionsToStream [<size = 5, stride = 1>], {%to}, 2 : i32)
      {padDimensions = #aie<bd_pad_layout_array[<const_pad_before = 2, const_pad_after = 1>]>,
       padValue = 42 : i32}
      : !aie.objectfifo<memref<8xi32>>
    aie.objectfifo.link [@logical_in] -> [@logical_out]([] [])
    aie.runtime_sequence @logical(%a: memref<20xi32>, %b: memref<32xi32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %all = aiex.dma_configure_task_for @logical_out {
        aie.dma_bd(%b : memref<32xi32> offset = 0 len = 32)
        aie.end
      } {issue_token = true}
      aiex.dma_start_task(%all)
      %first = aiex.dma_configure_task_for @logical_in {
        aie.dma_bd(%a : memref<20xi32> offset = 0 len = 5)
        aie.end
      } {issue_token = true}
      aiex.dma_start_task(%first)
      %last = scf.for %i = %c0 to %c3 step %c1 iter_args(%before = %first) -> (index) {
        %n = arith.index_cast %i : index to i32
        %five = arith.constant 5 : i32
        %m = arith.muli %n, %five : i32
        %offset = arith.addi %m, %five : i32
        %next = aiex.dma_configure_task_for @logical_in {
          aie.dma_bd(%a : memref<20xi32> offset = %offset len = %five)
          aie.end
        } {issue_token = true}
        aiex.dma_start_task(%next)
        aiex.dma_await_task(%before)
        scf.yield %next : index
      }
      aiex.dma_await_task(%last)
      aiex.dma_await_task(%all)
    }
  }
"""

FAULTS = f"""
  aie.device(npu2) @faults {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %other = aie.tile(0, 3)
    %number = aie.buffer(%core) {{sym_name = "number"}} : memref<4xi32> = dense<[1, 2, 3, 4]>
    %go = aie.lock(%core, 3) {{init = 0 : i32, sym_name = "go"}}
    %read_only = aie.lock(%other, 0) {{init = 0 : i32, sym_name = "read_only"}}
    aie.packet_flow(1) {{
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%core, TileControl : 0>
    }}
    aie.packet_flow(2) {{
      aie.packet_source<%core, TileControl : 0>
      aie.packet_dest<%shim, DMA : 0>
    }}
    aie.packet_flow(3) {{
      aie.packet_source<%shim, DMA : 0>
      aie.packet_dest<%other, TileControl : 0>
    }}
    aie.core(%core) {{
      %two = arith.constant 2 : i32
      %c0 = arith.constant 0 : index
      %five = arith.constant 5 : i32
      aie.use_lock(%go, AcquireGreaterEqual, %two)
      memref.store %five, %number[%c0] : memref<4xi32>
      aie.end
    }}
    aie.shim_dma_allocation @control(%shim, MM2S, 0)
    aie.shim_dma_allocation @answer(%shim, S2MM, 0)
    aie.runtime_sequence @control_packets(%a: memref<5xi32>, %read: memref<1xi32>, %b: memref<4xi32>) {{
      {transfer("b", 4, "answer", 0)}
      {transfer("a", 5, "control", 1, ", packet = <pkt_id = 1, pkt_type = 1>")}
      {transfer("read", 1, "control", 2, ", packet = <pkt_id = 1, pkt_type = 1>")}
      aiex.npu.dma_wait {{symbol = @answer}}
    }}
    aie.runtime_sequence @no_answer(%a: memref<2xi32>) {{
      {transfer("a", 2, "control", 1, ", packet = <pkt_id = 3, pkt_type = 1>")}
      aiex.npu.dma_wait {{symbol = @answer}}
    }}
    aie.runtime_sequence @no_task(%a: memref<8xi32>) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %seven = arith.constant 7 : index
      %last = scf.for %i = %c0 to %c1 step %c1 iter_args(%task = %seven) -> (index) {{
        aiex.dma_await_task(%task)
        scf.yield %task : index
      }}
    }}
  }}
"""

MODULE = "module {\n" + "".join([
    _crossing("crossing", 0), _crossing("apart", 1), _tokens("token_behind", 5),
    _tokens("token_beside", 4), RESETS,
    STREAMS.replace("WORDS", "32"),
    STREAMS.replace("WORDS", "33").replace("streams", "starved"),
    TILE_REGISTERS, LOGICAL, FAULTS,
]) + "}\n"  # fmt: skip
