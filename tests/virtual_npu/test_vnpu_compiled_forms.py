# ruff: noqa: E501 - MLIR has long lines
"""What the compiler makes of a program gives the same bits: channels, tokens, broadcast, ping-pong buffers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16


def constants(indent: int, *numbers: int) -> str:
    return "\n".join(f"{' ' * indent}%c{n} = arith.constant {n} : index" for n in numbers)


ADD_TILE = """
          scf.for %j = %c0 to %c64 step %c16 {
            %u = vector.transfer_read %L[%j], %zero {in_bounds = [true]} : memref<64xbf16, 2>, vector<16xbf16>
            %v = vector.transfer_read %R[%j], %zero {in_bounds = [true]} : memref<64xbf16, 2>, vector<16xbf16>
            %w = arith.addf %u, %v : vector<16xbf16>
            vector.transfer_write %w, %O[%j] {in_bounds = [true]} : vector<16xbf16>, memref<64xbf16, 2>
          }"""


def add_tile(left: str, right: str, out: str) -> str:
    return ADD_TILE.replace("%L", left).replace("%R", right).replace("%O", out)


ADD_ARGS = "memref<1024xbf16>, memref<1024xbf16>, memref<1024xbf16>"
ADD_SYNC = f"""
  func.func @add_sync(%x: memref<1024xbf16>, %y: memref<1024xbf16>, %z: memref<1024xbf16>) {{
    air.launch () in () args(%a=%x, %b=%y, %o=%z) : {ADD_ARGS} {{
      air.segment @s args(%sa=%a, %sb=%b, %so=%o) : {ADD_ARGS} {{
{constants(8, 1, 2)}
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%ha=%sa, %hb=%sb, %ho=%so) : {ADD_ARGS} {{
{constants(10, 0, 1, 16, 64, 512)}
          %zero = arith.constant 0.0 : bf16
          %l = memref.alloc() : memref<64xbf16, 2>
          %r = memref.alloc() : memref<64xbf16, 2>
          %s = memref.alloc() : memref<64xbf16, 2>
          scf.for %i = %c0 to %c512 step %c64 {{
            %p = affine.apply affine_map<(d0, d1) -> (d0 * 512 + d1)>(%tx, %i)
            air.dma_memcpy_nd (%l[] [] [], %ha[%p] [%c64] [%c1]) : (memref<64xbf16, 2>, memref<1024xbf16>)
            air.dma_memcpy_nd (%r[] [] [], %hb[%p] [%c64] [%c1]) : (memref<64xbf16, 2>, memref<1024xbf16>)
{add_tile("%l", "%r", "%s")}
            air.dma_memcpy_nd (%ho[%p] [%c64] [%c1], %s[] [] []) : (memref<1024xbf16>, memref<64xbf16, 2>)
          }}
        }}
      }}
    }}
    return
  }}"""


def ping_pong(name: str) -> str:
    """An execute that allocates an L1 buffer and gives its token."""
    return f"""
          %t_{name}, %{name} = air.execute -> (memref<64xbf16, 2>) {{
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          }}"""


def half(k: str, before: str) -> str:
    """One half of the unrolled loop: two gets, the sum in an execute, the put."""
    return f"""
            %l{k}_in = air.channel.get async [{before}] @add_a[%tx, %ty] (%l{k}[] [] []) : (memref<64xbf16, 2>)
            %r{k}_in = air.channel.get async [{before}] @add_b[%tx, %ty] (%r{k}[] [] []) : (memref<64xbf16, 2>)
            %sum{k} = air.execute [%l{k}_in, %r{k}_in] {{
{add_tile(f"%l{k}", f"%r{k}", f"%s{k}")}
            }}
            %out{k} = air.channel.put async [%sum{k}] @add_o[%tx, %ty] (%s{k}[] [] []) : (memref<64xbf16, 2>)"""


def stream(verb: str, channel: str, buffer: str) -> str:
    """Launch-level transfers, all tiles at once, joined by a reduction of tokens."""
    return f"""
      %{channel}_done = scf.parallel (%t) = (%c0) to (%c2) step (%c1) init (%begin) -> !air.async.token {{
        %last = scf.for %i = %c0 to %c512 step %c64 iter_args(%k = %begin) -> (!air.async.token) {{
          %p = affine.apply affine_map<(d0, d1) -> (d0 * 512 + d1)>(%t, %i)
          %n = air.channel.{verb} async [%k] @{channel}[%t, %c0] (%{buffer}[%p] [%c64] [%c1]) : (memref<1024xbf16>)
          scf.yield %n : !air.async.token
        }}
        scf.reduce(%last : !air.async.token) {{
        ^bb0(%m: !air.async.token, %n: !air.async.token):
          %both = air.wait_all async [%m, %n]
          scf.reduce.return %both : !air.async.token
        }}
      }}"""


# One buffer is allocated before the loop and deallocated in it: the ping-pong pass leaves it so.
ADD_ASYNC = f"""
  air.channel @add_a [2, 1]
  air.channel @add_b [2, 1]
  air.channel @add_o [2, 1]
  func.func @add_async(%x: memref<1024xbf16>, %y: memref<1024xbf16>, %z: memref<1024xbf16>) {{
    %0 = air.launch async () in () args(%a=%x, %b=%y, %o=%z) : {ADD_ARGS} attributes {{id = 1 : i32}} {{
{constants(6, 0, 1, 2, 64, 512)}
      %begin = air.wait_all async
      {stream("put", "add_a", "a")}
      {stream("put", "add_b", "b")}
      {stream("get", "add_o", "o")}
      %1 = air.segment @s async attributes {{id = 2 : i32}} {{
{constants(8, 1, 2)}
        %2 = air.herd @h async tile (%tx, %ty) in (%sx=%c2, %sy=%c1) attributes {{id = 3 : i32}} {{
{constants(10, 0, 1, 16, 64, 128, 512)}
          %zero = arith.constant 0.0 : bf16
          {"".join(ping_pong(name) for name in ("l0", "r0", "s0", "l1", "r1", "s1"))}
          %go = air.wait_all async [%t_l0, %t_r0, %t_s0, %t_l1, %t_r1, %t_s1]
          %end:2 = scf.for %i = %c0 to %c512 step %c128 iter_args(%ping = %go, %pong = %go) -> (!air.async.token, !air.async.token) {{
            {half("0", "%ping")}
            {half("1", "%pong")}
            %free = air.execute [%out0] {{
              memref.dealloc %l0 : memref<64xbf16, 2>
            }}
            scf.yield %out0, %out1 : !air.async.token, !air.async.token
          }}
          %3 = air.execute [%end#0, %end#1] {{
            memref.dealloc %l1 : memref<64xbf16, 2>
          }}
          air.wait_all [%3]
        }}
      }}
      air.wait_all [%add_a_done, %add_b_done, %add_o_done, %1]
    }}
    return
  }}"""

# C[16, 16] = A[16, 32] * B[32, 16] on 2 x 2 tiles of 8 x 8, K in steps of 8.
MATMUL_ARGS = "memref<16x32xbf16>, memref<32x16xbf16>, memref<16x16xf32>"
CONTRACT = """
            %va = vector.transfer_read %A[%c0, %c0], %zero {in_bounds = [true, true]} : memref<8x8xbf16, 2>, vector<8x8xbf16>
            %vb = vector.transfer_read %B[%c0, %c0], %zero {in_bounds = [true, true]} : memref<8x8xbf16, 2>, vector<8x8xbf16>
            %vc = vector.load %acc[%c0, %c0] : memref<8x8xf32, 2>, vector<8x8xf32>
            %vd = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
            vector.store %vd, %acc[%c0, %c0] : memref<8x8xf32, 2>, vector<8x8xf32>"""


def contract(a: str, b: str) -> str:
    return CONTRACT.replace("%A", a).replace("%B", b)


MATMUL_SYNC = f"""
  func.func @matmul_sync(%x: memref<16x32xbf16>, %y: memref<32x16xbf16>, %z: memref<16x16xf32>) {{
    air.launch () in () args(%a=%x, %b=%y, %o=%z) : {MATMUL_ARGS} {{
      air.segment @s args(%sa=%a, %sb=%b, %so=%o) : {MATMUL_ARGS} {{
{constants(8, 2)}
        %l2a = memref.alloc() : memref<16x32xbf16, 1>
        %l2b = memref.alloc() : memref<32x16xbf16, 1>
        %l2c = memref.alloc() : memref<16x16xf32, 1>
        air.dma_memcpy_nd (%l2a[] [] [], %sa[] [] []) : (memref<16x32xbf16, 1>, memref<16x32xbf16>)
        air.dma_memcpy_nd (%l2b[] [] [], %sb[] [] []) : (memref<32x16xbf16, 1>, memref<32x16xbf16>)
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c2) args(%ha=%l2a, %hb=%l2b, %hc=%l2c) : memref<16x32xbf16, 1>, memref<32x16xbf16, 1>, memref<16x16xf32, 1> {{
{constants(10, 0, 1, 8, 16, 32)}
          %zero = arith.constant 0.0 : bf16
          %none = arith.constant 0.0 : f32
          %ta = memref.alloc() : memref<8x8xbf16, 2>
          %tb = memref.alloc() : memref<8x8xbf16, 2>
          %acc = memref.alloc() : memref<8x8xf32, 2>
          linalg.fill ins(%none : f32) outs(%acc : memref<8x8xf32, 2>)
          %m = affine.apply affine_map<(d0) -> (d0 * 8)>(%tx)
          %n = affine.apply affine_map<(d0) -> (d0 * 8)>(%ty)
          scf.for %k = %c0 to %c32 step %c8 {{
            air.dma_memcpy_nd (%ta[] [] [], %ha[%m, %k] [%c8, %c8] [%c32, %c1]) : (memref<8x8xbf16, 2>, memref<16x32xbf16, 1>)
            air.dma_memcpy_nd (%tb[] [] [], %hb[%k, %n] [%c8, %c8] [%c16, %c1]) : (memref<8x8xbf16, 2>, memref<32x16xbf16, 1>)
{contract("%ta", "%tb")}
          }}
          air.dma_memcpy_nd (%hc[%m, %n] [%c8, %c8] [%c16, %c1], %acc[] [] []) : (memref<16x16xf32, 1>, memref<8x8xf32, 2>)
        }}
        air.dma_memcpy_nd (%so[] [] [], %l2c[] [] []) : (memref<16x16xf32>, memref<16x16xf32, 1>)
      }}
    }}
    return
  }}"""


def feed(name: str, offsets: str, strides: str, buffer: str, type_: str) -> str:
    """Segment-level puts of one row or column of the herd: one token chain per put."""
    return f"""
        %{name}_end = scf.for %k = %c0 to %c32 step %c8 iter_args(%w = %{buffer}_in) -> (!air.async.token) {{
          %0 = air.channel.put async [%w] @{name}[] (%{buffer}[{offsets}] [%c8, %c8] [{strides}, %c1]) : ({type_})
          scf.yield %0 : !air.async.token
        }}"""


def l2(name: str, type_: str) -> str:
    return f"""
        %{name}_alloc, %{name} = air.execute -> ({type_}) {{
          %alloc = memref.alloc() : {type_}
          air.execute_terminator %alloc : {type_}
        }}"""


def choose(even: str, odd: str, index: str, dst: str, token: str) -> str:
    """A broadcast specialised by affine.if: every row or column of tiles has its own channel.

    The get names both coordinates of the tile, though the channel has one row or one column of receivers.
    """
    return f"""
            %{token} = affine.if #first()[{index}] -> !air.async.token {{
              %0 = air.channel.get async @{even}[%tx, %ty] (%{dst}[] [] []) : (memref<8x8xbf16, 2>)
              affine.yield %0 : !air.async.token
            }} else {{
              %0 = air.channel.get async @{odd}[%tx, %ty] (%{dst}[] [] []) : (memref<8x8xbf16, 2>)
              affine.yield %0 : !air.async.token
            }}"""


def l1(name: str) -> str:
    return f"""
          %{name}_alloc, %{name} = air.execute -> (memref<8x8xbf16, 2>) {{
            %alloc = memref.alloc() : memref<8x8xbf16, 2>
            air.execute_terminator %alloc : memref<8x8xbf16, 2>
          }}"""


MATMUL_ASYNC = f"""
  air.channel @l3a [1, 1]
  air.channel @l3b [1, 1]
  air.channel @l3c [1, 1]
  air.channel @a0 [1, 1] {{broadcast_shape = [1, 2]}}
  air.channel @a1 [1, 1] {{broadcast_shape = [1, 2]}}
  air.channel @b0 [1, 1] {{broadcast_shape = [2, 1]}}
  air.channel @b1 [1, 1] {{broadcast_shape = [2, 1]}}
  air.channel @c [2, 2]
  func.func @matmul_async(%x: memref<16x32xbf16>, %y: memref<32x16xbf16>, %z: memref<16x16xf32>) {{
    %c1 = arith.constant 1 : index
    %launched = air.launch async (%i, %j) in (%ni=%c1, %nj=%c1) args(%a=%x, %b=%y, %o=%z) : {MATMUL_ARGS} {{
      %0 = air.channel.put async @l3a[] (%a[] [] []) : (memref<16x32xbf16>)
      %1 = air.channel.put async @l3b[] (%b[] [] []) : (memref<32x16xbf16>)
      %2 = air.channel.get async @l3c[] (%o[] [] []) : (memref<16x16xf32>)
      %3 = air.segment @s async {{
{constants(8, 0, 1, 2, 8, 16, 32)}
        {l2("l2a", "memref<16x32xbf16, 1>")}
        {l2("l2b", "memref<32x16xbf16, 1>")}
        {l2("l2c", "memref<16x16xf32, 1>")}
        %l2a_in = air.channel.get async [%l2a_alloc] @l3a[] (%l2a[] [] []) : (memref<16x32xbf16, 1>)
        %l2b_in = air.channel.get async [%l2b_alloc] @l3b[] (%l2b[] [] []) : (memref<32x16xbf16, 1>)
        {feed("a0", "%c0, %k", "%c32", "l2a", "memref<16x32xbf16, 1>")}
        {feed("a1", "%c8, %k", "%c32", "l2a", "memref<16x32xbf16, 1>")}
        {feed("b0", "%k, %c0", "%c16", "l2b", "memref<32x16xbf16, 1>")}
        {feed("b1", "%k, %c8", "%c16", "l2b", "memref<32x16xbf16, 1>")}
        %4 = air.herd @h async tile (%tx, %ty) in (%sx=%c2, %sy=%c2) {{
{constants(10, 0, 1, 8, 16, 32)}
          %zero = arith.constant 0.0 : bf16
          %none = arith.constant 0.0 : f32
          {"".join(l1(name) for name in ("ping_a", "ping_b", "pong_a", "pong_b"))}
          %acc_alloc, %acc = air.execute -> (memref<8x8xf32, 2>) {{
            %alloc = memref.alloc() : memref<8x8xf32, 2>
            air.execute_terminator %alloc : memref<8x8xf32, 2>
          }}
          %filled = air.execute [%acc_alloc] {{
            linalg.fill ins(%none : f32) outs(%acc : memref<8x8xf32, 2>)
          }}
          %done = scf.for %k = %c0 to %c32 step %c16 iter_args(%before = %filled) -> (!air.async.token) {{
            {choose("a0", "a1", "%tx", "ping_a", "t0")}
            {choose("b0", "b1", "%ty", "ping_b", "t1")}
            {choose("a0", "a1", "%tx", "pong_a", "t2")}
            {choose("b0", "b1", "%ty", "pong_b", "t3")}
            %5 = air.execute [%before, %t0, %t1] {{
{contract("%ping_a", "%ping_b")}
            }}
            %6 = air.execute [%5, %t2, %t3] {{
{contract("%pong_a", "%pong_b")}
            }}
            scf.yield %6 : !air.async.token
          }}
          %7 = air.channel.put async [%done] @c[%tx, %ty] (%acc[] [] []) : (memref<8x8xf32, 2>)
        }}
        %8 = scf.parallel (%p, %q) = (%c0, %c0) to (%c2, %c2) step (%c1, %c1) init (%l2c_alloc) -> !air.async.token {{
          %m = affine.apply affine_map<(d0) -> (d0 * 8)>(%p)
          %n = affine.apply affine_map<(d0) -> (d0 * 8)>(%q)
          %9 = air.channel.get async [%l2c_alloc] @c[%p, %q] (%l2c[%m, %n] [%c8, %c8] [%c16, %c1]) : (memref<16x16xf32, 1>)
          scf.reduce(%9 : !air.async.token) {{
          ^bb0(%u: !air.async.token, %v: !air.async.token):
            %both = air.wait_all async [%u, %v]
            scf.reduce.return %both : !air.async.token
          }}
        }}
        %10 = air.channel.put async [%8] @l3c[] (%l2c[] [] []) : (memref<16x16xf32, 1>)
        %11 = air.execute [%10] {{
          memref.dealloc %l2c : memref<16x16xf32, 1>
        }}
        air.wait_all [%11, %4, %a0_end, %a1_end, %b0_end, %b1_end]
      }}
    }}
    return
  }}"""

MAPS = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
#first = affine_set<()[s0] : (s0 == 0)>
"""


@pytest.fixture(scope="module")
def library(program):
    return program(f"{MAPS}module {{{ADD_SYNC}{ADD_ASYNC}{MATMUL_SYNC}{MATMUL_ASYNC}}}")


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_add_in_channels_with_ping_pong_buffers(library, run, threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    x, y, z = random(0, 1024), random(1, 1024), np.zeros(1024, BF16)
    want = run(library, "add_sync", x, y, z)[2]
    np.testing.assert_array_equal(want, x + y)
    np.testing.assert_array_equal(bits(run(library, "add_async", x, y, z)[2]), bits(want))


def test_matmul_with_broadcast_and_ping_pong_buffers(library, run):
    a, b, c = random(2, 16, 32), random(3, 32, 16), np.zeros((16, 16), np.float32)
    want = run(library, "matmul_sync", a, b, c)[2]
    np.testing.assert_allclose(want, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(bits(run(library, "matmul_async", a, b, c)[2]), bits(want))
