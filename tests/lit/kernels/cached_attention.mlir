// Two K/V tiles in two rows of cores, two query heads in a tile, one round.
// RUN: %kernels show cached_attention --n=4 --m=128 --n-heads=2 --n-kv-heads=1 --head-dim=64 | %golden %s
builtin.module {
  air.channel @q_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  air.channel @k_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 1 : i32}
  air.channel @k_in_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 2 : i32}
  air.channel @v_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 3 : i32}
  air.channel @v_in_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 4 : i32}
  air.channel @q_l1 [1, 1] {channel_type = "npu_dma_stream", broadcast_shape = [1, 2]}
  air.channel @kv_l1 [1, 2] {channel_type = "npu_dma_stream", broadcast_shape = [1, 2]}
  air.channel @partial [1, 1] {channel_type = "npu_cascade"}
  air.channel @out_l2 [1] {channel_type = "npu_dma_stream"}
  air.channel @out_l3_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  func.func private @attn_init_8x64x64_2_heads(memref<512xf32, 2>, memref<32xf32, 2>) -> () attributes {link_with = "attn_8x64x64_2_heads.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 ATTN_HEADS=2 attn_init=attn_init_8x64x64_2_heads attn_seen_scores=attn_seen_scores_8x64x64_2_heads attn_seen_values=attn_seen_values_8x64x64_2_heads attn_merge=attn_merge_8x64x64_2_heads attn_store=attn_store_8x64x64_2_heads", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_seen_scores_8x64x64_2_heads(memref<512xbf16, 2>, memref<4096xbf16, 2>, memref<16xi32, 2>, i32, memref<512xf32, 2>) -> () attributes {link_with = "attn_8x64x64_2_heads.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 ATTN_HEADS=2 attn_init=attn_init_8x64x64_2_heads attn_seen_scores=attn_seen_scores_8x64x64_2_heads attn_seen_values=attn_seen_values_8x64x64_2_heads attn_merge=attn_merge_8x64x64_2_heads attn_store=attn_store_8x64x64_2_heads", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_seen_values_8x64x64_2_heads(memref<512xf32, 2>, memref<16xi32, 2>, i32, memref<512xbf16, 2>, memref<4096xbf16, 2>, memref<32xf32, 2>, memref<512xf32, 2>) -> () attributes {link_with = "attn_8x64x64_2_heads.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 ATTN_HEADS=2 attn_init=attn_init_8x64x64_2_heads attn_seen_scores=attn_seen_scores_8x64x64_2_heads attn_seen_values=attn_seen_values_8x64x64_2_heads attn_merge=attn_merge_8x64x64_2_heads attn_store=attn_store_8x64x64_2_heads", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_merge_8x64x64_2_heads(memref<512xf32, 2>, memref<32xf32, 2>, memref<512xf32, 2>, memref<32xf32, 2>) -> () attributes {link_with = "attn_8x64x64_2_heads.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 ATTN_HEADS=2 attn_init=attn_init_8x64x64_2_heads attn_seen_scores=attn_seen_scores_8x64x64_2_heads attn_seen_values=attn_seen_values_8x64x64_2_heads attn_merge=attn_merge_8x64x64_2_heads attn_store=attn_store_8x64x64_2_heads", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_store_8x64x64_2_heads(memref<512xf32, 2>, memref<32xf32, 2>, memref<512xbf16, 2>) -> () attributes {link_with = "attn_8x64x64_2_heads.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 ATTN_HEADS=2 attn_init=attn_init_8x64x64_2_heads attn_seen_scores=attn_seen_scores_8x64x64_2_heads attn_seen_values=attn_seen_values_8x64x64_2_heads attn_merge=attn_merge_8x64x64_2_heads attn_store=attn_store_8x64x64_2_heads", link_optimize = "O2", llvm.emit_c_interface}
  func.func @cached_attention(%q: memref<4x128xbf16>, %k: memref<1x128x64xbf16>, %v: memref<1x128x64xbf16>, %mask: memref<4x4xi32>, %out: memref<4x128xbf16>) {
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c1, %lsy=%c1) args(%q_1=%q, %mask_1=%mask, %out_1=%out, %k_1=%k, %v_1=%v) : memref<4x128xbf16>, memref<4x4xi32>, memref<4x128xbf16>, memref<1x128x64xbf16>, memref<1x128x64xbf16> {
      %c0 = arith.constant 0 : index
      %c4 = arith.constant 4 : index
      %c128 = arith.constant 128 : index
      %c1_1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %c8192 = arith.constant 8192 : index
      %at = affine.apply affine_map<()[s0] -> ((s0 * 4))> ()[%ly]
      %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%lx]
      air.channel.put @q_in_0[%c0] (%q_1[%at, %at_1] [%c4, %c128] [%c128, %c1_1]) : (memref<4x128xbf16>)
      air.channel.put @q_in_0[%c0] (%mask_1[%at, %c0] [%c4, %c4] [%c4, %c1_1]) : (memref<4x4xi32>)
      air.channel.get @out_l3_0[%c0] (%out_1[%at, %at_1] [%c4, %c128] [%c128, %c1_1]) : (memref<4x128xbf16>)
      scf.for %i = %c0 to %c1_1 step %c1_1 {
        %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%i]
        air.channel.put @k_in_0[%c0] (%k_1[%lx, %at_2, %c0] [%c1_1, %c64, %c64] [%c8192, %c64, %c1_1]) : (memref<1x128x64xbf16>)
      }
      scf.for %i_1 = %c0 to %c1_1 step %c1_1 {
        %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%i_1]
        air.channel.put @v_in_0[%c0] (%v_1[%lx, %at_3, %c0] [%c1_1, %c64, %c64] [%c8192, %c64, %c1_1]) : (memref<1x128x64xbf16>)
      }
      scf.for %i_2 = %c0 to %c1_1 step %c1_1 {
        %at_4 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 64))> ()[%i_2]
        air.channel.put @k_in_1[%c0] (%k_1[%lx, %at_4, %c0] [%c1_1, %c64, %c64] [%c8192, %c64, %c1_1]) : (memref<1x128x64xbf16>)
      }
      scf.for %i_3 = %c0 to %c1_1 step %c1_1 {
        %at_5 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 64))> ()[%i_3]
        air.channel.put @v_in_1[%c0] (%v_1[%lx, %at_5, %c0] [%c1_1, %c64, %c64] [%c8192, %c64, %c1_1]) : (memref<1x128x64xbf16>)
      }
      air.segment @attention_segment {
        %c0_1 = arith.constant 0 : index
        %c8 = arith.constant 8 : index
        %c64_1 = arith.constant 64 : index
        %c1_2 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %c4_1 = arith.constant 4 : index
        %l2_q = memref.alloc() : memref<8x64xbf16, 1>
        air.channel.get @q_in_0[%c0_1] (%l2_q[] [] []) : (memref<8x64xbf16, 1>)
        air.channel.put @q_l1[%c0_1, %c0_1] (%l2_q[%c0_1, %c0_1, %c0_1] [%c8, %c8, %c8] [%c8, %c64_1, %c1_2]) : (memref<8x64xbf16, 1>)
        %l2_mask = memref.alloc() : memref<4x4xi32, 1>
        air.channel.get @q_in_0[%c0_1] (%l2_mask[] [] []) : (memref<4x4xi32, 1>)
        scf.for %i_4 = %c0_1 to %c1_2 step %c1_2 {
          %at_6 = affine.apply affine_map<()[s0] -> ((s0 * 4))> ()[%i_4]
          air.channel.put @q_l1[%c0_1, %c0_1] (%l2_mask[%c0_1, %c0_1, %at_6] [%c2, %c4_1, %c2] [%c2, %c4_1, %c1_2]) : (memref<4x4xi32, 1>)
        }
        %l2_k = memref.alloc() : memref<64x64xbf16, 1>
        %l2_v = memref.alloc() : memref<64x64xbf16, 1>
        scf.for %i_5 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @k_in_0[%c0_1] (%l2_k[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c0_1] (%l2_k[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
          air.channel.get @v_in_0[%c0_1] (%l2_v[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c0_1] (%l2_v[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
        }
        %l2_k_1 = memref.alloc() : memref<64x64xbf16, 1>
        %l2_v_1 = memref.alloc() : memref<64x64xbf16, 1>
        scf.for %i_6 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @k_in_1[%c0_1] (%l2_k_1[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c1_2] (%l2_k_1[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
          air.channel.get @v_in_1[%c0_1] (%l2_v_1[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c1_2] (%l2_v_1[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
        }
        %l2_out = memref.alloc() : memref<8x64xbf16, 1>
        air.channel.get @out_l2[%c0_1] (%l2_out[] [] []) : (memref<8x64xbf16, 1>)
        air.channel.put @out_l3_0[%c0_1] (%l2_out[] [] []) : (memref<8x64xbf16, 1>)
        air.herd @attention_herd tile (%hx, %hy) in (%hsx=%c1_2, %hsy=%c2) {
          %c0_2 = arith.constant 0 : index
          %c1_3 = arith.constant 1 : index
          %c8_1 = arith.constant 8 : index
          %c64_2 = arith.constant 64 : index
          %l1_q = memref.alloc() : memref<512xbf16, 2>
          %l1_k = memref.alloc() : memref<4096xbf16, 2>
          %l1_v = memref.alloc() : memref<4096xbf16, 2>
          %l1_p = memref.alloc() : memref<512xbf16, 2>
          %l1_work = memref.alloc() : memref<512xf32, 2>
          %l1_acc = memref.alloc() : memref<512xf32, 2>
          %l1_stats = memref.alloc() : memref<32xf32, 2>
          %l1_other_stats = memref.alloc() : memref<32xf32, 2>
          %l1_mask = memref.alloc() : memref<16xi32, 2>
          air.channel.get @q_l1[%hx, %hy] (%l1_q[] [] []) : (memref<512xbf16, 2>)
          func.call @attn_init_8x64x64_2_heads(%l1_acc, %l1_stats) : (memref<512xf32, 2>, memref<32xf32, 2>) -> ()
          %bound = affine.apply affine_map<()[s0] -> (((((s0 * -1) + 1) floordiv 2) + 1))> ()[%hy]
          scf.for %i_7 = %c0_2 to %bound step %c1_3 {
            air.channel.get @q_l1[%hx, %hy] (%l1_mask[] [] []) : (memref<16xi32, 2>)
            air.channel.get @kv_l1[%hx, %hy] (%l1_k[] [] []) : (memref<4096xbf16, 2>)
            %0 = arith.index_cast %hy : index to i32
            func.call @attn_seen_scores_8x64x64_2_heads(%l1_q, %l1_k, %l1_mask, %0, %l1_work) : (memref<512xbf16, 2>, memref<4096xbf16, 2>, memref<16xi32, 2>, i32, memref<512xf32, 2>) -> ()
            air.channel.get @kv_l1[%hx, %hy] (%l1_v[] [] []) : (memref<4096xbf16, 2>)
            %1 = arith.index_cast %hy : index to i32
            func.call @attn_seen_values_8x64x64_2_heads(%l1_work, %l1_mask, %1, %l1_p, %l1_v, %l1_stats, %l1_acc) : (memref<512xf32, 2>, memref<16xi32, 2>, i32, memref<512xbf16, 2>, memref<4096xbf16, 2>, memref<32xf32, 2>, memref<512xf32, 2>) -> ()
          }
          affine.if affine_set<()[s0] : ((s0 * -1) >= 0)>()[%hy] {
            air.channel.get @partial[%hx, %hy] (%l1_work[] [] []) : (memref<512xf32, 2>)
            air.channel.get @partial[%hx, %hy] (%l1_other_stats[] [] []) : (memref<32xf32, 2>)
            func.call @attn_merge_8x64x64_2_heads(%l1_work, %l1_other_stats, %l1_acc, %l1_stats) : (memref<512xf32, 2>, memref<32xf32, 2>, memref<512xf32, 2>, memref<32xf32, 2>) -> ()
          }
          affine.if affine_set<()[s0] : ((s0 + -1) >= 0)>()[%hy] {
            %at_7 = affine.apply affine_map<()[s0] -> ((s0 + -1))> ()[%hy]
            air.channel.put @partial[%hx, %at_7] (%l1_acc[] [] []) : (memref<512xf32, 2>)
            air.channel.put @partial[%hx, %at_7] (%l1_stats[] [] []) : (memref<32xf32, 2>)
          }
          affine.if affine_set<()[s0] : (s0 == 0)>()[%hy] {
            func.call @attn_store_8x64x64_2_heads(%l1_acc, %l1_stats, %l1_q) : (memref<512xf32, 2>, memref<32xf32, 2>, memref<512xbf16, 2>) -> ()
            air.channel.put @out_l2[%hx] (%l1_q[%c0_2, %c0_2, %c0_2] [%c8_1, %c8_1, %c8_1] [%c8_1, %c64_2, %c1_3]) : (memref<512xbf16, 2>)
          }
          memref.dealloc %l1_q : memref<512xbf16, 2>
          memref.dealloc %l1_k : memref<4096xbf16, 2>
          memref.dealloc %l1_v : memref<4096xbf16, 2>
          memref.dealloc %l1_p : memref<512xbf16, 2>
          memref.dealloc %l1_work : memref<512xf32, 2>
          memref.dealloc %l1_acc : memref<512xf32, 2>
          memref.dealloc %l1_stats : memref<32xf32, 2>
          memref.dealloc %l1_other_stats : memref<32xf32, 2>
          memref.dealloc %l1_mask : memref<16xi32, 2>
        }
        memref.dealloc %l2_q : memref<8x64xbf16, 1>
        memref.dealloc %l2_mask : memref<4x4xi32, 1>
        memref.dealloc %l2_k : memref<64x64xbf16, 1>
        memref.dealloc %l2_v : memref<64x64xbf16, 1>
        memref.dealloc %l2_k_1 : memref<64x64xbf16, 1>
        memref.dealloc %l2_v_1 : memref<64x64xbf16, 1>
        memref.dealloc %l2_out : memref<8x64xbf16, 1>
      }
    }
    func.return
  }
}
