# ruff: noqa: E501 - MLIR has long lines
"""L1 buffers of a segment: one that cores hand from one to another, and a copy for each core of any other."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import VirtualNpuError

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
