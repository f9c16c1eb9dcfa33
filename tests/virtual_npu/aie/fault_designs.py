"""Designs of the AIE level with a fault each, or that leave something behind; one module, built once."""

from __future__ import annotations

from tests.virtual_npu.aie.designs import transfer

LEFT = f"""
  aie.device(npu2) @left {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %north = aie.tile(0, 3)
    %data = aie.buffer(%core) {{sym_name = "data"}} : memref<16xi32> = dense<3>
    %step = aie.buffer(%north) {{sym_name = "step"}} : memref<16xi32>
    %free = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "free"}}
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.cascade_flow(%north, %core)
    aie.core(%north) {{
      %c0 = arith.constant 0 : index
      %v = vector.load %step[%c0] : memref<16xi32>, vector<16xi32>
      aie.put_cascade(%v : vector<16xi32>)
      aie.end
    }}
    aie.core(%core) {{
      aie.end
    }}
    aie.mem(%core) {{
      %0 = aie.dma_start(MM2S, 0, ^out, ^next)
    ^out:
      aie.dma_bd(%data : memref<16xi32> offset = 0 len = 8)
      aie.next_bd ^end
    ^next:
      %1 = aie.dma_start(S2MM, 0, ^in, ^end)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, 1)
      aie.dma_bd(%data : memref<16xi32> offset = 0 len = 8)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence @left(%a: memref<16xi32>, %b: memref<16xi32>) {{
      {transfer("b", 16, "out", 0)}
      {transfer("a", 16, "in", 1)}
    }}
    aie.runtime_sequence @not_armed(%a: memref<4096xi32>) {{
      {transfer("a", 4096, "in", 0)}
      {transfer("a", 4096, "in", 1)}
      aiex.npu.dma_wait {{symbol = @in}}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
    aie.runtime_sequence @overwritten(%a: memref<8192xi32>) {{
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 0][1, 1, 1, 4096][0, 0, 0, 1])
        {{id = 5 : i64, metadata = @in}} : memref<8192xi32>
      aiex.npu.dma_memcpy_nd(%a[0, 0, 0, 4096][1, 1, 1, 4096][0, 0, 0, 1])
        {{id = 5 : i64, metadata = @in}} : memref<8192xi32>
    }}
  }}
"""
"""Chains that run once, so that words, a task and a step of a cascade stay where they are."""

_CHANNELS = ("to_0", "to_1", "from_0", "from_1")
_TASKS = "\n".join(
    f"""
      %t{number} = aiex.dma_configure_task_for @{_CHANNELS[number // 5]} {{
        aie.dma_bd(%a : memref<4096xi32> offset = 0 len = 4096)
        aie.end
      }}
      aiex.dma_start_task(%t{number})"""
    for number in range(20)
)

POOL = f"""
  aie.device(npu2) @pool {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.flow(%shim, DMA : 1, %core, DMA : 1)
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.flow(%core, DMA : 1, %shim, DMA : 1)
    aie.shim_dma_allocation @to_0(%shim, MM2S, 0)
    aie.shim_dma_allocation @to_1(%shim, MM2S, 1)
    aie.shim_dma_allocation @from_0(%shim, S2MM, 0)
    aie.shim_dma_allocation @from_1(%shim, S2MM, 1)
    aie.runtime_sequence @pool(%a: memref<4096xi32>) {{
      {_TASKS}
    }}
  }}
"""
"""Five tasks for each of the four channels of a shim."""


def _endless(name: str, body: str, wait: str) -> str:
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %other = aie.tile(0, 3)
    %number = aie.buffer(%core) {{sym_name = "number"}} : memref<1xi32>
    %own = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "own"}}
    %never = aie.lock(%other, 0) {{init = 0 : i32, sym_name = "never"}}
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    aie.core(%core) {{
      %c0 = arith.constant 0 : index
      %yes = arith.constant true
      {body}
    }}
    aie.core(%other) {{
      aie.use_lock(%never, AcquireGreaterEqual, 1)
      aie.end
    }}
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence @{name}(%b: memref<8xi32>) {{
      {wait}
    }}
  }}
"""


_WAIT = f"""{transfer("b", 8, "out", 0)}
      aiex.npu.dma_wait {{symbol = @out}}"""
_JUMPS = """cf.br ^again
    ^again:
      %x = memref.load %number[%c0] : memref<1xi32>
      memref.store %x, %number[%c0] : memref<1xi32>
      cf.br ^again"""
_WHILE = """scf.while : () -> () {
        scf.condition(%yes)
      } do {
        scf.yield
      }
      aie.end"""
_SPINS = """cf.br ^again
    ^again:
      aie.use_lock(%own, AcquireGreaterEqual, 1)
      aie.use_lock(%own, Release, 1)
      cf.br ^again"""
ENDLESS = "".join([
    _endless("jumps", _JUMPS, _WAIT), _endless("loops", _WHILE, _WAIT), _endless("spins", _SPINS, _WAIT),
    _endless("goes_on", _JUMPS, ""),
])  # fmt: skip
"""A core that never waits, while the host waits for a token, or has ended."""

CREDITS = f"""
  aie.device(npu2) @credits {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    %data = aie.buffer(%core) {{address = 1056 : i32, sym_name = "data"}} : memref<32xi32>
    %sum = aie.buffer(%core) {{sym_name = "sum"}} : memref<32xi32>
    %free = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "free"}}
    %full = aie.lock(%core, 1) {{init = 0 : i32, sym_name = "full"}}
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.core(%core) {{
      %c0 = arith.constant 0 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      aie.use_lock(%full, AcquireGreaterEqual, 1)
      %x = memref.load %data[%c0] : memref<32xi32>
      %flag = arith.trunci %x : i32 to i1
      %v = vector.load %data[%c0] : memref<32xi32>, vector<16xi32>
      %w = vector.load %data[%c8] : memref<32xi32>, vector<16xi32>
      vector.store %w, %sum[%c8] : memref<32xi32>, vector<16xi32>
      vector.store %v, %sum[%c16] : memref<32xi32>, vector<16xi32>
      scf.if %flag {{
        aie.use_lock(%free, Release, 1)
      }} else {{
        aie.use_lock(%free, Release, 1)
      }}
      aie.use_lock(%free, Release, 1)
      aie.end
    }}
    aie.mem(%core) {{
      %0 = aie.dma_start(S2MM, 0, ^in, ^end)
    ^in:
      aie.use_lock(%free, AcquireGreaterEqual, 1)
      aie.dma_bd(%data : memref<32xi32>)
      aie.use_lock(%full, Release, 1)
      aie.next_bd ^in
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.runtime_sequence @credits(%a: memref<32xi32>) {{
      {transfer("a", 32, "in", 0)}
      aiex.npu.dma_wait {{symbol = @in}}
    }}
  }}
"""
"""A core that gives its buffer back twice, and accesses 512 bits where these do not lie."""

_VIEW = "!aie.objectfifosubview<memref<8xi32>>"


def _take(name: str, times: int) -> str:
    one = f"""%s{{n}} = aie.objectfifo.acquire @{name}(Consume, 1) : {_VIEW}
      aie.objectfifo.release @{name}(Consume, 1)"""
    return "\n".join(one.replace("{n}", f"_{name}_{n}") for n in range(times))


def _broadcast(name: str, depth: int) -> str:
    """Two cores get the same four objects; the second one waits for what the first one makes of all."""
    fifo = "!aie.objectfifo<memref<8xi32>>"
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %first = aie.tile(0, 2)
    %second = aie.tile(0, 3)
    aie.objectfifo @all(%shim, {{%first, %second}}, [1, 1, {depth}]) : {fifo}
    aie.objectfifo @between(%first, {{%second}}, 1 : i32) : {fifo}
    aie.objectfifo @out(%second, {{%shim}}, 1 : i32) : {fifo}
    aie.core(%first) {{
      {_take("all", 4)}
      %s = aie.objectfifo.acquire @between(Produce, 1) : {_VIEW}
      aie.objectfifo.release @between(Produce, 1)
      aie.end
    }}
    aie.core(%second) {{
      {_take("between", 1)}
      {_take("all", 4)}
      %s = aie.objectfifo.acquire @out(Produce, 1) : {_VIEW}
      aie.objectfifo.release @out(Produce, 1)
      aie.end
    }}
    aie.runtime_sequence @{name}(%a: memref<32xi32>, %b: memref<8xi32>) {{
      {transfer("b", 8, "out", 0)}
      {transfer("a", 32, "all", 1)}
      aiex.npu.dma_wait {{symbol = @out}}
    }}
  }}
"""


BROADCASTS = _broadcast("shallow", 2) + _broadcast("deep", 3)
"""The slower receiver holds two of four objects, or three, and one more in front of its channel."""


def _slots(name: str, second: str) -> str:
    """Two channels fill a slot each of a memtile's buffer, which is sent slot by slot. second: the lock that
    says that the second slot is full."""
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %slots = aie.buffer(%mem) {{sym_name = "slots"}} : memref<16xi32>
    %full = aie.lock(%mem, 0) {{init = 0 : i32, sym_name = "full"}}
    %other = aie.lock(%mem, 1) {{init = 0 : i32, sym_name = "other"}}
    aie.flow(%shim, DMA : 0, %mem, DMA : 0)
    aie.flow(%shim, DMA : 1, %mem, DMA : 1)
    aie.flow(%mem, DMA : 0, %shim, DMA : 0)
    aie.memtile_dma(%mem) {{
      %0 = aie.dma_start(S2MM, 0, ^left, ^next)
    ^left:
      aie.dma_bd(%slots : memref<16xi32> offset = 0 len = 8)
      aie.use_lock(%full, Release, 1)
      aie.next_bd ^end
    ^next:
      %1 = aie.dma_start(S2MM, 1, ^right, ^last)
    ^right:
      aie.dma_bd(%slots : memref<16xi32> offset = 8 len = 8)
      aie.use_lock(%{second}, Release, 1)
      aie.next_bd ^end
    ^last:
      %2 = aie.dma_start(MM2S, 0, ^first_slot, ^end)
    ^first_slot:
      aie.use_lock(%full, AcquireGreaterEqual, 1)
      aie.dma_bd(%slots : memref<16xi32> offset = 0 len = 8)
      aie.next_bd ^second_slot
    ^second_slot:
      aie.use_lock(%{second}, AcquireGreaterEqual, 1)
      aie.dma_bd(%slots : memref<16xi32> offset = 8 len = 8)
      aie.next_bd ^end
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @left(%shim, MM2S, 0)
    aie.shim_dma_allocation @right(%shim, MM2S, 1)
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence @{name}(%a: memref<16xi32>, %b: memref<16xi32>) {{
      {transfer("b", 16, "out", 0)}
      {transfer("a", 16, "right", 1, offset=8).replace("1, 1, 1, 16", "1, 1, 1, 8")}
      aiex.npu.dma_wait {{symbol = @right}}
      {transfer("a", 16, "left", 2).replace("1, 1, 1, 16", "1, 1, 1, 8")}
      aiex.npu.dma_wait {{symbol = @out}}
    }}
  }}
"""


SLOTS = _slots("arrivals", "full") + _slots("slot_by_slot", "other")
"""A lock that counts what has arrived, whichever slot it is in; and a lock for each slot."""


def _scope(name: str, before: str, after: str) -> str:
    """A core that copies three blocks; it gives back its input before it waits for room, or after it read."""
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %core = aie.tile(0, 2)
    aie.flow(%shim, DMA : 0, %core, DMA : 0)
    aie.flow(%core, DMA : 0, %shim, DMA : 0)
    %in = aie.buffer(%core) {{sym_name = "block"}} : memref<8xi32>
    %copy = aie.buffer(%core) {{sym_name = "copy"}} : memref<8xi32>
    %in_free = aie.lock(%core, 0) {{init = 1 : i32, sym_name = "in_free"}}
    %in_full = aie.lock(%core, 1) {{init = 0 : i32, sym_name = "in_full"}}
    %copy_free = aie.lock(%core, 2) {{init = 1 : i32, sym_name = "copy_free"}}
    %copy_full = aie.lock(%core, 3) {{init = 0 : i32, sym_name = "copy_full"}}
    aie.core(%core) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %c8 = arith.constant 8 : index
      scf.for %r = %c0 to %c3 step %c1 {{
        aie.use_lock(%in_full, AcquireGreaterEqual, 1)
        {before}
        aie.use_lock(%copy_free, AcquireGreaterEqual, 1)
        scf.for %i = %c0 to %c8 step %c1 {{
          %x = memref.load %in[%i] : memref<8xi32>
          memref.store %x, %copy[%i] : memref<8xi32>
        }}
        {after}
        aie.use_lock(%copy_full, Release, 1)
      }}
      aie.end
    }}
    aie.mem(%core) {{
      %0 = aie.dma_start(S2MM, 0, ^in, ^next)
    ^in:
      aie.use_lock(%in_free, AcquireGreaterEqual, 1)
      aie.dma_bd(%in : memref<8xi32>)
      aie.use_lock(%in_full, Release, 1)
      aie.next_bd ^in
    ^next:
      %1 = aie.dma_start(MM2S, 0, ^out, ^end)
    ^out:
      aie.use_lock(%copy_full, AcquireGreaterEqual, 1)
      aie.dma_bd(%copy : memref<8xi32>)
      aie.use_lock(%copy_free, Release, 1)
      aie.next_bd ^out
    ^end:
      aie.end
    }}
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    aie.shim_dma_allocation @out(%shim, S2MM, 0)
    aie.runtime_sequence @{name}(%a: memref<24xi32>, %b: memref<24xi32>) {{
      {transfer("a", 24, "in", 0)}
      aiex.npu.dma_wait {{symbol = @in}}
      {transfer("b", 24, "out", 1)}
      aiex.npu.dma_wait {{symbol = @out}}
    }}
  }}
"""


_GIVE_BACK = "aie.use_lock(%in_free, Release, 1)"
SCOPES = _scope("too_early", _GIVE_BACK, "") + _scope("after_reading", "", _GIVE_BACK)

MODULE = "\n".join(["module {", LEFT, POOL, ENDLESS, CREDITS, BROADCASTS, SLOTS, SCOPES, "}"])
