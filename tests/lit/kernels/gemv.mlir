// A projection of decode.
// RUN: %kernels show gemv --m=256 --k=256 | %golden %s
builtin.module {
  func.func private @matvec_vectorized_bf16_bf16_8x256_8(i32, i32, i32, memref<8x256xbf16, 2>, memref<256xbf16, 2>, memref<8xbf16, 2>) -> () attributes {link_with = "mv_8x256_8.o", link_source = "mv.cc", link_defines = "DIM_M_OUTPUT=8 matvec_vectorized_bf16_bf16=matvec_vectorized_bf16_bf16_8x256_8 linalg_fill_bf16=linalg_fill_bf16_8x256_8", link_optimize = "O2", llvm.emit_c_interface}
  func.func @gemv(%weight: memref<256x256xbf16>, %x: memref<256xbf16>, %out: memref<256xbf16>) {
    air.launch () in () args(%x_1=%x, %weight_1=%weight, %out_1=%out) : memref<256xbf16>, memref<256x256xbf16>, memref<256xbf16> {
      air.segment @gemv_segment args(%x_2=%x_1, %weight_2=%weight_1, %out_2=%out_1) : memref<256xbf16>, memref<256x256xbf16>, memref<256xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @gemv_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%x_3=%x_2, %weight_3=%weight_2, %out_3=%out_2) : memref<256xbf16>, memref<256x256xbf16>, memref<256xbf16> {
          %c0 = arith.constant 0 : index
          %c32 = arith.constant 32 : index
          %c8_1 = arith.constant 8 : index
          %c256 = arith.constant 256 : index
          %c1_1 = arith.constant 1 : index
          %i32_constant = arith.constant 8 : i32
          %i32_constant_1 = arith.constant 256 : i32
          %l1_x = memref.alloc() : memref<256xbf16, 2>
          %l1_weight = memref.alloc() : memref<8x256xbf16, 2>
          %l1_out = memref.alloc() : memref<8xbf16, 2>
          air.dma_memcpy_nd (%l1_x[] [] [], %x_3[] [] []) : (memref<256xbf16, 2>, memref<256xbf16>)
          scf.for %i = %c0 to %c32 step %c8_1 {
            scf.for %i_1 = %c0 to %c8_1 step %c8_1 {
              %at = affine.apply affine_map<()[s0, s1, s2] -> ((((s0 * 32) + s1) + s2))> ()[%hx, %i, %i_1]
              air.dma_memcpy_nd (%l1_weight[] [] [], %weight_3[%at, %c0] [%c8_1, %c256] [%c256, %c1_1]) : (memref<8x256xbf16, 2>, memref<256x256xbf16>)
              %0 = arith.index_cast %i_1 : index to i32
              func.call @matvec_vectorized_bf16_bf16_8x256_8(%i32_constant, %i32_constant_1, %0, %l1_weight, %l1_x, %l1_out) : (i32, i32, i32, memref<8x256xbf16, 2>, memref<256xbf16, 2>, memref<8xbf16, 2>) -> ()
            }
            %at_1 = affine.apply affine_map<()[s0, s1] -> (((s0 * 32) + s1))> ()[%hx, %i]
            air.dma_memcpy_nd (%out_3[%at_1] [%c8_1] [%c1_1], %l1_out[] [] []) : (memref<256xbf16>, memref<8xbf16, 2>)
          }
          memref.dealloc %l1_x : memref<256xbf16, 2>
          memref.dealloc %l1_weight : memref<8x256xbf16, 2>
          memref.dealloc %l1_out : memref<8xbf16, 2>
        }
      }
    }
    func.return
  }
}
