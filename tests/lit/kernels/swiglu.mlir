// silu(gate) * up.
// RUN: %kernels show swiglu --rows=16 --cols=64 | %golden %s
builtin.module {
  func.func private @silu_and_mul_bf16_128(memref<128xbf16, 2>, memref<128xbf16, 2>, memref<128xbf16, 2>, i32) -> () attributes {link_with = "silu_and_mul_128.o", link_source = "silu_and_mul.cc", link_defines = "silu_and_mul_bf16=silu_and_mul_bf16_128", link_optimize = "O2", llvm.emit_c_interface}
  func.func @swiglu(%gate: memref<16x64xbf16>, %up: memref<16x64xbf16>, %out: memref<16x64xbf16>) {
    air.launch () in () args(%gate_1=%gate, %up_1=%up, %out_1=%out) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
      air.segment @swiglu_segment args(%gate_2=%gate_1, %up_2=%up_1, %out_2=%out_1) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @swiglu_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%gate_3=%gate_2, %up_3=%up_2, %out_3=%out_2) : memref<16x64xbf16>, memref<16x64xbf16>, memref<16x64xbf16> {
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c128 = arith.constant 128 : index
          %i32_constant = arith.constant 128 : i32
          %l1_gate = memref.alloc() : memref<128xbf16, 2>
          %l1_up = memref.alloc() : memref<128xbf16, 2>
          %l1_out = memref.alloc() : memref<128xbf16, 2>
          air.dma_memcpy_nd (%l1_gate[] [] [], %gate_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1]) : (memref<128xbf16, 2>, memref<16x64xbf16>)
          air.dma_memcpy_nd (%l1_up[] [] [], %up_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1]) : (memref<128xbf16, 2>, memref<16x64xbf16>)
          func.call @silu_and_mul_bf16_128(%l1_gate, %l1_up, %l1_out, %i32_constant) : (memref<128xbf16, 2>, memref<128xbf16, 2>, memref<128xbf16, 2>, i32) -> ()
          air.dma_memcpy_nd (%out_3[%hx, %c0] [%c1_1, %c128] [%c128, %c1_1], %l1_out[] [] []) : (memref<16x64xbf16>, memref<128xbf16, 2>)
          memref.dealloc %l1_gate : memref<128xbf16, 2>
          memref.dealloc %l1_up : memref<128xbf16, 2>
          memref.dealloc %l1_out : memref<128xbf16, 2>
        }
      }
    }
    func.return
  }
}
