// Layer 1 of 2: eight cores with eight positions each, two heads.
// RUN: %kernels show cache_update --layer=1 --layers=2 --block=4 --max-len=64 --n-kv-heads=2 --head-dim=64 | %golden %s
builtin.module {
  air.channel @changes_in [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  air.channel @changes [1, 1] {channel_type = "npu_dma_stream", broadcast_shape = [8, 1]}
  air.channel @cache_in [8] {channel_type = "npu_dma_stream"}
  air.channel @cache_out [8] {channel_type = "npu_dma_stream"}
  func.func private @cache_update_4x64(memref<8x64xbf16, 2>, memref<64xbf16, 2>, memref<64x4xbf16, 2>, memref<4x64xbf16, 2>, memref<8x64xbf16, 2>, i32, i32) -> () attributes {link_with = "cache_update_4x64.o", link_source = "cache_update.cc", link_defines = "cache_update_bf16=cache_update_4x64 CACHE_BLOCK=4 CACHE_HEAD_DIM=64", llvm.emit_c_interface}
  func.func @cache_update(%k: memref<4x128xbf16>, %v: memref<4x128xbf16>, %kv_cache: memref<2x2x1x2x64x64xbf16>, %insert_matrix: memref<2x1x1x64x4xbf16>, %keep_mask: memref<2x1x1x64x1xbf16>, %updated_cache: memref<2x2x1x2x64x64xbf16>) {
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c1, %lsy=%c1) args(%keep_mask_1=%keep_mask, %insert_matrix_1=%insert_matrix, %k_1=%k, %v_1=%v, %kv_cache_1=%kv_cache, %updated_cache_1=%updated_cache) : memref<2x1x1x64x1xbf16>, memref<2x1x1x64x4xbf16>, memref<4x128xbf16>, memref<4x128xbf16>, memref<2x2x1x2x64x64xbf16>, memref<2x2x1x2x64x64xbf16> {
      %c0 = arith.constant 0 : index
      %c1_1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %c4 = arith.constant 4 : index
      %c256 = arith.constant 256 : index
      %c2 = arith.constant 2 : index
      %c128 = arith.constant 128 : index
      %c8 = arith.constant 8 : index
      %c16384 = arith.constant 16384 : index
      %c8192 = arith.constant 8192 : index
      %c4096 = arith.constant 4096 : index
      %c3 = arith.constant 3 : index
      %c5 = arith.constant 5 : index
      %c6 = arith.constant 6 : index
      %c7 = arith.constant 7 : index
      %at = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%ly]
      air.channel.put @changes_in[%c0] (%keep_mask_1[%c1_1, %lx, %c0, %at, %c0] [%c1_1, %c1_1, %c1_1, %c64, %c1_1] [%c64, %c64, %c64, %c1_1, %c1_1]) : (memref<2x1x1x64x1xbf16>)
      air.channel.put @changes_in[%c0] (%insert_matrix_1[%c1_1, %lx, %c0, %at, %c0] [%c1_1, %c1_1, %c1_1, %c64, %c4] [%c256, %c256, %c256, %c4, %c1_1]) : (memref<2x1x1x64x4xbf16>)
      scf.for %i = %c0 to %c2 step %c1_1 {
        %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 4))> ()[%lx]
        %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%i]
        air.channel.put @changes_in[%c0] (%k_1[%at_1, %at_2] [%c4, %c64] [%c128, %c1_1]) : (memref<4x128xbf16>)
      }
      scf.for %i_1 = %c0 to %c2 step %c1_1 {
        %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 4))> ()[%lx]
        %at_4 = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%i_1]
        air.channel.put @changes_in[%c0] (%v_1[%at_3, %at_4] [%c4, %c64] [%c128, %c1_1]) : (memref<4x128xbf16>)
      }
      scf.for %i_2 = %c0 to %c2 step %c1_1 {
        scf.for %i_3 = %c0 to %c2 step %c1_1 {
          air.channel.put @cache_in[%c0] (%kv_cache_1[%c1_1, %i_2, %lx, %i_3, %at, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_4 = %c0 to %c2 step %c1_1 {
        scf.for %i_5 = %c0 to %c2 step %c1_1 {
          air.channel.get @cache_out[%c0] (%updated_cache_1[%c1_1, %i_4, %lx, %i_5, %at, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_6 = %c0 to %c2 step %c1_1 {
        scf.for %i_7 = %c0 to %c2 step %c1_1 {
          %at_5 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 8))> ()[%ly]
          air.channel.put @cache_in[%c1_1] (%kv_cache_1[%c1_1, %i_6, %lx, %i_7, %at_5, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_8 = %c0 to %c2 step %c1_1 {
        scf.for %i_9 = %c0 to %c2 step %c1_1 {
          %at_6 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 8))> ()[%ly]
          air.channel.get @cache_out[%c1_1] (%updated_cache_1[%c1_1, %i_8, %lx, %i_9, %at_6, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_10 = %c0 to %c2 step %c1_1 {
        scf.for %i_11 = %c0 to %c2 step %c1_1 {
          %at_7 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 16))> ()[%ly]
          air.channel.put @cache_in[%c2] (%kv_cache_1[%c1_1, %i_10, %lx, %i_11, %at_7, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_12 = %c0 to %c2 step %c1_1 {
        scf.for %i_13 = %c0 to %c2 step %c1_1 {
          %at_8 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 16))> ()[%ly]
          air.channel.get @cache_out[%c2] (%updated_cache_1[%c1_1, %i_12, %lx, %i_13, %at_8, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_14 = %c0 to %c2 step %c1_1 {
        scf.for %i_15 = %c0 to %c2 step %c1_1 {
          %at_9 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 24))> ()[%ly]
          air.channel.put @cache_in[%c3] (%kv_cache_1[%c1_1, %i_14, %lx, %i_15, %at_9, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_16 = %c0 to %c2 step %c1_1 {
        scf.for %i_17 = %c0 to %c2 step %c1_1 {
          %at_10 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 24))> ()[%ly]
          air.channel.get @cache_out[%c3] (%updated_cache_1[%c1_1, %i_16, %lx, %i_17, %at_10, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_18 = %c0 to %c2 step %c1_1 {
        scf.for %i_19 = %c0 to %c2 step %c1_1 {
          %at_11 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 32))> ()[%ly]
          air.channel.put @cache_in[%c4] (%kv_cache_1[%c1_1, %i_18, %lx, %i_19, %at_11, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_20 = %c0 to %c2 step %c1_1 {
        scf.for %i_21 = %c0 to %c2 step %c1_1 {
          %at_12 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 32))> ()[%ly]
          air.channel.get @cache_out[%c4] (%updated_cache_1[%c1_1, %i_20, %lx, %i_21, %at_12, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_22 = %c0 to %c2 step %c1_1 {
        scf.for %i_23 = %c0 to %c2 step %c1_1 {
          %at_13 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 40))> ()[%ly]
          air.channel.put @cache_in[%c5] (%kv_cache_1[%c1_1, %i_22, %lx, %i_23, %at_13, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_24 = %c0 to %c2 step %c1_1 {
        scf.for %i_25 = %c0 to %c2 step %c1_1 {
          %at_14 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 40))> ()[%ly]
          air.channel.get @cache_out[%c5] (%updated_cache_1[%c1_1, %i_24, %lx, %i_25, %at_14, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_26 = %c0 to %c2 step %c1_1 {
        scf.for %i_27 = %c0 to %c2 step %c1_1 {
          %at_15 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 48))> ()[%ly]
          air.channel.put @cache_in[%c6] (%kv_cache_1[%c1_1, %i_26, %lx, %i_27, %at_15, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_28 = %c0 to %c2 step %c1_1 {
        scf.for %i_29 = %c0 to %c2 step %c1_1 {
          %at_16 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 48))> ()[%ly]
          air.channel.get @cache_out[%c6] (%updated_cache_1[%c1_1, %i_28, %lx, %i_29, %at_16, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_30 = %c0 to %c2 step %c1_1 {
        scf.for %i_31 = %c0 to %c2 step %c1_1 {
          %at_17 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 56))> ()[%ly]
          air.channel.put @cache_in[%c7] (%kv_cache_1[%c1_1, %i_30, %lx, %i_31, %at_17, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      scf.for %i_32 = %c0 to %c2 step %c1_1 {
        scf.for %i_33 = %c0 to %c2 step %c1_1 {
          %at_18 = affine.apply affine_map<()[s0] -> (((s0 * 64) + 56))> ()[%ly]
          air.channel.get @cache_out[%c7] (%updated_cache_1[%c1_1, %i_32, %lx, %i_33, %at_18, %c0] [%c1_1, %c1_1, %c1_1, %c1_1, %c8, %c64] [%c16384, %c8192, %c8192, %c4096, %c64, %c1_1]) : (memref<2x2x1x2x64x64xbf16>)
        }
      }
      air.segment @cache_update_segment {
        %c0_1 = arith.constant 0 : index
        %c1_2 = arith.constant 1 : index
        %c4_1 = arith.constant 4 : index
        %c8_1 = arith.constant 8 : index
        %l2_change = memref.alloc() : memref<64xbf16, 1>
        scf.for %i_34 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @changes_in[%c0_1] (%l2_change[] [] []) : (memref<64xbf16, 1>)
          air.channel.put @changes[%c0_1, %c0_1] (%l2_change[] [] []) : (memref<64xbf16, 1>)
        }
        %l2_change_1 = memref.alloc() : memref<64x4xbf16, 1>
        scf.for %i_35 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @changes_in[%c0_1] (%l2_change_1[] [] []) : (memref<64x4xbf16, 1>)
          air.channel.put @changes[%c0_1, %c0_1] (%l2_change_1[] [] []) : (memref<64x4xbf16, 1>)
        }
        %l2_change_2 = memref.alloc() : memref<4x64xbf16, 1>
        scf.for %i_36 = %c0_1 to %c4_1 step %c1_2 {
          air.channel.get @changes_in[%c0_1] (%l2_change_2[] [] []) : (memref<4x64xbf16, 1>)
          air.channel.put @changes[%c0_1, %c0_1] (%l2_change_2[] [] []) : (memref<4x64xbf16, 1>)
        }
        air.herd @cache_update_herd tile (%hx, %hy) in (%hsx=%c8_1, %hsy=%c1_2) {
          %c0_2 = arith.constant 0 : index
          %c4_2 = arith.constant 4 : index
          %c1_3 = arith.constant 1 : index
          %i32_constant = arith.constant 8 : i32
          %l1_cache = memref.alloc() : memref<8x64xbf16, 2>
          %l1_keep = memref.alloc() : memref<64xbf16, 2>
          %l1_insert = memref.alloc() : memref<64x4xbf16, 2>
          %l1_rows = memref.alloc() : memref<4x64xbf16, 2>
          %l1_out = memref.alloc() : memref<8x64xbf16, 2>
          air.channel.get @changes[%hx, %hy] (%l1_keep[] [] []) : (memref<64xbf16, 2>)
          air.channel.get @changes[%hx, %hy] (%l1_insert[] [] []) : (memref<64x4xbf16, 2>)
          scf.for %i_37 = %c0_2 to %c4_2 step %c1_3 {
            air.channel.get @changes[%hx, %hy] (%l1_rows[] [] []) : (memref<4x64xbf16, 2>)
            air.channel.get @cache_in[%hx] (%l1_cache[] [] []) : (memref<8x64xbf16, 2>)
            %0 = arith.index_cast %hx : index to i32
            func.call @cache_update_4x64(%l1_cache, %l1_keep, %l1_insert, %l1_rows, %l1_out, %0, %i32_constant) : (memref<8x64xbf16, 2>, memref<64xbf16, 2>, memref<64x4xbf16, 2>, memref<4x64xbf16, 2>, memref<8x64xbf16, 2>, i32, i32) -> ()
            air.channel.put @cache_out[%hx] (%l1_out[] [] []) : (memref<8x64xbf16, 2>)
          }
          memref.dealloc %l1_cache : memref<8x64xbf16, 2>
          memref.dealloc %l1_keep : memref<64xbf16, 2>
          memref.dealloc %l1_insert : memref<64x4xbf16, 2>
          memref.dealloc %l1_rows : memref<4x64xbf16, 2>
          memref.dealloc %l1_out : memref<8x64xbf16, 2>
        }
        memref.dealloc %l2_change : memref<64xbf16, 1>
        memref.dealloc %l2_change_1 : memref<64x4xbf16, 1>
        memref.dealloc %l2_change_2 : memref<4x64xbf16, 1>
      }
    }
    func.return
  }
}
