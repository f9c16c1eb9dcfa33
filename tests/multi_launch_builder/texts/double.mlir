// A kernel with everything that has a name: channels, a constant global, a private function, a named
// launch, segment and two herds of one name (the same cores, one after the other). y = 2 * x.
#map = affine_map<()[s0] -> (s0 * 64)>
module {
  air.channel @in [2, 1]
  air.channel @out [2, 1] {channel_type = "npu_dma_stream"}
  memref.global "private" constant @two : memref<1xbf16, 2> = dense<2.0>
  func.func private @times(%v: bf16, %f: bf16) -> bf16 {
    %0 = arith.mulf %v, %f : bf16
    return %0 : bf16
  }
  func.func @double(%x: memref<128xbf16>, %y: memref<128xbf16>) {
    air.launch @l () in () args(%lx = %x, %ly = %y) : memref<128xbf16>, memref<128xbf16> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %o = affine.apply #map()[%c1]
      air.channel.put @in[%c0, %c0] (%lx[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.put @in[%c1, %c0] (%lx[%o] [%c64] [%c1]) : (memref<128xbf16>)
      air.segment @s {
        %c2 = arith.constant 2 : index
        %c1_0 = arith.constant 1 : index
        air.herd @h tile (%tx, %ty) in (%sx = %c2, %sy = %c1_0) {
          %unused = memref.alloc() : memref<64xbf16, 2>
        }
        air.herd @h tile (%tx, %ty) in (%sx = %c2, %sy = %c1_0) {
          %c0_1 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c64_1 = arith.constant 64 : index
          %two = memref.get_global @two : memref<1xbf16, 2>
          %f = memref.load %two[%c0_1] : memref<1xbf16, 2>
          %b = memref.alloc() : memref<64xbf16, 2>
          air.channel.get @in[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          scf.for %e = %c0_1 to %c64_1 step %c1_1 {
            %v = memref.load %b[%e] : memref<64xbf16, 2>
            %w = func.call @times(%v, %f) : (bf16, bf16) -> bf16
            memref.store %w, %b[%e] : memref<64xbf16, 2>
          }
          air.channel.put @out[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          memref.dealloc %b : memref<64xbf16, 2>
        }
      }
      air.channel.get @out[%c0, %c0] (%ly[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.get @out[%c1, %c0] (%ly[%o] [%c64] [%c1]) : (memref<128xbf16>)
    }
    return
  }
}
