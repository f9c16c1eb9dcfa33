builtin.module {
  func.func private @matvec_blocks_f32_q4_1x64(i32, i32, i32, memref<1x5120xi8, 2>, memref<64xbf16, 2>, memref<2x64x16xf32, 2>) -> () attributes {link_with = "weight_blocks_q4_1x64.o", link_source = "weight_blocks.cc", link_defines = "WEIGHT_BITS=4 matvec_blocks_f32=matvec_blocks_f32_q4_1x64 matvec_block_rows_bf16=matvec_block_rows_bf16_q4_1x64 unpack_blocks_bf16=unpack_blocks_bf16_q4_1x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @matvec_block_rows_bf16_q4_1x64(memref<2x64x16xf32, 2>, memref<32xbf16, 2>) -> () attributes {link_with = "weight_blocks_q4_1x64.o", link_source = "weight_blocks.cc", link_defines = "WEIGHT_BITS=4 matvec_blocks_f32=matvec_blocks_f32_q4_1x64 matvec_block_rows_bf16=matvec_block_rows_bf16_q4_1x64 unpack_blocks_bf16=unpack_blocks_bf16_q4_1x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func @gemv(%weight: memref<2x1x5120xi8>, %x: memref<64xbf16>, %out: memref<64xbf16>) {
    air.launch () in () args(%x_1=%x, %weight_1=%weight, %out_1=%out) : memref<64xbf16>, memref<2x1x5120xi8>, memref<64xbf16> {
      air.segment @gemv_segment args(%x_2=%x_1, %weight_2=%weight_1, %out_2=%out_1) : memref<64xbf16>, memref<2x1x5120xi8>, memref<64xbf16> {
        %c2 = arith.constant 2 : index
        %c1 = arith.constant 1 : index
        air.herd @gemv_herd tile (%hx, %hy) in (%hsx=%c2, %hsy=%c1) args(%x_3=%x_2, %weight_3=%weight_2, %out_3=%out_2) : memref<64xbf16>, memref<2x1x5120xi8>, memref<64xbf16> {
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c5120 = arith.constant 5120 : index
          %i32_constant = arith.constant 1 : i32
          %i32_constant_1 = arith.constant 64 : i32
          %c32 = arith.constant 32 : index
          %l1_x = memref.alloc() : memref<64xbf16, 2>
          %l1_weight = memref.alloc() : memref<1x5120xi8, 2>
          %l1_sums = memref.alloc() : memref<2x64x16xf32, 2>
          %l1_out = memref.alloc() : memref<32xbf16, 2>
          air.dma_memcpy_nd (%l1_x[] [] [], %x_3[] [] []) : (memref<64xbf16, 2>, memref<64xbf16>)
          air.dma_memcpy_nd (%l1_weight[] [] [], %weight_3[%hx, %c0, %c0] [%c1_1, %c1_1, %c5120] [%c5120, %c5120, %c1_1]) : (memref<1x5120xi8, 2>, memref<2x1x5120xi8>)
          %0 = arith.index_cast %c0 : index to i32
          func.call @matvec_blocks_f32_q4_1x64(%i32_constant, %0, %i32_constant_1, %l1_weight, %l1_x, %l1_sums) : (i32, i32, i32, memref<1x5120xi8, 2>, memref<64xbf16, 2>, memref<2x64x16xf32, 2>) -> ()
          func.call @matvec_block_rows_bf16_q4_1x64(%l1_sums, %l1_out) : (memref<2x64x16xf32, 2>, memref<32xbf16, 2>) -> ()
          %at = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%hx]
          air.dma_memcpy_nd (%out_3[%at] [%c32] [%c1_1], %l1_out[] [] []) : (memref<64xbf16>, memref<32xbf16, 2>)
          memref.dealloc %l1_x : memref<64xbf16, 2>
          memref.dealloc %l1_weight : memref<1x5120xi8, 2>
          memref.dealloc %l1_sums : memref<2x64x16xf32, 2>
          memref.dealloc %l1_out : memref<32xbf16, 2>
        }
      }
    }
    func.return
  }
}
