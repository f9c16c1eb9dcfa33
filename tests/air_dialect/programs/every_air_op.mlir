#map = affine_map<()[s0] -> (s0 * 64)>
air.channel @c [2, 4] {channel_type = "dma_stream", broadcast_shape = [2, 4]}
func.func private @k(memref<64xbf16, 2>, i32) attributes {link_with = "k.o", llvm.emit_c_interface}
func.func @f(%arg0: memref<256xbf16>, %arg1: memref<256xbf16>) {
  %c4 = arith.constant 4 : index
  %c1 = arith.constant 1 : index
  %t0 = air.wait_all async
  %t = air.launch async [%t0] (%i, %j) in (%si=%c4, %sj=%c1) args(%a=%arg0, %b=%arg1) : memref<256xbf16>, memref<256xbf16> attributes {id = 3 : i32} {
    air.segment @seg args(%c=%a, %d=%b) : memref<256xbf16>, memref<256xbf16> attributes {x_loc = 0 : i64} {
      %c4 = arith.constant 4 : index
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%sx=%c4, %sy=%c1) args(%e=%c, %g=%d) : memref<256xbf16>, memref<256xbf16> attributes {link_with = "k.o"} {
        %0 = affine.apply #map()[%x]
        %c64 = arith.constant 64 : index
        %c1_0 = arith.constant 1 : index
        %n = arith.constant 64 : i32
        %tok, %buf = air.execute -> (memref<64xbf16, 2>) {
          %al = memref.alloc() : memref<64xbf16, 2>
          air.execute_terminator %al : memref<64xbf16, 2>
        }
        %1 = air.dma_memcpy_nd async [%tok] (%buf[] [] [], %e[%0] [64] [1]) {id = 1 : i32} : (memref<64xbf16, 2>, memref<256xbf16>)
        func.call @k(%buf, %n) : (memref<64xbf16, 2>, i32) -> ()
        air.channel.put @c[%x, %y] (%buf[] [] []) : (memref<64xbf16, 2>)
        %2 = air.channel.get async [%1] @c[%x, %y] (%buf[%c1_0] [%c64] [%c1_0]) {id = 4 : i32} : (memref<64xbf16, 2>)
        %3 = air.execute [%2] {
          memref.dealloc %buf : memref<64xbf16, 2>
        } {id = 7 : i32}
      }
      air.herd @ext tile (%x, %y) in (%sx=%c4, %sy=%c1) args(%e=%c) : memref<256xbf16> attributes {link_with = "k.o"}
    }
  }
  air.wait_all [%t]
  return
}
