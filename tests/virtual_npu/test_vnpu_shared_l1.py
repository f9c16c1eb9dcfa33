# ruff: noqa: E501 - MLIR has long lines
"""L1 buffers of a segment: one that cores hand from one to another, and a copy for each core of any other."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import ProgramError
from tests.virtual_npu.air_texts import with_constants

PROGRAM = """
module {
  // A column of four cores adds what it is given to what comes from below, 16 numbers at a time.
  func.func @relay(%in: memref<4x64xf32>, %out: memref<64xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<4x64xf32>, memref<64xf32> {
      air.segment @seg args(%in2=%in1, %out2=%out1) : memref<4x64xf32>, memref<64xf32> {
        %h0 = memref.alloc() : memref<64xf32, 2>
        %h1 = memref.alloc() : memref<64xf32, 2>
        %h2 = memref.alloc() : memref<64xf32, 2>
        air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c4) args(%s0=%h0, %s1=%h1, %s2=%h2, %in3=%in2, %out3=%out2) : memref<64xf32, 2>, memref<64xf32, 2>, memref<64xf32, 2>, memref<4x64xf32>, memref<64xf32> {
          %b = memref.alloc() : memref<64xf32, 2>
          air.dma_memcpy_nd (%b[] [] [], %in3[%y, %c0] [%c1, %c64] [%c64, %c1]) : (memref<64xf32, 2>, memref<4x64xf32>)
          scf.index_switch %y
          case 0 {
            scf.for %j = %c0 to %c64 step %c16 {
              %v = vector.load %b[%j] : memref<64xf32, 2>, vector<16xf32>
              vector.store %v, %s0[%j] : memref<64xf32, 2>, vector<16xf32>
            }
          }
          case 1 {
            scf.for %j = %c0 to %c64 step %c16 {
              %v = vector.load %b[%j] : memref<64xf32, 2>, vector<16xf32>
              %w = vector.load %s0[%j] : memref<64xf32, 2>, vector<16xf32>
              %a = arith.addf %v, %w : vector<16xf32>
              vector.store %a, %b[%j] : memref<64xf32, 2>, vector<16xf32>
            }
            memref.copy %b, %s1 : memref<64xf32, 2> to memref<64xf32, 2>
          }
          case 2 {
            linalg.add ins(%b, %s1 : memref<64xf32, 2>, memref<64xf32, 2>) outs(%b : memref<64xf32, 2>)
            air.dma_memcpy_nd (%s2[] [] [], %b[] [] []) : (memref<64xf32, 2>, memref<64xf32, 2>)
          }
          default {
            %t, %sub = air.execute -> (memref<32xf32, strided<[1], offset: 32>, 2>) {
              %v = memref.subview %s2[32] [32] [1] : memref<64xf32, 2> to memref<32xf32, strided<[1], offset: 32>, 2>
              air.execute_terminator %v : memref<32xf32, strided<[1], offset: 32>, 2>
            }
            %e = air.execute [%t] {
              scf.for %j = %c0 to %c32 step %c16 {
                %v = vector.load %sub[%j] : memref<32xf32, strided<[1], offset: 32>, 2>, vector<16xf32>
                %k = arith.addi %j, %c32 : index
                %u = vector.load %s2[%j] : memref<64xf32, 2>, vector<16xf32>
                %p = vector.load %b[%j] : memref<64xf32, 2>, vector<16xf32>
                %q = vector.load %b[%k] : memref<64xf32, 2>, vector<16xf32>
                %a = arith.addf %v, %q : vector<16xf32>
                %d = arith.addf %u, %p : vector<16xf32>
                vector.store %a, %b[%k] : memref<64xf32, 2>, vector<16xf32>
                vector.store %d, %b[%j] : memref<64xf32, 2>, vector<16xf32>
              }
            }
            air.dma_memcpy_nd (%out3[] [] [], %b[] [] []) : (memref<64xf32>, memref<64xf32, 2>)
          }
          memref.dealloc %b : memref<64xf32, 2>
        }
        memref.dealloc %h0 : memref<64xf32, 2>
        memref.dealloc %h1 : memref<64xf32, 2>
        memref.dealloc %h2 : memref<64xf32, 2>
      }
    }
    return
  }
  // Two cores of a row: four blocks go through one buffer, which is twice as large as what is under one lock.
  func.func @blocks(%in: memref<64xf32>, %out: memref<64xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<64xf32>, memref<64xf32> {
      air.segment @seg args(%in2=%in1, %out2=%out1) : memref<64xf32>, memref<64xf32> {
        %made, %hop = air.execute -> (memref<16xf32, 2>) {
          %m = memref.alloc() : memref<16xf32, 2>
          air.execute_terminator %m : memref<16xf32, 2>
        }
        %done = air.herd @h async [%made] tile (%x, %y) in (%sx=%c2, %sy=%c1) args(%s=%hop, %in3=%in2, %out3=%out2) : memref<16xf32, 2>, memref<64xf32>, memref<64xf32> {
          %second = arith.cmpi ne, %x, %c0 : index
          scf.for %k = %c0 to %c64 step %c16 {
            scf.if %second {
              air.dma_memcpy_nd (%out3[%k] [%c16] [%c1], %s[] [] []) : (memref<64xf32>, memref<16xf32, 2>)
            } else {
              air.dma_memcpy_nd (%s[] [] [], %in3[%k] [%c16] [%c1]) : (memref<16xf32, 2>, memref<64xf32>)
            }
          }
        }
        %freed = air.execute [%done] {
          memref.dealloc %hop : memref<16xf32, 2>
        }
      }
    }
    return
  }
  // The same between two herds, although the second waits for the first one's token.
  func.func @herds(%in: memref<64xf32>, %out: memref<64xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<64xf32>, memref<64xf32> {
      air.segment @seg args(%in2=%in1, %out2=%out1) : memref<64xf32>, memref<64xf32> {
        %hop = memref.alloc() : memref<16xf32, 2>
        %t0 = air.wait_all async
        %t1 = air.herd @one async [%t0] tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%s=%hop, %in3=%in2) : memref<16xf32, 2>, memref<64xf32> {
          scf.for %k = %c0 to %c64 step %c16 {
            air.dma_memcpy_nd (%s[] [] [], %in3[%k] [%c16] [%c1]) : (memref<16xf32, 2>, memref<64xf32>)
          }
        }
        %t2 = air.wait_all async [%t1, %t0]
        %t3 = air.herd @other async [%t2] tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%s=%hop, %out3=%out2) : memref<16xf32, 2>, memref<64xf32> {
          %b = memref.alloc() : memref<16xf32, 2>
          scf.for %k = %c0 to %c64 step %c16 {
            %v = vector.load %s[%c0] : memref<16xf32, 2>, vector<16xf32>
            %w = arith.addf %v, %v : vector<16xf32>
            vector.store %w, %b[%c0] : memref<16xf32, 2>, vector<16xf32>
            air.dma_memcpy_nd (%out3[%k] [%c16] [%c1], %b[] [] []) : (memref<64xf32>, memref<16xf32, 2>)
          }
          memref.dealloc %b : memref<16xf32, 2>
        }
        air.wait_all [%t3]
        memref.dealloc %hop : memref<16xf32, 2>
      }
    }
    return
  }
  // Each core fills a copy, from 48 numbers that lie 16 apart, and gives back what its coordinates say.
  func.func @copies(%in: memref<96xf32>, %out: memref<4x32xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<96xf32>, memref<4x32xf32> {
      air.segment @seg args(%in2=%in1, %out2=%out1) : memref<96xf32>, memref<4x32xf32> {
        %w = memref.alloc() : memref<80xf32, 2>
        air.herd @h tile (%x, %y) in (%sx=%c2, %sy=%c2) args(%l=%w, %in3=%in2, %out3=%out2) : memref<80xf32, 2>, memref<96xf32>, memref<4x32xf32> {
          %row = arith.muli %x, %c2 : index
          %n = arith.addi %row, %y : index
          %o = arith.muli %n, %c16 : index
          air.dma_memcpy_nd (%l[%o] [%c32] [%c1], %in3[%o] [%c32] [%c1]) : (memref<80xf32, 2>, memref<96xf32>)
          air.dma_memcpy_nd (%out3[%n, %c0] [%c1, %c32] [%c32, %c1], %l[%o] [%c32] [%c1]) : (memref<4x32xf32>, memref<80xf32, 2>)
        }
        memref.dealloc %w : memref<80xf32, 2>
      }
    }
    return
  }
}
"""


@pytest.mark.parametrize("checks", [True, False])
def test_cores_have_the_buffers_that_the_compiler_gives_them(program, run, checks: bool) -> None:
    library = program(PROGRAM, options=virtual_npu.BuildOptions(checks=checks))
    parts = np.arange(256, dtype=np.float32).reshape(4, 64)
    flat, none = parts.ravel(), np.zeros(64, np.float32)
    assert run(library, "relay", parts, none)[1].tolist() == parts.sum(axis=0).tolist()
    assert run(library, "blocks", flat[:64], none)[1].tolist() == flat[:64].tolist()
    assert run(library, "herds", flat[:64], none)[1].tolist() == (2 * flat[:64]).tolist()
    windows = np.stack([flat[o : o + 32] for o in range(0, 64, 16)])
    assert run(library, "copies", flat[:96], np.zeros((4, 32), np.float32))[1].tolist() == windows.tolist()


LASTING = """
module {
  air.channel @i [1]
  air.channel @k [1]
  air.channel @in
  air.channel @mid []
  air.channel @back {channel_type = "npu_dma_stream"}
  air.channel @words [1]

  func.func @counters(%out: memref<6x4xi32>) {
    air.launch (%i, %j) in (%ni=%c3, %nj=%c2) args(%out1=%out) : memref<6x4xi32> {
      air.segment @seg args(%out2=%out1, %ii=%i, %jj=%j) : memref<6x4xi32>, index, index {
        %k2 = arith.constant 2 : index
        %ctr = memref.alloc() : memref<3xi32, 2>
        air.herd @h tile (%x, %y) in (%sx=%k2, %sy=%c1) args(%c=%ctr, %out3=%out2, %i3=%ii, %j3=%jj) : memref<3xi32, 2>, memref<6x4xi32>, index, index {
          %k1 = arith.constant 1 : index
          %kk2 = arith.constant 2 : index
          %z = arith.constant 0 : i32
          %one = arith.constant 1 : i32
          %flag = memref.load %c[%k1] : memref<3xi32, 2>
          %first = arith.cmpi eq, %flag, %z : i32
          scf.if %first {
            %hundred = arith.constant 100 : i32
            memref.store %hundred, %c[%c0] : memref<3xi32, 2>
            memref.store %one, %c[%k1] : memref<3xi32, 2>
          }
          %own = memref.alloc() : memref<1xi32, 2>
          %n = memref.load %own[%c0] : memref<1xi32, 2>
          %n1 = arith.addi %n, %one : i32
          memref.store %n1, %own[%c0] : memref<1xi32, 2>
          %v = memref.load %c[%c0] : memref<3xi32, 2>
          %xi = arith.index_cast %x : index to i32
          %step = arith.addi %xi, %one : i32
          %w = arith.addi %v, %step : i32
          memref.store %w, %c[%c0] : memref<3xi32, 2>
          scf.for %t = %c0 to %kk2 step %k1 {
            %b = memref.alloc() : memref<1xi32, 2>
            %sel = arith.cmpi eq, %t, %c0 : index
            %val = arith.select %sel, %w, %n1 : i32
            memref.store %val, %b[%c0] : memref<1xi32, 2>
            %row0 = arith.muli %i3, %kk2 : index
            %row = arith.addi %row0, %j3 : index
            %col0 = arith.muli %x, %kk2 : index
            %col = arith.addi %col0, %t : index
            air.dma_memcpy_nd (%out3[%row, %col] [%k1, %k1] [%c4, %k1], %b[] [] []) : (memref<6x4xi32>, memref<1xi32, 2>)
          }
        }
      }
    }
    return
  }
  func.func @tokens(%in: memref<64xf32>, %out: memref<16xf32>, %out2: memref<64xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out, %o2=%out2) : memref<64xf32>, memref<16xf32>, memref<64xf32> {
      scf.for %k = %c0 to %c64 step %c16 {
        air.channel.put @i[] (%in1[%k] [%c16] [%c1]) : (memref<64xf32>)
      }
      scf.for %k = %c0 to %c64 step %c16 {
        air.channel.put @k[] (%in1[%k] [%c16] [%c1]) : (memref<64xf32>)
      }
      air.segment @s args(%out2=%out1, %o3=%o2) : memref<16xf32>, memref<64xf32> {
        %n = arith.constant 1 : index
        %z0 = arith.constant 0 : index
        %z1 = arith.constant 1 : index
        %z4 = arith.constant 4 : index
        %z16 = arith.constant 16 : index
        %m = memref.alloc() : memref<16xf32, 1>
        %t0 = air.wait_all async
        %yes = arith.cmpi eq, %z0, %z0 : index
        %r = scf.for %k = %z0 to %z4 step %z1 iter_args(%t = %t0) -> !air.async.token {
          %g = air.channel.get async [%t] @k[] (%m[] [] []) : (memref<16xf32, 1>)
          %o = arith.muli %k, %z16 : index
          %d = scf.if %yes -> !air.async.token {
            %e = air.dma_memcpy_nd async [%g] (%o3[%o] [%z16] [%z1], %m[] [] []) : (memref<64xf32>, memref<16xf32, 1>)
            scf.yield %e : !air.async.token
          } else {
            scf.yield %g : !air.async.token
          }
          scf.yield %d : !air.async.token
        }
        %pp = scf.parallel (%p) = (%z0) to (%z4) step (%z1) init (%r) -> !air.async.token {
          %w = air.wait_all async [%r]
          scf.reduce(%w : !air.async.token) {
          ^bb0(%l: !air.async.token, %rr: !air.async.token):
            %j = air.wait_all async [%l, %rr]
            scf.reduce.return %j : !air.async.token
          }
        }
        %dd = air.execute [%pp] {
          memref.dealloc %m : memref<16xf32, 1>
        }
        air.herd @h tile (%x, %y) in (%sx=%n, %sy=%n) args(%out3=%out2) : memref<16xf32> {
          %a0 = arith.constant 0 : index
          %a1 = arith.constant 1 : index
          %a2 = arith.constant 2 : index
          %a4 = arith.constant 4 : index
          %s = memref.alloc() : memref<16xf32, 2>
          %b = memref.alloc() : memref<16xf32, 2>
          %zf = arith.constant dense<0.0> : vector<16xf32>
          vector.store %zf, %s[%a0] : memref<16xf32, 2>, vector<16xf32>
          %u0 = air.wait_all async
          %q = scf.for %k = %a0 to %a4 step %a1 iter_args(%t = %u0) -> (!air.async.token) {
            %g = air.channel.get async [%t] @i[] (%b[] [] []) : (memref<16xf32, 2>)
            %ev = arith.remui %k, %a2 : index
            %is = arith.cmpi eq, %ev, %a0 : index
            %h = scf.if %is -> !air.async.token {
              %g2 = air.wait_all async [%g]
              scf.yield %g2 : !air.async.token
            } else {
              scf.yield %g : !air.async.token
            }
            %ex = air.execute [%h] {
              %v = vector.load %b[%a0] : memref<16xf32, 2>, vector<16xf32>
              %w = vector.load %s[%a0] : memref<16xf32, 2>, vector<16xf32>
              %a = arith.addf %v, %w : vector<16xf32>
              vector.store %a, %s[%a0] : memref<16xf32, 2>, vector<16xf32>
            }
            %both = air.wait_all async [%ex, %g, %h]
            scf.yield %both : !air.async.token
          }
          %w1, %w2 = scf.while (%t = %q, %k = %a0) : (!air.async.token, index) -> (!air.async.token, index) {
            %c = arith.cmpi slt, %k, %a2 : index
            scf.condition(%c) %t, %k : !air.async.token, index
          } do {
          ^bb0(%t: !air.async.token, %k: index):
            %k1 = arith.addi %k, %a1 : index
            %t1 = air.wait_all async [%t]
            scf.yield %t1, %k1 : !air.async.token, index
          }
          %sw = scf.index_switch %w2 -> !air.async.token
          case 2 {
            scf.yield %w1 : !air.async.token
          }
          default {
            %g = air.wait_all async
            scf.yield %g : !air.async.token
          }
          %er = scf.execute_region -> !air.async.token {
            %g = air.wait_all async [%sw]
            scf.yield %g : !air.async.token
          }
          %fin = air.dma_memcpy_nd async [%er] (%out3[] [] [], %s[] [] []) : (memref<16xf32>, memref<16xf32, 2>)
          air.wait_all [%fin]
          memref.dealloc %s : memref<16xf32, 2>
          memref.dealloc %b : memref<16xf32, 2>
        }
      }
    }
    return
  }
  // Written once in the segment, used four times by the launch and the core; the tokens are for its deallocation.
  func.func @relay(%in: memref<64xf32>, %out: memref<64xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<64xf32>, memref<64xf32> {
      scf.for %i = %c0 to %c64 step %c16 {
        air.channel.put @in[%c0, %c0] (%in1[%i] [%c16] [%c1]) : (memref<64xf32>)
      }
      air.channel.get @back[] (%out1[] [] []) : (memref<64xf32>)
      air.segment @seg {
        %t0, %m = air.execute -> (memref<16xf32, 1>) {
          %a = memref.alloc() : memref<16xf32, 1>
          air.execute_terminator %a : memref<16xf32, 1>
        }
        %t1 = air.channel.get async [%t0] @in[] (%m[] [] []) : (memref<16xf32, 1>)
        %n = arith.constant 16 : index
        %t2 = air.channel.put async [%t1] @mid[] (%m[%c0] [%n] [%c1]) : (memref<16xf32, 1>)
        %t3 = air.execute [%t2] {
          memref.dealloc %m : memref<16xf32, 1>
        }
        air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) {
          %l = memref.alloc() : memref<16xf32, 2>
          scf.for %i = %c0 to %c4 step %c1 {
            air.channel.get @mid[%x, %y] (%l[] [] []) : (memref<16xf32, 2>)
            air.channel.put @back[] (%l[] [] []) : (memref<16xf32, 2>)
          }
          memref.dealloc %l : memref<16xf32, 2>
        }
      }
    }
    return
  }
  // A block that a core gets, and a DMA takes from it.
  func.func @sent_on(%in: memref<16xf32>, %out: memref<16xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<16xf32>, memref<16xf32> {
      air.channel.put @k[] (%in1[] [] []) : (memref<16xf32>)
      air.segment @seg args(%out2=%out1) : memref<16xf32> {
        air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%out3=%out2) : memref<16xf32> {
          %l = memref.alloc() : memref<16xf32, 2>
          air.channel.get @k[] (%l[] [] []) : (memref<16xf32, 2>)
          air.dma_memcpy_nd (%out3[] [] [], %l[] [] []) : (memref<16xf32>, memref<16xf32, 2>)
          memref.dealloc %l : memref<16xf32, 2>
        }
      }
    }
    return
  }
  // Of a word that goes on twice, only one number means something.
  func.func @partly(%in: memref<16xf32>, %out: memref<2xf32>) {
    air.launch () in () args(%in1=%in, %out1=%out) : memref<16xf32>, memref<2xf32> {
      air.segment @seg args(%in2=%in1, %out2=%out1) : memref<16xf32>, memref<2xf32> {
        air.herd @a tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%in3=%in2) : memref<16xf32> {
          %w = memref.alloc() : memref<16xf32, 2>
          air.dma_memcpy_nd (%w[%c8] [%c2] [%c1], %in3[%c8] [%c2] [%c1]) : (memref<16xf32, 2>, memref<16xf32>)
          %v = memref.alloc() : memref<16xf32, 2>
          linalg.copy ins(%w : memref<16xf32, 2>) outs(%v : memref<16xf32, 2>)
          air.channel.put @words[] (%v[] [] []) : (memref<16xf32, 2>)
          memref.dealloc %w : memref<16xf32, 2>
          memref.dealloc %v : memref<16xf32, 2>
        }
        air.herd @b tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%out3=%out2) : memref<2xf32> {
          %w = memref.alloc() : memref<16xf32, 2>
          scf.for %i = %c0 to %c16 step %c8 {
            %h = memref.subview %w[%i] [8] [1] : memref<16xf32, 2> to memref<8xf32, strided<[1], offset: ?>, 2>
            air.channel.get @words[] (%h[] [] []) : (memref<8xf32, strided<[1], offset: ?>, 2>)
          }
          %r = memref.alloc() : memref<4x4xf32, 2>
          air.dma_memcpy_nd (%r[%c0, %c0] [%c4, %c4] [%c1, %c4], %w[] [] []) : (memref<4x4xf32, 2>, memref<16xf32, 2>)
          air.dma_memcpy_nd (%out3[] [] [], %r[%c0, %c2] [%c2, %c1] [%c4, %c1]) : (memref<2xf32>, memref<4x4xf32, 2>) // use
          memref.dealloc %w : memref<16xf32, 2>
          memref.dealloc %r : memref<4x4xf32, 2>
        }
      }
    }
    return
  }
}
"""


@pytest.mark.parametrize("checks", [True, False])
def test_what_cores_and_memtiles_keep(program, run, checks: bool) -> None:
    library = program(LASTING, options=virtual_npu.BuildOptions(checks=checks))
    (found,) = run(library, "counters", np.zeros((6, 4), np.int32))
    points = np.arange(1, 7)
    assert found.tolist() == np.stack([100 + points, points, 100 + 2 * points, points], axis=1).tolist()
    flat = np.arange(64, dtype=np.float32)
    assert run(library, "relay", flat, np.zeros(64, np.float32))[1].tolist() == flat.tolist()
    assert run(library, "sent_on", flat[:16], np.zeros(16, np.float32))[1].tolist() == flat[:16].tolist()
    _, sums, copied = run(library, "tokens", flat, np.zeros(16, np.float32), np.zeros(64, np.float32))
    assert sums.tolist() == flat.reshape(4, 16).sum(axis=0).tolist()
    assert copied.tolist() == flat.tolist()
    assert run(library, "partly", flat[:16], np.zeros(2, np.float32))[1].tolist() == [8, 9]


def test_unwritten_elements_are_reported_where_they_are_used(program, run) -> None:
    used = LASTING.replace("%r[%c0, %c2] [%c2, %c1] [%c4, %c1]", "%r[%c0, %c1] [%c2, %c1] [%c4, %c1]")
    line = next(n for n, text in enumerate(used.splitlines(), 1) if text.endswith("// use"))
    library = program(used, options=virtual_npu.BuildOptions(checks=True))
    message = rf"line {line}: air\.dma_memcpy_nd in herd @b \(0, 0\): reads element \[0, 1\] of %r .* before anything wrote it"
    with pytest.raises(ProgramError, match=message):
        run(library, "partly", np.zeros(16, np.float32), np.zeros(2, np.float32))


def test_uncleared_sums_are_not_counters(program, run) -> None:
    text = """
  func.func @f(%out: memref<16xf32>) {
    air.launch (%i) in (%n=%c2) args(%out1=%out) : memref<16xf32> {
      air.segment @seg args(%out2=%out1) : memref<16xf32> {
        %sum = memref.alloc() : memref<16xf32, 2>
        air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%s=%sum, %out3=%out2) : memref<16xf32, 2>, memref<16xf32> {
          %v = vector.load %s[%c0] : memref<16xf32, 2>, vector<16xf32>
          %w = arith.addf %v, %v : vector<16xf32>
          vector.store %w, %s[%c0] : memref<16xf32, 2>, vector<16xf32>
          air.dma_memcpy_nd (%out3[] [] [], %s[] [] []) : (memref<16xf32>, memref<16xf32, 2>)
        }
      }
    }
    return
  }"""
    library = program(text, options=virtual_npu.BuildOptions(checks=True))
    with pytest.raises(ProgramError, match=r"reads element \[0\] of %sum .* before anything wrote it"):
        run(library, "f", np.zeros(16, np.float32))


HOP = """
  func.func @f(%out: memref<4xi32>) {
    air.launch () in () args(%out1=%out) : memref<4xi32> {
      air.segment @seg args(%out2=%out1) : memref<4xi32> {
        %hop = memref.alloc() : memref<1xi32, 2>
        air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c4) args(%s=%hop, %out3=%out2) : memref<1xi32, 2>, memref<4xi32> {
          scf.index_switch %y
          case 0 {
            %v = arith.constant 7 : i32
            memref.store %v, %s[%c0] : memref<1xi32, 2>
          }
          case 1 {
            air.dma_memcpy_nd (%out3[%c0] [%c1] [%c1], %s[] [] []) : (memref<4xi32>, memref<1xi32, 2>)
          }
          default { }
        }
        memref.dealloc %hop : memref<1xi32, 2>
      }
    }
    return
  }"""


@pytest.mark.parametrize(
    ("given", "other", "message"),
    [
        (
            "case 1 {",
            "case 2 {",
            r"%hop goes between cores \(0, 0\), \(0, 2\), and none has a memory that all reach",
        ),
        (
            "case 1 {",
            "case 2 { %v = memref.load %s[%c0] : memref<1xi32, 2> memref.store %v, %s[%c0] : memref<1xi32, 2> } case 1 {",
            r"%hop is handed from core to core, and cores \(0, 0\), \(0, 2\) write it, some of which read it too",
        ),
    ],
)
def test_cores_that_cannot_share_are_refused(program, given: str, other: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        program(HOP.replace(given, other))


def test_a_core_that_writes_once_and_reads_twice_waits_for_ever(program, run) -> None:
    again = "air.dma_memcpy_nd (%out3[%c1] [%c1] [%c1], %s[] [] []) : (memref<4xi32>, memref<1xi32, 2>)"
    library = program(
        HOP.replace("          default", "          // and\n          default").replace(
            "          case 1 {", f"          case 1 {{ {again} air.wait_all"
        )
    )
    message = r'deadlock: .*get @"%hop \(line 5\) is filled"\[0, 1\]'
    with pytest.raises(ProgramError, match=f"(?s){message}"):
        run(library, "f", np.zeros(4, np.int32))


CALLS = """
func.func private @double_half(memref<16xf32, 2>, memref<16xf32, 2>, i32) attributes {link_with = "half.o"}
func.func @f(%in: memref<64xf32>, %out: memref<64xf32>) {
  air.segment @seg args(%in2=%in, %out2=%out) : memref<64xf32>, memref<64xf32> {
    %hop = memref.alloc() : memref<16xf32, 2>
    air.herd @one tile (%x, %y) in (%sx=%c1, %sy=%c2) args(%s=%hop, %in3=%in2) : memref<16xf32, 2>, memref<64xf32> {
      %row = arith.index_cast %y : index to i32
      %b = memref.alloc() : memref<16xf32, 2>
      scf.for %k = %c0 to %c64 step %c16 {
        air.dma_memcpy_nd (%b[] [] [], %in3[%k] [%c16] [%c1]) : (memref<16xf32, 2>, memref<64xf32>)
        func.call @double_half(%b, %s, %row) : (memref<16xf32, 2>, memref<16xf32, 2>, i32) -> ()
      }
      memref.dealloc %b : memref<16xf32, 2>
    }
    air.herd @other tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%s=%hop, %out3=%out2) : memref<16xf32, 2>, memref<64xf32> {
      scf.for %k = %c0 to %c64 step %c16 {
        air.dma_memcpy_nd (%out3[%k] [%c16] [%c1], %s[] [] []) : (memref<64xf32>, memref<16xf32, 2>)
      }
    }
    memref.dealloc %hop : memref<16xf32, 2>
  }
  return
}
"""
DOUBLE_HALF = """
extern "C" void double_half(const float *from, float *to, int half) {
  for (int i = 8 * half; i < 8 * half + 8; ++i) to[i] = 2 * from[i];
}
"""


@pytest.mark.parametrize("checks", [True, False])
def test_a_call_that_all_cores_make_hands_over_to_another_herd(tmp_path, run, checks: bool) -> None:
    (tmp_path / "half.cc").write_text(DOUBLE_HALF)
    options = virtual_npu.BuildOptions(checks=checks)
    virtual_npu.build(with_constants(CALLS), tmp_path / "f.so", kernel_dirs=[tmp_path], options=options)
    flat = np.arange(64, dtype=np.float32)
    found = run(virtual_npu.Library(tmp_path / "f.so"), "f", flat, np.zeros(64, np.float32))[1]
    assert found.tolist() == (2 * flat).tolist()
