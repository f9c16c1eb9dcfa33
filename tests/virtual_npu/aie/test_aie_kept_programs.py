"""A reset by a copy of the device whose cores are empty: they begin again with their programs."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.virtual_npu.errors import UnsupportedOpError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.designs import adder, transfer

FIFO = "!aie.objectfifo<memref<8xi32>>"


def _device(name: str, core: str, sequence: str = "", address: int = 2048) -> str:
    return f"""
  aie.device(npu2) @{name} {{
    %shim = aie.tile(0, 0)
    %tile = aie.tile(0, 2)
    %own = aie.buffer(%tile) {{address = {address} : i32, sym_name = "own"}} : memref<8xi32>
    aie.objectfifo @in(%shim, {{%tile}}, 1 : i32) : {FIFO}
    aie.objectfifo @out(%tile, {{%shim}}, 1 : i32) : {FIFO}
    {core}
    {sequence}
  }}
"""


def _design(address: int) -> str:
    """A core that works once, for three points: the reset between them lets it begin again, each time."""
    points = [
        f"""{transfer("b", 24, "out", 0, offset=at).replace("1, 1, 1, 24", "1, 1, 1, 8")}
      {transfer("a", 24, "in", 1, offset=at).replace("1, 1, 1, 24", "1, 1, 1, 8")}
      aiex.npu.dma_wait {{symbol = @out}}"""
        for at in (0, 8, 16)
    ]
    reset = "\n      aiex.npu.load_pdi {device_ref = @add_reset}\n      "
    sequence = f"""aie.runtime_sequence @thrice(%a: memref<24xi32>, %b: memref<24xi32>) {{
      {reset.join(points)}
    }}"""
    empty = "aie.core(%tile) {\n      aie.end\n    }"
    whole = _device("add", adder("%tile", "in", "out", 1, 5), sequence)
    return "module {" + whole + _device("add_reset", empty, address=address) + "}\n"


def test_empty_cores_begin_again_with_their_programs() -> None:
    program = Program.from_text(_design(2048), options=BuildOptions())
    before = np.arange(24, dtype=np.int32)
    outputs = program.run(before, np.zeros(24, np.int32)).outputs
    assert np.array_equal(outputs[1], before + 5)


def test_buffers_at_other_addresses_are_refused() -> None:
    """mlir-air's copy has the default stack; buffers beside it lie elsewhere if the cores asked for more."""
    program = Program.from_text(_design(1024), options=BuildOptions())
    with pytest.raises(
        UnsupportedOpError,
        match=r"load_pdi: cores keep the programs of @add, which have own of tile .* at address 2048, and "
        r"DMAs then write to 1024: results would be wrong; .* one stack size, .* \(--stack-size=1024\)",
    ):
        program.run(np.zeros(24, np.int32), np.zeros(24, np.int32))


def _sender(name: str, initial: str, more: str = "") -> str:
    """A device whose memtile sends a buffer of four words to the host."""
    return f"""aie.device(npu2) @{name} {{
      %shim = aie.tile(0, 0)
      %mem = aie.tile(0, 1)
      %four = aie.buffer(%mem) {{sym_name = "four"{initial}}} : memref<4xi32>
      {more}
      aie.memtile_dma(%mem) {{
        aie.dma_start(MM2S, 0, ^send, ^end)
      ^send:
        aie.dma_bd(%four : memref<4xi32> offset = 0 len = 4)
        aie.next_bd ^end
      ^end:
        aie.end
      }}
      aie.flow(%mem, DMA : 0, %shim, DMA : 0)
      aie.shim_dma_allocation @{name}_out(%shim, S2MM, 0)
      aie.runtime_sequence @send(%out: memref<4xi32>) {{
        aiex.npu.dma_memcpy_nd(%out[0, 0, 0, 0][1, 1, 1, 4][0, 0, 0, 1])
          {{id = 0 : i64, issue_token = true, metadata = @{name}_out}} : memref<4xi32>
        aiex.npu.dma_wait {{symbol = @{name}_out}}
      }}
    }}"""


@pytest.mark.parametrize("apart", [False, True], ids=["where_it_lay", "elsewhere"])
def test_a_memory_stays_when_another_device_is_loaded(apart: bool) -> None:
    more = '%other = aie.buffer(%mem) {sym_name = "other"} : memref<8xi32>' if apart else ""
    text = f"""module {{
      aie.device(npu2) @main {{
        aie.runtime_sequence @both(%first: memref<4xi32>, %second: memref<4xi32>) {{
          aiex.configure @one {{ aiex.run @send(%first) : (memref<4xi32>) }}
          aiex.configure @two {{ aiex.run @send(%second) : (memref<4xi32>) }}
        }}
      }}
      {_sender("one", ", initial_value = dense<[1, 2, 3, 4]> : tensor<4xi32>")}
      {_sender("two", "", more)}
    }}"""
    program = Program.from_text(text, "kept.mlir", options=BuildOptions())
    zeros = np.zeros(4, np.int32)
    first, second = program.run(zeros, zeros.copy(), entry="both").outputs
    assert first.tolist() == [1, 2, 3, 4]
    assert second.tolist() == ([0] * 4 if apart else [1, 2, 3, 4])
