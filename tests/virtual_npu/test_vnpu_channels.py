# ruff: noqa: E501 - MLIR has long lines
"""Channels: order, broadcast, cascades, tokens, and what goes wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.air_texts import with_constants
from tests.virtual_npu.bundle_texts import FORALL, of_herd, of_launch, of_segment


def herd(name: str, x: int, y: int, body: str, args: str = "") -> str:
    return f"""
      air.herd @{name} tile (%tx, %ty) in (%sx=%c{x}, %sy=%c{y}) {args} {{
{body}
      }}"""


DOUBLE = """
    %b = memref.alloc() : memref<16xf32, 2>
    scf.for %r = %c0 to %c4 step %c1 {
      air.channel.get @CH_in[%tx, %ty] (%b[] [] []) : (memref<16xf32, 2>)
      scf.for %j = %c0 to %c16 step %c1 {
        %v = memref.load %b[%j] : memref<16xf32, 2>
        %w = arith.addf %v, %v : f32
        memref.store %w, %b[%j] : memref<16xf32, 2>
      }
      air.channel.put @CH_out[%tx, %ty] (%b[] [] []) : (memref<16xf32, 2>)
    }
    memref.dealloc %b : memref<16xf32, 2>"""

# The get of the result is written before the segment that makes it; the puts are asynchronous.
BEFORE = f"""
  air.channel @b_in [2, 1]
  air.channel @b_out [2, 1]
  func.func @before(%x: memref<128xf32>, %y: memref<128xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x, %b=%y) : memref<128xf32>, memref<128xf32> {{
      scf.parallel (%t) = (%c0) to (%c2) step (%c1) {{
        %o = affine.apply affine_map<(d0) -> (d0 * 64)>(%t)
        scf.for %r = %c0 to %c64 step %c16 {{
          %p = affine.apply affine_map<(d0, d1) -> (d0 + d1)>(%o, %r)
          air.channel.get @b_out[%t, %c0] (%b[%p] [%c16] [%c1]) : (memref<128xf32>)
        }}
      }}
      scf.parallel (%t) = (%c0) to (%c2) step (%c1) {{
        %o = affine.apply affine_map<(d0) -> (d0 * 64)>(%t)
        %start = air.wait_all async
        %end = scf.for %r = %c0 to %c64 step %c16 iter_args(%tok = %start) -> (!air.async.token) {{
          %p = affine.apply affine_map<(d0, d1) -> (d0 + d1)>(%o, %r)
          %next = air.channel.put async [%tok] @b_in[%t, %c0] (%a[%p] [%c16] [%c1]) : (memref<128xf32>)
          scf.yield %next : !air.async.token
        }}
      }}
      air.segment @s {{
        {herd("h", 2, 1, DOUBLE.replace("CH", "b"))}
      }}
    }}
    return
  }}"""

# One put feeds a row of four tiles; every tile of both rows adds its own number.
BROADCAST = f"""
  air.channel @w [1, 2] {{broadcast_shape = [4, 2]}}
  air.channel @r [4, 2]
  func.func @broadcast(%x: memref<2x16xf32>, %y: memref<4x2x16xf32>) {{
    air.launch (%i) in (%n=%c4) args(%a=%x, %b=%y) : memref<2x16xf32>, memref<4x2x16xf32> {{
      %last = arith.cmpi eq, %i, %c3 : index
      air.channel.put @w[%c0, %c0] (%a[%c0, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xf32>)
      air.channel.put @w[%c0, %c1] (%a[%c1, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xf32>)
      air.segment @s {{
        {
    herd(
        "h",
        4,
        2,
        '''
    %m = memref.alloc() : memref<16xf32, 2>
    air.channel.get @w[%tx, %ty] (%m[] [] []) : (memref<16xf32, 2>)
    %k = arith.index_cast %tx : index to i32
    %f = arith.sitofp %k : i32 to f32
    scf.for %j = %c0 to %c16 step %c1 {
      %v = memref.load %m[%j] : memref<16xf32, 2>
      %w = arith.addf %v, %f : f32
      memref.store %w, %m[%j] : memref<16xf32, 2>
    }
    air.channel.put @r[%tx, %ty] (%m[] [] []) : (memref<16xf32, 2>)
''',
    )
}
      }}
      %l2 = memref.alloc() : memref<4x2x16xf32, 1>
      scf.parallel (%p, %q) = (%c0, %c0) to (%c4, %c2) step (%c1, %c1) {{
        air.channel.get @r[%p, %q] (%l2[%p, %q, %c0] [%c1, %c1, %c16] [%c32, %c16, %c1]) : (memref<4x2x16xf32, 1>)
      }}
      scf.if %last {{
        memref.copy %l2, %b : memref<4x2x16xf32, 1> to memref<4x2x16xf32>
      }}
      memref.dealloc %l2 : memref<4x2x16xf32, 1>
    }}
    return
  }}"""

# Neighbours hand a running sum on: tile i gets from i - 1 and puts to i + 1. Written at function scope.
CASCADE = f"""
  air.channel @feed [4]
  air.channel @chain [3] {{channel_type = "npu_cascade"}}
  air.channel @total []
  func.func @cascade(%x: memref<4x16xf32>, %y: memref<16xf32>) {{
    scf.parallel (%t) = (%c0) to (%c4) step (%c1) {{
      air.channel.put @feed[%t] (%x[%t, %c0] [%c1, %c16] [%c16, %c1]) : (memref<4x16xf32>)
    }}
    {
    herd(
        "chain",
        1,
        4,
        '''
    %m = memref.alloc() : memref<16xf32, 2>
    %p = memref.alloc() : memref<16xf32, 2>
    air.channel.get @feed[%ty] (%m[] [] []) : (memref<16xf32, 2>)
    %first = arith.cmpi eq, %ty, %c0 : index
    scf.if %first {
    } else {
      %o = arith.subi %ty, %c1 : index
      air.channel.get @chain[%o] (%p[] [] []) : (memref<16xf32, 2>)
      scf.for %j = %c0 to %c16 step %c1 {
        %v = memref.load %m[%j] : memref<16xf32, 2>
        %u = memref.load %p[%j] : memref<16xf32, 2>
        %w = arith.addf %v, %u : f32
        memref.store %w, %m[%j] : memref<16xf32, 2>
      }
    }
    %last = arith.cmpi eq, %ty, %c3 : index
    scf.if %last {
      air.channel.put @total[] (%m[] [] []) : (memref<16xf32, 2>)
    } else {
      air.channel.put @chain[%ty] (%m[] [] []) : (memref<16xf32, 2>)
    }
''',
    )
}
    air.channel.get @total[] (%y[] [] []) : (memref<16xf32>)
    return
  }}"""

# Nobody takes what is put: two blocks fit, the third waits.
FULL = f"""
  air.channel @f [1]
  func.func @full(%x: memref<16xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x) : memref<16xf32> {{
      air.segment @s {{
        {
    herd(
        "h",
        1,
        1,
        '''
    %m = memref.alloc() : memref<16xf32, 2>
    scf.for %r = %c0 to %c3 step %c1 {
      air.channel.put @f[%c0] (%m[] [] []) : (memref<16xf32, 2>)
    }
''',
    )
}
      }}
    }}
    return
  }}"""


def mismatch(name: str, size: int) -> str:
    """One put of 16 elements, one get of `size`."""
    tile = f"""
    %m = memref.alloc() : memref<{size}xf32, 2>
    air.channel.get @of_{name}[%c0] (%m[] [] []) : (memref<{size}xf32, 2>)
"""
    return f"""
  air.channel @of_{name} [1]
  func.func @{name}(%x: memref<16xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x) : memref<16xf32> {{
      air.channel.put @of_{name}[%c0] (%a[] [] []) : (memref<16xf32>)
      air.segment @s {{
        {herd("h", 1, 1, tile)}
      }}
    }}
    return
  }}"""


FOLDED = f"""
  air.channel @many [1]
  air.channel @one [1]
  func.func @folded(%x: memref<16xf32>, %y: memref<16xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x, %b=%y) : memref<16xf32>, memref<16xf32> {{
      air.channel.put @many[%c0] (%a[] [] []) : (memref<16xf32>)
      air.channel.get @one[%c0] (%b[] [] []) : (memref<16xf32>)
      air.segment @s {{
        {
    herd(
        "h",
        1,
        1,
        '''
    %m = memref.alloc() : memref<4xf32, 2>
    scf.for %k = %c0 to %c16 step %c4 {
      air.channel.get @many[%c0] (%m[] [] []) : (memref<4xf32, 2>)
      air.channel.put @one[%c0] (%m[] [] []) : (memref<4xf32, 2>)
    }
''',
    )
}
      }}
    }}
    return
  }}"""

MISMATCH = f"""{"".join(mismatch(f"takes{size}", size) for size in (8, 12, 32))}
  air.channel @m [1]
  func.func @index(%x: memref<16xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x) : memref<16xf32> {{
      %two = affine.apply affine_map<(d0) -> (d0 + 2)>(%i)
      air.channel.put @m[%two] (%a[] [] []) : (memref<16xf32>)
    }}
    return
  }}"""

# One of two puts is taken.
LEFT = """
  air.channel @left [1, 2]
  func.func @leftover(%x: memref<16xf32>, %y: memref<16xf32>) {
    air.launch (%i) in (%n=%c1) args(%a=%x, %b=%y) : memref<16xf32>, memref<16xf32> {
      air.channel.put @left[%c0, %c1] (%a[] [] []) : (memref<16xf32>)
      air.channel.put @left[%c0, %c1] (%a[] [] []) : (memref<16xf32>)
      air.channel.get @left[%c0, %c1] (%b[] [] []) : (memref<16xf32>)
    }
    return
  }"""

# The launch takes one half of a buffer while the segment writes the other: they do not hold each other back.
HALVES = f"""
  air.channel @half [1]
  func.func @halves(%x: memref<32xf32>) {{
    air.launch (%i) in (%n=%c1) args(%a=%x) : memref<32xf32> {{
      air.channel.get @half[%c0] (%a[%c0] [%c16] [%c1]) : (memref<32xf32>)
      air.segment @s args(%sa=%a) : memref<32xf32> {{
        {
    herd(
        "h",
        1,
        1,
        '''
    %m = memref.alloc() : memref<16xf32, 2>
    air.dma_memcpy_nd (%m[] [] [], %h[%c16] [%c16] [%c1]) : (memref<16xf32, 2>, memref<32xf32>)
    air.channel.put @half[%c0] (%m[] [] []) : (memref<16xf32, 2>)
''',
        "args(%h=%sa) : memref<32xf32>",
    )
}
      }}
    }}
    return
  }}"""

# A copy reads what an asynchronous get writes, and a second get overwrites what the copy reads.
CONFLICT = """
  air.channel @q [1]
  func.func @conflict(%x: memref<2x16xf32>, %y: memref<2x16xf32>) {
    air.launch (%i) in (%n=%c1) args(%a=%x, %b=%y) : memref<2x16xf32>, memref<2x16xf32> {
      %l2 = memref.alloc() : memref<16xf32, 1>
      scf.for %r = %c0 to %c2 step %c1 {
        air.channel.get @q[%c0] (%l2[] [] []) : (memref<16xf32, 1>)
        air.dma_memcpy_nd (%b[%r, %c0] [%c1, %c16] [%c16, %c1], %l2[] [] []) : (memref<2x16xf32>, memref<16xf32, 1>)
      }
      scf.for %r = %c0 to %c2 step %c1 {
        air.channel.put @q[%c0] (%a[%r, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xf32>)
      }
      memref.dealloc %l2 : memref<16xf32, 1>
    }
    return
  }"""


@pytest.fixture(scope="module")
def library(program):
    text = "\n".join((BEFORE, BROADCAST, CASCADE, FULL, FOLDED, MISMATCH, CONFLICT, LEFT, HALVES))
    return program("module {" + text + "}")


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_get_may_be_written_before_what_feeds_it(library, run):
    x = normal(128)
    np.testing.assert_array_equal(run(library, "before", x, np.zeros_like(x))[1], 2 * x)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_broadcast_feeds_every_tile_of_a_row_whatever_the_threads(library, run, threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    x = normal(2, 16)
    want = x[None] + np.arange(4, dtype=np.float32)[:, None, None]
    np.testing.assert_array_equal(run(library, "broadcast", x, np.zeros((4, 2, 16), np.float32))[1], want)


def test_cascade_between_tiles_without_a_launch(library, run):
    x = normal(4, 16)
    got = run(library, "cascade", x, np.zeros(16, np.float32))[1]
    np.testing.assert_array_equal(got, ((x[0] + x[1]) + x[2]) + x[3])


def test_operations_on_one_buffer_keep_their_order(library, run):
    x = normal(2, 16)
    np.testing.assert_array_equal(run(library, "conflict", x, np.zeros_like(x))[1], x)


def test_deadlock_on_a_full_channel(library, run):
    with pytest.raises(
        virtual_npu.VirtualNpuDeadlock,
        match=r"No operation is left that these could wait for:\n"
        r"  herd @h \(0, 0\), line \d+: put @f\[0\] \(2 put so far, 2 in flight\): no get makes room",
    ):
        run(library, "full", np.zeros(16, np.float32))


def test_a_block_without_a_get_is_an_error(library, run):
    with pytest.raises(
        virtual_npu.VirtualNpuRuntimeError,
        match=r"line \d+: air.channel.put @left in launch \(0\): sent 16 elements that no get ever takes from @left\[0, 1\] "
        r"\(1 left there at the end\): add the get, or drop the put",
    ):
        run(library, "leftover", np.zeros(16, np.float32), np.zeros(16, np.float32))


def test_parts_of_one_buffer_do_not_hold_each_other_back(library, run):
    x = normal(32)
    (got,) = run(library, "halves", x)
    np.testing.assert_array_equal(got, np.concatenate([x[16:], x[16:]]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "takes8",
            r"line \d+: air.channel.put @of_takes8 in launch \(0\): sent 16 elements to @of_takes8\[0\], of which the get "
            r"at line \d+ takes 8 and no other takes the rest",
        ),
        (
            "takes12",
            r"line \d+: air.channel.get @of_takes12 in herd @h \(0, 0\) of launch \(0\): takes 12 elements of 4 bytes, "
            r"but the put at line \d+ in launch \(0\) sends 16 of 4 bytes",
        ),
        (
            "takes32",
            r"line \d+: air.channel.get @of_takes32 in herd @h \(0, 0\) of launch \(0\): takes 32 elements from @of_takes32, "
            "but only 16 were put there and no more come",
        ),
    ],
)
def test_mismatched_sides_name_both(library, run, entry, message):
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message) as caught:
        run(library, entry, np.zeros(16, np.float32))
    assert caught.value.kind == "mismatch"


def test_a_put_may_fill_several_gets_and_the_other_way_round(library, run):
    x = normal(16)
    np.testing.assert_array_equal(run(library, "folded", x, np.zeros_like(x))[1], x)


def test_index_outside_a_bundle(library, run):
    with pytest.raises(
        virtual_npu.VirtualNpuRuntimeError,
        match="index 2 of dimension 0 is outside the channel's extent 1",
    ):
        run(library, "index", np.zeros(16, np.float32))


def test_a_failed_run_leaves_the_program_usable(library, run):
    for _ in range(3):
        with pytest.raises(virtual_npu.VirtualNpuDeadlock):
            run(library, "full", np.zeros(16, np.float32))
    x = normal(128)
    np.testing.assert_array_equal(run(library, "before", x, np.zeros_like(x))[1], 2 * x)


BUNDLES = {
    "counted": of_launch("%i"),
    "made": of_launch(),
    "in_space": of_launch(head=FORALL),
    "in_segment": of_segment(),
    "in_herd": of_herd(),
}


@pytest.fixture(scope="module")
def bundles(program):
    texts = [
        text.replace("@bundle", f"@{name}").replace("@to", f"@{name}_to").replace("@from", f"@{name}_from")
        for name, text in BUNDLES.items()
    ]
    return program("\n".join(texts), options=virtual_npu.BuildOptions(checks=True))


@pytest.mark.parametrize("name", BUNDLES)
def test_a_loop_chooses_the_channel_of_a_bundle(bundles, run, name):
    x = normal(32)
    np.testing.assert_array_equal(run(bundles, name, x, np.zeros_like(x))[1], x)


def process_heads(text: str) -> set[tuple[str, str]]:
    """The attribute and the kind of each coroutine of a program."""
    head = re.compile(r"^(\w* ?)static vnpu::Process (launch|segment|herd)", re.MULTILINE)
    return {(each[1].strip(), each[2]) for each in head.finditer(virtual_npu.emit(with_constants(text)).text)}


def test_bodies_that_only_issue_operations_are_compiled_for_size() -> None:
    quick = {("VNPU_ISSUES_ONLY", "launch"), ("VNPU_ISSUES_ONLY", "segment"), ("", "herd")}
    assert process_heads(BEFORE) == quick
    filled = """air.segment @s {
        %zero = arith.constant 0.0 : f32
        %l2 = memref.alloc() : memref<16xf32, 1>
        linalg.fill ins(%zero : f32) outs(%l2 : memref<16xf32, 1>)
        memref.dealloc %l2 : memref<16xf32, 1>"""
    assert process_heads(BEFORE.replace("air.segment @s {", filled)) == {*quick, ("", "segment")} - {
        ("VNPU_ISSUES_ONLY", "segment")
    }


def test_ports_share_the_functions_of_their_indices_and_equal_tables() -> None:
    text = virtual_npu.emit(with_constants(BEFORE)).text
    functions = re.findall(
        r"static vnpu::i64 port_index\w*\(vnpu::i64 x, vnpu::i64 y\) \{ return (.*); \}", text
    )
    assert {"x", "0"} <= {*functions}
    assert len(functions) == len({*functions})
    tables = re.findall(r"static const vnpu::Port \w+_list\[\] = \{(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    assert tables
    assert len(tables) == len({*tables})
