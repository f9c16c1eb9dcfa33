// Eight cores, two rows of 64 sums for each.
// RUN: %kernels show eltwise_add --rows=16 --cols=64 | %golden %s
builtin.module {
  func.func private @round_to_even_bf16_128(memref<128xbf16, 2>) -> () attributes {link_with = "round_to_even_bf16_128.o", link_source = "round_to_even.cc", link_defines = "round_to_even=round_to_even_bf16_128", llvm.emit_c_interface}
  func.func @eltwise_add(%a: memref<16x64xbf16>, %b: memref<16x64xbf16>, %out: memref<16x64xbf16>) {
    air.launch () in () args(%a_1=%a, %b_1=%b, %out_1=%out) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
      air.segment @eltwise_add_segment args(%a_2=%a_1, %b_2=%b_1, %out_2=%out_1) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @eltwise_add_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%a_3=%a_2, %b_3=%b_2, %out_3=%out_2) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c128 = arith.constant 128 : index
          %c16 = arith.constant 16 : index
          %bf16_constant = arith.constant 0.000000e+00 : bf16
          %l1_a = memref.alloc() : memref<128xbf16, 2>
          %l1_b = memref.alloc() : memref<128xbf16, 2>
          %l1_out = memref.alloc() : memref<128xbf16, 2>
          air.dma_memcpy_nd (%l1_a[] [] [], %a_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1]) : (memref<128xbf16, 2>, memref<16x64xbf16>)
          air.dma_memcpy_nd (%l1_b[] [] [], %b_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1]) : (memref<128xbf16, 2>, memref<16x64xbf16>)
          func.call @round_to_even_bf16_128(%l1_out) : (memref<128xbf16, 2>) -> ()
          scf.for %i = %c0 to %c128 step %c16 {
            %0 = vector.transfer_read %l1_a[%i], %bf16_constant {in_bounds = [true]} : memref<128xbf16, 2>, vector<16xbf16>
            %1 = vector.transfer_read %l1_b[%i], %bf16_constant {in_bounds = [true]} : memref<128xbf16, 2>, vector<16xbf16>
            %2 = arith.addf %0, %1 : vector<16xbf16>
            vector.transfer_write %2, %l1_out[%i] {in_bounds = [true]} : vector<16xbf16>, memref<128xbf16, 2>
          }
          air.dma_memcpy_nd (%out_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1], %l1_out[] [] []) : (memref<16x64xbf16>, memref<128xbf16, 2>)
          memref.dealloc %l1_a : memref<128xbf16, 2>
          memref.dealloc %l1_b : memref<128xbf16, 2>
          memref.dealloc %l1_out : memref<128xbf16, 2>
        }
      }
    }
    func.return
  }
}
