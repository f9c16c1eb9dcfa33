// Eight cores, 16 columns of 16 rows for each.
// RUN: %kernels show bias_add --rows=16 --cols=128 | %golden %s
builtin.module {
  func.func private @round_to_even_bf16_16_16(memref<16x16xbf16, 2>) -> () attributes {link_with = "round_to_even_bf16_16_16.o", link_source = "round_to_even.cc", link_defines = "round_to_even=round_to_even_bf16_16_16", llvm.emit_c_interface}
  func.func @bias_add(%x: memref<16x128xbf16>, %bias: memref<128xbf16>, %out: memref<16x128xbf16>) {
    air.launch () in () args(%bias_1=%bias, %x_1=%x, %out_1=%out) : memref<128xbf16>, memref<16x128xbf16>, memref<16x128xbf16> {
      air.segment @bias_add_segment args(%bias_2=%bias_1, %x_2=%x_1, %out_2=%out_1) : memref<128xbf16>, memref<16x128xbf16>, memref<16x128xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @bias_add_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%bias_3=%bias_2, %x_3=%x_2, %out_3=%out_2) : memref<128xbf16>, memref<16x128xbf16>, memref<16x128xbf16> {
          %c16 = arith.constant 16 : index
          %c1_1 = arith.constant 1 : index
          %c0 = arith.constant 0 : index
          %c128 = arith.constant 128 : index
          %bf16_constant = arith.constant 0.000000e+00 : bf16
          %l1_bias = memref.alloc() : memref<16xbf16, 2>
          %l1_x = memref.alloc() : memref<16x16xbf16, 2>
          %l1_out = memref.alloc() : memref<16x16xbf16, 2>
          %at = affine.apply affine_map<()[s0] -> ((s0 * 16))> ()[%hx]
          air.dma_memcpy_nd (%l1_bias[] [] [], %bias_3[%at] [%c16] [%c1_1]) : (memref<16xbf16, 2>, memref<128xbf16>)
          air.dma_memcpy_nd (%l1_x[] [] [], %x_3[%c0, %at] [%c16, %c16] [%c128, %c1_1]) : (memref<16x16xbf16, 2>, memref<16x128xbf16>)
          func.call @round_to_even_bf16_16_16(%l1_out) : (memref<16x16xbf16, 2>) -> ()
          scf.for %i = %c0 to %c16 step %c1_1 {
            scf.for %i_1 = %c0 to %c16 step %c16 {
              %0 = vector.transfer_read %l1_x[%i, %i_1], %bf16_constant {in_bounds = [true]} : memref<16x16xbf16, 2>, vector<16xbf16>
              %1 = vector.transfer_read %l1_bias[%i_1], %bf16_constant {in_bounds = [true]} : memref<16xbf16, 2>, vector<16xbf16>
              %2 = arith.addf %0, %1 : vector<16xbf16>
              vector.transfer_write %2, %l1_out[%i, %i_1] {in_bounds = [true]} : vector<16xbf16>, memref<16x16xbf16, 2>
            }
          }
          air.dma_memcpy_nd (%out_3[%c0, %at] [%c16, %c16] [%c128, %c1_1], %l1_out[] [] []) : (memref<16x128xbf16>, memref<16x16xbf16, 2>)
          memref.dealloc %l1_bias : memref<16xbf16, 2>
          memref.dealloc %l1_x : memref<16x16xbf16, 2>
          memref.dealloc %l1_out : memref<16x16xbf16, 2>
        }
      }
    }
    func.return
  }
}
