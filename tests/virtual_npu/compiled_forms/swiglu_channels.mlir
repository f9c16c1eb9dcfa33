// swiglu, rows=2 cols=16384 herd_x=2, air-dma-to-channel on the synchronous program: no token anywhere.
// Channels alone order what happens; the get of the result, first in the text, must not hold back the puts
// that come after it.
module {
  air.channel @swiglu_channels_0 [2, 1]
  air.channel @swiglu_channels_1 [2, 1]
  air.channel @swiglu_channels_2 [2, 1]
  func.func private @silu_and_mul_bf16_4096(memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) attributes {link_with = "silu_and_mul_4096.o", link_source = "silu_and_mul.cc", link_defines = "silu_and_mul_bf16=silu_and_mul_bf16_4096", llvm.emit_c_interface}
  func.func @swiglu_channels(%gate: memref<2x16384xbf16>, %up: memref<2x16384xbf16>, %out: memref<2x16384xbf16>) {
    air.launch () in () args(%gate_1=%gate, %up_1=%up, %out_1=%out) : memref<2x16384xbf16>, memref<2x16384xbf16>, memref<2x16384xbf16> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c4096 = arith.constant 4096 : index
      %c16384 = arith.constant 16384 : index
      scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) {
        scf.for %i = %c0 to %c16384 step %c4096 {
          air.channel.get @swiglu_channels_2[%px, %py] (%out_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 1 : i32} : (memref<2x16384xbf16>)
        }
        scf.reduce
      }
      scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) {
        scf.for %i = %c0 to %c16384 step %c4096 {
          air.channel.put @swiglu_channels_0[%px, %py] (%gate_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 2 : i32} : (memref<2x16384xbf16>)
        }
        scf.reduce
      }
      scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) {
        scf.for %i = %c0 to %c16384 step %c4096 {
          air.channel.put @swiglu_channels_1[%px, %py] (%up_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 3 : i32} : (memref<2x16384xbf16>)
        }
        scf.reduce
      }
      air.segment @swiglu_segment {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        air.herd @swiglu_herd tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {link_with = "silu_and_mul_4096.o"} {
          %c0 = arith.constant 0 : index
          %c4096 = arith.constant 4096 : index
          %c16384 = arith.constant 16384 : index
          %n = arith.constant 4096 : i32
          %l1_gate = memref.alloc() : memref<4096xbf16, 2>
          %l1_up = memref.alloc() : memref<4096xbf16, 2>
          %l1_out = memref.alloc() : memref<4096xbf16, 2>
          scf.for %i = %c0 to %c16384 step %c4096 {
            air.channel.get @swiglu_channels_0[%hx, %hy] (%l1_gate[] [] []) {id = 4 : i32} : (memref<4096xbf16, 2>)
            air.channel.get @swiglu_channels_1[%hx, %hy] (%l1_up[] [] []) {id = 5 : i32} : (memref<4096xbf16, 2>)
            func.call @silu_and_mul_bf16_4096(%l1_gate, %l1_up, %l1_out, %n) : (memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) -> ()
            air.channel.put @swiglu_channels_2[%hx, %hy] (%l1_out[] [] []) {id = 6 : i32} : (memref<4096xbf16, 2>)
          }
          memref.dealloc %l1_gate : memref<4096xbf16, 2>
          memref.dealloc %l1_up : memref<4096xbf16, 2>
          memref.dealloc %l1_out : memref<4096xbf16, 2>
        }
      }
    }
    return
  }
}
