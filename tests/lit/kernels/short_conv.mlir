// A short causal convolution of each column.
// RUN: %kernels show short_conv --rows=16 --cols=64 | %golden %s
builtin.module {
  func.func private @short_conv_bf16_16x3x16(memref<16x3x16xbf16, 2>, memref<3x16xbf16, 2>, memref<16x16xbf16, 2>, i32, i32) -> () attributes {link_with = "short_conv_bf16_16x3x16.o", link_source = "short_conv.cc", link_defines = "short_conv_bf16=short_conv_bf16_16x3x16 CONV_TAPS=3", llvm.emit_c_interface}
  func.func @short_conv(%rows: memref<16x3x64xbf16>, %weight: memref<3x64xbf16>, %out: memref<16x64xbf16>) {
    air.launch () in () args(%weight_1=%weight, %rows_1=%rows, %out_1=%out) : memref<3x64xbf16>, memref<16x3x64xbf16>, memref<16x64xbf16> {
      air.segment @short_conv_segment args(%weight_2=%weight_1, %rows_2=%rows_1, %out_2=%out_1) : memref<3x64xbf16>, memref<16x3x64xbf16>, memref<16x64xbf16> {
        %c4 = arith.constant 4 : index
        %c1 = arith.constant 1 : index
        air.herd @short_conv_herd tile (%hx, %hy) in (%hsx=%c4, %hsy=%c1) args(%weight_3=%weight_2, %rows_3=%rows_2, %out_3=%out_2) : memref<3x64xbf16>, memref<16x3x64xbf16>, memref<16x64xbf16> {
          %c0 = arith.constant 0 : index
          %c3 = arith.constant 3 : index
          %c16 = arith.constant 16 : index
          %c64 = arith.constant 64 : index
          %c1_1 = arith.constant 1 : index
          %c192 = arith.constant 192 : index
          %i32_constant = arith.constant 16 : i32
          %l1_weight = memref.alloc() : memref<3x16xbf16, 2>
          %l1_x = memref.alloc() : memref<16x3x16xbf16, 2>
          %l1_out = memref.alloc() : memref<16x16xbf16, 2>
          %at = affine.apply affine_map<()[s0] -> ((s0 * 16))> ()[%hx]
          air.dma_memcpy_nd (%l1_weight[] [] [], %weight_3[%c0, %at] [%c3, %c16] [%c64, %c1_1]) : (memref<3x16xbf16, 2>, memref<3x64xbf16>)
          scf.for %i = %c0 to %c16 step %c16 {
            air.dma_memcpy_nd (%l1_x[] [] [], %rows_3[%i, %c0, %at] [%c16, %c3, %c16] [%c192, %c64, %c1_1]) : (memref<16x3x16xbf16, 2>, memref<16x3x64xbf16>)
            func.call @short_conv_bf16_16x3x16(%l1_x, %l1_weight, %l1_out, %i32_constant, %i32_constant) : (memref<16x3x16xbf16, 2>, memref<3x16xbf16, 2>, memref<16x16xbf16, 2>, i32, i32) -> ()
            air.dma_memcpy_nd (%out_3[%i, %at] [%c16, %c16] [%c64, %c1_1], %l1_out[] [] []) : (memref<16x64xbf16>, memref<16x16xbf16, 2>)
          }
          memref.dealloc %l1_weight : memref<3x16xbf16, 2>
          memref.dealloc %l1_x : memref<16x3x16xbf16, 2>
          memref.dealloc %l1_out : memref<16x16xbf16, 2>
        }
      }
    }
    func.return
  }
}
