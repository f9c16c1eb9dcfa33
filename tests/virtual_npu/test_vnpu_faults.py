# ruff: noqa: E501 - MLIR has long lines
"""Faults that a device does not tell: each is found, and its right neighbour runs without a word."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie import virtual_npu

L1 = "memref<16xf32, 2>"


def _tile(name: str, body: str) -> str:
    """A tile that copies 16 numbers through its L1; `body` copies them out, and frees."""
    return f"""
func.func @{name}(%in: memref<16xf32>, %out: memref<16xf32>) {{
  air.launch () in () args(%in1=%in, %out1=%out) : memref<16xf32>, memref<16xf32> {{
    air.segment @s args(%in2=%in1, %out2=%out1) : memref<16xf32>, memref<16xf32> {{
      air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%a=%in2, %b=%out2) : memref<16xf32>, memref<16xf32> {{
        %l = memref.alloc() : {L1}
        %t1 = air.dma_memcpy_nd async (%l[] [] [], %a[] [] []) : ({L1}, memref<16xf32>)
        {body}
      }}
    }}
  }}
  return
}}
"""


OUT = f"%t2 = air.dma_memcpy_nd async [%t1] (%b[] [] [], %l[] [] []) : (memref<16xf32>, {L1})\n        "
FREE = f"memref.dealloc %l : {L1}"
COMPUTE = f"air.wait_all [%t1]\n %one = arith.constant 1.0 : f32\n %t2 = air.execute {{\n linalg.fill ins(%one : f32) outs(%l : {L1})\n }}\n "


def _cascade(name: str, after: str) -> str:
    """Two tiles: one sends its L1 through a cascade and frees it, after the token of the put or without it."""
    return f"""
air.channel @{name}_link [1] {{channel_type = "npu_cascade"}}
func.func @{name}(%in: memref<16xf32>, %out: memref<16xf32>) {{
  air.launch () in () args(%out1=%out) : memref<16xf32> {{
    air.segment @s args(%out2=%out1) : memref<16xf32> {{
      air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c2) args(%b=%out2) : memref<16xf32> {{
        %l = memref.alloc() : {L1}
        affine.if affine_set<(d0) : (d0 - 1 == 0)>(%y) {{
          %one = arith.constant 1.0 : f32
          linalg.fill ins(%one : f32) outs(%l : {L1})
          %t3 = air.channel.put async @{name}_link[%c0] (%l[] [] []) : ({L1})
          %t4 = air.execute {after} {{
            {FREE}
          }}
        }} else {{
          air.channel.get @{name}_link[%c0] (%l[] [] []) : ({L1})
          air.dma_memcpy_nd (%b[] [] [], %l[] [] []) : (memref<16xf32>, {L1})
          {FREE}
        }}
      }}
    }}
  }}
  return
}}
"""


def _host(name: str, first: str, last: str) -> str:
    """A launch that writes %out, and what the host does beside it."""
    return f"""
func.func @{name}(%in: memref<16xf32>, %out: memref<16xf32>) {{
  {first}
  %t = air.launch async () in () args(%a=%in, %b=%out) : memref<16xf32>, memref<16xf32> {{
    %d = air.dma_memcpy_nd async (%b[] [] [], %a[] [] []) : (memref<16xf32>, memref<16xf32>)
  }}
  {last}
  return
}}
"""


READ = "%v = memref.load %out[%c0] : memref<16xf32>\n memref.store %v, %out[%c1] : memref<16xf32>\n"
FILL = "%z = arith.constant 0.0 : f32\n linalg.fill ins(%z : f32) outs(%out : memref<16xf32>)\n"
WAIT = "air.wait_all [%t]\n"


def _herd(name: str, place: str, token: str = "", after: str = "") -> str:
    """A herd that writes 16 numbers of L2, from element %cN on."""
    return f"""
      {token}air.herd @{name} {after} tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%l=%l2) : memref<32xf32, 1> {{
        %b = memref.alloc() : {L1}
        %one = arith.constant 1.0 : f32
        linalg.fill ins(%one : f32) outs(%b : {L1})
        air.dma_memcpy_nd (%l[{place}] [%c16] [%c1], %b[] [] []) : (memref<32xf32, 1>, {L1})
        memref.dealloc %b : {L1}
      }}"""


def _herds(name: str, herds: str) -> str:
    return f"""
func.func @{name}(%in: memref<16xf32>, %out: memref<16xf32>) {{
  air.launch () in () args(%out1=%out) : memref<16xf32> {{
    air.segment @s args(%out2=%out1) : memref<16xf32> {{
      %l2 = memref.alloc() : memref<32xf32, 1>{herds}
      air.dma_memcpy_nd (%out2[] [] [], %l2[%c0] [%c16] [%c1]) : (memref<16xf32>, memref<32xf32, 1>)
      memref.dealloc %l2 : memref<32xf32, 1>
    }}
  }}
  return
}}
"""


def _of_numbers(name: str, body: str) -> str:
    """%x: an f32, %n: an i64, of the first elements of the arguments."""
    return f"""
func.func @{name}(%a: memref<16xf32>, %p: memref<16xi64>) {{
  %x = memref.load %a[%c0] : memref<16xf32>
  %n = memref.load %p[%c0] : memref<16xi64>
  {body}
  return
}}
"""


PAIRS = (
    _tile("freed_bad", f"{OUT}%t3 = air.execute {{\n {FREE}\n }}")
    + _tile("freed_good", f"{OUT}%t3 = air.execute [%t2] {{\n {FREE}\n }}")
    + _tile("freed_plain_bad", f"{OUT}{FREE}")
    + _tile("freed_plain_good", f"{OUT}air.wait_all [%t2]\n {FREE}")
    + _tile("computed_bad", f"{COMPUTE}%t3 = air.execute {{\n {FREE}\n }}")
    + _cascade("cascade_bad", "")
    + _cascade("cascade_good", "[%t3]")
    + _tile("computed_good", f"{COMPUTE}%t3 = air.execute [%t2] {{\n {FREE}\n }}")
    + _host("host_read_bad", "", READ + WAIT)
    + _host("host_read_good", "", WAIT + READ)
    + _host("host_write_bad", "", FILL + WAIT)
    + _host("host_write_good", FILL, WAIT)
    + _herds("herds_bad", _herd("one", "%c0") + _herd("two", "%c0"))
    + _herds("herds_good", _herd("one", "%c0") + _herd("two", "%c16"))
    + _herds("herds_in_turn_good", _herd("one", "%c0", "%t1 = ", "async") + _herd("two", "%c0", "%t2 = ", "async [%t1]") + "\n air.wait_all [%t2]")
)  # fmt: skip
NUMBERS = {
    "shli": "%m = arith.trunci %n : i64 to i32\n %r = arith.shli %m, %m : i32\n %w = arith.extsi %r : i32 to i64\n memref.store %w, %p[%c1] : memref<16xi64>",
    "shrsi": "%r = arith.shrsi %n, %n : i64\n memref.store %r, %p[%c1] : memref<16xi64>",
    "shrui": "%v = vector.broadcast %n : i64 to vector<4xi64>\n %r = arith.shrui %v, %v : vector<4xi64>\n vector.store %r, %p[%c1] : memref<16xi64>, vector<4xi64>",
    "fptosi": "%i = arith.fptosi %x : f32 to i16\n %w = arith.extsi %i : i16 to i64\n memref.store %w, %p[%c1] : memref<16xi64>",
    "fptoui": "%v = vector.broadcast %x : f32 to vector<4xf32>\n %i = arith.fptoui %v : vector<4xf32> to vector<4xi8>\n %w = arith.extui %i : vector<4xi8> to vector<4xi64>\n vector.store %w, %p[%c1] : memref<16xi64>, vector<4xi64>",
    "divf": "%r = arith.divf %x, %x : f32\n memref.store %r, %a[%c1] : memref<16xf32>",
    "truncf": "%h = arith.truncf %x : f32 to f16\n %r = arith.extf %h : f16 to f32\n memref.store %r, %a[%c1] : memref<16xf32>",
    "log": "%v = vector.broadcast %x : f32 to vector<4xf32>\n %r = math.log %v : vector<4xf32>\n vector.store %r, %a[%c1] : memref<16xf32>, vector<4xf32>",
    "while": "%r = scf.while (%i = %n) : (i64) -> i64 {\n %z = arith.constant 0 : i64\n %q = arith.cmpi ne, %i, %z : i64\n scf.condition(%q) %i : i64\n } do {\n ^bb0(%j: i64):\n %o = arith.constant 2 : i64\n %k = arith.subi %j, %o : i64\n memref.store %k, %p[%c1] : memref<16xi64>\n scf.yield %k : i64\n }",
    "for": "%h = arith.index_cast %n : i64 to index\n scf.for %i = %c0 to %h step %c1 {\n %w = memref.load %p[%c1] : memref<16xi64>\n %k = arith.addi %w, %n : i64\n memref.store %k, %p[%c1] : memref<16xi64>\n }",
    "moving": "%h = arith.index_cast %n : i64 to index\n scf.for %i = %c0 to %h step %c1 {\n memref.copy %a, %a : memref<16xf32> to memref<16xf32>\n }",
}  # fmt: skip


@pytest.fixture(scope="module")
def library(program) -> virtual_npu.Library:
    text = PAIRS + "".join(_of_numbers(name, body) for name, body in NUMBERS.items())
    return program(text, options=virtual_npu.BuildOptions(checks=True))


def notes(library: virtual_npu.Library, name: str) -> str:
    arrays = [np.arange(16, dtype=np.float32) for _ in range(2)]
    return "\n".join(library.run(name, [array.ctypes.data for array in arrays]).notes)


def of_numbers(library: virtual_npu.Library, name: str, x: float = 0, n: int = 0, limit: float = 0) -> str:
    arrays = np.full(16, x, np.float32), np.full(16, n, np.int64)
    options = virtual_npu.RunOptions(time_limit=limit)
    return "\n".join(library.run(name, [array.ctypes.data for array in arrays], options).notes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("freed", r"memref.dealloc in herd @h \(0, 0\): frees %l \(.*\) while line \d+: air.dma_memcpy_nd, which .* it, may be under way: let the deallocation depend on its token"),
        ("freed_plain", r"frees %l \(.*\) while line \d+: air.dma_memcpy_nd, which .* may be under way"),
        ("host_read", r"memref.load in func @host_read_bad: data race: this reads element 0 of %out, which line \d+: air.dma_memcpy_nd in launch writes"),
        ("host_write", r"linalg.fill in func @host_write_bad: data race: this writes element 0 of %out, which line \d+: air.dma_memcpy_nd in launch writes"),
    ],
)  # fmt: skip
def test_what_is_not_waited_for_is_refused(library, name, message):
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
        notes(library, f"{name}_bad")
    assert notes(library, f"{name}_good") == ""


def test_a_free_after_a_computation_of_its_tile_is_noted_without_a_token(library):
    """As aircc leaves attention: the tile runs in order, so nothing is freed in use."""
    message = (
        r"memref.dealloc: in herd @h \(0, 0\): missing token, a free of a buffer in use but for the order of the tile: "
        r"this frees %l \(memref<16xf32, 2>, allocated at line \d+\), which line \d+: air.execute writes, and no token puts "
        "one before the other: right as long as the tile runs in this order, but a pass may change it; let the "
        "deallocation depend on the token of the other"
    )
    assert re.search(message, notes(library, "computed_bad"))
    assert notes(library, "computed_good") == ""
    assert "a free of a buffer in use but for the order of the tile" in notes(library, "cascade_bad")
    assert notes(library, "cascade_good") == ""


def test_herds_that_write_the_same_bytes_are_noted(library):
    assert "two herds write the same bytes: this writes element 0 of %l2, which line" in notes(
        library, "herds_bad"
    )
    assert notes(library, "herds_good") == ""
    assert notes(library, "herds_in_turn_good") == ""


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("shli", {"n": 31}, [{"n": 32}, {"n": -1}, {"n": 1000}], r"arith.shli: shifts a number of 32 bits by -?\d+: legal are 0 to 31"),
        ("shrsi", {"n": 63}, [{"n": 64}, {"n": -(1 << 63)}], r"arith.shrsi: shifts a number of 64 bits by"),
        ("shrui", {"n": 0}, [{"n": 64}], r"arith.shrui: shifts a number of 64 bits by 64"),
        ("fptosi", {"x": -32768.5}, [{"x": 32768}, {"x": 1e30}, {"x": np.nan}, {"x": -np.inf}], r"arith.fptosi: .* does not fit a signed integer of 16 bits: clamp it"),
        ("fptoui", {"x": 255.9}, [{"x": 256}, {"x": -1}, {"x": np.nan}], r"arith.fptoui: .* does not fit an unsigned integer of 8 bits"),
    ],
)  # fmt: skip
def test_numbers_that_an_operation_cannot_take_are_refused(library, name, good, bad, message):
    assert of_numbers(library, name, **good) == ""
    for numbers in bad:
        with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
            of_numbers(library, name, **numbers)


@pytest.mark.parametrize(("name", "good", "bad"), [("divf", 2, 0), ("truncf", 60000, 70000), ("log", 1, -1)])
def test_the_first_number_that_is_not_finite_is_noted(library, name, good, bad):
    assert of_numbers(library, name, good) == ""
    note = of_numbers(library, name, bad)
    assert f"{name}: makes a NaN or an infinity out of finite numbers, the first of this run" in note
    assert of_numbers(library, name, np.nan) == ""  # made elsewhere
    assert of_numbers(library, name, np.inf) == ""


def test_a_loop_without_end_is_reported_and_a_long_one_is_not(library):
    message = (
        r"while: line \d+: scf.while: no channel, DMA or launch has moved in \d+ s of computing, and iteration \d+ of "
        "this loop has begun: it seems to have no end; --time-limit SECONDS gives it more time, 0 any"
    )
    assert of_numbers(library, "while", n=1 << 20, limit=30) == ""
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
        of_numbers(library, "while", n=(1 << 62) + 1, limit=0.05)
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=r"for: line \d+: scf.for: no channel"):
        of_numbers(library, "for", n=1 << 60, limit=0.05)
    assert of_numbers(library, "for", n=1 << 23, limit=0.001) == ""
    assert of_numbers(library, "moving", n=1 << 17, limit=0.001) == ""
    with pytest.raises(
        virtual_npu.OptionError, match="a time limit of -1 s makes no sense: give seconds up to"
    ):
        virtual_npu.RunOptions(time_limit=-1)
