// c = a + b, 256 elements, 4 cores; a launch whose herd has no segment.
module {
  func.func @add(%a: memref<256xbf16>, %b: memref<256xbf16>, %c: memref<256xbf16>) {
    air.launch () in () args(%la = %a, %lb = %b, %lc = %c) : memref<256xbf16>, memref<256xbf16>, memref<256xbf16> {
      %c4 = arith.constant 4 : index
      %c1 = arith.constant 1 : index
      air.herd tile (%tx, %ty) in (%sx = %c4, %sy = %c1) args(%ha = %la, %hb = %lb, %hc = %lc) : memref<256xbf16>, memref<256xbf16>, memref<256xbf16> {
        %c0_0 = arith.constant 0 : index
        %c1_0 = arith.constant 1 : index
        %c64 = arith.constant 64 : index
        %o = affine.apply affine_map<()[s0] -> (s0 * 64)>()[%tx]
        %ba = memref.alloc() : memref<64xbf16, 2>
        %bb = memref.alloc() : memref<64xbf16, 2>
        air.dma_memcpy_nd (%ba[] [] [], %ha[%o] [%c64] [%c1_0]) : (memref<64xbf16, 2>, memref<256xbf16>)
        air.dma_memcpy_nd (%bb[] [] [], %hb[%o] [%c64] [%c1_0]) : (memref<64xbf16, 2>, memref<256xbf16>)
        scf.for %e = %c0_0 to %c64 step %c1_0 {
          %va = memref.load %ba[%e] : memref<64xbf16, 2>
          %vb = memref.load %bb[%e] : memref<64xbf16, 2>
          %s = arith.addf %va, %vb : bf16
          memref.store %s, %ba[%e] : memref<64xbf16, 2>
        }
        air.dma_memcpy_nd (%hc[%o] [%c64] [%c1_0], %ba[] [] []) : (memref<256xbf16>, memref<64xbf16, 2>)
        memref.dealloc %ba : memref<64xbf16, 2>
        memref.dealloc %bb : memref<64xbf16, 2>
      }
    }
    return
  }
}
