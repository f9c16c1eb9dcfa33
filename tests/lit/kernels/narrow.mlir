// f32 rows in, bf16 rows out.
// RUN: %kernels show narrow --rows=16 --cols=64 | %golden %s
builtin.module {
  func.func private @round_to_even_bf16_128(memref<128xbf16, 2>) -> () attributes {link_with = "round_to_even_bf16_128.o", link_source = "round_to_even.cc", link_defines = "round_to_even=round_to_even_bf16_128", llvm.emit_c_interface}
  func.func @narrow(%x: memref<16x64xf32>, %out: memref<16x64xbf16>) {
    air.launch () in () args(%x_1=%x, %out_1=%out) : memref<16x64xf32>, memref<16x64xbf16> {
      air.segment @narrow_segment args(%x_2=%x_1, %out_2=%out_1) : memref<16x64xf32>, memref<16x64xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @narrow_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%x_3=%x_2, %out_3=%out_2) : memref<16x64xf32>, memref<16x64xbf16> {
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c128 = arith.constant 128 : index
          %c16 = arith.constant 16 : index
          %f32_constant = arith.constant 0.000000e+00 : f32
          %l1_x = memref.alloc() : memref<128xf32, 2>
          %l1_out = memref.alloc() : memref<128xbf16, 2>
          air.dma_memcpy_nd (%l1_x[] [] [], %x_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1]) : (memref<128xf32, 2>, memref<16x64xf32>)
          func.call @round_to_even_bf16_128(%l1_out) : (memref<128xbf16, 2>) -> ()
          scf.for %i = %c0 to %c128 step %c16 {
            %0 = vector.transfer_read %l1_x[%i], %f32_constant {in_bounds = [true]} : memref<128xf32, 2>, vector<16xf32>
            %1 = arith.truncf %0 : vector<16xf32> to vector<16xbf16>
            vector.transfer_write %1, %l1_out[%i] {in_bounds = [true]} : vector<16xbf16>, memref<128xbf16, 2>
          }
          air.dma_memcpy_nd (%out_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1], %l1_out[] [] []) : (memref<16x64xbf16>, memref<128xbf16, 2>)
          memref.dealloc %l1_x : memref<128xf32, 2>
          memref.dealloc %l1_out : memref<128xbf16, 2>
        }
      }
    }
    func.return
  }
}
