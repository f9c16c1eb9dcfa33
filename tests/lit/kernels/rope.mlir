// 64 positions of two heads; the table goes in with them.
// RUN: %kernels show rope --rows=64 --n-heads=2 --head-dim=64 | %golden %s
builtin.module {
  func.func private @rope_2x64(memref<128xbf16, 2>, memref<64xbf16, 2>, memref<128xbf16, 2>, i32, i32) -> () attributes {link_with = "rope_2x64.o", link_source = "rope_halfsplit.cc", link_defines = "rope=rope_2x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func @rope(%x: memref<64x128xbf16>, %lut: memref<64x64xbf16>, %out: memref<64x128xbf16>) {
    air.launch () in () args(%lut_1=%lut, %x_1=%x, %out_1=%out) : memref<64x64xbf16>, memref<64x128xbf16>, memref<64x128xbf16> {
      air.segment @rope_segment args(%lut_2=%lut_1, %x_2=%x_1, %out_2=%out_1) : memref<64x64xbf16>, memref<64x128xbf16>, memref<64x128xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @rope_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%lut_3=%lut_2, %x_3=%x_2, %out_3=%out_2) : memref<64x64xbf16>, memref<64x128xbf16>, memref<64x128xbf16> {
          %c0 = arith.constant 0 : index
          %c8_1 = arith.constant 8 : index
          %c1_1 = arith.constant 1 : index
          %c64 = arith.constant 64 : index
          %c128 = arith.constant 128 : index
          %i32_constant = arith.constant 2 : i32
          %i32_constant_1 = arith.constant 64 : i32
          %l1_lut = memref.alloc() : memref<64xbf16, 2>
          %l1_x = memref.alloc() : memref<128xbf16, 2>
          %l1_out = memref.alloc() : memref<128xbf16, 2>
          scf.for %i = %c0 to %c8_1 step %c1_1 {
            %at = affine.apply affine_map<()[s0, s1] -> (((s0 * 8) + s1))> ()[%hx, %i]
            air.dma_memcpy_nd (%l1_lut[] [] [], %lut_3[%at, %c0] [%c1_1, %c64] [%c64, %c1_1]) : (memref<64xbf16, 2>, memref<64x64xbf16>)
            air.dma_memcpy_nd (%l1_x[] [] [], %x_3[%at, %c0, %c0] [%c1_1, %c1_1, %c128] [%c128, %c128, %c1_1]) : (memref<128xbf16, 2>, memref<64x128xbf16>)
            func.call @rope_2x64(%l1_x, %l1_lut, %l1_out, %i32_constant, %i32_constant_1) : (memref<128xbf16, 2>, memref<64xbf16, 2>, memref<128xbf16, 2>, i32, i32) -> ()
            air.dma_memcpy_nd (%out_3[%at, %c0, %c0] [%c1_1, %c1_1, %c128] [%c128, %c128, %c1_1], %l1_out[] [] []) : (memref<64x128xbf16>, memref<128xbf16, 2>)
          }
          memref.dealloc %l1_lut : memref<64xbf16, 2>
          memref.dealloc %l1_x : memref<128xbf16, 2>
          memref.dealloc %l1_out : memref<128xbf16, 2>
        }
      }
    }
    func.return
  }
}
