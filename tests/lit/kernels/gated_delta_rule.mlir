// The gated delta rule over a run of positions, a head in tiles of columns.
// RUN: %kernels show gated_delta_rule --heads=8 --positions=32 --key-dim=16 --value-dim=32 | %golden %s
builtin.module {
  func.func private @begin_delta_rule_f32_8x16x32(memref<16x32xf32, 2>, memref<16x32xf32, 2>) -> () attributes {link_with = "gated_delta_rule_bf16_8x16x32.o", link_source = "gated_delta_rule.cc", link_defines = "gated_delta_rule_bf16=gated_delta_rule_bf16_8x16x32 begin_delta_rule_f32=begin_delta_rule_f32_8x16x32 DELTA_KEY=16 DELTA_VALUE=32 DELTA_TILE=32", llvm.emit_c_interface}
  func.func private @gated_delta_rule_bf16_8x16x32(memref<8x80xbf16, 2>, memref<32xf32, 2>, memref<16x32xf32, 2>, memref<8x32xbf16, 2>, i32, i32) -> () attributes {link_with = "gated_delta_rule_bf16_8x16x32.o", link_source = "gated_delta_rule.cc", link_defines = "gated_delta_rule_bf16=gated_delta_rule_bf16_8x16x32 begin_delta_rule_f32=begin_delta_rule_f32_8x16x32 DELTA_KEY=16 DELTA_VALUE=32 DELTA_TILE=32", llvm.emit_c_interface}
  func.func @gated_delta_rule(%rows: memref<8x32x80xbf16>, %state: memref<8x16x32xf32>, %out: memref<32x256xbf16>, %state_out: memref<8x16x32xf32>) {
    air.launch () in () args(%state_1=%state, %rows_1=%rows, %out_1=%out, %state_out_1=%state_out) : memref<8x16x32xf32>, memref<8x32x80xbf16>, memref<32x256xbf16>, memref<8x16x32xf32> {
      air.segment @delta_segment args(%state_2=%state_1, %rows_2=%rows_1, %out_2=%out_1, %state_out_2=%state_out_1) : memref<8x16x32xf32>, memref<8x32x80xbf16>, memref<32x256xbf16>, memref<8x16x32xf32> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @delta_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%state_3=%state_2, %rows_3=%rows_2, %out_3=%out_2, %state_out_3=%state_out_2) : memref<8x16x32xf32>, memref<8x32x80xbf16>, memref<32x256xbf16>, memref<8x16x32xf32> {
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %c32 = arith.constant 32 : index
          %c512 = arith.constant 512 : index
          %c8_1 = arith.constant 8 : index
          %c80 = arith.constant 80 : index
          %c2560 = arith.constant 2560 : index
          %i32_constant = arith.constant 8 : i32
          %c256 = arith.constant 256 : index
          %l1_rows = memref.alloc() : memref<8x80xbf16, 2>
          %l1_units = memref.alloc() : memref<32xf32, 2>
          %l1_start = memref.alloc() : memref<16x32xf32, 2>
          %l1_state = memref.alloc() : memref<16x32xf32, 2>
          %l1_out = memref.alloc() : memref<8x32xbf16, 2>
          scf.for %i = %c0 to %c1_1 step %c1_1 {
            scf.for %i_1 = %c0 to %c1_1 step %c1_1 {
              %at = affine.apply affine_map<()[s0, s1, s2] -> (((s0 + s1) + s2))> ()[%hx, %i, %i_1]
              air.dma_memcpy_nd (%l1_start[] [] [], %state_3[%at, %c0, %c0] [%c1_1, %c16, %c32] [%c512, %c32, %c1_1]) : (memref<16x32xf32, 2>, memref<8x16x32xf32>)
              func.call @begin_delta_rule_f32_8x16x32(%l1_start, %l1_state) : (memref<16x32xf32, 2>, memref<16x32xf32, 2>) -> ()
              scf.for %i_2 = %c0 to %c32 step %c8_1 {
                %at_1 = affine.apply affine_map<()[s0, s1] -> ((s0 + s1))> ()[%hx, %i]
                air.dma_memcpy_nd (%l1_rows[] [] [], %rows_3[%at_1, %i_2, %c0] [%c1_1, %c8_1, %c80] [%c2560, %c80, %c1_1]) : (memref<8x80xbf16, 2>, memref<8x32x80xbf16>)
                %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%i_1]
                %0 = arith.index_cast %at_2 : index to i32
                func.call @gated_delta_rule_bf16_8x16x32(%l1_rows, %l1_units, %l1_state, %l1_out, %i32_constant, %0) : (memref<8x80xbf16, 2>, memref<32xf32, 2>, memref<16x32xf32, 2>, memref<8x32xbf16, 2>, i32, i32) -> ()
                %at_3 = affine.apply affine_map<()[s0, s1, s2] -> ((((s0 * 32) + (s1 * 32)) + (s2 * 32)))> ()[%hx, %i, %i_1]
                air.dma_memcpy_nd (%out_3[%i_2, %at_3] [%c8_1, %c32] [%c256, %c1_1], %l1_out[] [] []) : (memref<32x256xbf16>, memref<8x32xbf16, 2>)
              }
              air.dma_memcpy_nd (%state_out_3[%at, %c0, %c0] [%c1_1, %c16, %c32] [%c512, %c32, %c1_1], %l1_state[] [] []) : (memref<8x16x32xf32>, memref<16x32xf32, 2>)
            }
          }
          memref.dealloc %l1_rows : memref<8x80xbf16, 2>
          memref.dealloc %l1_units : memref<32xf32, 2>
          memref.dealloc %l1_start : memref<16x32xf32, 2>
          memref.dealloc %l1_state : memref<16x32xf32, 2>
          memref.dealloc %l1_out : memref<8x32xbf16, 2>
        }
      }
    }
    func.return
  }
}
